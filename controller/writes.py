"""The controller's requests to the API server: `Writes` carries out changes, two functions read pods.

Each successful write gives the owner an event. `Expectations` remembers the created objects that the watch does not
show yet (kube-controller-manager's ControllerExpectations): without it, the next reconciliation would create everything
twice.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from controller.diff.changes import CreatePodGroup, CreateWorkload, Delete, SetMinCount, kind_of_item
from controller.diff.objects import pod_group_body, workload_body
from controller.diff.sentences import EventText, created_event, deleted_event, failed_write_event, min_count_event
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
"""Seconds after which a created object that the watch has not shown is taken to have been deleted."""

Created = TypeVar("Created", Workload, PodGroup)


class Expectations:
    """The objects that the API server has created and the watch has not shown, so that the Store lacks them.

    The reconciler has the only instance, and counts these objects as existing. The reconcile loop (`controller.loop`)
    reports to it what the watch shows.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        """Return the monotonic time in seconds."""
        self._workloads: _Expected[Workload] = _Expected(_owner_of)
        self._groups: _Expected[PodGroup] = _Expected(_workload_of)

    def __len__(self) -> int:
        return len(self._workloads) + len(self._groups)

    def expect(self, created: Workload | PodGroup) -> None:
        """Remember an object that the API server has created, unless it is in the Store already."""
        until = self._clock() + TIMEOUT_SECONDS
        if isinstance(created, Workload):
            if created.key not in self._store.workloads:
                self._workloads.add(created, until)
        elif created.key not in self._store.groups:
            self._groups.add(created, until)

    def observe(self, seen: Workload | PodGroup) -> None:
        """Forget an object, because the watch has shown that it was added, changed or deleted."""
        (self._workloads if isinstance(seen, Workload) else self._groups).drop(seen.key)

    def workloads_of(self, owner: Owner) -> list[Workload]:
        """Return the remembered Workloads of this owner.

        An earlier owner of the same name has another UID and does not count.
        """
        return self._workloads.of((owner_key_of(owner), owner.uid))

    def groups_of(self, workload: Workload) -> list[PodGroup]:
        """Return the remembered PodGroups made from the Workload."""
        return self._groups.of((workload.key.namespace, workload.key.name))

    def expire(self) -> list[Workload | PodGroup]:
        """Forget the objects that were created more than `TIMEOUT_SECONDS` ago.

        Return them: their owners must be reconciled.
        """
        return [*self._workloads.expire(self._clock()), *self._groups.expire(self._clock())]


class _Expected(Generic[Created]):
    """The expected objects of one kind: created, and not yet shown by the watch.

    They are indexed by their origin (the owner of a Workload, the Workload of a PodGroup): there may be hundreds.
    """

    def __init__(self, read_origin: Callable[[Created], Hashable]) -> None:
        self._read_origin: Callable[[Created], Hashable] = read_origin
        """Return the origin of an object: the owner of a Workload, the Workload of a PodGroup."""
        self._created: dict[Key | GroupKey, tuple[float, Created]] = {}
        """By object: the time at which the expectation ends, in seconds of the monotonic clock, and the object."""
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


_UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that have not finished. Pods that are being deleted match, too."""

_KINDS = (
    *(Kind.PODS, *SELECTED_PODS, Kind.JOBS, Kind.POD_GROUPS, Kind.WORKLOADS),
    *(*PARENT_KINDS, Kind.PRIORITY_CLASSES, Kind.TOPOLOGY_LEVELS),
)

JOB_PODS = Selection(labels="batch.kubernetes.io/job-name")
"""Selects the pods of Jobs, by the label that the API server sets in each Job's pod template.

Jobs with ``manualSelector`` lack the label; they are never gangs.
"""


def watched_kinds(level: ApiLevel) -> tuple[Kind, ...]:
    """Return the kinds of objects that the controller watches at an API level.

    CompositePodGroups of Serried's own API group are included in any case: this controller writes their priority,
    because no admission plugin does.
    """
    composites = Kind.COMPOSITES if level == FALLBACK else Kind.SECOND_COMPOSITES
    return (*_KINDS, Kind.SECOND_POD_GROUPS, Kind.SECOND_WORKLOADS, composites)


async def read_named_groups(client: ApiClient, namespace: str) -> frozenset[GroupKey]:
    """Return the PodGroups that the unfinished pods of a namespace name. Raises ApiError.

    The answer includes every pod that existed when the call began. Therefore the list is requested without
    ``resourceVersion=0``, which the API server may answer from a cache that lags behind. Without it the answer is the
    newest state (from 1.34 on from the cache, once that has caught up). All pages show the same state. If the API
    server drops that state between two pages (410), the call fails: half a list would be wrong.
    """
    named: set[GroupKey] = set()
    async for pod in client.items(PODS, Selection(namespace, fields=_UNFINISHED)):
        named.update(_groups_of(pod, namespace))
    return frozenset(named)


async def read_pods_of(client: ApiClient, level: ApiLevel, parent: Parent) -> list[Pod]:
    """Read a parent's pods from the API server, because only some of them are watched. Raises ApiError.

    Pods with the label of the parent's name count, unless they name another UID. ``level`` decides how pods are
    decoded.
    """
    selection = Selection(parent.key.namespace, labels=f"{PARENTS[parent.kind].labels.name}={parent.key.name}")
    found = [decode_pod(pod, level.readable_versions) async for pod in client.items(PODS, selection)]
    return [pod for pod in found if isinstance(pod, Pod) and pod.place and pod.place.uid in {"", parent.uid}]


def _groups_of(pod: JSON, namespace: str) -> list[GroupKey]:
    """Return the PodGroups that the pod names by field and by label: two entries if they differ."""
    field = read_group_field(read_map(pod, "spec"), namespace)
    label = read_group_label(read_map(pod, "metadata"), namespace)
    return [group for group in (field, label) if group is not None]


class Writes:
    """Sends changes to the API server, and queues an event about each success.

    If a write fails, it raises ApiError instead.
    """

    def __init__(self, client: ApiClient, level: ApiLevel, events: EventWriter) -> None:
        self._level = level
        self._client = client
        self._events = events

    async def create_workload(self, change: CreateWorkload) -> Workload:
        """Create the owner's Workload, and return it as the API server has stored it.

        Raises ApiError, and TypeError if the answer is unreadable.
        """
        owner = change.owner
        body = workload_body(change, self._level)
        resource = workloads(self._level.group, self._level.version)
        made = _require_decoded(decode_workload(await self._client.create(resource, owner.key.namespace, body)))
        self.emit(owner, "Normal", created_event("Workload", made.key.name, owner))
        return made

    async def create_pod_group(self, change: CreatePodGroup) -> PodGroup:
        """Create a PodGroup at the API level of its Workload, and return it as the API server has stored it.

        Raises ApiError, and TypeError if the answer is unreadable.
        """
        owner = change.owner
        level = self._level_of(change.workload)
        body = pod_group_body(change, level)
        resource = pod_groups(level.group, level.version)
        made = _require_decoded(decode_pod_group(await self._client.create(resource, owner.key.namespace, body)))
        self.emit(owner, "Normal", created_event("PodGroup", made.key.name, owner))
        return replace(made, api=change.workload.api)

    def _level_of(self, item: Workload | PodGroup | Composite) -> ApiLevel:
        """Return the API level that serves the object: the one in use, or that of Serried's CRDs."""
        return self._level.level_of(item.api)

    def _resource_of(self, item: Workload | PodGroup | Composite) -> Resource:
        level = self._level_of(item)
        match item:
            case Workload():
                return workloads(level.group, level.version)
            case PodGroup():
                return pod_groups(level.group, level.version)
            case Composite():
                return composites(level)

    async def set_finalizers(self, group: PodGroup, finalizers: Sequence[str]) -> None:
        """Replace the finalizers of the PodGroup by ``finalizers``.

        Raises Conflict if the PodGroup has changed since it was read, NotFound if it is gone, ApiError for other
        failures.
        """
        patch = {"metadata": {"resourceVersion": group.version, "finalizers": list(finalizers) or None}}
        await self._client.patch_merge(self._resource_of(group), group.key.namespace, group.key.name, patch)

    async def set_priority(self, group: PodGroup | Composite, priority: int) -> None:
        """Write ``spec.priority`` of a PodGroup or CompositePodGroup.

        Raises Conflict if it has changed since it was read, NotFound if it is gone, ApiError for other failures.
        """
        patch = {"metadata": {"resourceVersion": group.version}, "spec": {"priority": priority}}
        await self._client.patch_merge(self._resource_of(group), group.key.namespace, group.key.name, patch)

    async def set_min_count(self, change: SetMinCount) -> None:
        """Change minCount of a PodGroup or of a Workload's template. Raises ApiError.

        Do nothing if the object is gone, or if another PodGroup with the same name has replaced the PodGroup. If
        another Workload has replaced the Workload, the API server rejects the change (Invalid).
        """
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
        if isinstance(
            item, PodGroup
        ):  # one event for both objects: the Workload is changed first, the PodGroup's minCount takes effect
            self.emit(change.owner, "Normal", min_count_event(item, change.count, change.owner))

    async def _patch_template(self, workload: Workload, template: int, count: int) -> None:
        path = f"/spec/podGroupTemplates/{template}/schedulingPolicy/gang/minCount"
        steps: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": workload.uid},
            {"op": "replace", "path": path, "value": count},
        ]
        await self._client.patch_json(self._resource_of(workload), workload.key.namespace, workload.key.name, steps)

    async def delete(self, change: Delete) -> None:
        """Delete a Workload or PodGroup. Raises ApiError.

        Do nothing if the object is gone, or was replaced by one with another UID. A PodGroup with a finalizer goes on
        existing until the finalizer is removed.
        """
        owner = change.owner
        item = change.item
        try:
            await self._client.delete(self._resource_of(item), item.key.namespace, item.key.name, item.uid)
        except (NotFound, Conflict):
            return
        self.emit(owner, "Normal", deleted_event(kind_of_item(item), item.key.name, owner))

    def emit_failure(self, owner: Owner, kind_and_verb: tuple[str, str], error: Exception) -> None:
        """Queue a Warning about the owner for a failed write.

        ``kind_and_verb`` says what was written (`changes.kind_and_verb`).
        """
        kind, verb = kind_and_verb
        self.emit(owner, "Warning", failed_write_event(kind, verb, owner, error))

    def emit(self, owner: Owner, event_type: str, sentence: EventText) -> None:
        """Queue an event about the owner. ``event_type`` is Normal or Warning, ``sentence`` has reason and message."""
        about = {
            "apiVersion": api_version_of(owner),
            "kind": kind_of(owner),
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        }
        self._events.emit(about, event_type, sentence.reason, sentence.message)


def _require_decoded(made: Created | Malformed) -> Created:
    if isinstance(made, Malformed):
        raise TypeError(f"the API server answered a create with an unreadable {made.kind}: {made.problem}")
    return made
