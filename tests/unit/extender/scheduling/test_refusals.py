"""The facts that a gang learns from refusals, and what ends each: the table of `core.scheduling.refusals`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from extender.core.scheduling.group import GroupState
from extender.core.scheduling.refusals import NO_EXCLUSIONS, Exclusions, Refusals
from extender.core.scheduling.unschedulable import QueueEntry
from serried.api.node import Node
from serried.api.pod import Pod
from tests.support.builders import PodBuilder, node, pod
from tests.support.devices import held_message
from tests.support.extender_harness import members

LICENCE = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had no licence free."
ROOM = "0/2 nodes are available: 2 Insufficient cpu."
OTHER = "0/2 nodes are available: 2 node(s) had volume node affinity conflict."
HELD = held_message()


def tried(message: str) -> PodBuilder:
    """The member m0 after kube-scheduler has tried it with these words."""
    return members(1)[0].unschedulable(message=message)


MEMBER = tried(LICENCE).value()


@dataclass
class World:
    """A cluster of the nodes n1 and n2 and the member m0."""

    nodes: dict[str, Node] = field(default_factory=lambda: {name: node(name).value() for name in ("n1", "n2")})
    pods: dict[str, Pod] = field(default_factory=lambda: {MEMBER.uid: MEMBER})


Learn = Callable[[Refusals, World], None]
Change = Callable[[Refusals, World], None]


def by_scheduler(known: Refusals, world: World) -> None:
    known.exclude_node(MEMBER.shape, "n1", world)


def beside_mates(known: Refusals, world: World) -> None:
    known.exclude_node(MEMBER.shape, "n1", world, beside_mates=True)


def after_filter(known: Refusals, world: World) -> None:
    known.exclude_after_filter(MEMBER, "n1", 0.0, world, evicted=False)


def after_filter_and_evictions(known: Refusals, world: World) -> None:
    known.exclude_after_filter(MEMBER, "n1", 0.0, world, evicted=True)


def by_kubelet(known: Refusals, world: World) -> None:
    known.exclude_after_kubelet(members(1)[0].on("n1").value(), 0.0, world)


def after_evictions(known: Refusals, world: World) -> None:
    known.exempt_from_evictions(MEMBER.shape, "n1", 0.0, world)


def rejected(known: Refusals, world: World) -> None:
    known.note_rejection(MEMBER, [], ["n2"], "no node", 0.0, world, evicted=False)


def rejected_after_evictions(known: Refusals, world: World) -> None:
    known.note_rejection(MEMBER, [], ["n2"], "no node", 0.0, world, evicted=True)


def taken_by_others(known: Refusals, world: World) -> None:
    world.pods["pod-other"] = pod("other").on("n1").value()
    known.note_taken_by_others("n1", frozenset({"pod-other"}), world)


def node_changes(_: Refusals, world: World) -> None:
    world.nodes["n1"] = node("n1").rack("r1").value()


def node_is_offered(known: Refusals, _: World) -> None:
    known.note_offer(MEMBER.shape, frozenset({"n1"}), 1.0)


def says(message: str) -> Change:
    def change(_: Refusals, world: World) -> None:
        world.pods[MEMBER.uid] = tried(message).value()

    return change


def other_pod_goes(_: Refusals, world: World) -> None:
    del world.pods["pod-other"]


def rounds_end(known: Refusals, _: World) -> None:
    known.end_exclusions_at(1.0)


def closed(known: Refusals, world: World, now: float) -> bool:
    return "n1" in known.find_exclusions([MEMBER], now, world).nodes


def spared(known: Refusals, world: World, now: float) -> bool:
    return "n1" in known.find_exempt([MEMBER], now, world) | known.find_taken_by_others(now, world)


def hopeless(known: Refusals, world: World, now: float) -> bool:
    return bool(known.find_rejection([MEMBER], now, world))


ENDS: Mapping[str, tuple[Learn, Callable[[Refusals, World, float], bool], Change]] = {
    "a refused node opens when the node changes": (by_scheduler, closed, node_changes),
    "a refused node opens when it is offered": (by_scheduler, closed, node_is_offered),
    "a refused node opens when the round ends": (by_scheduler, closed, rounds_end),
    "a node refused beside mates opens when it changes": (beside_mates, closed, node_changes),
    "a node refused after filter opens when it changes": (after_filter, closed, node_changes),
    "a node refused after filter opens when only room is missing": (after_filter, closed, says(ROOM)),
    "pods are evicted there again, too, when only room is missing": (after_filter, spared, says(ROOM)),
    "a node whose kubelet failed a member opens when it changes": (by_kubelet, closed, node_changes),
    "a node of evictions in vain is no longer spared when it changes": (after_evictions, spared, node_changes),
    "a node of evictions in vain is no longer spared when it is offered": (after_evictions, spared, node_is_offered),
    "a rejection ends when only room is missing": (rejected, hopeless, says(ROOM)),
    "a node that others took is no longer spared when one of them goes": (taken_by_others, spared, other_pod_goes),
    "a node that others took is no longer spared when it changes": (taken_by_others, spared, node_changes),
}

STANDS: Mapping[str, tuple[Learn, Callable[[Refusals, World, float], bool], Change]] = {
    "an offer to one member alone does not open what was refused beside mates": (beside_mates, closed, node_is_offered),
    "an offer does not open a node that was refused after filter": (after_filter, closed, node_is_offered),
    "an offer does not open a node whose kubelet failed a member": (by_kubelet, closed, node_is_offered),
    "the end of a round does not open that either": (by_kubelet, closed, rounds_end),
    "a member that is held says nothing of a node refused after filter": (after_filter, closed, says(HELD)),
    "a member that is held says nothing of a rejection": (rejected, hopeless, says(HELD)),
    "the same words once more end no rejection": (rejected, hopeless, says(LICENCE)),
    "other words may be about another node, and end no rejection": (rejected, hopeless, says(OTHER)),
    "nor do they open a node that was refused after filter": (after_filter, closed, says(OTHER)),
    "full nodes do not end a rejection for which pods were evicted": (
        rejected_after_evictions,
        hopeless,
        says(ROOM),
    ),
    "nor do they end that a node is spared for which pods were evicted": (
        after_filter_and_evictions,
        spared,
        says(ROOM),
    ),
}


@pytest.mark.parametrize(("learn", "stands", "change"), ENDS.values(), ids=ENDS.keys())
def test_what_ends_a_fact(learn: Learn, stands: Callable[[Refusals, World, float], bool], change: Change) -> None:
    known, world = Refusals(), World()
    learn(known, world)
    assert stands(known, world, 0.5)
    change(known, world)
    assert not stands(known, world, 1.5)


@pytest.mark.parametrize(("learn", "stands", "change"), STANDS.values(), ids=STANDS.keys())
def test_what_does_not(learn: Learn, stands: Callable[[Refusals, World, float], bool], change: Change) -> None:
    known, world = Refusals(), World()
    learn(known, world)
    change(known, world)
    assert stands(known, world, 1.5)


@pytest.mark.parametrize(
    ("learn", "stands", "seconds"),
    [
        pytest.param(rejected, hopeless, 120, id="a rejection after two minutes"),
        pytest.param(after_filter, spared, 120, id="that evictions do not help after filter, after two minutes"),
        pytest.param(by_kubelet, closed, 300, id="what a kubelet has failed after five"),
        pytest.param(after_evictions, spared, 300, id="what others were evicted for after five"),
        pytest.param(rejected_after_evictions, hopeless, 300, id="a rejection for which others were evicted, too"),
    ],
)
def test_the_last_resort_is_the_clock(
    learn: Learn, stands: Callable[[Refusals, World, float], bool], seconds: float
) -> None:
    known, world = Refusals(), World()
    learn(known, world)
    assert stands(known, world, seconds - 1)
    assert not stands(known, world, seconds)


@pytest.mark.parametrize(
    ("learn", "stands"),
    [
        pytest.param(after_evictions, spared, id="a node on which pods were evicted"),
        pytest.param(rejected_after_evictions, hopeless, id="a rejection for which pods were evicted"),
        pytest.param(by_scheduler, closed, id="a refused node"),
    ],
)
def test_after_each_preemption_in_vain_it_holds_longer_than_the_pause(
    learn: Learn, stands: Callable[[Refusals, World, float], bool]
) -> None:
    known, world = Refusals(failed_preemptions=3), World()
    learn(known, world)
    known.pause_evictions(0.0)
    assert known.no_search_before == 240
    assert stands(known, world, 240 + 299)
    assert not stands(known, world, 240 + 300)


class TestWhereMembersMayGo:
    def test_a_refused_node_is_out_for_every_member_of_the_class(self) -> None:
        known, world = Refusals(), World()
        by_scheduler(known, world)
        same, other = members(2)[1].value(), pod("big").cpu(8).value()
        found = known.find_exclusions([MEMBER, same, other], 1.0, world)
        assert found == Exclusions(frozenset({("pod-m0", "n1"), ("pod-m1", "n1")}), frozenset())

    def test_of_a_gang_of_one_class_the_node_is_closed_to_all(self) -> None:
        known, world = Refusals(), World()
        by_scheduler(known, world)
        assert known.find_exclusions([MEMBER], 1.0, world) == Exclusions(frozenset(), frozenset({"n1"}))

    def test_kube_schedulers_refusal_holds_while_another_node_is_left_to_be_tried(self) -> None:
        known, world = Refusals(), World()
        by_scheduler(known, world)
        assert closed(known, world, 1e6)
        known.end_exclusions_at(2e6)
        assert closed(known, world, 2e6 - 1)
        assert not closed(known, world, 2e6)
        assert known.excluded == {}

    def test_a_refusal_by_an_unknown_node_holds_until_the_node_is_known(self) -> None:
        known, world = Refusals(), World(nodes={})
        by_scheduler(known, world)
        assert closed(known, world, 1.0)
        world.nodes["n1"] = node("n1").value()
        assert not closed(known, world, 1.0)


class TestARejection:
    def test_nothing_is_known_of_the_pod_that_comes_in_the_members_place(self) -> None:
        known, world = Refusals(), World()
        known.note_rejection(MEMBER, ["n1"], ["n2"], "no node", 0.0, world, evicted=False)
        another = members(2)[1].value()
        assert known.find_rejection([another], 1.0, world) == ""
        assert known.find_exclusions([another], 1.0, world) == NO_EXCLUSIONS

    def test_its_end_has_the_gang_planned_again(self) -> None:
        state, world = GroupState(0.0, entry=QueueEntry(last_input=("as before",))), World()
        rejected(state.refusals, world)
        assert state.find_rejection([MEMBER], 1.0, world) == "no node"
        assert state.entry.last_input
        says(ROOM)(state.refusals, world)
        assert state.find_rejection([MEMBER], 1.0, world) == ""
        assert not state.entry.last_input

    def test_a_node_that_is_offered_anew_has_all_tried_again_that_were_refused_beside_mates(self) -> None:
        resting, world = rest("n1"), World(nodes={})
        assert not resting.learn_offer(MEMBER.shape, ["n1"], 1.0), "what a mate had is not new"
        assert resting.entry.backoff_until == 10.0
        assert resting.find_exclusions([MEMBER], 1.0, world).nodes == {"n1"}
        assert resting.learn_offer(MEMBER.shape, ["n1", "n2"], 1.0)
        assert resting.entry.backoff_until == 0.0
        assert resting.find_exclusions([MEMBER], 1.0, world) == NO_EXCLUSIONS

    def test_each_node_does_so_once_however_often_the_member_is_rejected(self) -> None:
        resting = rest("n1")
        assert resting.learn_offer(MEMBER.shape, ["n2"], 1.0)
        resting.refusals.note_rejection(MEMBER, ["n2"], ["n2"], "no node", 20.0, World(nodes={}), evicted=False)
        resting.entry.back_off(30.0)
        resting.learn_offer(MEMBER.shape, ["n1", "n2"], 21.0)
        assert resting.entry.backoff_until == 30.0

    def test_of_what_plans_can_count_the_first_offer_shows_only_what_there_is(self) -> None:
        known = Refusals()
        known.note_rejection(MEMBER, ["n1"], ["n1"], "no node", 0.0, World(), evicted=False)
        assert not known.note_offer_while_rejected(frozenset({"n1", "n2"}))
        assert known.note_offer_while_rejected(frozenset({"n1", "n2", "n3"}))


def rest(mates_node: str) -> GroupState:
    """A group that rests for 10 s, for there were no devices for a member while a mate had those of this node."""
    state, world = GroupState(0.0, entry=QueueEntry(backoff_until=10.0)), World(nodes={})
    member = members(1)[0].with_field([{"name": "gpu", "resourceClaimName": "one"}], "spec", "resourceClaims").value()
    state.refusals.note_rejection(member, [], [mates_node], "no devices", 0.0, world, evicted=False)
    state.refusals.note_rejection(MEMBER, [mates_node], [], "no devices", 0.0, world, evicted=False)
    return state
