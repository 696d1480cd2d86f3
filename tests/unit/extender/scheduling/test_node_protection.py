"""Autoscalers leave the nodes alone on which a gang is about to start, and nothing of that stays behind.

The scene: nodes with two CPUs, and gang g, whose members want one CPU each. An autoscaler is seen.
"""

import logging
from collections.abc import AsyncIterator

import pytest

from extender.autoscalers import NO_AUTOSCALERS, FoundAutoscalers
from serried.api.names import Key
from serried.api.node import PROTECTED_BY
from tests.support.builders import node, pod, pod_group
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes
from tests.support.fake_api import Call, FakeApi, error

KARPENTER = "karpenter.sh/do-not-disrupt"
CLUSTER_AUTOSCALER = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
BOTH = {
    KARPENTER: "true",
    CLUSTER_AUTOSCALER: "true",
    PROTECTED_BY: f"serried-system: {CLUSTER_AUTOSCALER}, {KARPENTER}",
}
TAKEOVER = 30


@pytest.fixture
async def cluster(world: Harness) -> Harness:
    see(world, FoundAutoscalers(karpenter=True))
    return world


@pytest.fixture
async def successors() -> AsyncIterator[list[Harness]]:
    """Instances that led after another one, which end with the story."""
    made: list[Harness] = []
    yield made
    for each in made:
        await each.close()


def see(world: Harness, seen: FoundAutoscalers) -> None:
    """Let discovery find these autoscalers."""
    world.core.autoscalers.seen, world.core.autoscalers.known = seen, True


async def pass_time(world: Harness, seconds: float) -> None:
    """Time passes, and the watches show what was written meanwhile."""
    await world.pass_time(seconds)
    world.sync_nodes()
    await world.run_until_idle()


def annotations(world: Harness, name: str) -> dict[str, str]:
    return dict(world.api.nodes[Key("", name)]["metadata"].get("annotations", {}))


def annotate(world: Harness, name: str, values: dict[str, str]) -> None:
    """Change a node as another client would, and let the watch show it."""
    metadata = world.api.nodes[Key("", name)]["metadata"]
    metadata["annotations"] = metadata.get("annotations", {}) | values
    metadata["resourceVersion"] += "1"
    world.sync_nodes()


def protected(world: Harness) -> set[str]:
    return {key.name for key, raw in world.api.nodes.items() if PROTECTED_BY in raw["metadata"].get("annotations", {})}


def of_nodes(world: Harness) -> list[Call]:
    """The calls about nodes."""
    return [call for call in world.api.calls if call.resource == "nodes"]


async def planned(world: Harness, size: int = 4) -> Harness:
    """Gang g has a plan, and takes its time."""
    await world.add(*small_nodes(size // 2), gang(size), *members(size)).run_until_idle()
    assert len(world.binding_cycle().reservation.nodes) == size // 2
    return world


async def bind_all(world: Harness, size: int = 4) -> None:
    for index in range(size):
        world.filter(f"m{index}")
        world.bind(f"m{index}")
    await world.run_until_idle()


def head_waits(world: Harness) -> Harness:
    """Gang g needs both nodes, and one is used: room is kept for it."""
    return world.add(*small_nodes(2), pod("runs").cpu(2).on("n1"), gang(4), *members(4))


class TestANodeThatHoldsAPlan:
    async def test_is_left_alone_by_both_autoscalers_until_the_gang_is_bound(self, cluster: Harness) -> None:
        await planned(cluster)
        await pass_time(cluster, 1.9)
        assert of_nodes(cluster) == []
        await pass_time(cluster, 0.1)
        assert annotations(cluster, "n1") == annotations(cluster, "n2") == BOTH
        await bind_all(cluster)
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1") == annotations(cluster, "n2") == {}

    async def test_costs_nothing_if_the_gang_is_bound_at_once(self, cluster: Harness) -> None:
        await planned(cluster)
        await bind_all(cluster)
        await pass_time(cluster, 60)
        assert not cluster.ledger
        assert of_nodes(cluster) == []

    async def test_is_written_once(self, cluster: Harness) -> None:
        await planned(cluster)
        for _ in range(5):
            await pass_time(cluster, 2)
        assert sorted(call.name for call in cluster.api.list_calls("annotate")) == ["n1", "n2"]

    async def test_is_free_when_its_gang_is_given_up(self, cluster: Harness) -> None:
        await pass_time(await planned(cluster), 2)
        assert protected(cluster) == {"n1", "n2"}
        for index in range(4):
            cluster.delete(f"m{index}")
        cluster.store.drop_group(GANG)
        await pass_time(cluster, 2)
        assert not cluster.ledger
        assert protected(cluster) == set()

    async def test_is_protected_while_bindings_are_sent_only_if_they_come_to_a_stop(self, cluster: Harness) -> None:
        await planned(cluster)
        cluster.clock.advance(1.5)
        for key in [key for key in cluster.api.pods if key.name == "m3"]:
            cluster.api.reject("bind", key, error(500))
        for index in range(4):
            cluster.filter(f"m{index}")
            cluster.bind(f"m{index}")
        await cluster.run_until_idle()
        assert cluster.node_of("m0")
        assert not cluster.node_of("m3")
        await pass_time(cluster, 1)
        assert protected(cluster) == set()
        await pass_time(cluster, 2)
        assert protected(cluster) == {"n1", "n2"}

    async def test_that_is_gone_is_nobody_s_trouble(self, cluster: Harness, caplog: pytest.LogCaptureFixture) -> None:
        await planned(cluster)
        del cluster.api.nodes[Key("", "n1")]  # the watch has not shown it
        await pass_time(cluster, 2)
        assert protected(cluster) == {"n2"}
        assert caplog.records == []


class TestTheRoomOfTheHeadOfTheQueue:
    async def test_is_left_alone_until_the_head_has_started(self, cluster: Harness) -> None:
        await head_waits(cluster).run_until_idle()
        head = cluster.core.backfill.head
        assert head is not None
        assert head.forecast.nodes == {"n1", "n2"}
        await pass_time(cluster, 2)
        assert protected(cluster) == {"n1", "n2"}
        cluster.delete("runs")
        await cluster.run_until_idle()
        await bind_all(cluster)
        await pass_time(cluster, 2)
        assert protected(cluster) == set()

    async def test_is_free_when_the_head_waits_no_more(self, cluster: Harness) -> None:
        await pass_time(head_waits(cluster), 0)
        await pass_time(cluster, 2)
        assert protected(cluster) == {"n1", "n2"}
        for index in range(4):
            cluster.delete(f"m{index}")
        await pass_time(cluster, 2)
        assert cluster.core.backfill.head is None
        assert protected(cluster) == set()


class TestWhatSomebodyElseHasSet:
    @pytest.mark.parametrize("value", ["true", "false"])
    async def test_stays_while_the_node_is_protected_and_afterwards(self, cluster: Harness, value: str) -> None:
        await planned(cluster)
        annotate(cluster, "n1", {KARPENTER: value, "note": "mine"})
        await pass_time(cluster, 2)
        ours = {CLUSTER_AUTOSCALER: "true", PROTECTED_BY: f"serried-system: {CLUSTER_AUTOSCALER}"}
        assert annotations(cluster, "n1") == {KARPENTER: value, "note": "mine"} | ours
        await bind_all(cluster)
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1") == {KARPENTER: value, "note": "mine"}

    async def test_is_not_taken_for_ours_where_it_is_both(self, cluster: Harness) -> None:
        await planned(cluster)
        theirs = {KARPENTER: "true", CLUSTER_AUTOSCALER: "true"}
        annotate(cluster, "n1", theirs)
        for _ in range(3):
            await pass_time(cluster, 2)
        assert annotations(cluster, "n1") == theirs | {PROTECTED_BY: "serried-system:"}
        assert sorted(call.name for call in cluster.api.list_calls("annotate")) == ["n1", "n2"]
        await bind_all(cluster)
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1") == theirs

    async def test_in_the_place_of_ours_stays(self, cluster: Harness) -> None:
        await pass_time(await planned(cluster), 2)
        annotate(cluster, "n1", {KARPENTER: "false"})
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1")[KARPENTER] == "false"
        await bind_all(cluster)
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1") == {KARPENTER: "false"}

    async def test_between_our_read_and_our_write_is_not_overwritten(self, cluster: Harness) -> None:
        await planned(cluster)
        cluster.api.hold("annotate")
        await pass_time(cluster, 2)
        annotate(cluster, "n1", {KARPENTER: "false"})
        cluster.api.release("annotate")
        await cluster.run_tasks()
        assert annotations(cluster, "n1") == {KARPENTER: "false"}
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1")[KARPENTER] == "false"
        assert annotations(cluster, "n1")[PROTECTED_BY] == f"serried-system: {CLUSTER_AUTOSCALER}"

    async def test_is_added_again_while_the_plan_lasts_if_it_is_removed(self, cluster: Harness) -> None:
        await pass_time(await planned(cluster), 2)
        del cluster.api.nodes[Key("", "n1")]["metadata"]["annotations"][KARPENTER]
        cluster.sync_nodes()
        await pass_time(cluster, 2)
        assert annotations(cluster, "n1") == BOTH

    async def test_by_another_installation_is_left_to_it(self, cluster: Harness) -> None:
        await planned(cluster)
        theirs = {
            KARPENTER: "true",
            CLUSTER_AUTOSCALER: "true",
            PROTECTED_BY: f"other: {CLUSTER_AUTOSCALER}, {KARPENTER}",
        }
        annotate(cluster, "n1", theirs)
        await pass_time(cluster, 2)
        assert (protected(cluster), annotations(cluster, "n1")) == ({"n1", "n2"}, theirs)
        await bind_all(cluster)
        await pass_time(cluster, 60)
        assert annotations(cluster, "n1") == theirs
        assert annotations(cluster, "n2") == {}


class TestWithoutAnAutoscaler:
    async def test_no_node_is_touched(self, world: Harness) -> None:
        await pass_time(await planned(world), 60)
        assert of_nodes(world) == []

    async def test_nothing_changes_while_nobody_knows(self, cluster: Harness) -> None:
        await pass_time(await planned(cluster), 2)
        cluster.core.autoscalers.known = False
        await bind_all(cluster)
        await pass_time(cluster, 60)
        assert protected(cluster) == {"n1", "n2"}
        see(cluster, FoundAutoscalers(karpenter=True))
        await pass_time(cluster, 2)
        assert protected(cluster) == set()

    async def test_what_was_set_is_taken_off(self, cluster: Harness) -> None:
        await pass_time(await planned(cluster), 2)
        see(cluster, NO_AUTOSCALERS)
        await pass_time(cluster, 2)
        assert cluster.binding_cycle().reservation.nodes == {"n1", "n2"}
        assert annotations(cluster, "n1") == annotations(cluster, "n2") == {}


class TestALeaderThatDies:
    async def lead(self, api: FakeApi) -> Harness:
        """The next instance begins its term, and sees what is there."""
        after = Harness(api=api)
        see(after, FoundAutoscalers(karpenter=True))
        after.sync_nodes()
        after.add(gang(4))
        after.sync_pods()
        await after.recovery.recover()
        after.group_scheduler.begin_term(after.wall_time())
        return after

    async def test_leaves_what_the_next_one_takes_off(self, cluster: Harness, successors: list[Harness]) -> None:
        await pass_time(await planned(cluster), 2)
        cluster.core.end_term()
        for index in range(4):
            cluster.delete(f"m{index}")
        await cluster.run_tasks()
        assert protected(cluster) == {"n1", "n2"}

        after = await self.lead(cluster.api)
        successors.append(after)
        await pass_time(after, TAKEOVER - 1)
        assert protected(after) == {"n1", "n2"}  # it may not know all gangs that wait
        await pass_time(after, 1)
        assert annotations(after, "n1") == annotations(after, "n2") == {}

    async def test_leaves_what_the_next_one_needs_as_it_is(self, cluster: Harness, successors: list[Harness]) -> None:
        await pass_time(await planned(cluster), 2)
        cluster.core.end_term()
        await cluster.run_tasks()
        written = len(cluster.api.list_calls("annotate"))

        after = await self.lead(cluster.api)
        successors.append(after)
        await pass_time(after, 0)
        assert after.binding_cycle().reservation.nodes == {"n1", "n2"}
        await pass_time(after, TAKEOVER)
        assert protected(after) == {"n1", "n2"}
        assert len(after.api.list_calls("annotate")) == written

    async def test_in_the_middle_of_its_writes_has_them_done_when_it_leads_again(self, cluster: Harness) -> None:
        await planned(cluster)
        cluster.api.hold("annotate")
        await pass_time(cluster, 2)
        assert len(cluster.api.list_calls("annotate")) == 2
        cluster.core.end_term()
        cluster.api.stop_holding("annotate")
        await cluster.run_tasks()
        await cluster.recovery.recover()
        cluster.term.active = True
        cluster.group_scheduler.begin_term(cluster.wall_time())
        await pass_time(cluster, 0)
        await pass_time(cluster, 2)
        assert protected(cluster) == {"n1", "n2"}


class TestManyNodes:
    async def test_are_written_few_at_a_time(self, cluster: Harness) -> None:
        await planned(cluster, 100)
        cluster.api.hold("annotate")
        await pass_time(cluster, 2)
        assert len(cluster.api.list_calls("annotate")) == 16
        cluster.api.release("annotate")
        await pass_time(cluster, 0)
        assert len(protected(cluster)) == 50

    async def test_that_are_free_again_before_their_turn_are_not_touched(self, cluster: Harness) -> None:
        await planned(cluster, 100)
        cluster.api.hold("annotate")
        await pass_time(cluster, 2)
        see(cluster, NO_AUTOSCALERS)
        await cluster.run_until_idle()
        cluster.api.release("annotate")
        await pass_time(cluster, 0)
        await pass_time(cluster, 2)
        assert len(cluster.api.list_calls("list")) == 2 * 16
        assert len({call.name for call in cluster.api.list_calls("annotate")}) == 16
        assert protected(cluster) == set()


class TestAnApiServer:
    async def test_that_refuses_is_asked_again_after_a_minute_and_that_is_said_once(
        self, cluster: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        await planned(cluster, 100)
        for key in cluster.api.nodes:
            cluster.api.reject("annotate", key, error(403))
        for _ in range(59):
            await pass_time(cluster, 1)
        asked = len(cluster.api.list_calls("annotate"))
        assert 3 <= asked <= 16
        await pass_time(cluster, 3)
        assert asked < len(cluster.api.list_calls("annotate")) <= 2 * 16
        said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert said == ["cannot protect nodes from removal by autoscalers"]
        assert "403" in cluster.core.node_protection.write_error
        cluster.api.recover()
        await pass_time(cluster, 60)
        await pass_time(cluster, 60)
        assert len(protected(cluster)) == 50
        assert cluster.core.node_protection.write_error == ""

    async def test_that_refuses_one_node_is_asked_about_the_others(
        self, cluster: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        await head_waits(cluster).run_until_idle()
        cluster.api.reject("annotate", Key("", "n1"), error(422))
        await pass_time(cluster, 2)
        for _ in range(3):
            assert protected(cluster) == {"n2"}
            await pass_time(cluster, 60)
        assert sorted(call.name for call in cluster.api.list_calls("annotate")) == ["n1", "n1", "n1", "n1", "n2"]
        said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert said == ["cannot protect nodes from removal by autoscalers"]

    async def test_that_does_not_answer_is_asked_again(self, cluster: Harness) -> None:
        await planned(cluster)
        cluster.api.fail("list", error(0), error(503))
        await pass_time(cluster, 2)
        assert protected(cluster) == set()
        await pass_time(cluster, 2)
        assert protected(cluster) == {"n1", "n2"}


async def test_a_node_that_several_gangs_hold_is_protected_since_the_first_of_them(cluster: Harness) -> None:
    await cluster.add(node("n1").cpu(4), gang(2), *members(2)).run_until_idle()
    cluster.clock.advance(1.5)
    other = [each.in_group("h") for each in members(2, 10)]
    await cluster.add(pod_group("h").gang(2), *other).run_until_idle()
    await pass_time(cluster, 0.5)
    assert protected(cluster) == {"n1"}
