"""A case as objects for the API server. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.load.objects import RUN, Load, leading_objects, make_gangs, pod_objects
from bench.preemption.cases import Case, Crowd
from serried.kube.wire import JSON, Resource

END_AFTER = "bench.serried.dev/end-after"
PRIORITIES = {"bench-runs": 1000, "bench-comes": 1_000_000}
"""The value of each PriorityClass."""

_GRACE_SECONDS = 30

Made = tuple[Resource, JSON]


@dataclass(frozen=True, slots=True)
class Play:
    """A case in one run of one scheduler."""

    case: Case
    run: str
    scheduler: str

    @property
    def label(self) -> str:
        """The value of the run label of all that comes."""
        return f"{self.run}-comes"

    @property
    def crowd_labels(self) -> tuple[str, ...]:
        """The values of the run label of all that runs."""
        return tuple(f"{self.run}-runs{place}" for place in range(len(self.case.crowds)))

    @property
    def selector(self) -> str:
        """The pods of both."""
        return f"{RUN} in ({','.join((self.label, *self.crowd_labels))})"


def priority_classes() -> Iterator[JSON]:
    """What has to be there before all else."""
    for name, value in PRIORITIES.items():
        yield {"metadata": {"name": name}, "value": value}


def running_groups(play: Play) -> Iterator[Made]:
    """The PodGroups of all that runs: of disruption mode ``all``."""
    for crowd, load in _crowds(play):
        for resource, group in leading_objects(load) if crowd.size else ():
            group["spec"] |= {"priorityClassName": "bench-runs", "disruptionMode": {"all": {}}}
            yield resource, group


def running_pods(play: Play) -> Iterator[JSON]:
    """The pods that run, bound as they are made."""
    for crowd, load in _crowds(play):
        for node, (_, pod) in zip(crowd.hosts, pod_objects(load), strict=True):
            pod["spec"] |= {"nodeName": node, "priorityClassName": "bench-runs"}
            if play.case.end_after:
                pod["spec"]["terminationGracePeriodSeconds"] = _GRACE_SECONDS
                pod["metadata"]["annotations"] = {END_AFTER: f"{play.case.end_after}s"}
            yield pod


def coming_groups(play: Play) -> Iterator[Made]:
    """The PodGroups that come."""
    for resource, group in leading_objects(_load_coming(play)):
        group["spec"]["priorityClassName"] = "bench-comes"
        yield resource, group


def coming_pods(play: Play) -> Iterator[JSON]:
    """The pods that come, gang by gang."""
    for _, pod in pod_objects(_load_coming(play)):
        pod["spec"]["priorityClassName"] = "bench-comes"
        yield pod


def _crowds(play: Play) -> Iterator[tuple[Crowd, Load]]:
    for crowd, label in zip(play.case.crowds, play.crowd_labels, strict=True):
        load = Load(label, play.scheduler, cpu=crowd.cpu)
        if crowd.size:
            yield crowd, replace(load, gangs=make_gangs(len(crowd.nodes) // crowd.size, crowd.size))
        else:
            yield crowd, replace(load, plain=len(crowd.nodes))


def _load_coming(play: Play) -> Load:
    case = play.case
    return Load(play.label, play.scheduler, gangs=make_gangs(case.gangs, case.size, case.key), cpu=case.cpu)
