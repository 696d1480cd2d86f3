from extender.scheduling.group import Exclusions, GroupState, QueueEntry
from serried.api.node import Node
from tests.support.builders import node, pod
from tests.support.extender_harness import members

MEMBER = members(1)[0].value()
NOTHING = Exclusions(frozenset(), frozenset())


def refused(nodes: dict[str, Node]) -> GroupState:
    """A group of which a member was refused on n1."""
    remembered = GroupState(0.0)
    remembered.refuse(MEMBER.shape, "n1", nodes)
    return remembered


class TestExclusions:
    def test_a_refused_node_is_out_for_every_member_of_the_class(self) -> None:
        nodes = {"n1": node("n1").value()}
        same, other = members(2)[1].value(), pod("big").cpu(8).value()
        found = refused(nodes).find_exclusions([MEMBER, same, other], 1.0, nodes)
        assert found == Exclusions(frozenset({("pod-m0", "n1"), ("pod-m1", "n1")}), frozenset())

    def test_of_a_gang_of_one_class_the_node_is_closed_to_all(self) -> None:
        nodes = {"n1": node("n1").value()}
        assert refused(nodes).find_exclusions([MEMBER], 1.0, nodes) == Exclusions(frozenset(), frozenset({"n1"}))

    def test_the_word_of_the_scheduler_holds_while_another_node_is_left_to_be_tried(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = refused(nodes)
        assert remembered.find_exclusions([MEMBER], 1e6, nodes).nodes == {"n1"}
        remembered.end_round(2e6)
        assert remembered.find_exclusions([MEMBER], 2e6 - 1, nodes).nodes == {"n1"}
        assert remembered.find_exclusions([MEMBER], 2e6, nodes) == NOTHING
        assert remembered.refusals == {}

    def test_that_of_a_kubelet_holds_for_its_time_whatever_else_was_tried(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = GroupState(0.0)
        remembered.note_kubelet(members(1)[0].on("n1").value(), nodes, 300.0)
        remembered.end_round(30.0)
        remembered.learn_offer(MEMBER.shape, ["n1"], 31.0)
        assert remembered.find_exclusions([MEMBER], 299.0, nodes).nodes == {"n1"}
        assert remembered.find_exclusions([MEMBER], 300.0, nodes) == NOTHING

    def test_an_exclusion_ends_when_the_node_changes(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = refused(nodes)
        nodes["n1"] = node("n1").rack("r1").value()
        assert remembered.find_exclusions([MEMBER], 1.0, nodes) == NOTHING

    def test_and_when_the_scheduler_offers_the_node(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = refused(nodes)
        remembered.learn_offer(MEMBER.shape, ["n1"], 1.0)
        assert remembered.find_exclusions([MEMBER], 1.0, nodes) == NOTHING

    def test_but_an_offer_to_one_alone_says_nothing_of_what_was_refused_beside_mates(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = GroupState(0.0)
        remembered.reject(MEMBER, ["n1"], ["n2"], "no node", 0.0, nodes)
        remembered.learn_offer(MEMBER.shape, ["n1"], 1.0)
        assert remembered.find_exclusions([MEMBER], 1.0, nodes).nodes == {"n1"}

    def test_a_refusal_by_an_unknown_node_holds_until_the_node_is_known(self) -> None:
        remembered = refused({})
        assert remembered.find_exclusions([MEMBER], 1.0, {}).nodes == {"n1"}
        assert remembered.find_exclusions([MEMBER], 1.0, {"n1": node("n1").value()}) == NOTHING


class TestARejection:
    def test_it_stands_while_the_member_waits(self) -> None:
        remembered = GroupState(0.0)
        remembered.reject(MEMBER, ["n1"], ["n2"], "no node", 0.0, {})
        assert remembered.find_rejection([MEMBER], 1799.0) == "no node"
        assert remembered.find_rejection([MEMBER], 1800.0) == ""

    def test_and_nothing_is_known_of_the_pod_that_comes_in_its_place(self) -> None:
        remembered = GroupState(0.0)
        remembered.reject(MEMBER, ["n1"], ["n2"], "no node", 0.0, {})
        another = members(2)[1].value()
        assert remembered.find_rejection([another], 1.0) == ""
        assert remembered.find_exclusions([another], 1.0, {}) == NOTHING

    def test_a_node_that_is_offered_anew_has_all_tried_again_that_were_refused_beside_mates(self) -> None:
        remembered = resting("n1")
        assert not remembered.end_rest(["n1"]), "what a mate had is not new"
        assert (remembered.entry.backoff_until, remembered.find_exclusions([MEMBER], 1.0, {}).nodes) == (
            10.0,
            frozenset({"n1"}),
        )
        assert remembered.end_rest(["n1", "n2"])
        assert (remembered.entry.backoff_until, remembered.find_exclusions([MEMBER], 1.0, {})) == (0.0, NOTHING)

    def test_each_node_does_so_once_however_often_the_member_is_rejected(self) -> None:
        remembered = resting("n1")
        assert remembered.end_rest(["n2"])
        remembered.reject(MEMBER, ["n2"], ["n2"], "no node", 20.0, {})
        assert not remembered.end_rest(["n1", "n2"])

    def test_of_what_plans_can_count_the_first_offer_shows_only_what_there_is(self) -> None:
        remembered = GroupState(0.0)
        remembered.reject(MEMBER, ["n1"], ["n1"], "no node", 0.0, {})
        assert not remembered.end_rest(["n1", "n2"])
        assert remembered.end_rest(["n1", "n2", "n3"])


def resting(mates_node: str) -> GroupState:
    """A group that rests for 10 s, for there were no devices for a member while a mate had those of this node."""
    remembered = GroupState(0.0, entry=QueueEntry(backoff_until=10.0))
    member = members(1)[0].having([{"name": "gpu", "resourceClaimName": "one"}], "spec", "resourceClaims").value()
    remembered.reject(member, [], [mates_node], "no devices", 0.0, {})
    remembered.reject(MEMBER, [mates_node], [], "no devices", 0.0, {})
    return remembered
