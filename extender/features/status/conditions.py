"""The conditions of a PodGroup, or of every group of a tree: whether it has been scheduled, and why not.

At the fallback level a gang has a second one, Ready: its reason is ours, its message how many of its quorum are placed,
such as ``0/6``. It is what ``kubectl get`` shows of the group, and unlike the first it can turn False again.
"""

import time
from collections.abc import Mapping
from typing import Any

from serried.api.group import Composite, PodGroup, Tree, list_groups, list_leaves
from serried.api.level import COMPOSITE_CONDITION, FALLBACK, READY, ApiLevel
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
"""The one of Ready once the other condition is True: that is not applied again."""

_MAX_GONE = 1000
"""How many more objects may be remembered than twice as many as there are."""

_Condition = tuple[str, str, str]
"""Status, reason and message."""

_SCHEDULED: _Condition = ("True", "Scheduled", "")


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
    ) -> None:
        self._client = client
        self._level = level
        self._groups = groups
        self._forest = forest
        self._members = members

        self._written: dict[str, tuple[_Condition, _Condition | None]] = {}
        """What was written last, by the UID of the object: of Ready None where it has none."""

    async def write(self, group: PodGroup, verdict: Verdict) -> None:
        """Say how each group of a tree stands. One that is gone is fine.

        Raises ApiError: the first one, when all groups have been tried.
        """
        if group.key.kind in BARE_KINDS:
            return  # a Workload has no status, theirs has no conditions: events and /debug have to do
        # Read off the members, not off the verdict: a gang that is up may have a late member that waits by now.
        members = self._members.classify(group.key)
        placed = members.placed_by_leaf
        refusals: list[ApiError] = []
        for tree in list_groups(group.tree):
            found = self.find(group.key_of(tree))
            try:
                if found is not None:
                    await self._settle(found, verdict, tree, placed)
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

    async def _settle(
        self, item: PodGroup | Composite, verdict: Verdict, tree: Tree, placed: Mapping[str, int]
    ) -> None:
        stands = count_missing(tree, placed) == 0
        reason = "SchedulerError" if Mark.OURS in verdict.reason.marks else "Unschedulable"
        wanted = _SCHEDULED if stands else ("False", reason, render(verdict))
        ready = self._find_ready(item, verdict, tree, placed)
        # Our own watch may not have shown yet what we wrote last.
        last, last_ready = self._written.get(item.uid, (item.condition, item.ready))
        # Once True it never goes back (PodGroupInitiallyScheduled in k8s.io/api/scheduling/v1beta1/types.go); later
        # reasons are told by Ready, events and /debug.
        through = item.scheduled or (last is not None and last[0] == "True")
        if through and last is not None:
            # A gang that ran before there was a Ready gets none before it changes.
            if ready is None or ready == last_ready or (last_ready is None and stands):
                return
            wanted, said, manager = last, [_describe(item, READY, ready)], _READY_MANAGER
        elif (last, last_ready) == (wanted, ready):
            return
        else:
            said = [_describe(item, self._name_condition(item), wanted)]
            said += [_describe(item, READY, ready)] if ready is not None else []
            manager = FIELD_MANAGER
        try:
            await self._apply(item, said, manager)
        except NotFound:
            return
        self._written[item.uid] = wanted, ready
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
