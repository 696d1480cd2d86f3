"""A plan that took some time is checked against the cluster as it is by then."""

import pytest

from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.revalidate import revalidate
from tests.support.builders import RACK, NodeBuilder, node, pod
from tests.support.rules import PLAN_RULES

HOST = node("n1").rack("a").cpu(4)
PAIR = PlanRequest([pod(name).cpu(2).value() for name in ("m0", "m1")], 2, RACK)


@pytest.mark.parametrize(
    ("now", "used", "holds"),
    [
        pytest.param([HOST], 0, True, id="nothing has changed"),
        pytest.param([HOST.cpu(9)], 5, True, id="the node has more to give, and others took only that"),
        pytest.param([HOST], 2, False, id="each member alone has room, and both together have none"),
        pytest.param([HOST], 3, False, id="no member has room"),
        pytest.param([HOST.rack("b")], 0, False, id="the node is in another rack"),
        pytest.param([HOST.cordoned()], 0, False, id="the node is cordoned"),
        pytest.param([HOST.cpu(3)], 0, False, id="the node has less to give"),
        pytest.param([], 0, False, id="the node is gone"),
    ],
)
def test_a_plan_of_two_members_on_one_node_holds(now: list[NodeBuilder], used: int, *, holds: bool) -> None:
    then = {"n1": HOST.value()}
    plan = plan_gang(Snapshot(then, {}, rules=PLAN_RULES), PAIR)
    assert isinstance(plan, Plan)
    by_others = {"n1": {"cpu": 1000 * used}}
    snapshot = Snapshot({each.value().name: each.value() for each in now}, by_others, rules=PLAN_RULES)
    assert revalidate(plan, PAIR, then, snapshot) is holds
