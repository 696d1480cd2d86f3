"""A new term whose watch of pods is behind the last burst: who is bound is shown as one that waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from extender.core.binding import committed as earlier
from extender.core.binding import run as cycle_runner
from extender.core.binding.records import Records
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.reservation import Reservation, Slot
from serried.kube.retry import Backoff
from serried.kube.wire import PODS
from tests.support.builders import node, pod
from tests.support.extender_harness import GANG, Harness, gang, members
from tests.support.fake_api import FakeApi, error

SLOTS = {"pod-m0": Slot("pod-m0", "m0", "n1"), "pod-m1": Slot("pod-m1", "m1", "n2")}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier, "_READ_PAUSE", Backoff(0.0, 0.0))
    monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))


class TellsBefore(FakeApi):
    """Tells when a Binding is about to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.before_sending: Callable[[], None] = lambda: None

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.before_sending()
        await super().bind(namespace, name, uid, node, annotations, before, labels)


@pytest.fixture
async def cluster() -> AsyncIterator[Harness]:
    """An earlier term has committed m0 to n1 and m1 to n2, which take no others. There is room for both on n3."""
    world = Harness(api=TellsBefore())
    world.add(node("n1").cpu(1).rack("a"), node("n2").cpu(1).rack("a"), node("n3").cpu(2).rack("a"))
    world.add(gang(2).topology(), *members(2))
    left = Reservation(GANG, "podgroup-g", "a", 2, SLOTS, SLOTS.keys())
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)
    yield world
    await world.close()


async def begin_burst(world: Harness) -> None:
    """The earlier term has bound m0, and died; our watch does not show it yet."""
    await world.api.bind("default", "m0", "pod-m0", "n1")
    world.api.calls.clear()


async def recover(world: Harness) -> None:
    assert await world.recovery.recover()
    await world.run_tasks()


def asked(world: Harness) -> list[str]:
    return sorted(call.name for call in world.api.list_calls("get") if call.resource == PODS.plural)


def lose_node(world: Harness) -> None:
    world.store.drop_node("n2")


def cordon(world: Harness) -> None:
    world.add(node("n2").cpu(1).rack("a").cordoned())


def fill_node(world: Harness) -> None:
    world.add(pod("plain").cpu(1).on("n2"))


def lose_group(world: Harness) -> None:
    world.store.drop_group(GANG)


def lose_first_node(world: Harness) -> None:
    world.store.drop_node("n1")


def rename_rack(world: Harness) -> None:
    for name, cpus in (("n1", 1), ("n2", 1), ("n3", 2)):
        world.add(node(name).cpu(cpus).rack("b"))


REFUSALS = [
    pytest.param(lose_node, "n3", id="the node of one that waits is gone"),
    pytest.param(cordon, "n3", id="it is cordoned"),
    pytest.param(fill_node, "n3", id="it is full"),
    pytest.param(lose_first_node, "n2", id="the node of the bound one is gone"),
    pytest.param(rename_rack, "n2", id="their rack has another name"),
    pytest.param(lose_group, "n2", id="the PodGroup is gone"),
]


async def test_one_that_is_shown_bound_elsewhere_when_it_comes_to_the_door_holds_up_nobody() -> None:
    api = TellsBefore()
    world = Harness(api=api)
    world.add(*(node(name).cpu(2).rack("a") for name in ("n0", "n1", "n2")), gang(3).topology(), *members(3))
    slots = {f"pod-m{index}": Slot(f"pod-m{index}", f"m{index}", f"n{index}") for index in range(3)}
    left = Reservation(GANG, "podgroup-g", "a", 3, slots, slots.keys())
    await Records(api.client(), "v1", "earlier").write(gang(3).value(), left)
    await api.bind("default", "m0", "pod-m0", "n1")

    def see() -> None:
        world.group_scheduler.consider(GANG)
        api.before_sending = lambda: None

    def show() -> None:
        world.add(members(1)[0].on("n1"))
        api.before_sending = see

    api.before_sending = show
    await recover(world)
    async with asyncio.timeout(10):
        await world.run_until_idle()
    assert [world.node_of(f"m{index}") for index in range(3)] == ["n1", "n1", "n2"]
    await world.close()


@pytest.mark.parametrize(("happen", "where"), REFUSALS)
async def test_a_commit_of_which_somebody_is_bound_is_not_withdrawn(
    cluster: Harness, happen: Callable[[Harness], None], where: str
) -> None:
    await begin_burst(cluster)
    happen(cluster)
    await recover(cluster)
    cluster.schedule_groups()
    await cluster.run_tasks()
    assert cluster.binding_cycle().reservation.slots["pod-m0"].node == "n1"
    assert cluster.api.record_phase() == "Committed"
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", where)
    assert cluster.nothing_reserved
    assert not cluster.api.list_calls("create")


async def test_nor_if_its_pod_group_goes_when_the_next_binding_is_about_to_be_sent(cluster: Harness) -> None:
    await begin_burst(cluster)
    assert isinstance(cluster.api, TellsBefore)
    cluster.api.before_sending = lambda: cluster.store.drop_group(GANG)
    await recover(cluster)
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n2")
    assert cluster.nothing_reserved


async def test_one_of_which_nobody_is_bound_is_planned_anew(cluster: Harness) -> None:
    lose_node(cluster)
    await recover(cluster)
    assert cluster.nothing_reserved
    await cluster.run_until_idle()
    assert {slot.node for slot in cluster.binding_cycle().reservation.slots.values()} == {"n3"}


async def test_so_is_one_of_which_only_those_are_bound_that_go(cluster: Harness) -> None:
    await begin_burst(cluster)
    cluster.api.pods[cluster.pod_key("m0")]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    lose_group(cluster)
    await recover(cluster)
    assert (cluster.node_of("m1"), cluster.nothing_reserved) == ("", True)


async def test_nobody_is_asked_for_if_nothing_is_in_the_way(cluster: Harness) -> None:
    await begin_burst(cluster)
    await recover(cluster)
    assert asked(cluster) == []
    assert cluster.node_of("m1") == "n2"


async def test_nothing_is_decided_until_the_api_server_says_who_is_bound(cluster: Harness) -> None:
    await begin_burst(cluster)
    lose_node(cluster)
    cluster.api.fail("get", *[error(500)] * 1000)
    await recover(cluster)
    cluster.schedule_groups()
    await cluster.run_tasks()
    assert asked(cluster)
    assert (cluster.api.record_phase(), cluster.api.list_calls("bind"), cluster.api.list_calls("delete")) == (
        "Committed",
        [],
        [],
    )
    cluster.api.recover()
    await cluster.run_tasks()
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n3")


class TestWhileTheApiServerIsAsked:
    """Changes between a request to the API server and its answer."""

    @pytest.fixture
    async def asking(self, cluster: Harness) -> Harness:
        lose_node(cluster)
        cluster.api.hold("get")
        return cluster

    async def test_the_term_may_have_ended_and_the_record_is_the_next_leaders(self, asking: Harness) -> None:
        await begin_burst(asking)
        await recover(asking)
        asking.term.holds_lease = lambda: False
        asking.api.release("get")
        await asking.run_tasks()
        assert not len(asking.ledger)
        assert (asking.api.record_phase(), asking.api.list_calls("bind"), asking.api.list_calls("delete")) == (
            "Committed",
            [],
            [],
        )

    async def test_the_cycle_may_be_over(self, asking: Harness) -> None:
        await begin_burst(asking)
        await recover(asking)
        cycle = asking.binding_cycle()
        asking.core.group_scheduler.end_term()
        asking.core.runner.carry_out()
        asking.api.release("get")
        await asking.run_tasks()
        assert (cycle.stage, cycle.binding_sent) == (CycleStage.ENDED, False)
        assert asking.api.list_calls("bind") == []

    async def test_the_node_may_be_there_again_and_the_commit_holds(self, asking: Harness) -> None:
        await recover(asking)
        asking.add(node("n2").cpu(1).rack("a"))
        asking.api.release("get")
        await asking.run_until_idle()
        assert (asking.node_of("m0"), asking.node_of("m1")) == ("n1", "n2")
        assert len(asking.api.list_calls("create")) == 1

    async def test_the_bound_one_may_have_gone_and_nobody_is_half_a_gang(self, asking: Harness) -> None:
        await begin_burst(asking)
        await recover(asking)
        asking.store.drop_pod("pod-m0")
        asking.api.release("get")
        await asking.run_tasks()
        assert (asking.api.record_phase(), asking.api.list_calls("bind")) == (None, [])

    async def test_the_watch_may_have_shown_the_bound_one(self, asking: Harness) -> None:
        await begin_burst(asking)
        await recover(asking)
        asking.sync_pods()
        asking.schedule_groups()
        asking.api.release("get")
        await asking.run_until_idle()
        assert (asking.node_of("m0"), asking.node_of("m1")) == ("n1", "n3")
        assert asking.nothing_reserved

    async def test_the_watch_may_have_shown_it_on_another_node_as_its_slot_was_moved(self, asking: Harness) -> None:
        await asking.api.bind("default", "m0", "pod-m0", "n3")
        await recover(asking)
        asking.sync_pods()
        lose_group(asking)
        asking.schedule_groups()
        asking.api.release("get")
        await asking.run_tasks()
        await asking.run_until_idle()
        assert (asking.node_of("m0"), asking.node_of("m1")) == ("n3", "n1")
        assert asking.nothing_reserved


@pytest.mark.parametrize(
    ("racks", "domain"),
    [
        pytest.param(
            {"n1": "b", "n2": "b"}, "b", id="all that run are in one domain of another name: the rest follows"
        ),
        pytest.param({"n1": "b", "n2": "c"}, "a", id="those that run are in two domains by now: none of them counts"),
    ],
)
async def test_a_commit_goes_on_in_the_domain_in_which_its_members_run(racks: dict[str, str], domain: str) -> None:
    world = Harness()
    world.add(node("n1").cpu(1).rack("a"), node("n2").cpu(1).rack("a"), node("n3").cpu(1).rack("a"))
    world.add(gang(3).topology(), *members(3))
    slots = SLOTS | {"pod-m2": Slot("pod-m2", "m2", "n3")}
    left = Reservation(GANG, "podgroup-g", "a", 3, slots, slots.keys())
    await Records(world.api.client(), "v1", "earlier").write(gang(3).value(), left)
    for name, place in (("m0", "n1"), ("m1", "n2")):
        await world.api.bind("default", name, f"pod-{name}", place)
    world.sync_pods()
    for name, rack in racks.items():
        world.add(node(name).cpu(1).rack(rack))
    await recover(world)
    assert world.binding_cycle().reservation.domain == domain
    await world.close()
