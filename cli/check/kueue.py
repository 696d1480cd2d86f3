"""The configuration, flavors and quotas of Kueue that ``serried check`` looks at.

Only values and decoding, without I/O. Source: sigs.k8s.io/kueue v0.19.1, apis/config and apis/kueue in the versions
v1beta1 and v1beta2.
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
"""The label selector of Kueue's own objects; its manifests and its chart set the same label."""

MANAGER = "-controller-manager"
"""The suffix by which Kueue's manager is found among the Deployments with this label."""

_CONFIG_GROUP = "config.kueue.x-k8s.io"
_DISABLING_GATE = "DisableWaitForPodsReady"
_TIMEOUT = 30 * 60.0
_OLDER_TIMEOUT = 5 * 60.0
"""Kueue's default of ``waitForPodsReady.timeout`` in configurations of v1beta1, in seconds."""

_ON_BY_DEFAULT_SINCE_MINOR = 19
"""The minor version 0.x from which on Kueue waits for pods to be ready unless its configuration says otherwise."""

_GATES = re.compile(r"--feature-gates=(.*)")
_MINOR = re.compile(r"v?0\.(\d+)\.")
_SYSTEM = "kube-system"


class Manager(NamedTuple):
    """The version and the feature gates of Kueue's manager, read from its Deployment."""

    minor: int | None = None
    """The minor version, for example 19 for the image tag v0.19.1; None if the tag is no version."""

    gates: Mapping[str, bool] = {}
    """The feature gates that the manager's flag ``--feature-gates`` turns on (True) or off (False)."""


@dataclass(frozen=True, slots=True)
class WaitForPodsReady:
    """Kueue's setting ``waitForPodsReady``, with Kueue's defaults for unset fields."""

    timeout: float
    """Seconds after which Kueue evicts an admitted workload whose pods were never all ready."""

    recovery_timeout: float
    """Seconds after which Kueue evicts a running workload with a pod that is no longer ready; 0 for never."""

    blocks_admission: bool
    """True if Kueue admits no other workload until the pods of the last one are ready."""

    requeues_by_eviction: bool
    """True if Kueue queues an evicted workload by the time of its eviction, False if by its creation."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The fields of Kueue's Configuration that affect gangs."""

    source: str
    """The ConfigMap with the configuration, as text for findings."""

    wait: WaitForPodsReady | None
    """The setting waitForPodsReady; None if Kueue does not wait for pods to be ready."""

    computed: frozenset[str] = frozenset()
    """The names of the resources that Kueue itself defines, by a sum of other resources or a count of DRA devices.

    No node lists them as allocatable, so quotas of them are not compared with the nodes.
    """


class Flavor(NamedTuple):
    """A ResourceFlavor of Kueue: a set of nodes, for which ClusterQueues have quotas."""

    name: str
    labels: Labels
    """The node labels that select the flavor's nodes (``nodeLabels``)."""

    topology: str = ""
    """The Topology by which Kueue itself chooses nodes (TAS); "" if the scheduler chooses them."""

    levels: tuple[str, ...] = ()
    """The node labels of the levels of the flavor's Topology. Kueue does not use nodes that lack one of them."""

    def selects(self, labels: Labels) -> bool:
        """Return whether a node with these labels belongs to the flavor (Kueue's ``NodeMatchesFlavor``)."""
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            level in labels for level in self.levels
        )


class Quota(NamedTuple):
    """The quotas of one ClusterQueue for the resources of one flavor."""

    queue: str
    flavor: str
    nominal: Amounts
    """``nominalQuota`` by resource: cpu in millicores, all others in base units."""


class LocalQueue(NamedTuple):
    """A LocalQueue; ``queue`` is the name of its ClusterQueue."""

    namespace: str
    name: str
    queue: str


class Outsider(NamedTuple):
    """A pod that uses resources of a node and is not managed by Kueue."""

    node: str
    pod: str
    """The namespace and name of the pod, with a slash between them."""


@dataclass(frozen=True)
class Kueue:
    """The facts about the Kueue of a cluster. Fields that could not be read are empty, and `configuration` is None."""

    configuration: Configuration | None = None
    flavors: tuple[Flavor, ...] = ()
    quotas: tuple[Quota, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()

    outsiders: tuple[Outsider, ...] = ()
    """The pods that Kueue does not manage. Read only if some ClusterQueue has a quota for a flavor with a Topology."""

    demands: tuple[TopologyDemand, ...] = ()
    """The topology keys required by Jobs in the namespaces of `topology_queues`. Read only if `outsiders` is."""

    @cached_property
    def topology_flavors(self) -> tuple[Flavor, ...]:
        """The flavors with a Topology for which at least one ClusterQueue has a quota."""
        used = {each.flavor for each in self.quotas}
        return tuple(each for each in self.flavors if each.topology and each.name in used)

    @cached_property
    def topology_queues(self) -> frozenset[LocalQueue]:
        """The LocalQueues whose ClusterQueue has a quota for one of the `topology_flavors`.

        Kueue may choose the nodes of their workloads.
        """
        names = {each.name for each in self.topology_flavors}
        queues = {each.queue for each in self.quotas if each.flavor in names}
        return frozenset(each for each in self.local_queues if each.queue in queues)


def decode_manager(deployment: Raw) -> Manager:
    """Return the version and feature gates in the Deployment of Kueue's manager.

    Raises ValueError for a malformed one.
    """
    pod = read_map(read_map(read_map(deployment, "spec"), "template"), "spec")
    containers = read_objects(pod, "containers")
    tags = (_MINOR.match(read_text(each, "image").rpartition(":")[2]) for each in containers)
    told = (_GATES.fullmatch(str(word)) for each in containers for word in each.get("args") or ())
    gates = (pair.partition("=") for found in told if found for pair in found[1].split(","))
    minor = next((int(found[1]) for found in tags if found), None)
    return Manager(minor, {name: value.lower() == "true" for name, _, value in gates})


def decode_configuration(source: str, document: Any, manager: Manager) -> Configuration:
    """Return the settings in a parsed Configuration of Kueue. ``source`` names its ConfigMap.

    ``manager`` decides defaults that depend on the version and the feature gates. Raises ValueError if the document is
    no Configuration of Kueue.
    """
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
    """Return whether Kueue waits for pods to be ready, by its configuration.

    ``older`` is True for v1beta1, where the field ``enable`` of waitForPodsReady decides. In v1beta2 Kueue waits if
    waitForPodsReady is set. From Kueue 0.19 on, it also waits if waitForPodsReady is absent. ``minor`` is 19 for 0.19;
    None, for an unknown version, counts as a new one.
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
    """Return the ResourceFlavors, each with the levels of the Topology that it names.

    Raises ValueError for a malformed object.
    """
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
    """Yield the quotas of a ClusterQueue, one `Quota` for each of its flavors.

    Raises ValueError for a malformed one.
    """
    name = read_key(cluster_queue).name
    for group in read_objects(read_map(cluster_queue, "spec"), "resourceGroups"):
        for flavor in read_objects(group, "flavors"):
            named = {
                read_required(each, "name"): each.get("nominalQuota", 0) for each in read_objects(flavor, "resources")
            }
            yield Quota(name, read_required(flavor, "name"), read_amounts({"nominal": named}, "nominal"))


def decode_local_queue(obj: Raw) -> LocalQueue:
    """Return the decoded LocalQueue. Raises ValueError for a malformed one."""
    return LocalQueue(*read_key(obj), read_text(read_map(obj, "spec"), "clusterQueue"))


def decode_outsider(pod: Raw) -> Outsider | None:
    """Return the pod if it uses resources of a node and Kueue does not manage it; else None.

    Kueue recognizes its own pods by a label or annotation of its API group. Return None also for pods of DaemonSets,
    static pods and pods in kube-system: Kueue subtracts what they use.
    """
    metadata, node = read_map(pod, "metadata"), read_text(read_map(pod, "spec"), "nodeName")
    marks = (*read_map(metadata, "labels"), *read_map(metadata, "annotations"))
    owners = {read_text(each, "kind") for each in read_objects(metadata, "ownerReferences")}
    key = read_key(pod)
    if not node or key.namespace == _SYSTEM or not owners.isdisjoint({"DaemonSet", "Node"}):
        return None
    return None if any(mark.startswith(f"{GROUP}/") for mark in marks) else Outsider(node, str(key))
