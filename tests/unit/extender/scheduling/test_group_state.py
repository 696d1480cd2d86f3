from extender.scheduling.group_state import EXCLUSION_SECONDS, GroupState
from tests.support.builders import node, pod
from tests.support.extender_harness import members

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
