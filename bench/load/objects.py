"""What a load consists of, as values and as objects for the API server. No I/O."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from serried.api.names import REQUIRED_TOPOLOGY
from serried.kube.wire import FALLBACK_GROUP, JOBS, JSON, PODS, Resource, pod_groups, workloads

NAMESPACE = "default"
RUN = "bench.serried.dev/run"
GANG = "bench.serried.dev/gang"
POD_GROUP_LABEL = f"{FALLBACK_GROUP}/pod-group"

Link = Literal["native", "fallback", "job"]
"""How a pod finds its group: by ``spec.schedulingGroup``, by label, or as a pod of an Indexed Job."""

POD_GROUPS = {"native": pod_groups("scheduling.k8s.io", "v1beta1"), "fallback": pod_groups(FALLBACK_GROUP, "v1beta1")}
WORKLOADS = {"native": workloads("scheduling.k8s.io", "v1beta1"), "fallback": workloads(FALLBACK_GROUP, "v1beta1")}


BINDINGS = "bindings"
"""The schedulerName of pods that no scheduler takes: the load generator binds them itself, once all of them exist."""


@dataclass(frozen=True, slots=True)
class Gang:
    """``size`` pods that start together; ``key`` is the topology key whose value they must share, "" for none.

    Each member wants the host's ``port``, 0 for none: whether a node has it free is for the scheduler to judge.
    """

    name: str
    size: int
    key: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast pods are created: ``plain`` pods a second, ``gangs`` a second; 0 for as fast as the server takes them.

    With ``idle`` each gang comes so many seconds after the last pod of the one before it was bound.
    """

    plain: float = 0.0
    gangs: float = 0.0
    idle: float = 0.0


AT_ONCE = Pace()


@dataclass(frozen=True, slots=True)
class Load:
    """One run's pods, all for one scheduler; ``cpu`` and ``memory`` are what every pod requests, "" for nothing."""

    run: str = ""
    scheduler: str = ""
    plain: int = 0
    gangs: tuple[Gang, ...] = ()
    link: Link = "native"
    cpu: str = "1"
    memory: str = ""
    pace: Pace = AT_ONCE

    @property
    def pods(self) -> int:
        """How many pods there will be."""
        return self.plain + sum(gang.size for gang in self.gangs)


def make_gangs(count: int, size: int, key: str = "", first_port: int = 0) -> tuple[Gang, ...]:
    """``count`` equal gangs; with a first port each has a host port of its own."""
    return tuple(Gang(f"gang-{index:03d}", size, key, first_port and first_port + index) for index in range(count))


def leading_objects(load: Load) -> Iterator[tuple[Resource, JSON]]:
    """What must stand before the pods: PodGroups, or the Jobs that make the pods themselves."""
    for gang in load.gangs:
        if load.link == "job":
            yield JOBS, job_object(load, gang)
        else:
            yield POD_GROUPS[load.link], pod_group_object(load, gang)


def pod_objects(load: Load) -> Iterator[tuple[str, JSON]]:
    """Every pod that is not a Job's to make, with its gang's name: gang by gang, plain pods evenly between them."""
    count = 0 if load.link == "job" else load.pods - load.plain
    plain_pods, members = plain_objects(load), (pod for gang in load.gangs for pod in gang_objects(load, gang))
    plain = gone = 0
    for _ in range(load.plain + count):
        if plain * count < gone * load.plain or gone == count:
            yield next(plain_pods)
            plain += 1
        else:
            yield next(members)
            gone += 1


def plain_objects(load: Load) -> Iterator[tuple[str, JSON]]:
    """The pods of no gang, each with "" for its gang."""
    for index in range(load.plain):
        yield "", _pod_object(load, f"{load.run}-plain-{index:05d}", {})


def gang_objects(load: Load, gang: Gang) -> Iterator[tuple[str, JSON]]:
    """The pods of one gang, each with its gang's name."""
    for index in range(gang.size):
        yield gang.name, member_object(load, gang, index)


def filler_objects(rooms: Mapping[str, int], percent: int) -> Iterator[tuple[Resource, JSON]]:
    """A bound pod for each node with some of its CPUs (``rooms``), so that this much of all is used.

    They are the same for the same nodes.
    """
    chance = random.Random(percent)
    for number, (node, cpus) in enumerate(sorted(rooms.items())):
        # The mean of the smaller, or of the larger, part of an even spread is in its middle.
        low, high = (0, 2 * percent) if percent <= 50 else (2 * percent - 100, 100)
        used = cpus * chance.randint(low, high) // 100
        if used:
            load = Load("", "", cpu=str(used))
            pod = _pod_object(load, f"filler-{number:05d}", {})
            del pod["metadata"]["labels"]
            pod["spec"] |= {"nodeName": node, "schedulerName": "filler"}
            yield PODS, pod


def pod_group_object(load: Load, gang: Gang) -> JSON:
    """A PodGroup of its own, without Workload."""
    spec: JSON = {"schedulingPolicy": {"gang": {"minCount": gang.size}}}
    metadata = _metadata(load, group_name(load, gang), {})
    if gang.key:
        spec["schedulingConstraints"] = {"topology": [{"key": gang.key}]}
        # An API server without the gate for it drops the field without a word; the annotation says the same.
        metadata["annotations"] = {REQUIRED_TOPOLOGY: gang.key}
    return {
        "apiVersion": POD_GROUPS[load.link].api_version,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": spec,
    }


def member_object(load: Load, gang: Gang, index: int) -> JSON:
    """One bare pod of a gang."""
    labels = {GANG: gang.name}
    if load.link == "fallback":
        labels[POD_GROUP_LABEL] = group_name(load, gang)
    pod = _pod_object(load, f"{group_name(load, gang)}-{index:04d}", labels)
    if load.link == "native":
        pod["spec"]["schedulingGroup"] = {"podGroupName": group_name(load, gang)}
    if gang.port:
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": gang.port, "hostPort": gang.port}]
    return pod


def job_object(load: Load, gang: Gang) -> JSON:
    """An Indexed Job that is a gang for Serried by its schedulerName alone; an annotation names the topology key."""
    metadata = _metadata(load, group_name(load, gang), {GANG: gang.name})
    if gang.key:
        metadata["annotations"] = {REQUIRED_TOPOLOGY: gang.key}
    template = {"metadata": {"labels": {RUN: load.run, GANG: gang.name}}, "spec": _pod_spec(load)}
    return {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "parallelism": gang.size,
            "completions": gang.size,
            "completionMode": "Indexed",
            "template": template,
        },
    }


def group_name(load: Load, gang: Gang) -> str:
    """The name of a gang's PodGroup or Job."""
    return f"{load.run}-{gang.name}"


def _pod_object(load: Load, name: str, labels: dict[str, str]) -> JSON:
    return {
        "apiVersion": PODS.api_version,
        "kind": "Pod",
        "metadata": _metadata(load, name, labels),
        "spec": _pod_spec(load),
    }


def _metadata(load: Load, name: str, labels: dict[str, str]) -> JSON:
    return {"name": name, "namespace": NAMESPACE, "labels": {RUN: load.run} | labels}


def _pod_spec(load: Load) -> dict[str, Any]:
    asked = {"cpu": load.cpu} | ({"memory": load.memory} if load.memory else {})
    return {
        "schedulerName": load.scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": asked}}],
    }
