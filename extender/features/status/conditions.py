"""The conditions of PodGroups, and of all groups of a tree: whether the group is scheduled, and why not.

`Conditions.write` writes them. At the fallback level a gang has a second condition, Ready. Its reason is Serried's
reason, its message the number of placed members of the quorum, such as ``0/6``. ``kubectl get`` shows it. Unlike the
first condition, it can turn False again.

A waiting gang has one more, FirstQuorum: its place in the queue, which outlasts its pods (decision 58). It is written
with the others, and left out once the gang has been scheduled.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from serried.api.group import Composite, FirstQuorum, PodGroup, Tree, list_groups, list_leaves
from serried.api.level import COMPOSITE_CONDITION, FALLBACK, FIRST_QUORUM, READY, ApiLevel
from serried.api.names import BARE_KINDS, DISRUPTION_TARGET, PREEMPTED, GroupKey, GroupKind, write_time
from serried.api.verdict import Mark, Reason, Verdict, render
from serried.cluster.forest import Forest
from serried.cluster.members import Members
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import composites, pod_groups
from serried.plan.quorum import GroupMembers, count_complete, count_missing

FIELD_MANAGER = "serried"

_DISRUPTION_MANAGER = "serried-preemption"
"""A field manager of its own: applying the other condition would otherwise remove DisruptionTarget."""

_READY_MANAGER = "serried-ready"
"""The field manager of Ready and FirstQuorum once the first condition is True, which is not applied any more."""

_MAX_GONE = 1000
"""The number of objects remembered beyond twice the number of existing ones, before deleted ones are forgotten."""

_Condition = tuple[str, str, str]
"""Status, reason and message."""

_SCHEDULED: _Condition = ("True", "Scheduled", "")


@dataclass(frozen=True, slots=True)
class _Told:
    """The conditions of one group."""

    scheduled: _Condition | None

    ready: _Condition | None = None
    """The condition Ready; None for a group that has none."""

    first_quorum: FirstQuorum | None = None


class Conditions:
    """Writes the conditions of all groups, each only when it changes. One instance per `Reports`."""

    def __init__(
        self,
        client: ApiClient,
        level: ApiLevel,
        groups: Mapping[GroupKey, PodGroup],
        forest: Forest,
        *,
        members: Members,
        find_place: Callable[[GroupKey], FirstQuorum | None] = lambda _: None,
    ) -> None:
        self._client = client
        self._level = level
        self._groups = groups
        self._forest = forest
        self._members = members
        self._find_place = find_place

        self._written: dict[str, _Told] = {}
        """The conditions written last, by the object's UID."""

    async def write(self, group: PodGroup, verdict: Verdict) -> None:
        """Write the conditions of each group of a tree. A group that is gone is passed over.

        Raises the first ApiError, after all groups were tried.
        """
        if group.key.kind in BARE_KINDS:
            return  # these kinds have no status or no conditions: users read events and /debug
        # From the members, and not from the verdict, which may be about a late member of a running gang.
        members = self._members.classify(group.key)
        placed = members.placed_by_leaf
        place = self._find_place(group.key)
        refusals: list[ApiError] = []
        for tree in list_groups(group.tree):
            found = self.find(group.key_of(tree))
            try:
                if found is not None:
                    told = self._choose(found, verdict, tree, placed)
                    await self._settle(found, replace(told, first_quorum=place if tree is group.tree else None))
                    if count_missing(tree, placed) == 0 and _is_placed_anew(found, tree, members):
                        await self._apply(found, [], _DISRUPTION_MANAGER)
            except ApiError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    async def set_disruption_target(self, key: GroupKey, text: str) -> None:
        """Write the condition DisruptionTarget of a group that is evicted as a whole. Raises ApiError."""
        found = self.find(key)
        if found is not None and key.kind not in BARE_KINDS:
            condition = _describe(found, DISRUPTION_TARGET, ("True", PREEMPTED, text))
            await self._apply(found, [condition], _DISRUPTION_MANAGER)

    async def remove_disruption_target(self, key: GroupKey) -> None:
        """Remove the condition DisruptionTarget of a group. Raises ApiError."""
        found = self.find(key)
        if found is not None and key.kind not in BARE_KINDS:
            await self._apply(found, [], _DISRUPTION_MANAGER)

    def find(self, key: GroupKey) -> PodGroup | Composite | None:
        """Return the object of one group, also of a CompositePodGroup that is not the root of its tree."""
        if key.kind is GroupKind.COMPOSITE:
            return self._forest.composites.get(key.object_key)
        return self._groups.get(key)

    def forget(self) -> None:
        """Forget what was written, as another instance may write from now on: only the watch counts then."""
        self._written.clear()

    def _choose(self, item: PodGroup | Composite, verdict: Verdict, tree: Tree, placed: Mapping[str, int]) -> _Told:
        """Return the conditions that a group should have, without FirstQuorum."""
        reason = "SchedulerError" if Mark.OURS in verdict.reason.marks else "Unschedulable"
        stands = count_missing(tree, placed) == 0
        said = _SCHEDULED if stands else ("False", reason, render(verdict))
        return _Told(said, self._find_ready(item, verdict, tree, placed))

    async def _settle(self, item: PodGroup | Composite, wanted: _Told) -> None:
        stands = wanted.scheduled == _SCHEDULED
        wanted = replace(wanted, first_quorum=None) if stands else wanted
        # The watch may not have shown the last write yet.
        last = self._written.get(item.uid, _Told(item.condition, item.ready, item.first_quorum))
        # Once True it never turns False (PodGroupInitiallyScheduled in k8s.io/api/scheduling/v1beta1/types.go). Later
        # reasons are in Ready, events and /debug.
        if item.scheduled or (last.scheduled is not None and last.scheduled[0] == "True"):
            wanted = replace(wanted, scheduled=last.scheduled or _SCHEDULED)
            if wanted.ready is None or (last.ready is None and stands):
                # A gang that ran before Serried wrote Ready gets it with the next change.
                wanted = replace(wanted, ready=last.ready)
            if wanted == last:
                return
            said, manager = [], _READY_MANAGER
        elif last == wanted:
            return
        else:
            said, manager = [_describe(item, self._name_condition(item), wanted.scheduled or _SCHEDULED)], FIELD_MANAGER
        said += [_describe(item, READY, wanted.ready)] if wanted.ready is not None else []
        said += [_describe_place(item, wanted.first_quorum)] if wanted.first_quorum is not None else []
        try:
            await self._apply(item, said, manager)
        except NotFound:
            return
        self._written[item.uid] = wanted
        if len(self._written) > 2 * (len(self._groups) + len(self._forest.composites)) + _MAX_GONE:
            self._forget_gone()

    def _find_ready(
        self, item: PodGroup | Composite, verdict: Verdict, tree: Tree, placed: Mapping[str, int]
    ) -> _Condition | None:
        """Return the condition Ready; None for a group that is no gang, or not of a CRD of Serried."""
        is_gang = item.policy.is_gang if isinstance(item, PodGroup) else item.min_group_count is not None
        if not is_gang or self._level_of(item).group != FALLBACK.group:
            return None
        stands = count_missing(tree, placed) == 0
        counts = f"{count_complete(tree, placed)}/{tree.need}"
        return (str(stands), (Reason.SCHEDULED if stands else verdict.reason).value, counts)

    def _name_condition(self, item: PodGroup | Composite) -> str:
        return COMPOSITE_CONDITION if isinstance(item, Composite) else self._level_of(item).condition

    def _level_of(self, item: PodGroup | Composite) -> ApiLevel:
        return self._level.of(item.api)

    async def _apply(self, item: PodGroup | Composite, conditions: list[dict[str, Any]], manager: str) -> None:
        level = self._level_of(item)
        composite = isinstance(item, Composite)
        resource = composites(level) if composite else pod_groups(level.group, level.version)
        body: dict[str, Any] = {
            "apiVersion": resource.api_version,
            "kind": "CompositePodGroup" if composite else "PodGroup",
            "metadata": {"name": item.key.name, "namespace": item.key.namespace},
            "status": {"conditions": conditions},
        }
        await self._client.apply(resource, item.key.namespace, item.key.name, body, "status", manager)

    def _forget_gone(self) -> None:
        known = {group.uid for group in self._groups.values()}
        known.update(composite.uid for composite in self._forest.composites.values())
        self._written = {uid: written for uid, written in self._written.items() if uid in known}


def _describe(item: PodGroup | Composite, kind: str, wanted: _Condition) -> dict[str, Any]:
    status, reason, message = wanted
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": item.generation,
        "lastTransitionTime": tell_time(),
    }


def _describe_place(item: PodGroup | Composite, place: FirstQuorum) -> dict[str, Any]:
    """Return the condition FirstQuorum; `serried.api.group` decodes its dates again."""
    if place.lost is None:
        said, changed = ("True", "Waits", write_time(place.since)), place.since
    else:
        said, changed = ("False", "QuorumLost", write_time(place.since)), place.lost
    return _describe(item, FIRST_QUORUM, said) | {"lastTransitionTime": write_time(changed)}


def _is_placed_anew(item: PodGroup | Composite, tree: Tree, members: GroupMembers) -> bool:
    """Return whether a group has the condition DisruptionTarget, and all its running pods have started after it."""
    if item.preempted is None:
        return False
    leaves = members.leaves
    pods = (pod for leaf in list_leaves(tree) if leaf.name in leaves for pod in leaves[leaf.name].bound)
    # Both times are in whole seconds: a pod of the same second may have been there.
    return all(not pod.deleting and (pod.started is None or pod.started > item.preempted) for pod in pods)


def tell_time() -> str:
    """Return the current time in RFC 3339, to the second."""
    return write_time(time.time())
