"""What the controller writes, with an event about the owner, and what it reads beyond its watches.

Creates that the watch does not show yet are remembered (kube-controller-manager's ControllerExpectations): without
that, a second look at an owner would create everything twice.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from controller.diff.changes import CreatePodGroup, CreateWorkload, Delete, SetMinCount, kind_of_item
from controller.diff.objects import pod_group_body, workload_body
from controller.diff.sentences import Sentence, tell_created, tell_deleted, tell_failure, tell_min_count
from serried.api.group import Composite, PodGroup, Workload, decode_pod_group, decode_workload
from serried.api.kinds import PARENTS
from serried.api.level import FALLBACK, ApiLevel
from serried.api.names import GroupKey, Key, Malformed, read_group_field, read_group_label, read_map
from serried.api.parent import (
    Owner,
    Parent,
    api_version_of,
    kind_of,
    owner_key_of,
)
from serried.api.pod import Pod, decode_pod
from serried.cluster.cache import Store
from serried.cluster.index import reindex
from serried.cluster.membership import owner_key_in
from serried.feed import PARENT_KINDS, SELECTED_PODS, Kind
from serried.kube.client import ApiClient
from serried.kube.errors import Conflict, NotFound
from serried.kube.events import EventWriter
from serried.kube.wire import JSON, PODS, Resource, Selection, composites, pod_groups, workloads

TIMEOUT_SECONDS = 30.0
"""An object that the watch has not shown by then counts as deleted before it was seen."""

Created = TypeVar("Created", Workload, PodGroup)


class Expectations:
    """Created objects that the Store lacks."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        """The monotonic time in seconds."""
        self._workloads: _Expected[Workload] = _Expected(_owner_of)
        self._groups: _Expected[PodGroup] = _Expected(_workload_of)

    def __len__(self) -> int:
        return len(self._workloads) + len(self._groups)

    def expect(self, created: Workload | PodGroup) -> None:
        """The API server has created this; the watch may have shown it already."""
        until = self._clock() + TIMEOUT_SECONDS
        if isinstance(created, Workload):
            if created.key not in self._store.workloads:
                self._workloads.add(created, until)
        elif created.key not in self._store.groups:
            self._groups.add(created, until)

    def settle(self, seen: Workload | PodGroup) -> None:
        """The watch has shown the object, or its end."""
        (self._workloads if isinstance(seen, Workload) else self._groups).drop(seen.key)

    def workloads_of(self, owner: Owner) -> list[Workload]:
        """The expected Workloads of this very owner."""
        return self._workloads.of((owner_key_of(owner), owner.uid))

    def groups_of(self, workload: Workload) -> list[PodGroup]:
        """The expected PodGroups of a Workload."""
        return self._groups.of((workload.key.namespace, workload.key.name))

    def expire(self) -> list[Workload | PodGroup]:
        """Forget the objects that the watch has not shown in time; returns them, because their owners need a look."""
        return [*self._workloads.expire(self._clock()), *self._groups.expire(self._clock())]


class _Expected(Generic[Created]):
    """Expected objects of one kind, also by what they are looked up by: in a burst there are hundreds of them."""

    def __init__(self, read_origin: Callable[[Created], Hashable]) -> None:
        self._read_origin: Callable[[Created], Hashable] = read_origin
        """What the object was made for: the key by which it is looked up."""
        self._created: dict[Key | GroupKey, tuple[float, Created]] = {}
        """With the monotonic time at which the expectation expires."""
        self._by_origin: dict[Hashable, tuple[Key | GroupKey, ...]] = {}

    def __len__(self) -> int:
        return len(self._created)

    def add(self, created: Created, until: float) -> None:
        self.drop(created.key)
        self._created[created.key] = (until, created)
        reindex(self._by_origin, None, self._read_origin(created), created.key)

    def drop(self, key: Key | GroupKey) -> Created | None:
        _, created = self._created.pop(key, (0.0, None))
        if created is not None:
            reindex(self._by_origin, self._read_origin(created), None, key)
        return created

    def of(self, origin: Hashable) -> list[Created]:
        return [self._created[key][1] for key in self._by_origin.get(origin, ())]

    def expire(self, now: float) -> list[Created]:
        due = [key for key, (until, _) in self._created.items() if until <= now]
        return [created for key in due if (created := self.drop(key)) is not None]


def _owner_of(workload: Workload) -> Hashable:
    controller = next((each.uid for each in workload.owners if each.controller), None)
    return (owner_key_in(workload), controller)


def _workload_of(group: PodGroup) -> Hashable:
    return (group.key.namespace, group.workload)


LIVE = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that have not ended. Pods that are being deleted are among them."""

_KINDS = (
    *(Kind.PODS, *SELECTED_PODS, Kind.JOBS, Kind.POD_GROUPS, Kind.WORKLOADS),
    *(*PARENT_KINDS, Kind.PRIORITY_CLASSES, Kind.TOPOLOGY_LEVELS),
)

JOB_PODS = Selection(labels="batch.kubernetes.io/job-name")
"""The pods of Jobs: only these can be a Job's gang.

The API server puts the label into the pod template of each Job, except of those with ``manualSelector``, which are no
gangs.
"""


def watched_kinds(level: ApiLevel) -> tuple[Kind, ...]:
    """The kinds that are watched. CompositePodGroups only where no admission plugin gives them their priority."""
    composites = Kind.COMPOSITES if level == FALLBACK else Kind.COMPOSITES_BESIDE
    return (*_KINDS, Kind.POD_GROUPS_BESIDE, Kind.WORKLOADS_BESIDE, composites)


async def read_named_groups(client: ApiClient, namespace: str) -> frozenset[GroupKey]:
    """The PodGroups that live pods of the namespace name; raises ApiError.

    Every pod that existed when the call began counts. So the list is not asked for with ``resourceVersion=0``, which
    the API server may answer from a cache that lags behind. Without it the answer is the newest state; from 1.34 on it
    comes from the cache as well, once that has caught up. All pages are of one state. If the server forgets it between
    two pages (410), the call fails: half of a list is no list.
    """
    named: set[GroupKey] = set()
    async for pod in client.items(PODS, Selection(namespace, fields=LIVE)):
        named.update(_groups_of(pod, namespace))
    return frozenset(named)


async def read_pods_of(client: ApiClient, level: ApiLevel, parent: Parent) -> list[Pod]:
    """The pods of a parent, from the newest state; raises ApiError. Not all of them are watched."""
    selection = Selection(parent.key.namespace, labels=f"{PARENTS[parent.kind].labels.name}={parent.key.name}")
    found = [decode_pod(pod, level.read) async for pod in client.items(PODS, selection)]
    return [pod for pod in found if isinstance(pod, Pod) and pod.place and pod.place.uid in {"", parent.uid}]


def _groups_of(pod: JSON, namespace: str) -> list[GroupKey]:
    """The PodGroups that the pod names by field and by label; two if they differ."""
    field = read_group_field(read_map(pod, "spec"), namespace)
    label = read_group_label(read_map(pod, "metadata"), namespace)
    return [group for group in (field, label) if group is not None]


class Writes:
    """Carries changes out. A write that fails raises ApiError; the caller decides whether it is worth an event."""

    def __init__(self, client: ApiClient, level: ApiLevel, events: EventWriter) -> None:
        self._level = level
        self._client = client
        self._events = events

    async def create_workload(self, change: CreateWorkload) -> Workload:
        """Create the Workload; returns it as the API server has stored it."""
        owner = change.owner
        body = workload_body(change, self._level)
        resource = workloads(self._level.group, self._level.version)
        made = _usable(decode_workload(await self._client.create(resource, owner.key.namespace, body)))
        self.emit(owner, "Normal", tell_created("Workload", made.key.name, owner))
        return made

    async def create_pod_group(self, change: CreatePodGroup) -> PodGroup:
        """Create the PodGroup, at the level of its Workload; returns it as the API server has stored it."""
        owner = change.owner
        level = self._level_of(change.workload)
        body = pod_group_body(change, level)
        resource = pod_groups(level.group, level.version)
        made = _usable(decode_pod_group(await self._client.create(resource, owner.key.namespace, body)))
        self.emit(owner, "Normal", tell_created("PodGroup", made.key.name, owner))
        return replace(made, api=change.workload.api)

    def _level_of(self, item: Workload | PodGroup | Composite) -> ApiLevel:
        """Where an object lives: at the level in use, or beside it."""
        return self._level.of(item.api)

    def _resource_of(self, item: Workload | PodGroup | Composite) -> Resource:
        level = self._level_of(item)
        match item:
            case Workload():
                return workloads(level.group, level.version)
            case PodGroup():
                return pod_groups(level.group, level.version)
            case Composite():
                return composites(level)

    async def keep_finalizers(self, group: PodGroup, remaining: Sequence[str]) -> None:
        """Take all other finalizers off the PodGroup; raises Conflict if it has changed, NotFound if it has gone."""
        patch = {"metadata": {"resourceVersion": group.version, "finalizers": list(remaining) or None}}
        await self._client.patch_merge(self._resource_of(group), group.key.namespace, group.key.name, patch)

    async def set_priority(self, group: PodGroup | Composite, priority: int) -> None:
        """Write the priority of a group that has none; raises Conflict if it has changed, NotFound if gone."""
        patch = {"metadata": {"resourceVersion": group.version}, "spec": {"priority": priority}}
        await self._client.patch_merge(self._resource_of(group), group.key.namespace, group.key.name, patch)

    async def set_min_count(self, change: SetMinCount) -> None:
        """Change minCount. An object that has gone, or was made anew, is left alone."""
        item = change.item
        try:
            if isinstance(item, Workload):
                await self._patch_template(item, change.template, change.count)
            else:
                policy = {"schedulingPolicy": {"gang": {"minCount": change.count}}}
                patch = {"metadata": {"uid": item.uid}, "spec": policy}
                await self._client.patch_merge(self._resource_of(item), item.key.namespace, item.key.name, patch)
        except (NotFound, Conflict):
            return
        if isinstance(item, PodGroup):  # its minCount takes effect; that of the Workload has been changed before
            self.emit(change.owner, "Normal", tell_min_count(item, change.count, change.owner))

    async def _patch_template(self, workload: Workload, template: int, count: int) -> None:
        path = f"/spec/podGroupTemplates/{template}/schedulingPolicy/gang/minCount"
        steps: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": workload.uid},
            {"op": "replace", "path": path, "value": count},
        ]
        await self._client.patch_json(self._resource_of(workload), workload.key.namespace, workload.key.name, steps)

    async def delete(self, change: Delete) -> None:
        """Delete an object of ours. One that has gone, or was made anew, is left alone.

        The protection of a PodGroup may keep it for a while.
        """
        owner = change.owner
        item = change.item
        try:
            await self._client.delete(self._resource_of(item), item.key.namespace, item.key.name, item.uid)
        except (NotFound, Conflict):
            return
        self.emit(owner, "Normal", tell_deleted(kind_of_item(item), item.key.name, owner))

    def emit_failure(self, owner: Owner, what: tuple[str, str], error: Exception) -> None:
        """Write an event about a write that failed; ``what`` is the object's kind and the verb."""
        kind, verb = what
        self.emit(owner, "Warning", tell_failure(kind, verb, owner, error))

    def emit(self, owner: Owner, event_type: str, sentence: Sentence) -> None:
        """Queue an event about the owner; ``event_type`` is Normal or Warning."""
        about = {
            "apiVersion": api_version_of(owner),
            "kind": kind_of(owner),
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        }
        self._events.emit(about, event_type, sentence.reason, sentence.message)


def _usable(made: Created | Malformed) -> Created:
    if isinstance(made, Malformed):
        raise TypeError(f"the API server's answer to a create is no {made.kind}: {made.problem}")
    return made
