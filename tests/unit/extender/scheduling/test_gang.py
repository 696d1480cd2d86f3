from extender.scheduling.gang import EXCLUSION_SECONDS, GroupState, ask_for
from serried.cluster.occupancy import ClaimKind
from serried.cluster.store import Store
from serried.model.plan import PlanRequest
from serried.model.verdict import Reason, Verdict
from serried.plan.fit import slots
from serried.plan.levels import open_levels
from serried.plan.quorum import size_up
from tests.support.builders import RACK, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod
from tests.support.extender_harness import SCHEDULER, gang, members

MEMBER = members(1)[0].value()


class TestExclusions:
    def test_a_refused_node_is_out_for_every_member_of_the_class(self) -> None:
        nodes = {"n1": node("n1").value()}
        same, other = members(2)[1].value(), pod("big").cpu(8).value()
        remembered = GroupState(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, nodes)
        assert remembered.exclusions([MEMBER, same, other], 1.0, nodes) == {("pod-m0", "n1"), ("pod-m1", "n1")}

    def test_an_exclusion_ends_with_its_time(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = GroupState(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, nodes)
        assert remembered.exclusions([MEMBER], EXCLUSION_SECONDS - 0.1, nodes)
        assert not remembered.exclusions([MEMBER], EXCLUSION_SECONDS, nodes)
        assert remembered.refusals == {}

    def test_an_exclusion_ends_when_the_node_changes(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = GroupState(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, nodes)
        nodes["n1"] = node("n1").rack("r1").value()
        assert not remembered.exclusions([MEMBER], 1.0, nodes)

    def test_a_refusal_by_an_unknown_node_holds_until_the_node_is_known(self) -> None:
        remembered = GroupState(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, {})
        assert remembered.exclusions([MEMBER], 1.0, {})
        assert not remembered.exclusions([MEMBER], 1.0, {"n1": node("n1").value()})


def ask(group: PodGroupBuilder, pods: list[PodBuilder], *nodes: NodeBuilder) -> PlanRequest | Verdict:
    standing = size_up([each.value() for each in pods], [SCHEDULER])
    known = {each.name: each for each in (builder.value() for builder in nodes)}
    return ask_for(group.value(), standing, frozenset(), known, open_levels((), 0.0))


class TestAsking:
    def test_a_fresh_gang_asks_for_its_quorum_and_takes_what_fits_of_the_rest(self) -> None:
        asked = ask(gang(2), members(3))
        assert isinstance(asked, PlanRequest)
        assert (asked.need, len(asked.members), asked.topology_key) == (2, 3, None)

    def test_bound_members_count_and_pin_their_domain(self) -> None:
        bound, waiting = members(2)
        asked = ask(gang(2).topology(), [bound.on("n1"), waiting], node("n1").rack("r1"))
        assert isinstance(asked, PlanRequest)
        assert (asked.need, asked.topology_key, asked.pinned) == (1, RACK, frozenset({"r1"}))

    def test_a_member_on_a_node_that_is_gone_pins_nothing(self) -> None:
        bound, waiting = members(2)
        asked = ask(gang(2).topology(), [bound.on("gone"), waiting])
        assert isinstance(asked, PlanRequest)
        assert asked.pinned == frozenset()

    def test_a_member_on_a_node_without_the_label_is_a_conflict_that_names_the_node(self) -> None:
        bound, waiting = members(2)
        answer = ask(gang(2).topology(), [bound.on("n1"), waiting], node("n1"))
        assert isinstance(answer, Verdict)
        assert answer.reason is Reason.DOMAIN_CONFLICT
        assert "n1" in answer.detail


def test_room_left_is_what_a_class_finds_free() -> None:
    store = Store([])
    store.occupancy.claim("x", ClaimKind.BOUND, "n1", (("cpu", 3000), ("pods", 1)))
    assert slots(MEMBER.shape, node("n1").cpu(8).value(), store.occupancy.used.get("n1")) == 5
    assert slots(MEMBER.shape, node("n1").cpu(8).cordoned().value(), store.occupancy.used.get("n1")) == 0
