"""The conditions of a PodGroup, or of every group of a tree: whether it has been scheduled, and why not.

At the fallback level a gang has a second one, Ready: its reason is ours, its message how many of its quorum are placed,
such as ``0/6``. It is what ``kubectl get`` shows of the group, and unlike the first it can turn False again.

A gang that waits has one more, FirstQuorum: its place in the queue, which outlasts its pods (decision 58). It is
written with the others, and left out once the gang has been scheduled.
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
from serried.plan.quorum import GroupMembers, count_missing, count_standing

FIELD_MANAGER = "serried"

_DISRUPTION_MANAGER = "serried-preemption"
"""Another one, so that a condition is not taken away when the other one is applied."""

_READY_MANAGER = "serried-ready"
"""The one of Ready and FirstQuorum once the other condition is True: that is not applied again."""

_MAX_GONE = 1000
"""How many more objects may be remembered than twice as many as there are."""

_Condition = tuple[str, str, str]
"""Status, reason and message."""

_SCHEDULED: _Condition = ("True", "Scheduled", "")


@dataclass(frozen=True, slots=True)
class _Told:
    """What the conditions of a group say."""

    scheduled: _Condition | None

    ready: _Condition | None = None
    """None where it has none."""

    first_quorum: FirstQuorum | None = None


class Conditions:
    """Writes conditions, each only when it says something new."""

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
        """What was written last, by the UID of the object."""

    async def write(self, group: PodGroup, verdict: Verdict) -> None:
        """Say how each group of a tree stands. One that is gone is fine.

        Raises ApiError: the first one, when all groups have been tried.
        """
        if group.key.kind in BARE_KINDS:
            return  # a Workload has no status, theirs has no conditions: events and /debug have to do
        # Read off the members, not off the verdict: a gang that is up may have a late member that waits by now.
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

    async def disrupt(self, key: GroupKey, text: str) -> None:
        """Say of one group that it is evicted as a whole. Raises ApiError."""
        found = self.find(key)
        if found is not None and key.kind not in BARE_KINDS:
            condition = _describe(found, DISRUPTION_TARGET, ("True", PREEMPTED, text))
            await self._apply(found, [condition], _DISRUPTION_MANAGER)

    async def spare(self, key: GroupKey) -> None:
        """Take back what `disrupt` has said. Raises ApiError."""
        found = self.find(key)
        if found is not None and key.kind not in BARE_KINDS:
            await self._apply(found, [], _DISRUPTION_MANAGER)

    def find(self, key: GroupKey) -> PodGroup | Composite | None:
        """The object of one group; of a CompositePodGroup itself, whether it is a root or not."""
        if key.kind is GroupKind.COMPOSITE:
            return self._forest.composites.get(key.object_key)
        return self._groups.get(key)

    def forget(self) -> None:
        """Others may write from now on: what counts is what the watch shows."""
        self._written.clear()

    def _choose(self, item: PodGroup | Composite, verdict: Verdict, tree: Tree, placed: Mapping[str, int]) -> _Told:
        """Return what the conditions say of a group, but for FirstQuorum."""
        reason = "SchedulerError" if Mark.OURS in verdict.reason.marks else "Unschedulable"
        stands = count_missing(tree, placed) == 0
        said = _SCHEDULED if stands else ("False", reason, render(verdict))
        return _Told(said, self._find_ready(item, verdict, tree, placed))

    async def _settle(self, item: PodGroup | Composite, wanted: _Told) -> None:
        stands = wanted.scheduled == _SCHEDULED
        wanted = replace(wanted, first_quorum=None) if stands else wanted
        # Our own watch may not have shown yet what we wrote last.
        last = self._written.get(item.uid, _Told(item.condition, item.ready, item.first_quorum))
        # Once True it never goes back (PodGroupInitiallyScheduled in k8s.io/api/scheduling/v1beta1/types.go); later
        # reasons are told by Ready, events and /debug.
        if item.scheduled or (last.scheduled is not None and last.scheduled[0] == "True"):
            wanted = replace(wanted, scheduled=last.scheduled or _SCHEDULED)
            if wanted.ready is None or (last.ready is None and stands):
                # A gang that ran before there was a Ready gets none before it changes.
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
        """The condition Ready, None for a group that is no gang, or whose kind is not ours."""
        is_gang = item.policy.is_gang if isinstance(item, PodGroup) else item.min_group_count is not None
        if not is_gang or self._level_of(item).group != FALLBACK.group:
            return None
        stands = count_missing(tree, placed) == 0
        counts = f"{count_standing(tree, placed)}/{tree.need}"
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
    """The condition FirstQuorum; `serried.api.group` reads the dates again."""
    if place.lost is None:
        said, changed = ("True", "Waits", write_time(place.since)), place.since
    else:
        said, changed = ("False", "QuorumLost", write_time(place.since)), place.lost
    return _describe(item, FIRST_QUORUM, said) | {"lastTransitionTime": write_time(changed)}


def _is_placed_anew(item: PodGroup | Composite, tree: Tree, members: GroupMembers) -> bool:
    """Whether a group says that it is preempted of which only pods run that have started since."""
    if item.preempted is None:
        return False
    leaves = members.leaves
    pods = (pod for leaf in list_leaves(tree) if leaf.name in leaves for pod in leaves[leaf.name].bound)
    # Both times are in whole seconds: a pod of the same second may have been there.
    return all(not pod.deleting and (pod.started is None or pod.started > item.preempted) for pod in pods)


def tell_time() -> str:
    """Now, RFC 3339 to the second."""
    return write_time(time.time())
