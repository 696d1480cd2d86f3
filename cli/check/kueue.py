"""Kueue as ``serried check`` sees it: its configuration, flavors and quotas. Only values and decoding, without I/O.

Source: sigs.k8s.io/kueue v0.19.1, apis/config and apis/kueue in the versions v1beta1 and v1beta2.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from cli.check.demands import TopologyDemand
from cli.check.durations import parse_duration
from serried.api.names import (
    Raw,
    read_flag,
    read_key,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_required,
    read_text,
)
from serried.api.resources import Amounts, read_amounts
from serried.api.selectors import Labels

GROUP = "kueue.x-k8s.io"
CONFIG_NAMESPACE, CONFIG_NAME = "kueue-system", "kueue-manager-config"
CONFIG_KEY = "controller_manager_config.yaml"
LABELS = "app.kubernetes.io/name=kueue"
"""The label of all objects of an installation of Kueue, by its manifests and by its chart."""

MANAGER = "-controller-manager"
"""The end of the name of Kueue's Deployment, which has the label, too."""

_CONFIG_GROUP = "config.kueue.x-k8s.io"
_DISABLING_GATE = "DisableWaitForPodsReady"
_TIMEOUT = 30 * 60.0
_OLDER_TIMEOUT = 5 * 60.0
"""The default of ``waitForPodsReady.timeout`` in configurations of v1beta1."""

_ON_BY_DEFAULT_SINCE_MINOR = 19
"""The minor version 0.x of Kueue since which waitForPodsReady is on if a configuration of v1beta2 does not name it."""

_GATES = re.compile(r"--feature-gates=(.*)")
_MINOR = re.compile(r"v?0\.(\d+)\.")
_SYSTEM = "kube-system"


class Manager(NamedTuple):
    """The version and the feature gates of the manager that runs, as Kueue's Deployment has them."""

    minor: int | None = None
    """The minor version 0.x by the image's tag; None if the tag is no version."""

    gates: Mapping[str, bool] = {}
    """The feature gates of ``--feature-gates``."""


@dataclass(frozen=True, slots=True)
class WaitForPodsReady:
    """The field ``waitForPodsReady`` with Kueue's defaults filled in."""

    timeout: float
    """Seconds after its admission at which a workload that never was ready is evicted."""

    recovery_timeout: float
    """Seconds after which a workload that was ready and is not any more is evicted; 0 for never."""

    blocks_admission: bool
    """True if nothing else is admitted before an admitted workload is ready."""

    requeues_by_eviction: bool
    """True if an evicted workload is queued by the date of its eviction instead of its creation."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fields of Kueue's Configuration that matter to gangs."""

    source: str
    """The ConfigMap with the configuration."""

    wait: WaitForPodsReady | None
    """The settings of waitForPodsReady; None if Kueue does not wait for pods to be ready."""

    computed: frozenset[str] = frozenset()
    """The resources that Kueue computes from others or from devices. No node has them."""


class Flavor(NamedTuple):
    """A ResourceFlavor: the nodes that a quota is about."""

    name: str
    labels: Labels
    """The labels that its nodes have."""

    topology: str = ""
    """The Topology from which Kueue chooses nodes (TAS); "" if Kueue leaves the choice to the scheduler."""

    levels: tuple[str, ...] = ()
    """The labels of the levels of that Topology. A node without one of them is not used by Kueue."""

    def selects(self, labels: Labels) -> bool:
        """Return whether a node with these labels is one of the flavor's (Kueue's ``NodeMatchesFlavor``)."""
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            level in labels for level in self.levels
        )


class Quota(NamedTuple):
    """The quotas of one ClusterQueue for one flavor."""

    queue: str
    flavor: str
    nominal: Amounts
    """``nominalQuota`` by resource: cpu in millicores, all others in base units."""


class LocalQueue(NamedTuple):
    """A LocalQueue and its ClusterQueue."""

    namespace: str
    name: str
    queue: str


class Outsider(NamedTuple):
    """A pod that holds room on a node and is not managed by Kueue."""

    node: str
    pod: str
    """Namespace and name, with a slash between them."""


@dataclass(frozen=True)
class Kueue:
    """The facts about one installation of Kueue. What could not be read is empty, and `configuration` is None."""

    configuration: Configuration | None = None
    flavors: tuple[Flavor, ...] = ()
    quotas: tuple[Quota, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()

    outsiders: tuple[Outsider, ...] = ()
    """Read only if a quota is about a flavor with a Topology; so are `demands`."""

    demands: tuple[TopologyDemand, ...] = ()
    """The topology keys that Jobs in LocalQueues of such flavors require."""

    @cached_property
    def topology_flavors(self) -> tuple[Flavor, ...]:
        """The flavors with a Topology for which some ClusterQueue has a quota."""
        used = {each.flavor for each in self.quotas}
        return tuple(each for each in self.flavors if each.topology and each.name in used)

    @cached_property
    def topology_queues(self) -> frozenset[LocalQueue]:
        """The LocalQueues for whose workloads Kueue may choose the nodes."""
        names = {each.name for each in self.topology_flavors}
        queues = {each.queue for each in self.quotas if each.flavor in names}
        return frozenset(each for each in self.local_queues if each.queue in queues)


def decode_manager(deployment: Raw) -> Manager:
    """Return version and feature gates in Kueue's Deployment. Raises ValueError for a malformed one."""
    pod = read_map(read_map(read_map(deployment, "spec"), "template"), "spec")
    containers = read_objects(pod, "containers")
    tags = (_MINOR.match(read_text(each, "image").rpartition(":")[2]) for each in containers)
    told = (_GATES.fullmatch(str(word)) for each in containers for word in each.get("args") or ())
    gates = (pair.partition("=") for found in told if found for pair in found[1].split(","))
    minor = next((int(found[1]) for found in tags if found), None)
    return Manager(minor, {name: value.lower() == "true" for name, _, value in gates})


def decode_configuration(source: str, document: Any, manager: Manager) -> Configuration:
    """Return the configuration in a parsed document. Raises ValueError for another document."""
    version = read_text(document, "apiVersion") if isinstance(document, dict) else ""
    if not version.startswith(f"{_CONFIG_GROUP}/") or document.get("kind") != "Configuration":
        raise ValueError(f"{source} holds no Configuration of Kueue")
    resources = read_map(document, "resources")
    outputs = (read_map(each, "outputs") for each in read_objects(resources, "transformations"))
    devices = (read_required(each, "name") for each in read_objects(resources, "deviceClassMappings"))
    older, gates = version.endswith("/v1beta1"), {**manager.gates, **read_map(document, "featureGates")}
    is_on = not gates.get(_DISABLING_GATE) and _waits_for_pods_ready(document, manager.minor, older=older)
    return Configuration(
        source=source,
        wait=_decode_wait(read_map(document, "waitForPodsReady"), older=older) if is_on else None,
        computed=frozenset({*(name for each in outputs for name in each), *devices}),
    )


def _waits_for_pods_ready(document: Raw, minor: int | None, *, older: bool) -> bool:
    """Return whether Kueue waits for pods to be ready, its feature gate apart. An unknown version counts as a new one.

    In v1beta1 the field ``enable`` turns it on. Since v1beta2 the field itself does, and in 0.19 also its absence.
    """
    if older:
        return read_flag(read_map(document, "waitForPodsReady"), "enable")
    named = document.get("waitForPodsReady") is not None
    return named or minor is None or minor >= _ON_BY_DEFAULT_SINCE_MINOR


def _decode_wait(wait: Raw, *, older: bool) -> WaitForPodsReady:
    timeout = parse_duration(read_text(wait, "timeout", "0s")) or (_OLDER_TIMEOUT if older else _TIMEOUT)
    recovery = read_text(wait, "recoveryTimeout")
    return WaitForPodsReady(
        timeout=timeout,
        recovery_timeout=parse_duration(recovery) if recovery else timeout,
        blocks_admission=older if wait.get("blockAdmission") is None else read_flag(wait, "blockAdmission"),
        requeues_by_eviction=read_text(read_map(wait, "requeuingStrategy"), "timestamp", "Eviction") == "Eviction",
    )


def decode_flavors(flavors: Iterable[Raw], topologies: Iterable[Raw]) -> tuple[Flavor, ...]:
    """Return the flavors, each with the levels of its Topology. Raises ValueError for a malformed object."""
    levels = {read_key(each).name: tuple(_read_levels(each)) for each in topologies}
    return tuple(_decode_flavor(each, levels) for each in flavors)


def _read_levels(topology: Raw) -> Iterator[str]:
    for each in read_objects(read_map(topology, "spec"), "levels"):
        yield read_required(each, "nodeLabel")


def names_topology(flavor: Raw) -> bool:
    """Return whether a ResourceFlavor names a Topology."""
    return bool(read_text(read_map(flavor, "spec"), "topologyName"))


def _decode_flavor(flavor: Raw, levels: Mapping[str, tuple[str, ...]]) -> Flavor:
    spec = read_map(flavor, "spec")
    topology = read_name(spec, "topologyName")
    return Flavor(read_key(flavor).name, read_labels(spec, "nodeLabels"), topology, levels.get(topology, ()))


def decode_quotas(cluster_queue: Raw) -> Iterator[Quota]:
    """Yield the quotas of a ClusterQueue, one for each flavor. Raises ValueError for a malformed one."""
    name = read_key(cluster_queue).name
    for group in read_objects(read_map(cluster_queue, "spec"), "resourceGroups"):
        for flavor in read_objects(group, "flavors"):
            named = {
                read_required(each, "name"): each.get("nominalQuota", 0) for each in read_objects(flavor, "resources")
            }
            yield Quota(name, read_required(flavor, "name"), read_amounts({"nominal": named}, "nominal"))


def decode_local_queue(obj: Raw) -> LocalQueue:
    """Return a LocalQueue. Raises ValueError for a malformed one."""
    return LocalQueue(*read_key(obj), read_text(read_map(obj, "spec"), "clusterQueue"))


def decode_outsider(pod: Raw) -> Outsider | None:
    """Return a pod as one that takes room which Kueue counts for its own workloads; None for any other pod.

    Pods of Kueue carry a label or annotation of its API group. Pods of DaemonSets and of the system are on every node,
    and Kueue subtracts what they use.
    """
    metadata, node = read_map(pod, "metadata"), read_text(read_map(pod, "spec"), "nodeName")
    marks = (*read_map(metadata, "labels"), *read_map(metadata, "annotations"))
    owners = {read_text(each, "kind") for each in read_objects(metadata, "ownerReferences")}
    key = read_key(pod)
    if not node or key.namespace == _SYSTEM or not owners.isdisjoint({"DaemonSet", "Node"}):
        return None
    return None if any(mark.startswith(f"{GROUP}/") for mark in marks) else Outsider(node, str(key))
