"""An instance that has lost its Lease writes nothing more: what it held is the next leader's."""

from collections.abc import Awaitable, Callable
from copy import deepcopy

import pytest

from extender.core.scheduling.binding_cycle import CycleStage
from extender.options import BrokenAction, RepairRules
from serried.api.names import Key
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


async def planned(world: Harness) -> Harness:
    """Gang g of two is planned."""
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    return world


async def take_over(old: Harness) -> Harness:
    """Let another instance lead, on the same API server and with full caches. Return it."""
    new = Harness(api=old.api)
    new.add(*small_nodes(2), gang(2))
    for raw in old.api.pods.values():
        new.store.put_pod(PodBuilder(deepcopy(raw)).value())
    new.sync_pods()
    await new.recovery.recover()
    await new.run_until_idle()
    return new


def writes(world: Harness) -> int:
    """Count the writes to the API server."""
    return sum(call.verb not in {"get", "list"} for call in world.api.calls)


class TestTheEndOfATerm:
    async def test_ends_a_gathering_round_without_a_write_or_a_word(self, world: Harness) -> None:
        call = (await planned(world)).bind("m0")
        await world.run_tasks()
        written, said = writes(world), len(world.heard.verdicts)
        world.core.end_term()
        await world.run_tasks()
        assert "no longer leads" in call.error
        assert (writes(world), len(world.heard.verdicts), len(world.ledger)) == (written, said, 0)
        assert world.api.record_phase() is None

    async def test_while_the_commit_is_on_its_way_sends_no_binding(self, world: Harness) -> None:
        await planned(world)
        world.api.hold("create")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        world.core.end_term()
        world.api.release("create")
        await world.run_tasks()
        assert all(call.error for call in calls)
        assert world.api.list_calls("bind") == []

    async def test_in_the_middle_of_the_burst_sends_no_more(self, world: Harness) -> None:
        await planned(world)
        world.api.before_bind = lambda _: world.core.end_term()
        for name in ("m0", "m1"):
            world.bind(name)
        await world.run_tasks()
        assert len(world.api.list_calls("delete")) == 0
        assert world.api.record_phase() == "Committed"


@pytest.mark.parametrize("happen", ["the idle deadline passes", "the quorum comes to bind"])
async def test_a_lease_that_has_run_out_unnoticed_is_noticed_before_the_next_write(world: Harness, happen: str) -> None:
    await planned(world)
    world.bind("m0")
    await world.run_tasks()
    written = writes(world)
    world.term.holds_lease = lambda: False
    if happen == "the quorum comes to bind":
        world.bind("m1")
        await world.run_tasks()
    else:
        world.clock.advance(61)
        world.binding_cycle().changed.set()
        await world.run_tasks()
    assert writes(world) == written
    assert (world.api.record_phase(), world.node_of("m0")) == (None, "")
    assert world.groups.states[GANG].cycle is None


class TestTwoThatThinkTheyLead:
    async def test_what_the_next_leader_has_committed_the_last_one_leaves_alone(self, world: Harness) -> None:
        await planned(world)
        successor = await take_over(world)
        world.api.hold("bind")
        successor.bind("m0")
        successor.bind("m1")
        await successor.run_tasks()
        assert world.api.record_phase() == "Committed"
        world.clock.advance(61)  # the last leader has noticed nothing, and gives its cycle up
        world.binding_cycle().changed.set()
        await world.run_tasks()
        assert world.api.record_phase() == "Committed"
        world.api.release("bind")
        for _ in range(2):
            await successor.run_until_idle()
        assert (world.node_of("m0"), world.node_of("m1")) != ("", "")
        await successor.close()

    async def test_only_one_of_them_commits(self, world: Harness) -> None:
        await planned(world)
        successor = await take_over(world)
        world.api.hold("bind")
        for name in ("m0", "m1"):
            successor.bind(name)
        await successor.run_tasks()
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_tasks()
        assert [call.error for call in calls] == ["serried: RecordFailed"] * 2
        assert len(world.api.list_calls("bind")) == 2
        world.api.release("bind")
        await successor.close()


Story = Callable[[Harness], Awaitable[None]]

_LONG = 24
_SHORT = 4
"""More writes than the stories have."""


class TestALeaseThatIsLostUnnoticed:
    """Once the Lease is lost this instance sends no write, whatever it is doing and though no event has stopped it."""

    @pytest.mark.parametrize("fuse", range(_LONG))
    async def test_stops_a_gang_that_evicts_others_and_is_bound(self, fuse: int) -> None:
        await burn(Harness(), fuse, make_room_and_bind)

    @pytest.mark.parametrize("fuse", range(_SHORT))
    async def test_stops_the_eviction_of_a_broken_gang(self, fuse: int) -> None:
        await burn(Harness(rules=RepairRules(1.0, 10.0, BrokenAction.EVICT)), fuse, break_up)

    async def test_stops_the_binding_of_a_plain_pod(self, world: Harness) -> None:
        world.add(*small_nodes(1), pod("plain").scheduler("serried"))
        world.term.holds_lease = lambda: False
        call = world.bind("plain", "n1")
        await world.run_tasks()
        assert "NotLeading" in call.error
        assert world.node_of("plain") == ""

    async def test_comes_after_the_last_write_of_the_stories(self) -> None:
        """The fuses of the stories reach as far as they write, so each of their writes is the first to be stopped."""
        for fuses, story in ((_LONG, make_room_and_bind), (_SHORT, break_up)):
            world = Harness(rules=RepairRules(1.0, 10.0, BrokenAction.EVICT))
            await story(world)
            assert 0 < writes(world) < fuses
            await world.close()


async def burn(world: Harness, fuse: int, story: Story) -> None:
    """The story, with the Lease lost after so many writes."""
    world.term.holds_lease = lambda: writes(world) < fuse
    await story(world)
    await world.pass_time(61)
    assert writes(world) <= fuse
    await world.close()


async def make_room_and_bind(world: Harness) -> None:
    """Two pods of low priority are evicted for a gang of two, which is nominated, recorded, committed and bound."""
    world.api.graceful.update({Key("default", "low1"), Key("default", "low2")})
    world.add(*small_nodes(2), *(pod(f"low{i}").cpu(2).on(f"n{i}") for i in (1, 2)))
    world.add(gang(2).priority(100), *(each.cpu(2).priority(100) for each in members(2)))
    world.start_nominating()
    await world.run_until_idle()
    for name in ("low1", "low2"):
        world.delete(name)
    await world.run_until_idle()
    for name in ("m0", "m1"):
        world.bind(name)
    await world.run_until_idle()


async def break_up(world: Harness) -> None:
    """A gang of three has lost a member for good: what is left of it is evicted."""
    await world.add(
        *small_nodes(4, 1), gang(3), *[each.on(f"n{i + 1}") for i, each in enumerate(members(3))]
    ).run_until_idle()
    world.delete("m0")
    await world.run_until_idle()
    await world.pass_time(2.0)
    await world.pass_time(10.0)
