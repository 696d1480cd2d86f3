"""Make the Jobs of a phase: gangs, or Jobs of the same size with the annotation that they are no gang. No I/O."""

from dataclasses import dataclass
from typing import Literal

from bench.load.objects import Load, job_object, make_gangs
from serried.api.names import GANG_POLICY
from serried.kube.wire import JSON

SCHEDULER = "serried"
MEMBERS = 2

Kind = Literal["gang", "plain"]
State = Literal["suspended", "running"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs of one kind, each of `MEMBERS` pods."""

    name: str
    """Prefix of the Jobs' names, unique among the batches of a cluster."""

    count: int
    kind: Kind = "gang"
    state: State = "suspended"

    @property
    def gangs(self) -> int:
        """Number of the Jobs that must get a Workload and a PodGroup."""
        return self.count if self.kind == "gang" else 0

    def make_jobs(self) -> list[JSON]:
        """Return the manifests of the Jobs."""
        load = Load(self.name, SCHEDULER, gangs=make_gangs(self.count, MEMBERS), link="job", cpu="10m")
        return [self._adapt(job_object(load, gang)) for gang in load.gangs]

    def _adapt(self, job: JSON) -> JSON:
        if self.kind == "plain":
            job["metadata"]["annotations"] = {GANG_POLICY: "NoGang"}
        job["spec"]["suspend"] = self.state == "suspended"
        return job
