"""The checks of Kueue and of autoscalers, which decide about the same gangs as Serried.

`check_kueue` and `check_autoscalers` take the facts in an `Observed` and yield findings, without I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from cli.check.demands import TopologyDemand
from cli.check.durations import DAY, HOUR, format_duration
from cli.check.installed import Piece
from cli.check.kueue import Configuration, Flavor, Kueue
from cli.check.observed import Area, Finding, Observed, Severity, read_minor
from serried.api.names import count_things, join_some
from serried.api.resources import Amounts

GATE_POLICY = "serried-gate"
"""The MutatingAdmissionPolicy that adds Serried's scheduling gate to new members."""

_GATE_SWITCH = "serried-hold"
_OLDEST_MINOR_WITH_GATE = 36
_LEAST_TIMEOUT = DAY
_LEAST_RECOVERY = HOUR
_MOST_NAMES = 3
_PAGE = "docs/neighbours.md"

_KNOWN_LABELS = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""The topology keys whose value on a new node both Karpenter and Cluster Autoscaler know before they add the node."""


def check_kueue(seen: Observed) -> Iterator[Finding]:
    """Yield findings about Kueue; yield nothing if it was not found.

    Checked are its setting waitForPodsReady, gangs for which both Kueue and Serried choose the domain, pods that
    Kueue does not manage on nodes that it assigns, and quotas that exceed the nodes.
    """
    if seen.kueue is None:
        return
    if seen.kueue.configuration is not None:
        yield from _check_readiness(seen.kueue.configuration)
    yield from _check_topology_owners(seen.kueue, seen.demands)
    nodes = seen.nodes or {}
    for flavor in seen.kueue.topology_flavors:
        yield from _check_outsiders(seen.kueue, flavor, {name for name in nodes if flavor.selects(nodes[name])})
    if seen.nodes is not None and seen.autoscalers is not None and not seen.autoscalers.names:
        yield from _check_quotas(seen.kueue, seen.nodes, seen.allocatable)


def _check_readiness(configuration: Configuration) -> Iterator[Finding]:
    """Yield a warning for each setting of waitForPodsReady that harms gangs that Serried holds, or running ones."""
    wait, source = configuration.wait, configuration.source
    if wait is None:
        return
    if wait.timeout < _LEAST_TIMEOUT:
        what = (
            f"Kueue evicts a gang that is not ready {format_duration(wait.timeout)} after its admission, also one that "
            "Serried holds because it does not fit yet: Kueue deletes its pods and puts it into the queue again"
        )
        yield _warn(f"{source}: waitForPodsReady.timeout", what, "set waitForPodsReady.timeout: 24h")
    if 0 < wait.recovery_timeout < _LEAST_RECOVERY:
        what = (
            f"Kueue evicts a whole running gang if one member is not ready for {format_duration(wait.recovery_timeout)}"
            ", although Serried may still replace that member in its place"
        )
        yield _warn(f"{source}: waitForPodsReady.recoveryTimeout", what, "set waitForPodsReady.recoveryTimeout: 1h")
    if wait.blocks_admission:
        what = "Kueue admits no other workload while an admitted gang waits for free resources"
        yield _warn(f"{source}: waitForPodsReady.blockAdmission", what, "set waitForPodsReady.blockAdmission: false")
    if wait.requeues_by_eviction:
        what = (
            "Kueue puts an evicted gang behind all workloads that came before its eviction, so a large gang may never "
            "start"
        )
        where = f"{source}: waitForPodsReady.requeuingStrategy.timestamp"
        yield _warn(where, what, "set waitForPodsReady.requeuingStrategy.timestamp: Creation")


def _check_topology_owners(kueue: Kueue, demands: Collection[TopologyDemand]) -> Iterator[Finding]:
    """Yield a warning if both Kueue and Serried would choose the domain of the same gangs.

    A Job counts if its label names a LocalQueue for which Kueue chooses nodes. A PodGroup or Workload in ``demands``
    has no such label: it counts if its namespace has such a LocalQueue, and if no Job owns it.
    """
    queues = {(each.namespace, each.name) for each in kueue.topology_queues}
    namespaces = {namespace for namespace, _ in queues}
    both = [each for each in kueue.demands if (each.namespace, each.queue) in queues]
    both += [each for each in demands if each.namespace in namespaces and not each.of_job]
    if not both:
        return
    where = join_some(sorted({each.where for each in both}), _MOST_NAMES)
    what = (
        f"Kueue chooses the nodes of workloads with this flavor (topologyName), but {_count(both)} of its namespaces "
        f"{_agree(both)} a domain of Serried, too ({where}): where the two contradict, no node satisfies the gang"
    )
    fix = f"remove topologyName from the flavor, or the required topology from these objects ({_PAGE})"
    yield _warn(_name_flavors(kueue.topology_flavors), what, fix)


def _check_outsiders(kueue: Kueue, flavor: Flavor, nodes: Collection[str]) -> Iterator[Finding]:
    """Yield a warning if pods that Kueue does not manage run on ``nodes``, the nodes of a flavor with a Topology.

    Kueue may assign resources to its workloads that such pods are about to use.
    """
    found = sorted(each.pod for each in kueue.outsiders if each.node in nodes)
    if not found:
        return
    what = (
        f"Kueue does not manage {count_things(len(found), 'pod')} on its nodes ({join_some(found, _MOST_NAMES)}): "
        "it does not see the nodes that Serried reserves for such pods, and assigns the same nodes, so its gangs wait"
    )
    fix = "add a taint to these nodes that only the flavor tolerates, or start the other pods by a LocalQueue, too"
    yield _warn(_name_flavors((flavor,)), what, fix)


def _check_quotas(
    kueue: Kueue, nodes: Mapping[str, Mapping[str, str]], allocatable: Mapping[str, Amounts]
) -> Iterator[Finding]:
    """Yield a warning for each flavor and resource whose quotas, added up over all ClusterQueues, exceed the nodes.

    Resources that Kueue computes itself are not checked. ``nodes`` has the labels, ``allocatable`` the allocatable
    resources of each node.
    """
    quotas, queues = defaultdict[str, Counter[str]](Counter), defaultdict[str, list[str]](list)
    for quota in kueue.quotas:
        quotas[quota.flavor].update(quota.nominal)
        queues[quota.flavor].append(quota.queue)
    computed = kueue.configuration.computed if kueue.configuration is not None else frozenset[str]()
    for flavor in (each for each in kueue.flavors if each.name in quotas):
        names = [name for name in nodes if flavor.selects(nodes[name])]
        there = Counter[str]()
        for name in names:
            there.update(allocatable.get(name, {}))
        for resource, amount in sorted(quotas[flavor.name].items()):
            if amount > there[resource] and resource not in computed:
                what = (
                    f"ClusterQueues {join_some(sorted(queues[flavor.name]), _MOST_NAMES)} may use "
                    f"{_format(resource, amount)} of {resource}, but its nodes ({len(names)}) have "
                    f"{_format(resource, there[resource])}: Kueue admits "
                    "gangs that then wait for resources"
                )
                fix = "lower nominalQuota to what the nodes have, or add nodes"
                yield _warn(_name_flavors((flavor,)), what, fix)


def check_autoscalers(seen: Observed) -> Iterator[Finding]:
    """Yield findings about autoscalers; yield nothing if none was found.

    Checked are whether there are several, whether they add nodes for whole gangs only, and whether new nodes get the
    labels that gangs require.
    """
    if seen.autoscalers is None or not (names := seen.autoscalers.names):
        return
    where = ", ".join(names)
    if len(names) > 1:
        what = "both add nodes for the same waiting pods, so one gang may get nodes twice"
        fix = (
            "let only one of them add nodes for gangs. If one is removed, delete its remains: the CRDs of "
            "karpenter.sh, or kubectl -n kube-system delete configmap cluster-autoscaler-status"
        )
        yield _warn(where, what, fix)
    yield from _check_gate(seen, where)
    yield from _check_new_nodes(seen, where)


def _check_gate(seen: Observed, where: str) -> Iterator[Finding]:
    """Yield a warning if autoscalers would add nodes for gangs that cannot start, or would add none.

    The first happens if members wait without a scheduling gate, so that autoscalers see them. The second happens if
    they have the gate, and --autoscaler=none keeps the extender from asking for nodes. ``where`` names the autoscalers.
    """
    hold, is_ignored = seen.flags.get("hold"), seen.flags.get("autoscaler") == "none"
    if is_ignored and hold == "gate":
        what = "autoscalers ignore pods with a scheduling gate, and with --autoscaler=none Serried never asks for nodes"
        yield _warn(where, f"{what}: gangs get no new nodes", "run the extender with --autoscaler=auto")
        return
    reason, fix = "", ""
    if hold == "filter":
        reason, fix = "the extender runs with --hold=filter", "run the extender with --hold=auto"
    elif is_ignored:
        reason, fix = "the extender runs with --autoscaler=none", "run the extender with --autoscaler=auto"
    elif hold != "gate" and (seen.selfcheck or {}).get("schedulesGangs"):
        reason = "kube-scheduler's own gang scheduling is on, so Serried holds members by filter"
        fix = "turn the feature gate GenericWorkload off in Serried's kube-scheduler"
    elif seen.policies is not None:
        reason, fix = _find_missing_gate(seen), seen.method.command_for(Piece.GATE)
        if (minor := read_minor(seen.server_version)) is not None and minor < _OLDEST_MINOR_WITH_GATE:
            fix = f"upgrade to 1.{_OLDEST_MINOR_WITH_GATE}: older API servers have no MutatingAdmissionPolicies"
    if reason:
        what = f"autoscalers may add nodes for gangs that cannot start, as members have no scheduling gate: {reason}"
        yield _warn(where, what, fix)


def _find_missing_gate(seen: Observed) -> str:
    """Return a phrase that says which object is missing that makes new members get the scheduling gate.

    The objects are an admission policy, its binding, and a ConfigMap. Return "" if none is known to be missing.
    """
    if GATE_POLICY not in (seen.policies or ()):
        return f"the MutatingAdmissionPolicy {GATE_POLICY} does not exist"
    if GATE_POLICY not in seen.bound_policies:
        return f"the MutatingAdmissionPolicy {GATE_POLICY} has no binding"
    return f"the ConfigMap {_GATE_SWITCH} does not exist" if seen.gate_switch is False else ""


def _check_new_nodes(seen: Observed, where: str) -> Iterator[Finding]:
    """Yield a warning for each topology key that gangs require and that new nodes may lack.

    Known are the labels of zones and regions, those of Karpenter's NodePools, and those in --autoscaler-labels.
    ``where`` names the autoscalers.
    """
    pools = seen.autoscalers.pool_labels if seen.autoscalers is not None else None
    if pools is None:
        return
    told = set(filter(None, seen.flags.get("autoscaler-labels", "").split(",")))
    asking = defaultdict[str, list[TopologyDemand]](list)
    for each in seen.demands:
        if each.key not in _KNOWN_LABELS | pools | told:
            asking[each.key].append(each)
    for key, demands in sorted(asking.items()):
        names = sorted({each.where for each in demands})
        what = (
            f"{_count(demands)} {_agree(demands)} one domain of {key} ({join_some(names, _MOST_NAMES)}), but "
            "Serried does not know whether new nodes get this label, so it asks for no nodes for them"
        )
        fix = f"run the extender with --autoscaler-labels={','.join(sorted({*told, key}))} if new nodes get the label"
        if seen.autoscalers is not None and seen.autoscalers.karpenter:
            fix = f"name the label in spec.template of a NodePool (metadata.labels or spec.requirements), or {fix}"
        yield _warn(where, what, fix)


def _warn(where: str, what: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, Area.CLUSTER, where, what, fix)


def _name_flavors(flavors: Collection[Flavor]) -> str:
    return f"ResourceFlavor {', '.join(sorted(each.name for each in flavors))}"


def _count(demands: Collection[TopologyDemand]) -> str:
    kinds = Counter(each.kind for each in set(demands))
    return ", ".join(count_things(count, kind) for kind, count in sorted(kinds.items()))


def _agree(demands: Collection[TopologyDemand]) -> str:
    return "require" if len(set(demands)) > 1 else "requires"


def _format(resource: str, amount: int) -> str:
    """Return an amount of a resource for a finding: CPUs, GiB of memory or storage, otherwise a plain number."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    return f"{amount / 2**30:.6g}Gi" if "memory" in resource or "storage" in resource else str(amount)
