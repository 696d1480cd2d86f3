"""Pods of no gang are kept off the nodes of the head of the queue, where a setting says so.

The scene is that of `test_backfill`: rack a is kept for gang g, which wants one rack whole; rack b is full for an hour.
"""

from collections.abc import AsyncIterator

import pytest

from extender.core.binding.nominator import ACTIVATION_ANNOTATION
from extender.core.protocol import Answer, Candidate, Narrow, Pass
from extender.features.plain_pods import PlainPods
from extender.options import PlainPodRule
from serried.api.names import GroupKey, Key
from tests.support.builders import RACK, PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members
from tests.support.memory import read_memory
from tests.unit.extender.scheduling.test_backfill import MINUTE, kept, large, racks
from tests.unit.extender.scheduling.test_waves import HIGH, SpreadingScheduler, hosts, spread_members

OFFERED = ["a1", "a2", "b1", "b2"]
KEPT = ["a1", "a2"]


@pytest.fixture
async def strict() -> AsyncIterator[Harness]:
    """Gang g is the head, and plain pods wait as gangs do."""
    world = Harness(plain=PlainPodRule.WAIT)
    await racks(world).add(*large()).run_until_idle()
    assert kept(world) == set(KEPT)
    yield world
    await world.close()


def plain(name: str = "p") -> PodBuilder:
    return pod(name).cpu(1).scheduler(SCHEDULER)


def ask(world: Harness, name: str, *nodes: str) -> Answer:
    return world.service.filter(world.pod(name), nodes or OFFERED)


def is_woken(world: Harness, name: str) -> bool:
    return ACTIVATION_ANNOTATION in world.annotations(name)


async def test_without_the_setting_a_plain_pod_passes(world: Harness) -> None:
    await racks(world).add(*large(), plain()).run_until_idle()
    assert kept(world) == set(KEPT)
    assert ask(world, "p") == Pass()


class TestWhoIsKeptOff:
    async def test_a_plain_pod_goes_elsewhere(self, strict: Harness) -> None:
        strict.add(plain())
        assert ask(strict, "p") == Narrow(["b1", "b2"])
        assert ask(strict, "p", "b1") == Pass()

    async def test_or_waits_if_there_is_nothing_else(self, strict: Harness) -> None:
        strict.add(plain())
        assert ask(strict, "p", *KEPT) == Narrow([])

    @pytest.mark.parametrize(
        ("other", "answer"),
        [
            pytest.param(plain().priority(1), Pass(), id="of higher priority than the head: no"),
            pytest.param(plain().priority(0), Narrow([]), id="of its priority: yes, nobody knows since when it waits"),
            pytest.param(plain().active_deadline(9 * MINUTE), Pass(), id="that ends before the forecast: no"),
            pytest.param(plain().active_deadline(10 * MINUTE), Narrow([]), id="that ends with the forecast: yes"),
            pytest.param(plain().scheduler("another"), Pass(), id="of another scheduler: no"),
            pytest.param(plain().nominated("a1"), Narrow([]), id="that is nominated to one of several: yes"),
        ],
    )
    async def test_a_pod(self, strict: Harness, other: PodBuilder, answer: Answer) -> None:
        strict.add(other)
        assert ask(strict, "p", *KEPT) == answer

    async def test_a_pod_that_others_were_evicted_for_gets_its_node(self, strict: Harness) -> None:
        strict.add(plain().nominated("a1"))
        assert ask(strict, "p", "a1") == Pass()

    async def test_a_member_of_a_basic_group_is_kept_off_like_any_plain_pod(self, strict: Harness) -> None:
        strict.add(pod_group("basic"), plain().in_group("basic"))
        assert ask(strict, "p", *KEPT) == Narrow([])

    async def test_nobody_is_evicted_for_it_there(self, strict: Harness) -> None:
        strict.add(plain("p"), plain("v").priority(-1).on("a1"), plain("w").priority(-1).on("b1"))
        candidates = [Candidate(name, (strict.pod(victim).uid,)) for name, victim in (("a1", "v"), ("b1", "w"))]
        assert [each.node for each in strict.service.preempt(strict.pod("p"), candidates)] == ["b1"]

    async def test_from_the_nodes_that_the_head_has_got_until_it_is_bound(self, strict: Harness) -> None:
        strict.add(plain())
        strict.delete("x")
        strict.schedule_groups()
        assert strict.binding_cycle().reservation.domain == "a"
        assert kept(strict) == set()
        assert ask(strict, "p", *KEPT) == Narrow([])
        assert ask(strict, "p", "b1") == Pass()
        strict.delete("m0")
        strict.schedule_groups()
        await strict.run_tasks()
        assert strict.ledger.of_group(GANG) is None
        assert ask(strict, "p", *KEPT) == Pass()

    async def test_from_those_of_all_heads_that_are_not_bound_yet(self, strict: Harness) -> None:
        """Gang g has got rack a when h becomes the head, which gets rack b before any of them is bound."""
        strict.add(plain(), pod_group("h").gang(4).topology(), *in_rack_b(4))
        await place_next(strict, "x")
        assert kept(strict) == {"b1", "b2"}
        assert ask(strict, "p") == Narrow([])
        await place_next(strict, "y", "z")
        assert kept(strict) == set()
        assert {GANG, HELD_B} == {each.group for each in strict.ledger}
        assert ask(strict, "p") == Narrow([])
        await fail(strict, GANG, "m0")
        assert ask(strict, "p") == Narrow(KEPT)
        await fail(strict, HELD_B, "h0")
        assert ask(strict, "p") == Pass()

    async def test_many_that_are_kept_off_are_told_the_same_nodes(self, strict: Harness) -> None:
        """The kept nodes may be as many as the cluster has: all pods share one set of them."""
        strict.add(plain("p"), plain("q"), pod_group("h").gang(4).topology(), *in_rack_b(4))
        await place_next(strict, "x")
        kept_off = read_memory(strict.core.feature(PlainPods))["kept_off"]
        first, second = (kept_off.list_excluded(strict.pod(name)) for name in ("p", "q"))
        assert first == {*KEPT, "b1", "b2"}
        assert first is second


HELD_B = GroupKey("default", "h")


def in_rack_b(count: int) -> list[PodBuilder]:
    """Members of gang h, which go to rack b only."""
    pods = (pod(f"h{number}").cpu(1).scheduler(SCHEDULER).in_group("h") for number in range(count))
    return [each.node_selector(RACK, "b") for each in pods]


async def place_next(world: Harness, *ended: str) -> None:
    """Delete the pods that have ended, so that the head gets their nodes."""
    for name in ended:
        world.delete(name)
    await world.run_until_idle()


async def fail(world: Harness, group: GroupKey, member: str) -> None:
    """A gang loses a member without which it gives up its nodes."""
    world.delete(member)
    await world.run_until_idle()
    assert world.ledger.of_group(group) is None


class TestWhoIsWoken:
    async def test_one_of_each_kind_when_the_head_waits_no_more(self, strict: Harness) -> None:
        strict.add(plain("p"), plain("q"), plain("large").cpu(2))
        for name in ("p", "q", "large"):
            assert ask(strict, name, *KEPT) == Narrow([])
        await strict.pass_time(5)
        assert not any(is_woken(strict, name) for name in ("p", "q", "large"))
        strict.delete("m0")
        await strict.run_until_idle()
        assert kept(strict) == set()
        assert [name for name in ("p", "q", "large") if is_woken(strict, name)] == ["p", "large"]

    async def test_also_of_a_head_that_came_and_went_between_two_looks(self) -> None:
        world = Harness(plain=PlainPodRule.WAIT)
        racks(world).add(*large(), plain())
        world.group_scheduler.consider(GANG)
        assert kept(world) == set(KEPT)
        assert ask(world, "p", *KEPT) == Narrow([])
        world.delete("m0")
        world.group_scheduler.consider(GANG)
        assert kept(world) == set()
        await world.run_until_idle()
        assert is_woken(world, "p")
        await world.close()

    async def test_nobody_that_was_asked_about_again_meanwhile(self, strict: Harness) -> None:
        strict.add(plain())
        assert ask(strict, "p", *KEPT) == Narrow([])
        strict.delete("m0")
        strict.group_scheduler.consider(GANG)
        assert ask(strict, "p", *KEPT) == Pass()
        await strict.run_until_idle()
        assert not is_woken(strict, "p")

    async def test_nobody_while_forecasts_change_and_the_nodes_are_the_same(self, strict: Harness) -> None:
        strict.add(plain())
        assert ask(strict, "p", *KEPT) == Narrow([])
        writes = len(strict.api.calls)
        await strict.pass_time(5 * MINUTE)
        assert kept(strict) == set(KEPT)
        assert not is_woken(strict, "p")
        assert len(strict.api.calls) == writes

    async def test_a_pod_that_was_offered_a_sample_is_tried_on_others_and_not_for_ever(self) -> None:
        world = Harness(plain=PlainPodRule.WAIT)
        hosts = [f"n{number:03}" for number in range(250)]
        world.add(*[node(name).cpu(1) for name in hosts], *[pod(f"x{name}").cpu(1).on(name) for name in hosts[200:]])
        await world.add(gang(230), *members(230), plain()).run_until_idle()
        head = world.core.backfill.head
        assert head is not None
        offered = sorted(head.forecast.nodes)[:100]
        tries = 0
        for _ in range(8):
            assert ask(world, "p", *offered) == Narrow([])
            before = world.annotations("p").get(ACTIVATION_ANNOTATION)
            await world.pass_time(2)
            tries += world.annotations("p").get(ACTIVATION_ANNOTATION) != before
        assert tries == len(head.forecast.nodes) // 100 + 1
        await world.close()


class TestWhereOthersWentForMembersInAnOrder:
    """Six members are spread two on a node, in the room of three pods that end: nominated, they would count there."""

    HOSTS = ("n1", "n2", "n3")

    @pytest.fixture
    async def cleared(self, world: Harness) -> Harness:
        lows = [pod(f"low{host}").cpu(2).on(host).priority(0) for host in self.HOSTS]
        world.api.graceful.update(Key("default", f"low{host}") for host in self.HOSTS)
        world.add(*hosts(3, cpus=2), *lows, gang(6).priority(HIGH), *(m.priority(HIGH) for m in spread_members(6)))
        world.add(plain())
        world.start_nominating()
        await world.run_until_idle()
        return world

    async def end(self, world: Harness) -> None:
        for host in self.HOSTS:
            world.delete(f"low{host}")
        await world.run_until_idle()

    async def bind(self, world: Harness) -> None:
        assert SpreadingScheduler(world).try_members(*range(6)) == 6
        calls = [world.bind(f"m{index}") for index in range(6)]
        await world.run_until_idle()
        assert [call.error for call in calls] == [""] * 6

    async def test_a_plain_pod_is_kept_off_until_the_gang_is_bound(self, cleared: Harness) -> None:
        assert ask(cleared, "p", *self.HOSTS) == Narrow([])
        await self.end(cleared)
        assert ask(cleared, "p", *self.HOSTS, "other") == Narrow(["other"])
        await self.bind(cleared)
        assert ask(cleared, "p", *self.HOSTS) == Pass()

    async def test_the_nodes_are_those_that_its_members_have_by_now(self, cleared: Harness) -> None:
        await self.end(cleared)
        cleared.add(node("n4").cpu(2))
        moved = next(uid for uid, slot in cleared.binding_cycle().reservation.slots.items() if slot.node == "n1")
        assert ask(cleared, "p", "n4") == Pass()
        cleared.ledger.move(cleared.store.pods[moved], "n4")
        assert ask(cleared, "p", "n4") == Narrow([])

    async def test_one_of_higher_priority_is_not(self, cleared: Harness) -> None:
        cleared.add(plain("above").priority(HIGH + 1))
        await self.end(cleared)
        assert ask(cleared, "above", *self.HOSTS) == Pass()

    async def test_it_is_woken_where_the_gang_ends_without_a_sound(self, cleared: Harness) -> None:
        assert ask(cleared, "p", *self.HOSTS) == Narrow([])
        await cleared.pass_time(5)
        assert not is_woken(cleared, "p")
        cleared.store.drop_group(GANG)
        await cleared.run_until_idle()
        assert cleared.ledger.of_group(GANG) is None
        assert is_woken(cleared, "p")
        assert ask(cleared, "p", *self.HOSTS) == Pass()
