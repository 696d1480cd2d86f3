"""``/debug/lookup``: to which groups a PodGroup's name, a pod, or an owner of pods leads."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException

from extender.core import Core
from extender.debug.view import View, exemplify
from serried.model.group import GroupKey, GroupKind, Key
from serried.model.parent import JOB, OwnerKey, ParentKind
from serried.observe.pace import one_by_one

_OWNERS = {kind.lower(): kind for kind in (JOB, *ParentKind)}
_KINDS = ("podgroup", "pod", "workload", *_OWNERS)


class GroupName(View):
    """A group, by the name that it has on ``/debug``."""

    namespace: str
    name: str
    kind: GroupKind


_EXAMPLE = GroupName(namespace="default", name="training", kind=GroupKind.POD_GROUP)


def lookup_routes(core: Core) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get(
        "/lookup/{namespace}/{kind}/{name}",
        responses=exemplify([_EXAMPLE], bad_request="There is no such kind.", not_found="It leads to no group."),
    )
    async def look_up(namespace: str, kind: str, name: str) -> list[GroupName]:
        """The groups of a podgroup, pod, workload, job, jobset or leaderworkerset; an owner may have several."""
        if kind not in _KINDS:
            raise HTTPException(400, f"a kind is one of {', '.join(_KINDS)}, not {kind[:100]!r}")
        found = {core.store.forest.lift(key) async for key in _find_groups(core, kind, Key(namespace, name))}
        if not found:
            raise HTTPException(404, await _explain_none(core, kind, Key(namespace, name)))
        return [GroupName(namespace=key.namespace, name=key.encoded, kind=key.kind) for key in sorted(found)]

    return router


def _find_groups(core: Core, kind: str, object_key: Key) -> AsyncIterator[GroupKey]:
    if kind == "podgroup":
        return _find_named(core, object_key, (GroupKind.POD_GROUP, GroupKind.COMPATIBLE, GroupKind.COMPOSITE))
    if kind == "workload":
        return _find_of_workload(core, object_key)
    if kind == "pod":
        return _find_of_pod(core, object_key)
    return _find_of_owner(core, OwnerKey(_OWNERS[kind], object_key))


async def _find_named(core: Core, object_key: Key, kinds: tuple[GroupKind, ...]) -> AsyncIterator[GroupKey]:
    for kind in kinds:
        key = GroupKey(object_key.namespace, object_key.name, kind)
        if key in core.store.groups or key in core.store.members or core.store.forest.lift(key) != key:
            yield key


async def _find_of_workload(core: Core, object_key: Key) -> AsyncIterator[GroupKey]:
    async for key, group in one_by_one(core.store.groups.items()):
        inline = key.kind is GroupKind.WORKLOAD and key.object_key == object_key
        if inline or (key.namespace == object_key.namespace and group.workload == object_key.name):
            yield key


async def _find_of_pod(core: Core, object_key: Key) -> AsyncIterator[GroupKey]:
    async for pod in one_by_one(core.store.pods.values()):
        if pod.name == object_key.name and pod.namespace == object_key.namespace:
            group = core.store.members.group_of(pod.uid)
            if group is not None:
                yield group


async def _find_of_owner(core: Core, owner: OwnerKey) -> AsyncIterator[GroupKey]:
    async for key, group in one_by_one(core.store.groups.items()):
        if key.namespace == owner.key.namespace and (owner.kind, owner.key.name) in {
            (each.kind, each.name) for each in group.owners
        }:
            yield key
    async for pod in one_by_one(core.store.owners.pods_of(owner)):
        group_key = core.store.members.group_of(pod.uid)
        if group_key is not None:
            yield group_key


async def _explain_none(core: Core, kind: str, object_key: Key) -> str:
    if kind == "pod" and await _is_pod(core, object_key):
        return f"pod {object_key} is in no group: Serried lets the scheduler place it like any other pod"
    if kind in _OWNERS and core.store.owners.find(OwnerKey(_OWNERS[kind], object_key)) is not None:
        return f"{kind} {object_key} is no gang: Serried lets the scheduler place its pods one by one"
    return f"no {kind} {object_key} is known"


async def _is_pod(core: Core, object_key: Key) -> bool:
    return bool([True async for pod in one_by_one(core.store.pods.values()) if (pod.namespace, pod.name) == object_key])
