"""The names of groups on the pages of ``/debug``, and the search for the groups of a Job, pod or other object."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from controller.diff.sentences import describe_no_gang
from extender.look.document import View
from extender.wiring import Core
from serried.api.group import PodGroup
from serried.api.kinds import OWNER_KINDS
from serried.api.names import JOB, GroupKey, GroupKind, Key
from serried.api.parent import Owner, OwnerKey, explain_no_gang, owner_key_of
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.ops.slices import one_by_one


class GroupName(View):
    """The name of a group, as the pages of ``/debug`` show it."""

    namespace: str
    name: str
    kind: GroupKind

    owner: str
    """The Job, JobSet or LeaderWorkerSet that owns the group, as kubectl names it: `job/train`; "" without one."""


def name_group(core: Core, key: GroupKey) -> dict[str, Any]:
    """Return the name of a group as keyword arguments for `GroupName` or a subclass of it."""
    owner = core.store.membership.name_owner(key)
    return {"namespace": key.namespace, "name": key.encoded, "kind": key.kind, "owner": owner}


_OWNERS = {row.word: row.kind for row in OWNER_KINDS.values()}
KINDS = ("podgroup", "pod", "workload", *_OWNERS)


async def find_groups_of(core: Core, kind: str, object_key: Key) -> AsyncIterator[GroupKey]:
    """Yield the groups of the object of this kind and name.

    ``kind`` is one of `KINDS`: podgroup, pod, workload, or an owner such as job. A group may come several times.
    """
    store = core.store
    if kind == "podgroup":
        for each in (GroupKind.POD_GROUP, GroupKind.COMPATIBLE, GroupKind.COMPOSITE):
            key = GroupKey(object_key.namespace, object_key.name, each)
            if is_known(core, key) or store.forest.find_tree_key(key) != key:
                yield key
        return
    if kind != "pod":
        async for key, group in one_by_one(store.groups.items()):
            if key.namespace == object_key.namespace and _is_of(group, kind, object_key.name):
                yield key
    async for pod in _find_pods(core, kind, object_key):
        group_key = store.members.group_of(pod.uid)
        if group_key is not None:
            yield group_key


def _is_of(group: PodGroup, kind: str, name: str) -> bool:
    """Return whether a group was created from the Workload, or for the owner, of this kind and name."""
    if kind == "workload":
        return group.workload == name or (group.key.kind is GroupKind.WORKLOAD and group.key.object_key.name == name)
    return (_OWNERS[kind], name) in {(each.kind, each.name) for each in group.owners}


async def _find_pods(core: Core, kind: str, object_key: Key) -> AsyncIterator[Pod]:
    """Yield the pod of this name if ``kind`` is pod, or the pods of an owner of this kind and name; none otherwise."""
    pods: Iterable[Pod] = core.store.pods.values() if kind == "pod" else ()
    if kind in _OWNERS:
        pods = core.store.owners.pods_of(OwnerKey(_OWNERS[kind], object_key))
    async for pod in one_by_one(pods):
        if kind != "pod" or (pod.namespace, pod.name) == object_key:
            yield pod


async def explain_none(core: Core, kind: str, object_key: Key) -> str:
    """Return a sentence for users about why an object has no group, or that it is not known."""
    if kind == "pod" and (pods := [pod async for pod in _find_pods(core, kind, object_key)]):
        said = f"pod {object_key} is in no group: Serried lets the scheduler place it like any other pod"
        return said + _explain_owner_of(core.store, pods[0])
    owner = core.store.owners.find(OwnerKey(_OWNERS[kind], object_key)) if kind in _OWNERS else None
    if owner is None:
        return f"no {kind} {object_key} is known"
    return f"{kind} {object_key} {_explain_owner(core.store, owner)}"


def _explain_owner_of(store: Store, pod: Pod) -> str:
    """Return the second half of a sentence about a pod in no group: why its Job is no gang.

    Return "" if the pod has no Job, the Job is not known, or Serried does not serve the pod's scheduler.
    """
    if pod.owner is None or pod.owner.kind != JOB or pod.scheduler not in store.schedulers:
        return ""
    owner = store.owners.find(OwnerKey(JOB, Key(pod.namespace, pod.owner.name)))
    return f"; its Job {pod.owner.name} {_explain_owner(store, owner)}" if owner is not None else ""


def _explain_owner(store: Store, owner: Owner) -> str:
    """Return the predicate of a sentence whose subject is the owner: why it has no group.

    For instance "is no gang, so ...". The controller uses the same words in its event about the owner.
    """
    found = explain_no_gang(owner, store.schedulers, store.gang_jobs)
    if found is not None:
        return f"is no gang, so {describe_no_gang(found)}" + (f"; {owner.stray}" if owner.stray else "")
    if store.owners.has_started(owner_key_of(owner), owner.uid):
        why = "some ran before Serried could create its PodGroup"
        return f"is no gang, so kube-scheduler places its pods one by one: {why}"
    return "has no PodGroup and no pods yet; see its events"


def is_known(core: Core, key: GroupKey) -> bool:
    """Return whether the group exists, or at least a pod names it."""
    return key in core.store.groups or key in core.store.members
