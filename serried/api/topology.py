"""The table that maps topology levels, such as ``rack``, to node labels of the cluster (`LevelTable`).

A Job that names levels instead of labels runs unchanged in every cluster. The TopologyLevels object ``default`` holds
the table: an administrator writes its spec, the extender writes its status from the labels it finds on nodes.
Topologies of Kueue (``kueue.x-k8s.io/v1beta2``) and ClusterTopologyBindings of Grove (``grove.io/v1alpha1``) are read
as further entries.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serried.api.names import (
    Malformed,
    Raw,
    decode_or_malformed,
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
"""Labels that clouds and tools set, by level. The name of the level itself comes before them (`list_defaults`)."""

DEFAULT = "default"
"""The name of the TopologyLevels object that is used; others are ignored."""

MAX_POOLS = 16
"""The maximum number of pools in a table, which has one for each extended resource."""

_MAX_NAMES_SHOWN = 10


def list_defaults(level: str) -> tuple[str, ...]:
    """Return the candidate labels for a level that no administrator has configured, in order of precedence.

    The first one is the level's own name: a cluster may have labelled its nodes with, say, ``rack``.
    """
    return (level, *DEFAULT_LABELS[level])


class LabelCount(NamedTuple):
    """A node label, and the number of nodes that carry it."""

    label: str
    nodes: int


class Pool(NamedTuple):
    """The nodes that have an extended resource, and the label for each level on these nodes."""

    resource: str
    """The extended resource; "" for all nodes of the cluster."""

    nodes: int

    labels: Mapping[str, LabelCount]
    """The labels by level; a level without a label has no entry."""

    @property
    def label_by_level(self) -> dict[str, str]:
        """The labels by level, without the numbers of nodes."""
        return {level: each.label for level, each in self.labels.items()}


@dataclass(frozen=True, slots=True)
class LevelTable:
    """The mapping of levels to node labels in one cluster."""

    candidates: Mapping[str, tuple[str, ...]]
    """The candidate labels for each level. The first one that enough nodes carry is used."""

    pools: tuple[Pool, ...]
    """The pool of all nodes, then one pool for each extended resource."""

    @property
    def decision(self) -> tuple[object, ...]:
        """The part of the table that decides about the labels of Jobs, to be compared with that of another table.

        It has the candidates, and the labels by resource and level, rare resources first, but no numbers of nodes.
        """
        rarest = sorted(self.pools, key=lambda pool: pool.nodes)
        return self.candidates, [(pool.resource, pool.label_by_level) for pool in rarest]

    def find_pool(self, wanted: Collection[str]) -> Pool | None:
        """Return the smallest pool with one of the ``wanted`` resources; the pool of all nodes if none is wanted.

        Return None if no node has any of them: the labels of such nodes are not known yet. If the table is full, it may
        lack the resource; then the pool of all nodes is returned.
        """
        fitting = [pool for pool in self.pools if pool.resource in wanted]
        if not fitting and (not wanted or len(self.pools) > MAX_POOLS):
            return self.pools[0]
        return min(fitting, key=lambda pool: pool.nodes, default=None)

    def find_label(self, level: str, wanted: Collection[str], kept: Collection[str] = ()) -> str:
        """Return the label for a level on nodes with the ``wanted`` resources; "" if there is none.

        A candidate in ``kept`` takes precedence: groups that exist with that label keep it.
        """
        earlier = next((label for label in self.candidates.get(level, ()) if label in kept), "")
        pool = self.find_pool(wanted)
        return earlier or (pool.label_by_level.get(level, "") if pool is not None else "")

    def name_labels(self) -> dict[str, str]:
        """Return the level of each label that is in use; the narrowest one if a label stands for several."""
        labels = ((level, each.label) for pool in self.pools for level, each in pool.labels.items())
        return {label: level for level, label in sorted(labels, key=lambda pair: -LEVELS.index(pair[0]))}


@dataclass(frozen=True, slots=True)
class TopologyLevels:
    """A TopologyLevels object: a table of levels in the cluster."""

    name: str

    labels: Mapping[str, tuple[str, ...]]
    """The labels by level that an administrator has configured in its spec."""

    status: LevelTable | None = None
    """The table that the leading extender has written; None before its first write."""

    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ForeignLevels:
    """The labels of levels in a Topology of Kueue or a ClusterTopologyBinding of Grove."""

    name: str

    labels: tuple[tuple[str, str], ...]
    """Pairs of level and label."""

    version: str = field(default="", compare=False)


def may_change_labels(old: LevelTable | None, new: LevelTable | None) -> bool:
    """Return whether a ``new`` table may give Jobs other labels than the ``old`` one; None means no table."""
    return (old and old.decision) != (new and new.decision)


def decode_topology_levels(obj: object) -> TopologyLevels | Malformed:
    """Decode a TopologyLevels object; the name is required."""
    return decode_or_malformed("TopologyLevels", _decode, obj)


def decode_kueue_topology(obj: object) -> ForeignLevels | Malformed:
    """Decode a Topology of Kueue. A label is for the level that its alias names, or whose default labels have it."""
    return decode_or_malformed("Topology", _decode_kueue, obj)


def decode_grove_binding(obj: object) -> ForeignLevels | Malformed:
    """Decode a ClusterTopologyBinding of Grove. Its ``domain`` is the name of a level, its ``key`` the label."""
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
    """Return a phrase that says why a level has no label, and what to do. Without a full stop."""
    if table is None:
        return f"TopologyLevels {DEFAULT}, which the extender writes, has no status yet"
    pool = table.find_pool(wanted)
    if pool is None:
        return f"no node has {_join_names(sorted(wanted))}; add one that has, or name a label in its place"
    nodes = f"nodes with {pool.resource}" if pool.resource else "nodes"
    return (
        f"fewer than half of the {nodes} carry any one of {_join_names(table.candidates.get(level, ()))}; "
        f"set a label for the level in TopologyLevels {DEFAULT}, or name a label in its place"
    )


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (
        f" and {len(names) - _MAX_NAMES_SHOWN} more" if names[_MAX_NAMES_SHOWN:] else ""
    )
