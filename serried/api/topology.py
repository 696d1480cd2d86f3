"""The table that maps topology levels, such as ``rack``, to node labels of the cluster (`LevelTable`).

A Job that names levels instead of labels runs unchanged in every cluster. The TopologyLevels object ``default`` holds
the table: an administrator writes its spec, the extender writes its status from the labels it finds on nodes.
Topologies of Kueue (``kueue.x-k8s.io/v1beta2``) and ClusterTopologyBindings of Grove (``grove.io/v1alpha1``) are read
as further entries.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serried.api.names import (
    Malformed,
    Raw,
    decode_or_malformed,
    join_some,
    read_int,
    read_key,
    read_map,
    read_name,
    read_objects,
    read_required,
    read_texts,
    read_version,
)
from serried.api.preference import LEVELS

DEFAULT_LABELS: Mapping[str, tuple[str, ...]] = {
    "host": ("cloud.google.com/gce-topology-host", "kubernetes.io/hostname"),
    "nvlink": (
        "nvidia.com/gpu.clique",
        "accelerator.topograph.run/sub-domain",
        "accelerator.topograph.run/domain",
        "network.topology.nvidia.com/accelerator",
    ),
    "rack": (
        "topology.serried.dev/rack",
        "fabric.topograph.run/tier-0",
        "network.topology.nvidia.com/leaf",
        "topology.k8s.aws/network-node-layer-3",
        "cloud.google.com/gce-topology-subblock",
    ),
    "block": (
        "fabric.topograph.run/tier-1",
        "network.topology.nvidia.com/block",
        "topology.k8s.aws/network-node-layer-2",
        "cloud.google.com/gce-topology-block",
    ),
    "spine": (
        "fabric.topograph.run/tier-2",
        "network.topology.nvidia.com/spine",
        "topology.k8s.aws/network-node-layer-1",
    ),
    "zone": ("topology.kubernetes.io/zone",),
}
"""The node labels that clouds and tools set for each level. `list_defaults` puts the name of the level before them."""

DEFAULT = "default"
"""The name of the only TopologyLevels object that Serried uses; others are ignored."""

MAX_POOLS = 16
"""The maximum number of extended resources for which a `LevelTable` has a `Pool`, i.e. labels for its nodes only.

Further resources have none: the labels of all nodes in the cluster hold for them.
"""

_MAX_NAMES_SHOWN = 10


def list_defaults(level: str) -> tuple[str, ...]:
    """Return the node labels that may stand for a level if no administrator has configured it, the preferred one first.

    The first one is the level's own name, because an administrator may have labelled nodes with, say, ``rack``. Then
    come the labels that clouds and tools set for the level (DEFAULT_LABELS).
    """
    return (level, *DEFAULT_LABELS[level])


class LabelCount(NamedTuple):
    """The key of a node label, and the number of nodes that have the label."""

    label: str
    nodes: int


class Pool(NamedTuple):
    """The nodes that have an extended resource, and the label that stands for each level on these nodes.

    ``nodes`` is the number of these nodes. The labels differ if, for instance, only nodes with GPUs have a rack label.
    """

    resource: str
    """The name of the extended resource; "" for the pool of all nodes in the cluster."""

    nodes: int

    labels: Mapping[str, LabelCount]
    """The label that stands for each level; a level for which there is none has no entry."""

    @property
    def label_by_level(self) -> dict[str, str]:
        """The key of the label that stands for each level; a level for which there is none has no entry."""
        return {level: each.label for level, each in self.labels.items()}


@dataclass(frozen=True, slots=True)
class LevelTable:
    """The table that says which node label stands for each topology level, such as ``rack``, in this cluster.

    The leading extender computes it from the labels of the nodes.
    """

    candidates: Mapping[str, tuple[str, ...]]
    """The labels that may stand for each level, the preferred one first.

    For each `Pool` of nodes, the first label counts that at least half of the nodes in the pool have.
    """

    pools: tuple[Pool, ...]
    """The pool of all nodes in the cluster, then for each extended resource the pool of the nodes that have it.

    There are at most MAX_POOLS of the latter.
    """

    @property
    def decision(self) -> tuple[object, ...]:
        """A value that is equal for two tables if they give all Jobs the same labels.

        It consists of ``candidates`` (all labels that may stand for a level), and of the label that does stand for each
        level in each `Pool`, i.e. on the nodes with one extended resource. The numbers of nodes are not part of it.
        """
        rarest = sorted(self.pools, key=lambda pool: pool.nodes)
        return self.candidates, [(pool.resource, pool.label_by_level) for pool in rarest]

    def find_pool(self, wanted: Collection[str]) -> Pool | None:
        """Return the pool of nodes on which pods that request the ``wanted`` extended resources can run.

        If several of these resources have a pool, return the one with the fewest nodes. If ``wanted`` is empty, return
        the pool of all nodes. Return None if no node has any of the resources, because the labels of such nodes are not
        known yet. If the table has more than MAX_POOLS pools, it may lack the resource, and the pool of all nodes is
        returned.
        """
        fitting = [pool for pool in self.pools if pool.resource in wanted]
        if not fitting and (not wanted or len(self.pools) > MAX_POOLS):
            return self.pools[0]
        return min(fitting, key=lambda pool: pool.nodes, default=None)

    def find_label(self, level: str, wanted: Collection[str], kept: Collection[str] = ()) -> str:
        """Return the label that stands for a level on nodes with the ``wanted`` extended resources; "" for none.

        ``kept`` are the labels in groups that exist already. A label in ``kept`` that may stand for the level takes
        precedence, so that existing groups do not change.
        """
        earlier = next((label for label in self.candidates.get(level, ()) if label in kept), "")
        pool = self.find_pool(wanted)
        return earlier or (pool.label_by_level.get(level, "") if pool is not None else "")

    def name_labels(self) -> dict[str, str]:
        """Return the level for which each label in the table stands; the narrowest one if it stands for several."""
        labels = ((level, each.label) for pool in self.pools for level, each in pool.labels.items())
        return {label: level for level, label in sorted(labels, key=lambda pair: -LEVELS.index(pair[0]))}


@dataclass(frozen=True, slots=True)
class TopologyLevels:
    """A TopologyLevels object: which node labels stand for the topology levels in the cluster."""

    name: str

    labels: Mapping[str, tuple[str, ...]]
    """The labels that may stand for each level, as an administrator has configured them in the spec."""

    status: LevelTable | None = None
    """The table that the leading extender has written; None before its first write."""

    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ForeignLevels:
    """A Topology of Kueue or a ClusterTopologyBinding of Grove: labels that may stand for topology levels."""

    name: str

    labels: tuple[tuple[str, str], ...]
    """Pairs of a level and a label that may stand for it."""

    version: str = field(default="", compare=False)


def may_change_labels(old: LevelTable | None, new: LevelTable | None) -> bool:
    """Return whether a ``new`` table may give Jobs other labels than the ``old`` one; None means no table."""
    return (old and old.decision) != (new and new.decision)


def decode_topology_levels(obj: object) -> TopologyLevels | Malformed:
    """Decode a TopologyLevels object; the name is required."""
    return decode_or_malformed("TopologyLevels", _decode, obj)


def decode_kueue_topology(obj: object) -> ForeignLevels | Malformed:
    """Decode a Topology of Kueue.

    A label in it stands for the level, such as ``rack``, that its alias names. It also stands for each level for which
    clouds and tools set this label (DEFAULT_LABELS).
    """
    return decode_or_malformed("Topology", _decode_kueue, obj)


def decode_grove_binding(obj: object) -> ForeignLevels | Malformed:
    """Decode a ClusterTopologyBinding of Grove. In an entry, ``domain`` names the level and ``key`` the label."""
    return decode_or_malformed("ClusterTopologyBinding", _decode_grove, obj)


def _decode(obj: Raw) -> TopologyLevels:
    spec = read_objects(read_map(obj, "spec"), "levels")
    return TopologyLevels(
        name=read_key(obj).name,
        labels=_read_candidates(spec),
        status=_read_table(read_map(obj, "status")),
        version=read_version(obj),
    )


def _read_candidates(entries: Iterable[Raw]) -> dict[str, tuple[str, ...]]:
    return {read_required(entry, "name"): read_texts(entry, "labels") for entry in entries}


def _read_table(status: Raw) -> LevelTable | None:
    pools = tuple(_read_pool(raw) for raw in read_objects(status, "pools"))
    return LevelTable(_read_candidates(read_objects(status, "levels")), pools) if pools else None


def _read_pool(raw: Raw) -> Pool:
    labels = {
        read_name(each, "level"): LabelCount(read_name(each, "label"), read_int(each, "nodes"))
        for each in read_objects(raw, "labels")
    }
    return Pool(read_name(raw, "resource"), read_int(raw, "nodes"), labels)


def write_table(table: LevelTable) -> dict[str, Any]:
    """Return the ``status`` of a TopologyLevels object for a table."""
    return {
        "levels": [{"name": level, "labels": list(labels)} for level, labels in table.candidates.items()],
        "pools": [_write_pool(pool) for pool in table.pools],
    }


def _write_pool(pool: Pool) -> dict[str, Any]:
    labels = [{"level": level, "label": each.label, "nodes": each.nodes} for level, each in pool.labels.items()]
    return {"resource": pool.resource, "nodes": pool.nodes, "labels": labels}


def _decode_kueue(obj: Raw) -> ForeignLevels:
    levels = read_objects(read_map(obj, "spec"), "levels")
    found = [
        (level, label)
        for raw in levels
        if (label := read_name(raw, "nodeLabel"))
        for level in LEVELS
        if level == read_name(raw, "alias") or label in DEFAULT_LABELS[level]
    ]
    return ForeignLevels(read_key(obj).name, tuple(found), read_version(obj))


def _decode_grove(obj: Raw) -> ForeignLevels:
    levels = read_objects(read_map(obj, "spec"), "levels")
    named = ((read_name(raw, "domain"), read_name(raw, "key")) for raw in levels)
    found = tuple((level, label) for level, label in named if level in LEVELS and label)
    return ForeignLevels(read_key(obj).name, found, read_version(obj))


def read_extended_resources(pod_specs: Iterable[Raw]) -> frozenset[str]:
    """Return the names of the extended resources that these pod specs request."""
    containers = (
        raw for spec in pod_specs for name in ("containers", "initContainers") for raw in read_objects(spec, name)
    )
    limits = (read_map(read_map(raw, "resources"), part) for raw in containers for part in ("limits", "requests"))
    return frozenset(name for each in limits for name in each if is_extended(name))


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one: its name has a domain other than kubernetes.io."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and ":" not in domain and not domain.endswith("kubernetes.io")


def explain_missing(level: str, wanted: Collection[str], table: LevelTable | None) -> str:
    """Return a phrase for users: why no label stands for a level such as ``rack``, and what to do. Without a full stop.

    ``wanted`` are the extended resources that the pods request: only nodes with these matter. ``table`` has the labels
    of levels by such resource; None if the extender has not written one.
    """
    if table is None:
        return f"TopologyLevels {DEFAULT}, which the extender writes, has no status yet"
    pool = table.find_pool(wanted)
    if pool is None:
        resources = join_some(sorted(wanted), _MAX_NAMES_SHOWN)
        return f"no node has {resources}; add a node that has it, or name a label instead of the level"
    nodes = f"nodes with {pool.resource}" if pool.resource else "nodes"
    candidates = join_some(table.candidates.get(level, ()), _MAX_NAMES_SHOWN)
    return (
        f"fewer than half of the {nodes} have any one of {candidates}; "
        f"set a label for the level in TopologyLevels {DEFAULT}, or name a label instead of the level"
    )
