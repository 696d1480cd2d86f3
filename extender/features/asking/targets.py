"""The choice of the domain in which a gang that lacks room asks for nodes: `choose_target`, pure.

New nodes have a topology key if it is the zone or the region, if a NodePool names it, or if a setting says so. A gang
that needs another key is not asked for: nodes would come, and none of them could hold it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extender.autoscalers import Seen
from serried.api.interpod import HOSTNAME
from serried.api.node import Node
from serried.api.node_pool import NODE_POOL_LABEL, NodePool
from serried.api.pod import Pod, Shape
from serried.api.resources import Resources, add, total
from serried.api.selectors import NodeSelectorTerm, Requirement
from serried.api.verdict import Verdict
from serried.plan.fit import tolerates
from serried.plan.request import PlanRequest

PLACES = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""The topology keys that every cloud's nodes have."""

ANY_POOL = "*"
"""Stands for all node groups of an autoscaler that does not say which it has."""


@dataclass(frozen=True, slots=True)
class Target:
    """The domain in which nodes are asked for, and the NodePools that may add them."""

    key: str = ""
    """The topology key that the members get as a node selector; "" for a gang without one."""

    domain: str = ""

    pools: frozenset[str] = frozenset((ANY_POOL,))
    """The names of the NodePools that may add the nodes."""

    have: int = 0
    """The number of members that have room there already."""

    def __str__(self) -> str:
        return self.domain or "the cluster"

    def meets(self, other: "Target | frozenset[str]") -> bool:
        """Return whether two gangs may get nodes of the same NodePool."""
        pools = other.pools if isinstance(other, Target) else other
        return ANY_POOL in self.pools or ANY_POOL in pools or not self.pools.isdisjoint(pools)


class _Open(NamedTuple):
    """A NodePool, and what it may still add, by resource that it limits."""

    pool: NodePool
    left: Resources


class Supply:
    """The nodes that may be added, as of one instant. Existing nodes are read once for any number of gangs."""

    def __init__(self, seen: Seen, nodes: Mapping[str, Node]) -> None:
        """``nodes`` are all nodes by name."""
        self._nodes = nodes
        self.pools = _count_left(seen.pools, nodes) if seen.karpenter and not seen.unknown else None
        """The NodePools; None if all that is known is that there is an autoscaler."""

        self.has_others = seen.cluster_autoscaler
        """True if Cluster Autoscaler, whose node groups are not known, is there."""

        self._domains: dict[str, frozenset[str]] = {}

    def names(self, key: str) -> bool:
        """Return whether a NodePool says that its nodes have a label with this key."""
        return any(each.pool.names(key) for each in self.pools or ())

    def list_domains(self, key: str) -> frozenset[str]:
        """Return the domains of a key that new nodes may have: those of existing nodes, and of NodePools."""
        found = self._domains.get(key)
        if found is None:
            found = frozenset(node.labels[key] for node in self._nodes.values() if key in node.labels)
            for each in self.pools or ():
                found |= each.pool.list_values(key) or frozenset()
            self._domains[key] = found
        return found


def _count_left(pools: Iterable[NodePool], nodes: Mapping[str, Node]) -> list[_Open]:
    """Return what each NodePool may still add: its nodes are seen here before Karpenter has counted them."""
    provided: dict[str, dict[str, int]] = {}
    for node in nodes.values():
        pool = node.labels.get(NODE_POOL_LABEL)
        if pool is not None:
            provided[pool] = add(provided.get(pool, {}), {**node.allocatable, "nodes": 1})
    return [_Open(pool, pool.count_left(provided.get(pool.name, {}))) for pool in pools]


@dataclass(frozen=True, slots=True)
class NoTarget:
    """The reason why no nodes are asked for a gang."""

    why: str
    """A phrase."""

    lasts: bool = True
    """True if that holds until the gang or the NodePools change; False if it may end with other nodes."""


def choose_target(
    request: PlanRequest,
    needed: Sequence[Pod],
    refusal: Verdict,
    supply: Supply,
    keys: Collection[str],
    tried: Collection[str] = (),
) -> Target | NoTarget:
    """Return where nodes are asked for a gang that was refused, or why none are.

    ``needed`` are the members that the gang lacks (`list_needed`). Of the domains that new nodes may have, the one with
    room for the most members comes first, and those come last that were ``tried`` in vain. ``keys`` are the topology
    keys that new nodes have by the user's word.
    """
    if _has_inner_key(request):
        return NoTarget("its groups need topology domains of their own, which no autoscaler can be told")
    key = request.topology_key
    if key is None:
        return _Fit(needed, supply, keys).find(Target(have=refusal.have))
    if key not in PLACES and key not in keys and not supply.names(key):
        return NoTarget(f"new nodes are not known to get the label {key}")
    room = {found.domain: found.slots for found in refusal.domains}
    domains = allowed_domains(supply.list_domains(key), key, request)
    if not domains:
        return NoTarget(f"no NodePool names a value of {key} that it may use")
    fit = _Fit(needed, supply, keys)
    answers = [
        fit.find(Target(key, domain, have=room.get(domain, 0)))
        for domain in sorted(domains, key=lambda domain: (domain in tried, -room.get(domain, 0), domain))
    ]
    return next((each for each in answers if isinstance(each, Target)), answers[0])


def list_needed(request: PlanRequest, is_first: Callable[[Pod], bool]) -> list[Pod]:
    """Return as many members as a gang lacks; of a tree, as many of each group, of as many groups as it lacks.

    Members for which ``is_first`` is true come first. All of them are needed where the quorum stands already.
    """
    if request.parts:
        parts = [part for part in request.parts if part.members or part.parts]
        chosen = parts[: request.wanted] if request.wanted else parts
        return [member for part in chosen for member in list_needed(part, is_first)]
    members = sorted(request.members, key=lambda member: not is_first(member))
    return members[: request.need] if request.need else members


def _has_inner_key(request: PlanRequest) -> bool:
    return any(part.topology_key is not None or _has_inner_key(part) for part in request.parts)


def allowed_domains(domains: frozenset[str], key: str, request: PlanRequest) -> frozenset[str]:
    """Return the domains that a gang may use: where it runs, that its members may use, that no other has alone."""
    if request.pinned:
        domains &= request.pinned
    for shape in {member.shape for member in request.members}:
        domains = frozenset(domain for domain in domains if _may_run_in(shape, key, domain))
    return domains - request.taken


def _may_run_in(shape: Shape, key: str, domain: str) -> bool:
    """Return whether node selector and required affinity let a pod run in a domain. Bound volumes are part of these."""
    if dict(shape.node_selector).get(key, domain) != domain:
        return False
    if shape.node_terms is None:
        return True
    return any(all(_lets_in(each, key, domain) for each in term.labels) for term in shape.node_terms)


def _lets_in(wanted: Requirement, key: str, domain: str) -> bool:
    if wanted.key != key:
        return True
    return {
        "In": domain in wanted.values,
        "NotIn": domain not in wanted.values,
        "Exists": True,
        "DoesNotExist": False,
    }.get(wanted.operator, True)


class _Fit:
    """The test whether NodePools may add the nodes of one gang. Its members are summed up once for all domains."""

    def __init__(self, needed: Sequence[Pod], supply: Supply, keys: Collection[str]) -> None:
        self._needed = needed
        self._supply = supply
        self._keys = keys
        self._shapes = {member.shape for member in needed}
        self._lacking: dict[int, dict[str, int]] = {}

    def find(self, target: Target) -> Target | NoTarget:
        """Return the target with the NodePools that may add its nodes, or why they cannot hold the gang."""
        pools = self._supply.pools
        if pools is None:
            return target
        there = [each for each in pools if self._gives(each.pool, target)]
        used: set[str] = set()
        for shape in self._shapes:
            takers = {each.pool.name for each in there if takes(each.pool, shape)}
            if not takers and self._supply.has_others:
                return target  # a node group of Cluster Autoscaler may
            if not takers:
                return NoTarget(f"no NodePool adds nodes to {target} that its members tolerate and select")
            used |= takers
        limits = [each.left for each in there if each.pool.name in used]
        for name, amount in self._find_lacking(target.have).items():
            if (most := _find_limit(limits, name)) is not None and most < amount:
                why = f"the limits of {', '.join(sorted(used))} leave too little {name}"
                return NoTarget(why, lasts=False)
        return Target(target.key, target.domain, frozenset(used), target.have)

    def _gives(self, pool: NodePool, target: Target) -> bool:
        """Return whether nodes of a NodePool get the target's label: a key of the user's own has to be named."""
        if not target.key:
            return True
        named = target.key in PLACES or target.key in self._keys or pool.names(target.key)
        return named and pool.allows(target.key, target.domain)

    def _find_lacking(self, have: int) -> dict[str, int]:
        """Return what the members ask for that have no room where ``have`` of them do."""
        if have not in self._lacking:
            lacking = self._needed[have:]
            self._lacking[have] = total(dict(each.shape.requests) for each in lacking) | (
                {"nodes": 1} if lacking else {}
            )
        return self._lacking[have]


def _find_limit(limits: Iterable[Resources], name: str) -> int | None:
    """Return how much of a resource NodePools may add together; None if one of them has no limit of it."""
    sum_left = 0
    for left in limits:
        if name not in left:
            return None
        sum_left += left[name]
    return sum_left


def takes(pool: NodePool, shape: Shape) -> bool:
    """Return whether a node of a NodePool may take a pod of this shape: taints, node selector, required affinity.

    Source: Karpenter 1.11, pkg/scheduling (Requirements.Compatible): a custom label has to be named by the NodePool.
    """
    if not tolerates(shape.tolerations, pool.taints):
        return False
    if not all(_may_meet(pool, Requirement(key, "In", (value,))) for key, value in shape.node_selector):
        return False
    return shape.node_terms is None or any(_may_match(pool, term) for term in shape.node_terms)


def _may_match(pool: NodePool, term: NodeSelectorTerm) -> bool:
    return bool(term.labels) and not term.fields and all(_may_meet(pool, each) for each in term.labels)


def _may_meet(pool: NodePool, wanted: Requirement) -> bool:
    values = pool.list_values(wanted.key)
    if wanted.operator == "NotIn":
        return values is None or not values <= set(wanted.values)
    if wanted.operator == "DoesNotExist":
        return not pool.names(wanted.key)
    if wanted.key == HOSTNAME:
        return False  # the name of a node that does not exist yet is not known
    if wanted.key == NODE_POOL_LABEL:
        return wanted.operator != "In" or pool.name in wanted.values
    if not (pool.names(wanted.key) or _is_known(wanted.key)):
        return False
    return wanted.operator != "In" or any(pool.allows(wanted.key, value) for value in wanted.values)


_KNOWN = PLACES | {"kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type"}
_CLOUDS = ("karpenter", "topology.k8s.aws", "eks.amazonaws.com")


def _is_known(key: str) -> bool:
    """Return whether Karpenter or a cloud provider gives nodes a label with this key without being told.

    Source: Karpenter 1.11, pkg/apis/v1/labels.go (WellKnownLabels); those of providers by their domains.
    """
    domain = key.partition("/")[0] if "/" in key else ""
    return key in _KNOWN or any(cloud in domain for cloud in _CLOUDS)
