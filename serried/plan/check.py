"""Whether a plan that took some time still holds."""

from collections.abc import Mapping

from serried.model.node import Node
from serried.model.plan import Plan, PlanRequest, Snapshot
from serried.model.resources import Resources, add, count_slots
from serried.plan.fit import admits


def still_holds(plan: Plan, ask: PlanRequest, then: Mapping[str, Node], now: Snapshot) -> bool:
    """Whether each member of a plan finds its node as it was ``then``, and room there ``now``, all together.

    A node may have got more or less to give. One with other labels may be in another domain, so it will not do.
    """
    used: dict[str, Resources] = {}
    for member in ask.members:
        name = plan.nodes.get(member.uid)
        if name is None:
            continue
        node = now.nodes.get(name)
        if node is None or node.labels != then[name].labels or not admits(member.shape, node):
            return False
        taken = used.get(name) or now.used.get(name, {})
        request = dict(member.shape.requests)
        if not count_slots(node.allocatable, taken, request):
            return False
        used[name] = add(taken, request)
    return True
