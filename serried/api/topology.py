"""Names of topology levels, such as ``rack``, and the node labels for which they stand in a cluster.

A Job that names a level runs unchanged wherever some label stands for it. The TopologyLevels object ``default`` has the
table: its spec what an administrator says, its status what the extender has found on the nodes. Topologies of Kueue
(``kueue.x-k8s.io/v1beta2``) and ClusterTopologyBindings of Grove (``grove.io/v1alpha1``) are read as entries of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serried.api.names import (
    Malformed,
    Raw,
    attempt,
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
"""Labels of clouds and tools by level. The name of a level is itself the first of its labels (`list_defaults`)."""

DEFAULT = "default"
"""The name of the one TopologyLevels object that counts."""

MOST_POOLS = 16
"""Of how many resources a table has the nodes."""

_MOST_SHOWN = 10


def list_defaults(level: str) -> tuple[str, ...]:
    """Return the labels for a level that nobody has said anything of, those that count first.

    Nodes that carry a label called as the level did so before levels had names, and Jobs that say it mean that label.
    """
    return (level, *DEFAULT_LABELS[level])


class Carried(NamedTuple):
    """A label, and how many nodes carry it."""

    label: str
    nodes: int


class Pool(NamedTuple):
    """The nodes that have a resource, and which label stands for each level on them."""

    resource: str
    """The extended resource; "" for all nodes of the cluster."""

    nodes: int

    labels: Mapping[str, Carried]
    """The label by level; no entry for a level without one."""

    @property
    def meant(self) -> dict[str, str]:
        """The label by level, without how many nodes carry it."""
        return {level: each.label for level, each in self.labels.items()}


@dataclass(frozen=True, slots=True)
class LevelTable:
    """The labels of a cluster by level."""

    candidates: Mapping[str, tuple[str, ...]]
    """The labels that may stand for each level, the first that enough nodes carry counts."""

    pools: tuple[Pool, ...]
    """All nodes, then those with each resource."""

    @property
    def decision(self) -> tuple[object, ...]:
        """The part of the table by which Jobs get their labels; two tables with the same one give all Jobs the same.

        It has the candidates, and the label of each level by resource, rare resources first, but no counts of nodes.
        """
        rarest = sorted(self.pools, key=lambda pool: pool.nodes)
        return self.candidates, [(pool.resource, pool.meant) for pool in rarest]

    def find_pool(self, wanted: Collection[str]) -> Pool | None:
        """Return the smallest pool with one of the ``wanted`` resources; all nodes if none is wanted.

        Returns None if no node has any of them: which labels such nodes will carry, nobody knows yet. Where there are
        too many resources for the table, all nodes stand for those that it lacks.
        """
        fitting = [pool for pool in self.pools if pool.resource in wanted]
        if not fitting and (not wanted or len(self.pools) > MOST_POOLS):
            return self.pools[0]
        return min(fitting, key=lambda pool: pool.nodes, default=None)

    def find_label(self, level: str, wanted: Collection[str], kept: Collection[str] = ()) -> str:
        """Return the label for a level on nodes with the ``wanted`` resources, "" without one.

        A candidate that is in ``kept`` comes first: what exists by that label keeps it.
        """
        earlier = next((label for label in self.candidates.get(level, ()) if label in kept), "")
        pool = self.find_pool(wanted)
        return earlier or (pool.meant.get(level, "") if pool is not None else "")

    def name_labels(self) -> dict[str, str]:
        """Return the narrowest level for which each label stands on some nodes."""
        standing = ((level, each.label) for pool in self.pools for level, each in pool.labels.items())
        return {label: level for level, label in sorted(standing, key=lambda pair: -LEVELS.index(pair[0]))}


@dataclass(frozen=True, slots=True)
class TopologyLevels:
    """A TopologyLevels object."""

    name: str

    labels: Mapping[str, tuple[str, ...]]
    """The labels of each level that its spec has an entry for."""

    status: LevelTable | None = None
    """The table as the extender that leads has written it; None before its first write."""

    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ForeignLevels:
    """Labels of levels that an object of Kueue or Grove names."""

    name: str

    labels: tuple[tuple[str, str], ...]
    """Pairs of level and label."""

    version: str = field(default="", compare=False)


def decides_otherwise(old: LevelTable | None, new: LevelTable | None) -> bool:
    """Whether Jobs may be resolved otherwise by a ``new`` table; None is no table."""
    return (old and old.decision) != (new and new.decision)


def decode_topology_levels(obj: object) -> TopologyLevels | Malformed:
    """A TopologyLevels object; the name is required. A status that cannot be read counts as none."""
    return attempt("TopologyLevels", _decode, obj)


def decode_kueue_topology(obj: object) -> ForeignLevels | Malformed:
    """A Topology of Kueue: its labels stand for the levels of which they are defaults, or that an alias names."""
    return attempt("Topology", _decode_kueue, obj)


def decode_grove_binding(obj: object) -> ForeignLevels | Malformed:
    """A ClusterTopologyBinding of Grove: each level has a name, its domain, and a label, its key."""
    return attempt("ClusterTopologyBinding", _decode_grove, obj)


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
        read_name(each, "level"): Carried(read_name(each, "label"), read_int(each, "nodes"))
        for each in read_objects(raw, "labels")
    }
    return Pool(read_name(raw, "resource"), read_int(raw, "nodes"), labels)


def write_table(table: LevelTable) -> dict[str, Any]:
    """The ``status`` of a TopologyLevels object."""
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


def read_wanted(pod_specs: Iterable[Raw]) -> frozenset[str]:
    """The extended resources that pods ask for."""
    containers = (
        raw for spec in pod_specs for name in ("containers", "initContainers") for raw in read_objects(spec, name)
    )
    limits = (read_map(read_map(raw, "resources"), part) for raw in containers for part in ("limits", "requests"))
    return frozenset(name for each in limits for name in each if is_extended(name))


def is_extended(resource: str) -> bool:
    """Whether a resource is one that devices on nodes provide: it has a domain that is not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and ":" not in domain and not domain.endswith("kubernetes.io")


def explain_missing(level: str, wanted: Collection[str], table: LevelTable | None) -> str:
    """Return why no label stands for a level, and what to do about it, a phrase without a full stop."""
    if table is None:
        return f"TopologyLevels {DEFAULT}, which the extender writes, has no status yet"
    pool = table.find_pool(wanted)
    if pool is None:
        return f"no node has {_show(sorted(wanted))}; add one that has, or name a label in its place"
    nodes = f"nodes with {pool.resource}" if pool.resource else "nodes"
    return (
        f"fewer than half of the {nodes} carry any one of {_show(table.candidates.get(level, ()))}; "
        f"set a label for the level in TopologyLevels {DEFAULT}, or name a label in its place"
    )


def _show(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {len(names) - _MOST_SHOWN} more" if names[_MOST_SHOWN:] else "")
