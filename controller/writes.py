"""The controller's writes: creates, patches and deletes, and what is told of them in events of the Job."""

from typing import Any, TypeVar

from controller.desired import Body, pod_group_body, workload_body
from controller.diff import (
    Change,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    RemoveFinalizer,
    SetMinCount,
)
from controller.owners import Owner, kind_of, version_of
from serried.decode.groups import decode_pod_group, decode_workload
from serried.decode.malformed import Malformed
from serried.kube.client import ApiClient
from serried.kube.errors import Conflict, NotFound
from serried.kube.events import EventWriter
from serried.kube.wire import pod_groups, workloads
from serried.model.group import PodGroup, Workload
from serried.model.level import ApiLevel

Made = TypeVar("Made", Workload, PodGroup)


class Writes:
    """Carries actions out. A write that fails raises ApiError; whether that is told of is the caller's decision."""

    def __init__(self, client: ApiClient, level: ApiLevel, events: EventWriter) -> None:
        self.level = level
        self._client, self._events = client, events
        self._workloads = workloads(level.group, level.version)
        self._groups = pod_groups(level.group, level.version)

    async def create_workload(self, action: CreateWorkload) -> Workload:
        """Create the Workload; what the API server made of it."""
        return await self.put_workload(action.job, workload_body(action, self.level))

    async def put_workload(self, owner: Owner, body: Body) -> Workload:
        """Create an owner's Workload as it is given; what the API server made of it."""
        made = _usable(decode_workload(await self._client.create(self._workloads, owner.key.namespace, body)))
        said = f"Created Workload {made.key.name} for {kind_of(owner)} {owner.key.name}"
        self.tell(owner, "Normal", "WorkloadCreated", said)
        return made

    async def create_pod_group(self, action: CreatePodGroup, priority: int | None = None) -> PodGroup:
        """Create the PodGroup, with ``priority`` where its template says none; what the API server made of it."""
        body = pod_group_body(action.job, action.workload, self.level, priority)
        return await self.put_pod_group(action.job, body)

    async def put_pod_group(self, owner: Owner, body: Body) -> PodGroup:
        """Create a PodGroup for an owner as it is given; what the API server made of it."""
        made = _usable(decode_pod_group(await self._client.create(self._groups, owner.key.namespace, body)))
        said = f"Created PodGroup {made.key.name} for {kind_of(owner)} {owner.key.name}"
        self.tell(owner, "Normal", "PodGroupCreated", said)
        return made

    async def remove_finalizer(self, action: RemoveFinalizer) -> None:
        """Free the PodGroup, if it is still as it was seen: else Conflict, or NotFound."""
        metadata: dict[str, Any] = {"resourceVersion": action.version, "finalizers": list(action.remaining) or None}
        await self._client.patch_merge(self._groups, action.group.namespace, action.group.name, {"metadata": metadata})

    async def set_priority(self, group: PodGroup, priority: int) -> None:
        """Give a PodGroup without a priority this one, if it still is as it was seen; raises ApiError."""
        patch = {"metadata": {"resourceVersion": group.version}, "spec": {"priority": priority}}
        await self._client.patch_merge(self._groups, group.key.namespace, group.key.name, patch)

    async def set_min_count(self, owner: Owner, item: Workload | PodGroup, count: int, template: int = 0) -> None:
        """Change minCount, if the object still has the shape that was seen; one that has gone meanwhile is no error.

        ``template`` is the place of the template to change, if it is a Workload.
        """
        try:
            if isinstance(item, Workload):
                path = f"/spec/podGroupTemplates/{template}/schedulingPolicy/gang/minCount"
                steps: list[dict[str, Any]] = [
                    {"op": "test", "path": "/metadata/uid", "value": item.uid},
                    {"op": "replace", "path": path, "value": count},
                ]
                await self._client.patch_json(self._workloads, item.key.namespace, item.key.name, steps)
            else:
                policy = {"schedulingPolicy": {"gang": {"minCount": count}}}
                patch = {"metadata": {"uid": item.uid}, "spec": policy}
                await self._client.patch_merge(self._groups, item.key.namespace, item.key.name, patch)
        except (NotFound, Conflict):
            return
        if isinstance(item, PodGroup):  # the one that counts; its Workload goes before it
            has = f"{kind_of(owner)} {owner.key.name} has it"
            self.tell(
                owner, "Normal", "MinCountChanged", f"minCount of PodGroup {item.key.name} is {count} now, as {has}"
            )

    async def delete(self, owner: Owner, item: Workload | PodGroup) -> None:
        """Delete an object of ours, if it still is the one that was seen; its protection may keep it for a while."""
        resource = self._workloads if isinstance(item, Workload) else self._groups
        try:
            await self._client.delete(resource, item.key.namespace, item.key.name, item.uid)
        except (NotFound, Conflict):
            return
        kind = _kind(item)
        said = f"Deleted {kind} {item.key.name} of {kind_of(owner)} {owner.key.name}"
        self.tell(owner, "Normal", f"{kind}Deleted", said)

    def tell_failure(self, owner: Owner, what: tuple[str, str], error: Exception) -> None:
        """Tell that a write failed; it is tried again. ``what`` is the object's kind and the verb."""
        kind, verb = what
        said = f"Failed to {verb.lower()} {kind} for {kind_of(owner)} {owner.key.name}: {error}"
        self.tell(owner, "Warning", f"Failed{kind}{verb}", said)

    def tell(self, owner: Owner, level: str, reason: str, message: str) -> None:
        """Write an event of the owner, sometime."""
        about = {
            "apiVersion": version_of(owner),
            "kind": kind_of(owner),
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        }
        self._events.emit(about, level, reason, message)


def _usable(made: Made | Malformed) -> Made:
    if isinstance(made, Malformed):
        raise TypeError(f"the API server's answer to a create is no {made.kind}: {made.problem}")
    return made


def describe(change: Change) -> tuple[str, str]:
    """Kind and verb of a change to a Job's objects."""
    match change:
        case CreateWorkload():
            return "Workload", "Create"
        case CreatePodGroup():
            return "PodGroup", "Create"
        case SetMinCount():
            return _kind(change.item), "Update"
        case Delete():
            return _kind(change.item), "Delete"


def _kind(item: Workload | PodGroup) -> str:
    return "Workload" if isinstance(item, Workload) else "PodGroup"
