"""A question takes its time, and the cluster goes on meanwhile."""

import pytest

from extender.core.scheduling.refusals import Fact
from extender.look.decide import Changes, Hypothesis
from extender.look.owners import find_existing
from serried.api.names import GroupKey, write_time
from serried.api.preference import EXCLUSIVE
from serried.api.verdict import Reason, render
from serried.plan.eviction import Preemption
from serried.plan.limit import Limit
from tests.support.builders import node, pod, pod_group
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

H = GroupKey("default", "h")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(Changes(), "Scheduled: 3 members are bound", id="nothing changes"),
        pytest.param(Changes(drained=("n3",)), "Scheduled: 3 members are bound", id="a node goes where no member is"),
        pytest.param(Changes(drained=("n2",)), "Scheduled: 2 members are bound", id="enough members stay"),
        pytest.param(
            Changes(drained=("n1",)),
            "Broken: only 1 of 2 members are left of this gang, which was running; Serried looked for no other nodes",
            id="too few members stay",
        ),
        pytest.param(
            Changes(removed=(GANG,)),
            "Broken: only 0 of 2 members are left of this gang, which was running; Serried looked for no other nodes",
            id="it is taken away itself",
        ),
    ],
)
async def test_a_gang_that_runs_is_judged_by_the_members_that_stay(world: Harness, changes: Changes, said: str) -> None:
    one, two, three = members(3)
    world.add(*small_nodes(3), gang(2), one.on("n1"), two.on("n1"), three.on("n2"))
    hypothesis = Hypothesis(world.core, changes, Limit())
    hypothesis.check()
    (found,) = hypothesis.solve([find_existing(world.store, GANG)])
    assert found.verdict is not None
    assert render(found.verdict) == said


async def test_a_gang_that_wants_a_rack_for_itself_would_wait_behind_the_one_for_which_it_is_kept(
    world: Harness,
) -> None:
    """One node of rack a is full, another is not needed: a gang that took that one would have the rack for itself."""
    alone = [pod_group(name).topology().annotation(EXCLUSIVE, "true") for name in ("g", "h")]
    world.add(*[node(f"a{place}").cpu(2).rack("a") for place in (1, 2, 3)], pod("x").cpu(2).on("a1"))
    stays = pod("web").cpu(1).on("a3").controlled_by("ReplicaSet", "web")
    await world.add(stays, alone[0].gang(2), *[each.cpu(2) for each in members(2)]).run_until_idle()
    world.add(alone[1].gang(1), *[each.in_group("h") for each in members(1, 10)])
    hypothesis = Hypothesis(world.core, Changes(), Limit())
    (found,) = hypothesis.solve([find_existing(world.store, GroupKey("default", "h"))])
    assert found.verdict is not None
    assert (found.verdict.reason, found.verdict.key) == (Reason.BEHIND_HEAD, str(GANG))


async def test_a_rack_that_another_gang_has_for_itself_is_opened_as_for_a_gang_that_exists(world: Harness) -> None:
    low = pod_group("g").topology().annotation(EXCLUSIVE, "true").gang(1)
    world.add(node("a1").cpu(2).rack("a"), low, members(1)[0].cpu(1).on("a1"))
    high = pod_group("h").topology().annotation(EXCLUSIVE, "true").gang(1).priority(100)
    world.add(high, *[each.in_group("h").priority(100) for each in members(1, 10)])
    hypothesis = Hypothesis(world.core, Changes(), Limit())
    (found,) = hypothesis.solve([find_existing(world.store, GroupKey("default", "h"))])
    assert isinstance(found.preemption, Preemption)
    assert [pod.name for unit in found.preemption.victims for pod in unit.pods] == ["m0"]


@pytest.mark.parametrize(
    ("lifetime", "reason"),
    [pytest.param(10, None, id="in time"), pytest.param(9000, Reason.BEHIND_HEAD, id="too late")],
)
async def test_a_gang_that_ends_before_the_first_needs_its_nodes_would_be_let_pass(
    world: Harness, lifetime: int, reason: Reason | None
) -> None:
    web = pod("web").cpu(2).on("n1").started(write_time(world.wall_time())).active_deadline(3600)
    await world.add(*small_nodes(2), web, gang(4), *members(4)).run_until_idle()
    assert world.core.backfill.head is not None
    world.add(pod_group("h").gang(2), *[each.in_group("h").active_deadline(lifetime) for each in members(2, 10)])
    before = dict(world.core.backfill.head.passed)
    (found,) = Hypothesis(world.core, Changes(), Limit()).solve([find_existing(world.store, H)])
    assert (found.verdict.reason if found.verdict is not None else None) is reason
    assert world.core.backfill.head.passed == before


async def test_nobody_goes_from_nodes_that_are_kept_for_the_first(world: Harness) -> None:
    """The first is of higher priority than the gang that asks, and that gang than the pods that run."""
    low = [pod(f"low{at}").cpu(1).on(f"n{at}") for at in (1, 2)]
    first = [each.priority(100).with_field("Never", "spec", "preemptionPolicy") for each in members(4)]
    await world.add(*small_nodes(2), *low, gang(4).priority(100), *first).run_until_idle()
    assert world.core.backfill.head is not None
    assert world.core.backfill.head.forecast.nodes >= {"n1", "n2"}
    world.add(pod_group("h").gang(3).priority(50), *[each.in_group("h").priority(50) for each in members(3, 10)])
    (found,) = Hypothesis(world.core, Changes(), Limit()).solve([find_existing(world.store, H)])
    assert found.plan is None
    assert not isinstance(found.preemption, Preemption)


async def test_nobody_would_go_for_a_gang_of_which_the_scheduler_refuses_a_member(world: Harness) -> None:
    low = pod("low").cpu(1).on("n1")
    await world.add(*small_nodes(1), low, gang(2).priority(100), members(2)[0].priority(100)).run_until_idle()
    world.add(members(2)[1].priority(100))
    refused = Fact(world.core.clock() + 60, text="there is no such volume", member=world.pod("m0").uid)
    for rejection, goes in ((None, True), (refused, False)):
        world.groups.states[GANG].refusals.rejection = rejection
        (found,) = Hypothesis(world.core, Changes(), Limit()).solve([find_existing(world.store, GANG)])
        assert isinstance(found.preemption, Preemption) is goes


async def test_a_planned_gang_that_is_taken_away_itself_gives_its_room_back_once(world: Harness) -> None:
    await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
    world.add(*members(2, first=2))
    hypothesis = Hypothesis(world.core, Changes(removed=(GANG,)), Limit())
    hypothesis.check()
    (found,) = hypothesis.solve([find_existing(world.store, GANG)])
    assert found.plan is not None
    assert len(found.plan.nodes) == 2


async def test_of_a_drained_node_the_members_of_a_gang_that_is_taken_away_need_no_other_place(world: Harness) -> None:
    world.add(*small_nodes(2), pod("web").cpu(1).on("n1"), gang(1), members(1)[0].on("n1"), pod_group("h").gang(1))
    world.add(*[each.in_group("h") for each in members(1, 10)])
    hypothesis = Hypothesis(world.core, Changes(drained=("n1",), removed=(GANG,)), Limit())
    hypothesis.check()
    hypothesis.solve([find_existing(world.store, H)])
    assert hypothesis.displaced == 1
