"""Checks again whether a plan is still possible, before it is carried out (`revalidate`).

The extender's planning tasks and preemption call it, for plans that were made for an older state of the cluster: those
of a forked process, those that wait for victims to end, and those that wait for their record to be written.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, add, count_slots, subtract
from serried.plan.capacity import group_classes
from serried.plan.fit import admits
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot
from serried.plan.rule import has_rules, read_rules


def revalidate(plan: Plan, ask: PlanRequest, then: Mapping[str, Node], now: Snapshot) -> bool:
    """Return whether each member still fits on its node of the plan, when members are placed in the order of the plan.

    ``then`` has the nodes for which the plan was made. ``now`` is the present state, in which the members must not be
    counted. A node may have other allocatable amounts than before. If its labels differ, the result is False, because
    it may be in another domain. Rules such as anti-affinity are checked as for a new plan.
    """
    members = [member for member in ask.members if member.uid in plan.nodes]
    if not _still_fit(plan, members, then, now):
        return False
    rules = read_rules(now, classes := group_classes(members))
    if rules is None:
        return True
    kind_of = {member.uid: kind for kind in classes for member in kind.members}
    moves = [(kind_of[uid], name) for uid, name in plan.nodes.items() if uid in kind_of]
    if any(name in rules.list_closed(kind) for kind, name in set(moves)):
        return False
    return rules.holds(moves)


def keeps_rules(members: Collection[Pod], nodes: Mapping[str, str], leaving: Iterable[Pod], now: Snapshot) -> bool:
    """Return whether rules such as anti-affinity allow the members on their nodes, once ``leaving`` pods have ended.

    ``nodes`` has the node name by member UID. ``now`` counts the members on these nodes, and the leaving pods. The
    order of the members does not matter. Free resources are not checked.
    """
    classes = group_classes(members)
    if not has_rules(now, classes):
        return True
    used: dict[str, Resources] = {}
    for pod in (*members, *leaving):
        name = nodes.get(pod.uid, pod.node)
        used[name] = subtract(used.get(name) or now.used.get(name, {}), dict(pod.shape.requests))
    rules = read_rules(replace(now, used=Overlay(used, now.used), over={*now.over, *used}), classes)
    if rules is None:
        return True
    moves = {member.uid: (kind, nodes[member.uid]) for kind in classes for member in kind.members}
    if any(name in rules.list_closed(kind) for kind, name in set(moves.values())):
        return False
    return rules.find_order(moves) is not None


def _still_fit(plan: Plan, members: Collection[Pod], then: Mapping[str, Node], now: Snapshot) -> bool:
    """Return whether all members together fit on their nodes, and the nodes have the same labels as in ``then``."""
    used: dict[str, Resources] = {}
    for member in members:
        name = plan.nodes[member.uid]
        node = now.nodes.get(name)
        if node is None or node.labels != then[name].labels or not admits(member.shape, node):
            return False
        taken = used.get(name) or now.used.get(name, {})
        request = dict(member.shape.requests)
        if not count_slots(node.allocatable, taken, request):
            return False
        used[name] = add(taken, request)
    return True
