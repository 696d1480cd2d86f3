"""An instance that has lost its Lease writes nothing more: what it held is the next leader's."""

import pytest

from extender.scheduling.cycle import CycleStage
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


async def planned(world: Harness) -> Harness:
    """Gang g of two is planned, and its record is written."""
    await world.add(*small_nodes(2), gang(2), *members(2)).go()
    assert world.cycle().stage is CycleStage.GATHERING
    return world


async def take_over(old: Harness) -> Harness:
    """Another instance leads now, on the same API server; its caches are full."""
    new = Harness(api=old.api)
    new.add(*small_nodes(2), gang(2))
    new.watch()
    await new.recovery.recover()
    await new.settle()
    return new


def writes(world: Harness) -> int:
    """How often the API server was written to."""
    return sum(call.verb not in {"get", "list"} for call in world.api.calls)


class TestTheEndOfATerm:
    async def test_ends_a_gathering_round_without_a_write_or_a_word(self, world: Harness) -> None:
        call = (await planned(world)).bind("m0")
        await world.settle()
        written, said = writes(world), len(world.heard.verdicts)
        world.core.end_term()
        await world.settle()
        assert "does not lead" in call.error
        assert (writes(world), len(world.heard.verdicts), len(world.ledger)) == (written, said, 0)
        assert world.api.phase() == "Planned"

    async def test_while_the_commit_is_on_its_way_sends_no_binding(self, world: Harness) -> None:
        await planned(world)
        world.api.hold("replace")
        calls = [world.bind("m0"), world.bind("m1")]
        await world.settle()
        world.core.end_term()
        world.api.let_go("replace")
        await world.settle()
        assert all(call.error for call in calls)
        assert world.api.said("bind") == []

    async def test_in_the_middle_of_the_burst_sends_no_more(self, world: Harness) -> None:
        await planned(world)
        world.api.before_bind = lambda _: world.core.end_term()
        for name in ("m0", "m1"):
            world.bind(name)
        await world.settle()
        assert len(world.api.said("delete")) == 0
        assert world.api.phase() == "Committed"


@pytest.mark.parametrize("happen", ["the idle deadline passes", "the quorum comes to bind"])
async def test_a_lease_that_has_run_out_unnoticed_is_noticed_before_the_next_write(world: Harness, happen: str) -> None:
    await planned(world)
    world.bind("m0")
    await world.settle()
    written = writes(world)
    world.term.holds_lease = lambda: False
    if happen == "the quorum comes to bind":
        world.bind("m1")
        await world.settle()
    else:
        world.clock.advance(61)
        world.cycle().changed.set()
        await world.settle()
    assert writes(world) == written
    assert (world.api.phase(), world.node_of("m0")) == ("Planned", "")
    assert world.groups.states[GANG].cycle is None


class TestTwoThatThinkTheyLead:
    async def test_what_the_next_leader_has_committed_the_last_one_leaves_alone(self, world: Harness) -> None:
        await planned(world)
        successor = await take_over(world)
        world.api.hold("bind")
        successor.bind("m0")
        successor.bind("m1")
        await successor.settle()
        assert world.api.phase() == "Committed"
        world.clock.advance(61)  # the last leader has noticed nothing, and gives its cycle up
        world.cycle().changed.set()
        await world.settle()
        assert world.api.phase() == "Committed"
        world.api.let_go("bind")
        for _ in range(2):
            await successor.go()
        assert (world.node_of("m0"), world.node_of("m1")) != ("", "")
        await successor.close()

    async def test_only_one_of_them_commits(self, world: Harness) -> None:
        await planned(world)
        successor = await take_over(world)
        for name in ("m0", "m1"):
            world.bind(name)
        await world.settle()
        assert world.api.said("bind") == []
        assert world.api.phase() == "Planned"
        await successor.close()
