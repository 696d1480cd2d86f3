"""The controller's writes: two creates, one patch, and what is told of them in events of the Job."""

from typing import Any, TypeVar

from controller.desired import pod_group_body, workload_body
from controller.diff import CreatePodGroup, CreateWorkload, RemoveFinalizer, ReportAmbiguous
from serried.decode.groups import decode_pod_group, decode_workload
from serried.decode.malformed import Malformed
from serried.kube.client import ApiClient
from serried.kube.events import EventWriter
from serried.kube.wire import pod_groups, workloads
from serried.model.group import Job, PodGroup, Workload
from serried.model.level import ApiLevel

Made = TypeVar("Made", Workload, PodGroup)


class Writes:
    """Carries actions out. A write that fails raises ApiError; whether that is told of is the caller's decision."""

    def __init__(self, client: ApiClient, level: ApiLevel, events: EventWriter) -> None:
        self._client, self._level, self._events = client, level, events
        self._workloads = workloads(level.group, level.version)
        self._groups = pod_groups(level.group, level.version)

    async def create_workload(self, action: CreateWorkload) -> Workload:
        """Create the Workload; what the API server made of it."""
        job = action.job
        body = workload_body(job, self._level)
        made = _usable(decode_workload(await self._client.create(self._workloads, job.key.namespace, body)))
        self.tell(job, "Normal", "WorkloadCreated", f"Created Workload {made.key.name} for Job {job.key.name}")
        return made

    async def create_pod_group(self, action: CreatePodGroup) -> PodGroup:
        """Create the PodGroup; what the API server made of it."""
        job = action.job
        body = pod_group_body(job, action.workload, self._level)
        made = _usable(decode_pod_group(await self._client.create(self._groups, job.key.namespace, body)))
        self.tell(job, "Normal", "PodGroupCreated", f"Created PodGroup {made.key.name} for Job {job.key.name}")
        return made

    async def remove_finalizer(self, action: RemoveFinalizer) -> None:
        """Free the PodGroup, if it is still as it was seen: else Conflict, or NotFound."""
        metadata: dict[str, Any] = {"resourceVersion": action.version, "finalizers": list(action.remaining) or None}
        await self._client.patch_merge(self._groups, action.group.namespace, action.group.name, {"metadata": metadata})

    def report_ambiguous(self, action: ReportAmbiguous) -> None:
        """Tell why a Job's pods are scheduled one by one."""
        said = f"Job {action.job.key.name} is scheduled pod by pod: {action.message}"
        self.tell(action.job, "Warning", "AmbiguousWorkload", said)

    def report_unserved(self, job: Job) -> None:
        """Tell that a Job is no gang although it asks for it."""
        said = f"Job {job.key.name} asks to be a gang, and its scheduler {job.scheduler} is none that Serried serves"
        self.tell(job, "Warning", "SchedulerNotGangAware", said)

    def report_failure(self, action: CreateWorkload | CreatePodGroup, error: Exception) -> None:
        """Tell that a create failed; it is tried again."""
        kind = "Workload" if isinstance(action, CreateWorkload) else "PodGroup"
        said = f"Failed to create {kind} for Job {action.job.key.name}: {error}"
        self.tell(action.job, "Warning", f"Failed{kind}Create", said)

    def tell(self, job: Job, level: str, reason: str, message: str) -> None:
        """Write an event of the Job, sometime."""
        about = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": job.key.namespace,
            "name": job.key.name,
            "uid": job.uid,
        }
        self._events.emit(about, level, reason, message)


def _usable(made: Made | Malformed) -> Made:
    if isinstance(made, Malformed):
        raise TypeError(f"the API server's answer to a create is no {made.kind}: {made.problem}")
    return made
