"""The controller's writes: creates, patches and deletes, and their events of the owner."""

from typing import Any, TypeVar

from controller.diff.changes import CreatePodGroup, CreateWorkload, Delete, SetMinCount, kind_of_item
from controller.diff.finalizer import RemoveFinalizer
from controller.diff.objects import pod_group_body, workload_body
from serried.decode.groups import decode_pod_group, decode_workload
from serried.decode.malformed import Malformed
from serried.kube.client import ApiClient
from serried.kube.errors import Conflict, NotFound
from serried.kube.events import EventWriter
from serried.kube.wire import composites, pod_groups, workloads
from serried.model.composite import Composite
from serried.model.group import PodGroup, Workload
from serried.model.level import ApiLevel
from serried.model.parent import Owner, api_version_of, kind_of

Created = TypeVar("Created", Workload, PodGroup)


class Writes:
    """Carries changes out. A write that fails raises ApiError; its caller decides whether the owner hears of it."""

    def __init__(self, client: ApiClient, level: ApiLevel, events: EventWriter) -> None:
        self._level = level
        self._client = client
        self._events = events
        self._workloads = workloads(level.group, level.version)
        self._groups = pod_groups(level.group, level.version)
        self._composites = composites(level.api_version)

    async def create_workload(self, change: CreateWorkload) -> Workload:
        """Create the Workload; what the API server made of it."""
        owner = change.owner
        body = workload_body(change, self._level)
        made = _usable(decode_workload(await self._client.create(self._workloads, owner.key.namespace, body)))
        said = f"Created Workload {made.key.name} for {kind_of(owner)} {owner.key.name}"
        self.emit(owner, "Normal", "WorkloadCreated", said)
        return made

    async def create_pod_group(self, change: CreatePodGroup) -> PodGroup:
        """Create the PodGroup; what the API server made of it."""
        owner = change.owner
        body = pod_group_body(change, self._level)
        made = _usable(decode_pod_group(await self._client.create(self._groups, owner.key.namespace, body)))
        said = f"Created PodGroup {made.key.name} for {kind_of(owner)} {owner.key.name}"
        self.emit(owner, "Normal", "PodGroupCreated", said)
        return made

    async def remove_finalizer(self, change: RemoveFinalizer) -> None:
        """Free the PodGroup, if it is still as it was seen: else Conflict, or NotFound."""
        metadata: dict[str, Any] = {"resourceVersion": change.version, "finalizers": list(change.remaining) or None}
        await self._client.patch_merge(self._groups, change.group.namespace, change.group.name, {"metadata": metadata})

    async def set_priority(self, group: PodGroup | Composite, priority: int) -> None:
        """Give a group without a priority this one, if it still is as it was seen; raises ApiError."""
        patch = {"metadata": {"resourceVersion": group.version}, "spec": {"priority": priority}}
        resource = self._groups if isinstance(group, PodGroup) else self._composites
        await self._client.patch_merge(resource, group.key.namespace, group.key.name, patch)

    async def set_min_count(self, change: SetMinCount) -> None:
        """Change minCount, if the object still has the shape that was seen; one that has gone meanwhile is no error."""
        item = change.item
        try:
            if isinstance(item, Workload):
                await self._patch_template(item, change.template, change.count)
            else:
                policy = {"schedulingPolicy": {"gang": {"minCount": change.count}}}
                patch = {"metadata": {"uid": item.uid}, "spec": policy}
                await self._client.patch_merge(self._groups, item.key.namespace, item.key.name, patch)
        except (NotFound, Conflict):
            return
        if isinstance(item, PodGroup):  # the one that counts; its Workload goes before it
            has = f"{kind_of(change.owner)} {change.owner.key.name} has it"
            said = f"minCount of PodGroup {item.key.name} is {change.count} now, as {has}"
            self.emit(change.owner, "Normal", "MinCountChanged", said)

    async def _patch_template(self, workload: Workload, template: int, count: int) -> None:
        path = f"/spec/podGroupTemplates/{template}/schedulingPolicy/gang/minCount"
        steps: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": workload.uid},
            {"op": "replace", "path": path, "value": count},
        ]
        await self._client.patch_json(self._workloads, workload.key.namespace, workload.key.name, steps)

    async def delete(self, change: Delete) -> None:
        """Delete an object of ours, if it still is the one that was seen; its protection may keep it for a while."""
        owner = change.owner
        item = change.item
        resource = self._workloads if isinstance(item, Workload) else self._groups
        try:
            await self._client.delete(resource, item.key.namespace, item.key.name, item.uid)
        except (NotFound, Conflict):
            return
        kind = kind_of_item(item)
        said = f"Deleted {kind} {item.key.name} of {kind_of(owner)} {owner.key.name}"
        self.emit(owner, "Normal", f"{kind}Deleted", said)

    def emit_failure(self, owner: Owner, what: tuple[str, str], error: Exception) -> None:
        """Write an event of a write that failed; it is tried again. ``what`` is the object's kind and the verb."""
        kind, verb = what
        said = f"Failed to {verb.lower()} {kind} for {kind_of(owner)} {owner.key.name}: {error}"
        self.emit(owner, "Warning", f"Failed{kind}{verb}", said)

    def emit(self, owner: Owner, event_type: str, reason: str, message: str) -> None:
        """Write an event of the owner, sometime."""
        about = {
            "apiVersion": api_version_of(owner),
            "kind": kind_of(owner),
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        }
        self._events.emit(about, event_type, reason, message)


def _usable(made: Created | Malformed) -> Created:
    if isinstance(made, Malformed):
        raise TypeError(f"the API server's answer to a create is no {made.kind}: {made.problem}")
    return made
