"""Make the objects of a case for the API server. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.load.objects import RUN, Load, leading_objects, make_gangs, pod_objects
from bench.preemption.cases import Case, RunningPods
from serried.kube.wire import JSON, Resource

END_AFTER = "bench.serried.dev/end-after"
"""Annotation of a pod: the seconds that the simulated kubelet takes to end it."""

PRIORITIES = {"bench-runs": 1000, "bench-comes": 1_000_000}
"""The value of each PriorityClass: of running pods, and of preemptors."""

_GRACE_SECONDS = 30

Made = tuple[Resource, JSON]
"""An object to create, and its resource."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run of a case with one scheduler."""

    case: Case
    run: str
    """Name of the run: prefix of all objects' names."""

    scheduler: str
    """The schedulerName of the preemptors."""

    @property
    def label(self) -> str:
        """Value of the label `RUN` of the preemptors."""
        return f"{self.run}-comes"

    @property
    def running_labels(self) -> tuple[str, ...]:
        """Value of the label `RUN` of each group of running pods."""
        return tuple(f"{self.run}-runs{place}" for place in range(len(self.case.running)))

    @property
    def selector(self) -> str:
        """Label selector of all pods of the run."""
        return f"{RUN} in ({','.join((self.label, *self.running_labels))})"


def priority_classes() -> Iterator[JSON]:
    """Yield the PriorityClasses, which are created before all other objects."""
    for name, value in PRIORITIES.items():
        yield {"metadata": {"name": name}, "value": value}


def running_groups(case_run: CaseRun) -> Iterator[Made]:
    """Yield the PodGroups of running gangs, with disruption mode ``all``."""
    for pods, load in _list_running(case_run):
        for resource, group in leading_objects(load) if pods.size else ():
            group["spec"] |= {"priorityClassName": "bench-runs", "disruptionMode": {"all": {}}}
            yield resource, group


def running_pods(case_run: CaseRun) -> Iterator[JSON]:
    """Yield the running pods, each with its node name."""
    for pods, load in _list_running(case_run):
        for node, (_, pod) in zip(pods.hosts, pod_objects(load), strict=True):
            pod["spec"] |= {"nodeName": node, "priorityClassName": "bench-runs"}
            if case_run.case.end_after:
                pod["spec"]["terminationGracePeriodSeconds"] = _GRACE_SECONDS
                pod["metadata"]["annotations"] = {END_AFTER: f"{case_run.case.end_after}s"}
            yield pod


def preemptor_groups(case_run: CaseRun) -> Iterator[Made]:
    """Yield the PodGroups of the preemptors."""
    for resource, group in leading_objects(_load_preemptors(case_run)):
        group["spec"]["priorityClassName"] = "bench-comes"
        yield resource, group


def preemptor_pods(case_run: CaseRun) -> Iterator[JSON]:
    """Yield the pods of the preemptors, gang by gang."""
    for _, pod in pod_objects(_load_preemptors(case_run)):
        pod["spec"]["priorityClassName"] = "bench-comes"
        yield pod


def _list_running(case_run: CaseRun) -> Iterator[tuple[RunningPods, Load]]:
    for pods, label in zip(case_run.case.running, case_run.running_labels, strict=True):
        load = Load(label, case_run.scheduler, cpu=pods.cpu)
        if pods.size:
            yield pods, replace(load, gangs=make_gangs(len(pods.nodes) // pods.size, pods.size))
        else:
            yield pods, replace(load, plain=len(pods.nodes))


def _load_preemptors(case_run: CaseRun) -> Load:
    case = case_run.case
    return Load(case_run.label, case_run.scheduler, gangs=make_gangs(case.gangs, case.size, case.key), cpu=case.cpu)
