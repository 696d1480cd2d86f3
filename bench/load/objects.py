"""The description of a load, and the objects that it creates. No I/O."""

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
"""The way in which a pod names its group: native by ``spec.schedulingGroup``, fallback by a label, job as a pod of an
Indexed Job."""

POD_GROUPS = {"native": pod_groups("scheduling.k8s.io", "v1beta1"), "fallback": pod_groups(FALLBACK_GROUP, "v1beta1")}
WORKLOADS = {"native": workloads("scheduling.k8s.io", "v1beta1"), "fallback": workloads(FALLBACK_GROUP, "v1beta1")}


BINDINGS = "bindings"
"""A schedulerName that no scheduler has: the load generator sends the Bindings itself, once all pods exist."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang to create."""

    name: str
    size: int
    """Number of members, and the minCount."""

    key: str = ""
    """The topology key whose value all members' nodes must share; "" for none."""

    port: int = 0
    """The host port of each member; 0 for none. Then at most one member fits on a node."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The rates at which pods are created. A rate of 0 means without pauses."""

    plain: float = 0.0
    """Plain pods per second."""

    gangs: float = 0.0
    """Gangs per second."""

    idle: float = 0.0
    """If not 0, gangs are created one by one: each so many seconds after the last Binding of the previous one."""


AT_ONCE = Pace()
"""All pods without pauses."""


@dataclass(frozen=True, slots=True)
class Load:
    """The pods of one run, all for one scheduler."""

    run: str = ""
    """Name of the run: prefix of all objects' names, and value of their label `RUN`."""

    scheduler: str = ""
    """The schedulerName of all pods."""

    plain: int = 0
    """Number of plain pods."""

    gangs: tuple[Gang, ...] = ()
    link: Link = "native"
    cpu: str = "1"
    memory: str = ""
    """The memory that each pod requests; "" for no request."""

    pace: Pace = AT_ONCE

    @property
    def pods(self) -> int:
        """Number of all pods."""
        return self.plain + sum(gang.size for gang in self.gangs)


def make_gangs(count: int, size: int, key: str = "", first_port: int = 0) -> tuple[Gang, ...]:
    """Return ``count`` equal gangs. With a first port, each gang has a host port of its own, counted from it."""
    return tuple(Gang(f"gang-{index:03d}", size, key, first_port and first_port + index) for index in range(count))


def leading_objects(load: Load) -> Iterator[tuple[Resource, JSON]]:
    """Yield the objects to create before the pods: PodGroups, or Jobs, whose pods kube-controller-manager creates."""
    for gang in load.gangs:
        if load.link == "job":
            yield JOBS, job_object(load, gang)
        else:
            yield POD_GROUPS[load.link], pod_group_object(load, gang)


def pod_objects(load: Load) -> Iterator[tuple[str, JSON]]:
    """Yield every pod to create, with its gang's name: gang by gang, with plain pods evenly in between.

    Pods of Jobs are left out.
    """
    count = 0 if load.link == "job" else load.pods - load.plain
    plain_pods, members = plain_objects(load), (pod for gang in load.gangs for pod in gang_objects(load, gang))
    plain = yielded = 0
    for _ in range(load.plain + count):
        if plain * count < yielded * load.plain or yielded == count:
            yield next(plain_pods)
            plain += 1
        else:
            yield next(members)
            yielded += 1


def plain_objects(load: Load) -> Iterator[tuple[str, JSON]]:
    """Yield the plain pods, each with "" for its gang."""
    for index in range(load.plain):
        yield "", _pod_object(load, f"{load.run}-plain-{index:05d}", {})


def gang_objects(load: Load, gang: Gang) -> Iterator[tuple[str, JSON]]:
    """Yield the pods of one gang, each with the gang's name."""
    for index in range(gang.size):
        yield gang.name, member_object(load, gang, index)


def filler_objects(rooms: Mapping[str, int], percent: int) -> Iterator[tuple[Resource, JSON]]:
    """Yield a bound pod for each node, so that ``percent`` of all CPUs are used, a random part of each node.

    ``rooms`` has the CPUs of each node. The same nodes and percentage give the same pods.
    """
    chance = random.Random(percent)
    for number, (node, cpus) in enumerate(sorted(rooms.items())):
        # Evenly distributed over a range whose mean is ``percent``: from 0 up, or up to 100.
        low, high = (0, 2 * percent) if percent <= 50 else (2 * percent - 100, 100)
        used = cpus * chance.randint(low, high) // 100
        if used:
            load = Load("", "", cpu=str(used))
            pod = _pod_object(load, f"filler-{number:05d}", {})
            del pod["metadata"]["labels"]
            pod["spec"] |= {"nodeName": node, "schedulerName": "filler"}
            yield PODS, pod


def pod_group_object(load: Load, gang: Gang) -> JSON:
    """Return the PodGroup of a gang, which has no Workload."""
    spec: JSON = {"schedulingPolicy": {"gang": {"minCount": gang.size}}}
    metadata = _metadata(load, group_name(load, gang), {})
    if gang.key:
        spec["schedulingConstraints"] = {"topology": [{"key": gang.key}]}
        # An API server without the feature gate drops the field silently, so there is an annotation, too.
        metadata["annotations"] = {REQUIRED_TOPOLOGY: gang.key}
    return {
        "apiVersion": POD_GROUPS[load.link].api_version,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": spec,
    }


def member_object(load: Load, gang: Gang, index: int) -> JSON:
    """Return one pod of a gang."""
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
    """Return an Indexed Job, which is a gang because of its schedulerName. An annotation has the topology key."""
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
    """Return the name of a gang's PodGroup or Job."""
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
    requests = {"cpu": load.cpu} | ({"memory": load.memory} if load.memory else {})
    return {
        "schedulerName": load.scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
    }
