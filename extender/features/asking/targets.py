"""Chooses the domain in which a gang without free resources requests nodes: `choose_target`, a pure function.

A gang with a required topology key needs nodes that have a label with this key. New nodes get it if the key is the zone
or the region, if a NodePool sets it, or if the user has named it in a setting. For other keys no nodes are requested:
they would be added, and no member could use them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extender.autoscalers import FoundAutoscalers
from serried.api.interpod import HOSTNAME
from serried.api.node import Node
from serried.api.node_pool import NODE_POOL_LABEL, NodePool
from serried.api.pod import Pod, Shape
from serried.api.resources import Resources, add, total
from serried.api.selectors import NodeSelectorTerm, Requirement
from serried.api.verdict import Verdict
from serried.plan.fit import tolerates
from serried.plan.request import PlanRequest

PLACE_KEYS = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""The topology keys that nodes have in every cloud."""

ANY_POOL = "*"
"""The value in ``Target.pools`` for "any node group", as Cluster Autoscaler does not publish its node groups."""


@dataclass(frozen=True, slots=True)
class Target:
    """The domain in which nodes are requested, and the NodePools that may add them."""

    key: str = ""
    """The topology key, which members get in their node selectors; "" for a gang without a required one."""

    domain: str = ""

    pools: frozenset[str] = frozenset((ANY_POOL,))
    """The names of the NodePools that may add the nodes; `ANY_POOL` if unknown."""

    have: int = 0
    """The number of members that fit on the domain's existing nodes."""

    def __str__(self) -> str:
        return self.domain or "the cluster"

    def shares_pool_with(self, other: "Target | frozenset[str]") -> bool:
        """Return whether one NodePool may add nodes for both targets. ``other`` is a target, or names of NodePools."""
        pools = other.pools if isinstance(other, Target) else other
        return ANY_POOL in self.pools or ANY_POOL in pools or not self.pools.isdisjoint(pools)


class _PoolCapacity(NamedTuple):
    """A NodePool, and the resources that its limits still allow it to add; resources without a limit are missing."""

    pool: NodePool
    remaining: Resources


class Supply:
    """The nodes that autoscalers could add, as of the creation of this object. It serves for any number of gangs."""

    def __init__(self, seen: FoundAutoscalers, nodes: Mapping[str, Node]) -> None:
        """Take the autoscalers and NodePools that were found (``seen``), and all existing nodes by name."""
        self._nodes = nodes
        self.pools = _count_remaining(seen.pools, nodes) if seen.karpenter and not seen.unknown else None
        """The NodePools; None if they could not be read or Cluster Autoscaler is the only autoscaler."""

        self.has_others = seen.cluster_autoscaler
        """True if there is a Cluster Autoscaler, of which no node groups are known."""

        self._domains: dict[str, frozenset[str]] = {}

    def sets_label(self, key: str) -> bool:
        """Return whether a NodePool itself sets a label with this key on its nodes."""
        return any(each.pool.names_label(key) for each in self.pools or ())

    def list_domains(self, key: str) -> frozenset[str]:
        """Return the values of the topology key that new nodes may have: those of existing nodes and of NodePools."""
        found = self._domains.get(key)
        if found is None:
            found = frozenset(node.labels[key] for node in self._nodes.values() if key in node.labels)
            for each in self.pools or ():
                found |= each.pool.list_values(key) or frozenset()
            self._domains[key] = found
        return found


def _count_remaining(pools: Iterable[NodePool], nodes: Mapping[str, Node]) -> list[_PoolCapacity]:
    """Return the NodePools, each with what its limits still allow.

    Nodes that exist count against the limits at once, as Karpenter counts them some seconds later.
    """
    provided: dict[str, dict[str, int]] = {}
    for node in nodes.values():
        pool = node.labels.get(NODE_POOL_LABEL)
        if pool is not None:
            provided[pool] = add(provided.get(pool, {}), {**node.allocatable, "nodes": 1})
    return [_PoolCapacity(pool, pool.count_remaining(provided.get(pool.name, {}))) for pool in pools]


@dataclass(frozen=True, slots=True)
class NoTarget:
    """The reason why no nodes are requested for a gang: no new nodes could help it."""

    why: str
    """A phrase for users."""

    lasts: bool = True
    """True if only a change of the gang or of the autoscalers can end this. False if a change of nodes can, too."""


def choose_target(
    request: PlanRequest,
    needed: Sequence[Pod],
    refusal: Verdict,
    supply: Supply,
    keys: Collection[str],
    tried: Collection[str] = (),
) -> Target | NoTarget:
    """Return the domain and NodePools for which a gang without free resources requests nodes, or why there are none.

    ``needed`` are the members that need nodes (`list_needed`), ``refusal`` is the planner's verdict, and ``supply`` is
    what autoscalers can add. The first domain whose NodePools can add enough nodes is chosen. Domains where most
    members fit already come first, and those in ``tried`` last, as earlier requests for them have timed out. ``keys``
    are the topology keys that new nodes have according to the user's setting.
    """
    if _has_inner_key(request):
        return NoTarget("its groups need topology domains of their own, which autoscalers do not support")
    key = request.topology_key
    if key is None:
        return _Fit(needed, supply, keys).find(Target(have=refusal.have))
    if key not in PLACE_KEYS and key not in keys and not supply.sets_label(key):
        return NoTarget(f"Serried does not know whether new nodes get the label {key} (--autoscaler-labels)")
    room = {found.domain: found.slots for found in refusal.domains}
    domains = list_allowed_domains(supply.list_domains(key), key, request)
    if not domains:
        return NoTarget(f"no NodePool names a value of {key} that the gang may use")
    fit = _Fit(needed, supply, keys)
    answers = [
        fit.find(Target(key, domain, have=room.get(domain, 0)))
        for domain in sorted(domains, key=lambda domain: (domain in tried, -room.get(domain, 0), domain))
    ]
    return next((each for each in answers if isinstance(each, Target)), answers[0])


def list_needed(request: PlanRequest, is_first: Callable[[Pod], bool]) -> list[Pod]:
    """Return the members that need nodes: as many as the quorum lacks, or all if the quorum is running already.

    For a tree, as many groups as it lacks are chosen, and of each as many members as its quorum lacks. Members for
    which ``is_first`` returns True are chosen first.
    """
    if request.parts:
        parts = [part for part in request.parts if part.members or part.parts]
        chosen = parts[: request.wanted] if request.wanted else parts
        return [member for part in chosen for member in list_needed(part, is_first)]
    members = sorted(request.members, key=lambda member: not is_first(member))
    return members[: request.need] if request.need else members


def _has_inner_key(request: PlanRequest) -> bool:
    return any(part.topology_key is not None or _has_inner_key(part) for part in request.parts)


def list_allowed_domains(domains: frozenset[str], key: str, request: PlanRequest) -> frozenset[str]:
    """Return the subset of ``domains`` (values of the topology key ``key``) that a gang may use.

    If members are running, only their domain remains. The node selectors and required affinity of all members must
    allow the domain, and no other gang may use it exclusively.
    """
    if request.pinned:
        domains &= request.pinned
    for shape in {member.shape for member in request.members}:
        domains = frozenset(domain for domain in domains if _may_run_in(shape, key, domain))
    return domains - request.taken


def _may_run_in(shape: Shape, key: str, domain: str) -> bool:
    """Return whether a pod's node selector and required node affinity allow a domain of the topology key ``key``.

    ``shape`` has both, with the node affinity of the pod's bound volumes.
    """
    if dict(shape.node_selector).get(key, domain) != domain:
        return False
    if shape.node_terms is None:
        return True
    return any(all(_allows(each, key, domain) for each in term.labels) for term in shape.node_terms)


def _allows(wanted: Requirement, key: str, domain: str) -> bool:
    if wanted.key != key:
        return True
    return {
        "In": domain in wanted.values,
        "NotIn": domain not in wanted.values,
        "Exists": True,
        "DoesNotExist": False,
    }.get(wanted.operator, True)


class _Fit:
    """Checks whether the NodePools can add the nodes that one gang needs.

    One instance checks all domains, one by one.
    """

    def __init__(self, needed: Sequence[Pod], supply: Supply, keys: Collection[str]) -> None:
        self._needed = needed
        self._supply = supply
        self._keys = keys
        self._shapes = {member.shape for member in needed}
        self._lacking: dict[int, dict[str, int]] = {}

    def find(self, target: Target) -> Target | NoTarget:
        """Return ``target``, which has only a domain yet, with the NodePools that can add its nodes; or why none can.

        Each member needs a NodePool whose nodes accept it. The limits of these NodePools together must allow the
        resources of all members that do not fit on existing nodes. Return ``target`` unchanged if no NodePools are
        known, or if no NodePool accepts a member but there is a Cluster Autoscaler, whose node groups are unknown.
        """
        pools = self._supply.pools
        if pools is None:
            return target
        there = [each for each in pools if self._sets_label(each.pool, target)]
        used: set[str] = set()
        for shape in self._shapes:
            takers = {each.pool.name for each in there if accepts(each.pool, shape)}
            if not takers and self._supply.has_others:
                return target  # a node group of Cluster Autoscaler may accept the pods
            if not takers:
                return NoTarget(f"no NodePool adds nodes to {target} whose taints and labels suit the members")
            used |= takers
        limits = [each.remaining for each in there if each.pool.name in used]
        for name, amount in self._sum_lacking(target.have).items():
            if (most := _find_limit(limits, name)) is not None and most < amount:
                why = f"the limits of {', '.join(sorted(used))} leave too little {name}"
                return NoTarget(why, lasts=False)
        return Target(target.key, target.domain, frozenset(used), target.have)

    def _sets_label(self, pool: NodePool, target: Target) -> bool:
        """Return whether a NodePool's nodes may get the label ``target.key=target.domain``; True if there is no key.

        Every cloud sets zone and region. Other keys must be set by the NodePool or named in the user's setting.
        """
        if not target.key:
            return True
        named = target.key in PLACE_KEYS or target.key in self._keys or pool.names_label(target.key)
        return named and pool.allows_label(target.key, target.domain)

    def _sum_lacking(self, have: int) -> dict[str, int]:
        """Return the total requests of the needed members but the first ``have``, which fit on existing nodes.

        If any members remain, the total includes 1 of the resource "nodes", as at least one node has to be added.
        """
        if have not in self._lacking:
            lacking = self._needed[have:]
            self._lacking[have] = total(dict(each.shape.requests) for each in lacking) | (
                {"nodes": 1} if lacking else {}
            )
        return self._lacking[have]


def _find_limit(limits: Iterable[Resources], name: str) -> int | None:
    """Return how much of a resource the NodePools together may still add; None if one of them has no limit of it."""
    sum_left = 0
    for left in limits:
        if name not in left:
            return None
        sum_left += left[name]
    return sum_left


def accepts(pool: NodePool, shape: Shape) -> bool:
    """Return whether new nodes of a NodePool can run a pod with the demands ``shape``.

    Tolerations, node selector and required affinity count. Source: Karpenter 1.11, pkg/scheduling
    (Requirements.Compatible): a custom label has to be set by the NodePool.
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
        return not pool.names_label(wanted.key)
    if wanted.key == HOSTNAME:
        return False  # the name of a node that does not exist yet is not known
    if wanted.key == NODE_POOL_LABEL:
        return wanted.operator != "In" or pool.name in wanted.values
    if not (pool.names_label(wanted.key) or _is_well_known(wanted.key)):
        return False
    return wanted.operator != "In" or any(pool.allows_label(wanted.key, value) for value in wanted.values)


_KNOWN = PLACE_KEYS | {"kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type"}
_CLOUDS = ("karpenter", "topology.k8s.aws", "eks.amazonaws.com")


def _is_well_known(key: str) -> bool:
    """Return whether Karpenter or the cloud provider sets a label with this key even if the NodePool does not name it.

    Source: Karpenter 1.11, pkg/apis/v1/labels.go (WellKnownLabels). Labels of providers are recognized by their
    domains.
    """
    domain = key.partition("/")[0] if "/" in key else ""
    return key in _KNOWN or any(cloud in domain for cloud in _CLOUDS)
