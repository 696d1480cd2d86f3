"""The topology keys that gangs require. Only values and decoding, without I/O.

``serried check`` compares them with the Topologies of Kueue, and with the labels that autoscalers' new nodes get.
"""

from collections.abc import Iterator
from typing import NamedTuple

from serried.api.group import decode_pod_group, decode_workload
from serried.api.job import decode_job
from serried.api.names import Malformed, OwnerRef, Raw, name_object, read_labels, read_map

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of a Job, JobSet or pod that names its LocalQueue in the same namespace."""


class TopologyDemand(NamedTuple):
    """The topology key that a Job, PodGroup or Workload requires: its gang may only start in one domain of the key."""

    kind: str
    namespace: str
    name: str
    key: str

    of_job: bool = False
    """True if a Job owns this PodGroup or Workload. The Job itself requires the same key."""

    queue: str = ""
    """The LocalQueue that a Job's label names; "" without the label, and for PodGroups and Workloads."""

    @property
    def where(self) -> str:
        """The object in kubectl's form, with its namespace: ``team-a/podgroup/train``."""
        return f"{self.namespace}/{name_object(self.kind, self.name)}"


def decode_group_demands(obj: Raw) -> Iterator[TopologyDemand]:
    """Yield the topology key that a PodGroup requires. Yield nothing if it requires none or is malformed."""
    group = decode_pod_group(obj)
    if not isinstance(group, Malformed) and group.topology_key:
        of_job = _is_of_job(group.owners)
        yield TopologyDemand("PodGroup", group.key.namespace, group.key.name, group.topology_key, of_job)


def decode_workload_demands(obj: Raw) -> Iterator[TopologyDemand]:
    """Yield each topology key that a template of a Workload requires. Yield nothing for a malformed Workload."""
    workload = decode_workload(obj)
    if isinstance(workload, Malformed):
        return
    for key in dict.fromkeys(each.topology_key for each in workload.templates):
        if key:
            yield TopologyDemand("Workload", *workload.key, key, _is_of_job(workload.owners))


def decode_job_demands(obj: Raw) -> Iterator[TopologyDemand]:
    """Yield the topology key that a Job requires. Yield nothing if it requires none, is malformed or has finished."""
    job = decode_job(obj)
    if not isinstance(job, Malformed) and job.topology_key and not job.finished:
        queue = read_labels(read_map(obj, "metadata"), "labels").get(QUEUE_LABEL, "")
        yield TopologyDemand("Job", *job.key, job.topology_key, queue=queue)


def _is_of_job(owners: tuple[OwnerRef, ...]) -> bool:
    return any(each.kind == "Job" for each in owners)
