"""The Jobs of a phase: gangs, or Jobs of the same shape that say that they are none. No I/O."""

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
    """``count`` Jobs of one kind, each of MEMBERS pods; ``name`` is the prefix of theirs and of no other batch."""

    name: str
    count: int
    kind: Kind = "gang"
    state: State = "suspended"

    @property
    def gangs(self) -> int:
        """How many of the Jobs are to have a Workload and a PodGroup."""
        return self.count if self.kind == "gang" else 0

    def make_jobs(self) -> list[JSON]:
        """The Jobs, as they are to be created."""
        load = Load(self.name, SCHEDULER, gangs=make_gangs(self.count, MEMBERS), link="job", cpu="10m")
        return [self._dress(job_object(load, gang)) for gang in load.gangs]

    def _dress(self, job: JSON) -> JSON:
        if self.kind == "plain":
            job["metadata"]["annotations"] = {GANG_POLICY: "NoGang"}
        job["spec"]["suspend"] = self.state == "suspended"
        return job
