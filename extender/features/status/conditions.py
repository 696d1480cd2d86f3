"""The conditions of PodGroups, and of all groups of a tree: whether the group is scheduled, and why not.

`Conditions.write` writes them. The first condition is upstream's PodGroupInitiallyScheduled, or
CompositePodGroupInitiallyScheduled. Once True, it never turns False again.

Serried's own CRD of PodGroups is used if the API server offers no API of PodGroups that Serried can use (the fallback
level). Its PodGroups have the first condition, too. If they are gangs, they also have the condition Ready: True while
the quorum is placed, False otherwise. ``kubectl get`` shows it. Its reason is that of Serried's verdict, its message
how much of the quorum is placed, such as ``0/6``.

A gang that waits has a third condition, FirstQuorum: the date that decides about its place in the queue, so that it
keeps its place when all its pods are replaced (decision 58). It is removed once the gang has been scheduled.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from serried.api.group import Composite, FirstQuorum, PodGroup, Tree, list_groups, list_leaves
from serried.api.level import COMPOSITE_CONDITION, FALLBACK, FIRST_QUORUM, READY, ApiLevel
from serried.api.names import BARE_KINDS, DISRUPTION_TARGET, PREEMPTED, GroupKey, GroupKind, write_time
from serried.api.verdict import Reason, Trait, Verdict, render
from serried.cluster.forest import Forest
from serried.cluster.members import Members
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import composites, pod_groups
from serried.plan.quorum import GroupMembers, count_complete, count_missing

FIELD_MANAGER = "serried"

_DISRUPTION_MANAGER = "serried-preemption"
"""The field manager of the condition DisruptionTarget.

Server-side apply removes what a manager no longer sends: with one manager, a write of the first condition would remove
DisruptionTarget.
"""

_READY_MANAGER = "serried-ready"
"""The field manager of Ready and FirstQuorum once the group is scheduled.

The condition of that is final and not sent again. So server-side apply would remove it if its own field manager wrote
Ready or FirstQuorum alone.
"""

_MAX_GONE = 1000
"""The deleted groups in memory are forgotten once they exceed the existing groups by this number."""

_Condition = tuple[str, str, str]
"""Status, reason and message."""

_SCHEDULED: _Condition = ("True", "Scheduled", "")


@dataclass(frozen=True, slots=True)
class _GroupConditions:
    """The conditions that one group has, or should have. Each is None if there is none."""

    scheduled: _Condition | None

    ready: _Condition | None = None
    """The condition Ready; None for a group without one, i.e. at the native level, or that is no gang."""

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

        self._written: dict[str, _GroupConditions] = {}
        """The conditions written last, by the object's UID."""

    async def write(self, group: PodGroup, verdict: Verdict) -> None:
        """Write the conditions for the verdict (see the module) to the group, and to all groups of its tree.

        Also remove the condition DisruptionTarget from groups that run again (`_is_running_again`). Does nothing for
        kinds without conditions. Objects that were deleted are skipped. If writes fail, the other groups are still
        written; then the first ApiError is raised.
        """
        if group.key.kind in BARE_KINDS:
            return  # these kinds have no status or no conditions: users read events and /debug
        # Counted from the members: the verdict may be about a late member of a running gang only.
        members = self._members.classify(group.key)
        placed = members.placed_by_leaf
        place = self._find_place(group.key)
        refusals: list[ApiError] = []
        for tree in list_groups(group.tree):
            found = self.find_object(group.key_of(tree))
            try:
                if found is not None:
                    conditions = self._make_conditions(found, verdict, tree, placed)
                    await self._write_if_changed(
                        found, replace(conditions, first_quorum=place if tree is group.tree else None)
                    )
                    if count_missing(tree, placed) == 0 and _is_running_again(found, tree, members):
                        await self._apply(found, [], _DISRUPTION_MANAGER)
            except ApiError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    async def set_disruption_target(self, key: GroupKey, text: str) -> None:
        """Write the condition DisruptionTarget of a group that is evicted as a whole.

        ``text`` is its message. Raises ApiError.
        """
        found = self.find_object(key)
        if found is not None and key.kind not in BARE_KINDS:
            condition = _encode(found, DISRUPTION_TARGET, ("True", PREEMPTED, text))
            await self._apply(found, [condition], _DISRUPTION_MANAGER)

    async def remove_disruption_target(self, key: GroupKey) -> None:
        """Remove the condition DisruptionTarget of a group. Raises ApiError."""
        found = self.find_object(key)
        if found is not None and key.kind not in BARE_KINDS:
            await self._apply(found, [], _DISRUPTION_MANAGER)

    def find_object(self, key: GroupKey) -> PodGroup | Composite | None:
        """Return the PodGroup or CompositePodGroup of a key, at any level of a tree; None if there is none."""
        if key.kind is GroupKind.COMPOSITE:
            return self._forest.composites.get(key.object_key)
        return self._groups.get(key)

    def forget_written(self) -> None:
        """Forget which conditions were written, as another instance may write from now on.

        Afterwards the first write of each group is compared with the conditions that the watch shows.
        """
        self._written.clear()

    def _make_conditions(
        self, item: PodGroup | Composite, verdict: Verdict, tree: Tree, placed: Mapping[str, int]
    ) -> _GroupConditions:
        """Return the conditions that a group should have, except FirstQuorum, which the caller adds.

        ``tree`` is the group's part of the tree, ``placed`` the number of placed members by PodGroup name.
        """
        reason = "SchedulerError" if Trait.SERRIED_FAILED in verdict.reason.traits else "Unschedulable"
        has_quorum = count_missing(tree, placed) == 0
        said = _SCHEDULED if has_quorum else ("False", reason, render(verdict))
        return _GroupConditions(said, self._make_ready(item, verdict, tree, placed))

    async def _write_if_changed(self, item: PodGroup | Composite, wanted: _GroupConditions) -> None:
        has_quorum = wanted.scheduled == _SCHEDULED
        wanted = replace(wanted, first_quorum=None) if has_quorum else wanted
        # The watch may not have shown the last write yet.
        last = self._written.get(item.uid, _GroupConditions(item.condition, item.ready, item.first_quorum))
        # Once True it never turns False (PodGroupInitiallyScheduled in k8s.io/api/scheduling/v1beta1/types.go). Later
        # reasons are in Ready, events and /debug.
        if item.scheduled or (last.scheduled is not None and last.scheduled[0] == "True"):
            wanted = replace(wanted, scheduled=last.scheduled or _SCHEDULED)
            if wanted.ready is None or (last.ready is None and has_quorum):
                # A gang that ran before Serried wrote Ready gets it with the next change.
                wanted = replace(wanted, ready=last.ready)
            if wanted == last:
                return
            said, manager = [], _READY_MANAGER
        elif last == wanted:
            return
        else:
            said, manager = [_encode(item, self._name_condition(item), wanted.scheduled or _SCHEDULED)], FIELD_MANAGER
        said += [_encode(item, READY, wanted.ready)] if wanted.ready is not None else []
        said += [_encode_first_quorum(item, wanted.first_quorum)] if wanted.first_quorum is not None else []
        try:
            await self._apply(item, said, manager)
        except NotFound:
            return
        self._written[item.uid] = wanted
        if len(self._written) > 2 * (len(self._groups) + len(self._forest.composites)) + _MAX_GONE:
            self._forget_gone()

    def _make_ready(
        self, item: PodGroup | Composite, verdict: Verdict, tree: Tree, placed: Mapping[str, int]
    ) -> _Condition | None:
        """Return the condition Ready of a group: True while its quorum is placed.

        Return None if the group is no gang, or its object is not of one of Serried's own CRDs.
        ``tree`` is the group's part of the tree, ``placed`` the number of placed members by PodGroup name.
        """
        is_gang = item.policy.is_gang if isinstance(item, PodGroup) else item.min_group_count is not None
        if not is_gang or self._level_of(item).group != FALLBACK.group:
            return None
        has_quorum = count_missing(tree, placed) == 0
        counts = f"{count_complete(tree, placed)}/{tree.need}"
        return (str(has_quorum), (Reason.SCHEDULED if has_quorum else verdict.reason).value, counts)

    def _name_condition(self, item: PodGroup | Composite) -> str:
        return COMPOSITE_CONDITION if isinstance(item, Composite) else self._level_of(item).condition

    def _level_of(self, item: PodGroup | Composite) -> ApiLevel:
        return self._level.level_of(item.api)

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


def _encode(item: PodGroup | Composite, kind: str, wanted: _Condition) -> dict[str, Any]:
    status, reason, message = wanted
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": item.generation,
        "lastTransitionTime": format_now(),
    }


def _encode_first_quorum(item: PodGroup | Composite, place: FirstQuorum) -> dict[str, Any]:
    """Return the condition FirstQuorum as JSON.

    ``place`` says when the quorum existed for the first time, and since when it is lost, if it is. The message is the
    first time. lastTransitionTime is the time of the loss if there was one (then the status is False), else the first.
    `serried.api.group` decodes it again.
    """
    if place.lost is None:
        said, changed = ("True", "Waits", write_time(place.since)), place.since
    else:
        said, changed = ("False", "QuorumLost", write_time(place.since)), place.lost
    return _encode(item, FIRST_QUORUM, said) | {"lastTransitionTime": write_time(changed)}


def _is_running_again(item: PodGroup | Composite, tree: Tree, members: GroupMembers) -> bool:
    """Return whether all running pods of a group started after it got the condition DisruptionTarget.

    The condition is removed then. False if the group has no such condition, or if a bound pod is being deleted. A pod
    whose start is unknown counts as started later.
    """
    if item.preempted is None:
        return False
    leaves = members.leaves
    pods = (pod for leaf in list_leaves(tree) if leaf.name in leaves for pod in leaves[leaf.name].bound)
    # Both times are in whole seconds: a pod started in the same second may be older than the condition.
    return all(not pod.deleting and (pod.started is None or pod.started > item.preempted) for pod in pods)


def format_now() -> str:
    """Return the current time in RFC 3339, to the second."""
    return write_time(time.time())
