from extender.core.scheduling.request import build_request
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.usage import UsageSource
from serried.plan.fit import count_fitting
from serried.plan.quorum import classify
from serried.plan.request import PlanRequest
from serried.rules.all import RULES
from tests.support.builders import RACK, NodeBuilder, PodBuilder, PodGroupBuilder, node
from tests.support.extender_harness import SCHEDULER, gang, members

MEMBER = members(1)[0].value()


def request_for(group: PodGroupBuilder, pods: list[PodBuilder], *nodes: NodeBuilder) -> PlanRequest | Verdict:
    group_members = classify([each.value() for each in pods], [SCHEDULER])
    known = {each.name: each for each in (builder.value() for builder in nodes)}
    return build_request(group.value(), group_members, frozenset(), known, 0.0)


class TestRequests:
    def test_a_fresh_gang_requests_its_quorum_and_takes_what_fits_of_the_rest(self) -> None:
        request = request_for(gang(2), members(3))
        assert isinstance(request, PlanRequest)
        assert (request.need, len(request.members), request.topology_key) == (2, 3, None)

    def test_bound_members_count_and_pin_their_domain(self) -> None:
        bound, waiting = members(2)
        request = request_for(gang(2).topology(), [bound.on("n1"), waiting], node("n1").rack("r1"))
        assert isinstance(request, PlanRequest)
        assert (request.need, request.topology_key, request.pinned) == (1, RACK, frozenset({"r1"}))

    def test_a_member_on_a_node_that_is_gone_pins_nothing(self) -> None:
        bound, waiting = members(2)
        request = request_for(gang(2).topology(), [bound.on("gone"), waiting])
        assert isinstance(request, PlanRequest)
        assert request.pinned == frozenset()

    def test_a_member_on_a_node_without_the_label_is_a_conflict_that_names_the_node(self) -> None:
        bound, waiting = members(2)
        answer = request_for(gang(2).topology(), [bound.on("n1"), waiting], node("n1"))
        assert isinstance(answer, Verdict)
        assert answer.reason is Reason.DOMAIN_CONFLICT
        assert "n1" in answer.detail


def test_room_left_is_what_a_class_finds_free() -> None:
    store = Store([], rules=RULES)
    store.occupancy.add_usage("x", UsageSource.BOUND, "n1", (("cpu", 3000), ("pods", 1)))
    assert count_fitting(MEMBER.shape, node("n1").cpu(8).value(), store.occupancy.used.get("n1")) == 5
    assert count_fitting(MEMBER.shape, node("n1").cpu(8).cordoned().value(), store.occupancy.used.get("n1")) == 0
