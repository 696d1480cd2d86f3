"""What kube-scheduler did not offer to members that it alone can count for, when others may leave room."""

from serried.model.plan import PlanRequest, Snapshot
from serried.plan.capacity import Capacity, Fork
from serried.plan.classes import group_classes
from serried.plan.steps import Work


def reopen_full(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> Work[PlanRequest]:
    """The question for whoever looks for room that others leave: full nodes count, whether or not they were offered.

    One that has room for a member and was not offered lacks what we cannot count, and stays closed. One that has none
    was not offered for want of room, as far as can be told. In steps, as the plans.
    """
    if not ask.unoffered:
        return ask
    origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
    counted = Fork(origin, snapshot.nodes, snapshot.used, snapshot.over)
    full = set(ask.unoffered)
    for kind in group_classes(ask.members):
        table = yield from counted.count(kind.shape)
        full.difference_update(table.by_node)
        yield
    return ask.reopening(frozenset(full))
