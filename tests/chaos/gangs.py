"""The gangs of the load: drawn from one source of chance, and written as objects. Pure.

On nodes of 8 CPU, three to a rack, each of them fits into an empty cluster, and those with a key into an empty rack.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.cluster import Spec
from bench.cluster.nodes import RACK
from serried.api.names import composite_api_version
from tests.chaos.objects import OUR_SCHEDULER, POD_GROUP_LABEL, REQUIRED_TOPOLOGY

HIGH = "chaos-high"
_LATE_SECONDS = 2.0
Raw = dict[str, Any]

_PLAIN_BINDING = re.compile(r"/pods/pod-\d+/binding")

_TEMPLATE = {"workloadName": "chaos", "templateName": "any"}
"""The workloadRef that the groups of a tree must have. The Workload need not exist."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The parameters from which a load is drawn."""

    kinds: tuple[str, ...]
    sizes: tuple[int, int]
    milli_cpus: tuple[int, ...]

    seconds: tuple[int, int]
    """The shortest and the longest time that a member runs."""

    late: float = 0.0
    """The part of the Bindings of plain pods that are on their way for up to `_LATE_SECONDS`."""

    def draw_delay(self, source: Random, path: str) -> float:
        """For how many seconds a request to a path is on its way."""
        if not _PLAIN_BINDING.search(path) or source.random() >= self.late:
            return 0.0
        return source.uniform(0.0, _LATE_SECONDS)


MIXES = {
    "any": Mix(
        kinds=("plain", "plain", "keyed", "keyed", "elastic", "tree", "high", "job", "job", "pod"),
        sizes=(2, 8),
        milli_cpus=(1000, 2000),
        seconds=(1, 5),
    ),
    # As many plain pods as gangs, of ten shapes, on nodes that stay full.
    "tight": Mix(
        kinds=("plain", "plain", "keyed", "elastic", "job", *("pod",) * 5),
        sizes=(4, 12),
        milli_cpus=(*range(300, 1300, 100),),
        seconds=(3, 20),
        late=0.3,
    ),
}


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang, a Job, a tree of gangs, or a pod of no gang, as the load creates it."""

    kind: str
    namespace: str
    name: str
    size: int
    """The members, of a tree those of each of its two leaves."""

    min_count: int
    milli_cpu: int
    seconds: int
    """The time that a member runs; 0 for ever."""

    key: str = ""
    high: bool = False

    @property
    def groups(self) -> list[str]:
        """The names of its PodGroups that we make: for a Job the controller makes them."""
        if self.kind == "tree":
            return [f"{self.name}-left", f"{self.name}-right"]
        return [] if self.kind in {"job", "pod"} else [self.name]

    @property
    def members(self) -> list[tuple[str, str]]:
        """The names of the pods that we make, each with its PodGroup."""
        if self.kind == "pod":
            return [(self.name, "")]
        return [(f"{group}-{place}", group) for group in self.groups for place in range(self.size)]


def draw_gang(mix: Mix, source: Random, serial: int, namespace: str) -> Gang:
    """A gang, or a pod of none."""
    kind = source.choice(mix.kinds)
    size = source.randint(2, 4) if kind == "tree" else source.randint(*mix.sizes)
    milli_cpu = source.choice(mix.milli_cpus)
    return Gang(
        kind=kind,
        namespace=namespace,
        name=f"{kind}-{serial:05d}",
        size=1 if kind == "pod" else size,
        min_count=max(1, size // 2) if kind == "elastic" else size,
        milli_cpu=milli_cpu,
        seconds=source.randint(*mix.seconds),
        key=RACK if kind == "keyed" or (kind in {"tree", "job"} and source.random() < 0.5) else "",
        high=kind == "high",
    )


class Objects:
    """Writes them as the API level of a cluster has them."""

    def __init__(self, spec: Spec) -> None:
        self._native = spec.api == "native"
        self._version = spec.api_version
        self._composite_version = composite_api_version(spec.api_version)

    def groups_path(self, namespace: str) -> str:
        """Return the path of the PodGroups of a namespace."""
        return f"/apis/{self._version}/namespaces/{namespace}/podgroups"

    def composites_path(self, namespace: str) -> str:
        """Return the path of the CompositePodGroups of a namespace."""
        return f"/apis/{self._composite_version}/namespaces/{namespace}/compositepodgroups"

    def list_leading(self, gang: Gang) -> Iterator[tuple[str, Raw]]:
        """Yield the objects to create before the pods, each with the path of its list."""
        if gang.kind == "job":
            yield f"/apis/batch/v1/namespaces/{gang.namespace}/jobs", self._make_job(gang)
        if gang.kind == "tree":
            body = self._make("CompositePodGroup", gang.name, {"gang": {"minGroupCount": 2}}, gang.key)
            body["spec"]["workloadRef"] = _TEMPLATE
            yield self.composites_path(gang.namespace), body
        for group in gang.groups:
            key = "" if gang.kind == "tree" else gang.key
            body = self._make("PodGroup", group, {"gang": {"minCount": gang.min_count}}, key)
            if gang.kind == "tree":
                body["spec"] |= {"parentCompositePodGroupName": gang.name, "workloadRef": _TEMPLATE}
            if gang.high:
                body["spec"]["priorityClassName"] = HIGH
            yield self.groups_path(gang.namespace), body

    def _make(self, kind: str, name: str, policy: Raw, key: str) -> Raw:
        spec: Raw = {"schedulingPolicy": policy}
        metadata: Raw = {"name": name}
        if key and self._native:
            metadata["annotations"] = {REQUIRED_TOPOLOGY: key}  # the field is behind one gate more
        elif key:
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        version = self._composite_version if kind == "CompositePodGroup" else self._version
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    def _make_job(self, gang: Gang) -> Raw:
        annotations = {REQUIRED_TOPOLOGY: gang.key} if gang.key else {}
        template = {
            "metadata": {"annotations": make_end(gang)},
            "spec": make_pod_spec(gang) | {"restartPolicy": "Never"},
        }
        spec = {
            "parallelism": gang.size,
            "completions": gang.size,
            "completionMode": "Indexed",
            "backoffLimit": 1000,
            "template": template,
        }
        return {"metadata": {"name": gang.name, "annotations": annotations}, "spec": spec}

    def make_member(self, gang: Gang, name: str, group: str) -> Raw:
        """One pod."""
        metadata: Raw = {"name": name, "annotations": make_end(gang), "labels": {}}
        spec = make_pod_spec(gang)
        if group and self._native:
            spec["schedulingGroup"] = {"podGroupName": group}
        elif group:
            metadata["labels"] = {POD_GROUP_LABEL: group}
        return {"metadata": metadata, "spec": spec}


def make_end(gang: Gang) -> dict[str, str]:
    """The annotation by which kwok lets a pod succeed."""
    return {"bench.serried.dev/succeed-after": f"{gang.seconds}s"} if gang.seconds else {}


def make_pod_spec(gang: Gang) -> Raw:
    """One container that asks for CPU alone."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": f"{gang.milli_cpu}m"}}}
    spec: Raw = {
        "schedulerName": OUR_SCHEDULER,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return spec | ({"priorityClassName": HIGH} if gang.high else {})
