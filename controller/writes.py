"""The controller's writes: creates, patches and deletes, each with an event about the owner."""

from dataclasses import replace
from typing import Any, TypeVar

from controller.diff.changes import CreatePodGroup, CreateWorkload, Delete, SetMinCount, kind_of_item
from controller.diff.finalizer import RemoveFinalizer
from controller.diff.objects import pod_group_body, workload_body
from controller.diff.sentences import Sentence, tell_created, tell_deleted, tell_failure, tell_min_count
from serried.decode.groups import decode_pod_group, decode_workload
from serried.decode.malformed import Malformed
from serried.kube.client import ApiClient
from serried.kube.errors import Conflict, NotFound
from serried.kube.events import EventWriter
from serried.kube.wire import Resource, composites, pod_groups, workloads
from serried.model.composite import Composite
from serried.model.group import PodGroup, Workload
from serried.model.level import ApiLevel
from serried.model.parent import Owner, api_version_of, kind_of

Created = TypeVar("Created", Workload, PodGroup)


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

    async def remove_finalizer(self, change: RemoveFinalizer) -> None:
        """Take the protection off the PodGroup; raises Conflict if it has changed, NotFound if it has gone."""
        metadata: dict[str, Any] = {"resourceVersion": change.version, "finalizers": list(change.remaining) or None}
        level = self._level.of(change.api)
        resource = pod_groups(level.group, level.version)
        await self._client.patch_merge(resource, change.group.namespace, change.group.name, {"metadata": metadata})

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
