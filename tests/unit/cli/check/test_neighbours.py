"""Mistakes between Serried, Kueue and autoscalers are found with their fix; sound settings are not named."""

from dataclasses import replace
from typing import Any

import pytest

from cli.check.autoscalers import Autoscalers
from cli.check.command import run_checks
from cli.check.demands import TopologyDemand
from cli.check.installed import Piece
from cli.check.kueue import Configuration, Flavor, Kueue, LocalQueue, Outsider, Quota, WaitForPodsReady
from cli.check.observed import Area, Observed, Severity
from tests.support.installations import RACK, ZONE, Mistake, change_selfcheck, set_flag, shipped_installation

DAY, HOUR, MINUTE = 86_400.0, 3600.0, 60.0
RECOMMENDED = WaitForPodsReady(DAY, HOUR, blocks_admission=False, requeues_by_eviction=False)
DEFAULTS = WaitForPodsReady(30 * MINUTE, 30 * MINUTE, blocks_admission=False, requeues_by_eviction=True)
GPU = "nvidia.com/gpu"
TEAM = LocalQueue("team", "queue", "all")
PLAIN = Flavor("plain", {ZONE: "z0"})
CHOSEN = Flavor("chosen", {ZONE: "z0"}, "racks", (RACK,))
"""A flavor whose nodes Kueue chooses: n0, n2, ..., n10 of `install`."""

FIELD = "waitForPodsReady"


def beside(kueue: Kueue, *demands: TopologyDemand, **capacity: int) -> Observed:
    """A sound installation beside Kueue; each node has this capacity."""
    seen = shipped_installation()
    return replace(seen, kueue=kueue, demands=demands, allocatable=dict.fromkeys(seen.nodes or (), capacity))


def find_all(seen: Observed) -> list[tuple[str, str, str]]:
    """Place, mistake and fix of each finding, all of which are warnings about the cluster."""
    found = run_checks(seen)
    assert {(each.severity, each.area) for each in found} <= {(Severity.WARNING, Area.CLUSTER)}
    return [(each.where, each.what, each.fix) for each in found]


def wait(**changes: Any) -> Kueue:
    return Kueue(Configuration("here", replace(RECOMMENDED, **changes)))


@pytest.mark.parametrize(
    "kueue",
    [
        pytest.param(None, id="no Kueue"),
        pytest.param(Kueue(), id="nothing of it could be read"),
        pytest.param(Kueue(Configuration("here", None)), id="Kueue does not wait for pods"),
        pytest.param(Kueue(Configuration("here", RECOMMENDED)), id="the recommended settings"),
        pytest.param(wait(recovery_timeout=0.0), id="no time-out for recovery"),
        pytest.param(wait(timeout=7 * DAY, recovery_timeout=DAY), id="longer time-outs"),
    ],
)
def test_a_kueue_that_leaves_gangs_time_is_no_mistake(kueue: Kueue | None) -> None:
    assert find_all(replace(shipped_installation(), kueue=kueue)) == []


@pytest.mark.parametrize(
    ("kueue", "field", "what", "fix"),
    [
        pytest.param(
            wait(timeout=30 * MINUTE),
            "timeout",
            "Kueue evicts a gang that is not ready 30m after its admission",
            "timeout: 24h",
            id="a time-out shorter than a gang may wait for room",
        ),
        pytest.param(
            wait(timeout=DAY - 1), "timeout", "86399s after its admission", "timeout: 24h", id="one second too short"
        ),
        pytest.param(
            wait(recovery_timeout=3 * MINUTE),
            "recoveryTimeout",
            "if one member is not ready for 3m",
            "recoveryTimeout: 1h",
            id="a time-out shorter than a repair may take",
        ),
        pytest.param(
            wait(blocks_admission=True),
            "blockAdmission",
            "admits no other workload while an admitted gang waits",
            "blockAdmission: false",
            id="a gang that blocks all others",
        ),
        pytest.param(
            wait(requeues_by_eviction=True),
            "requeuingStrategy.timestamp",
            "behind all workloads that came before its eviction",
            "requeuingStrategy.timestamp: Creation",
            id="a gang that loses its place",
        ),
    ],
)
def test_a_setting_that_harms_gangs_is_named_with_its_fix(kueue: Kueue, field: str, what: str, fix: str) -> None:
    ((place, said, do),) = find_all(replace(shipped_installation(), kueue=kueue))
    assert place == f"here: {FIELD}.{field}"
    assert what in said
    assert do == f"set {FIELD}.{fix}"


def test_the_defaults_of_kueue_have_three_mistakes() -> None:
    found = find_all(replace(shipped_installation(), kueue=Kueue(Configuration("here", DEFAULTS))))
    assert [where.rpartition(".")[2] for where, _, _ in found] == ["timeout", "recoveryTimeout", "timestamp"]


def choose(*demands: TopologyDemand, outsiders: tuple[Outsider, ...] = (), flavor: Flavor = CHOSEN) -> Kueue:
    """A Kueue that chooses nodes for the workloads of a queue in the namespace team."""
    local = (TEAM, LocalQueue("others", "queue", "plain"))
    quotas = (Quota("all", flavor.name, {}), Quota("plain", "plain", {}))
    return Kueue(None, (flavor, PLAIN), quotas, local, outsiders, demands)


JOB = TopologyDemand("Job", "team", "train", RACK, queue="queue")
GROUP = TopologyDemand("PodGroup", "team", "ring", RACK)


@pytest.mark.parametrize(
    ("kueue", "groups", "named"),
    [
        pytest.param(choose(JOB), (), "1 Job of its namespaces requires", id="a Job of such a queue"),
        pytest.param(choose(), (GROUP,), "team/podgroup/ring", id="a group in the namespace of such a queue"),
        pytest.param(
            choose(JOB), (GROUP, GROUP._replace(kind="Workload")), "1 Job, 1 PodGroup, 1 Workload", id="all kinds"
        ),
    ],
)
def test_two_owners_of_topology_are_named(kueue: Kueue, groups: tuple[TopologyDemand, ...], named: str) -> None:
    ((where, what, fix),) = find_all(beside(kueue, *groups))
    assert where == "ResourceFlavor chosen"
    assert named in what
    assert "remove topologyName from the flavor" in fix


@pytest.mark.parametrize(
    ("kueue", "groups"),
    [
        pytest.param(choose(JOB._replace(queue="")), (), id="a Job that Kueue does not know"),
        pytest.param(choose(JOB._replace(queue="other")), (), id="a Job of another queue"),
        pytest.param(choose(JOB._replace(namespace="others")), (), id="a Job of a queue without Topology"),
        pytest.param(choose(), (GROUP._replace(namespace="others"),), id="a group in another namespace"),
        pytest.param(choose(), (GROUP._replace(of_job=True),), id="the group of a Job, which is counted as the Job"),
        pytest.param(choose(JOB, flavor=CHOSEN._replace(topology="")), (GROUP,), id="no flavor has a Topology"),
    ],
)
def test_one_owner_of_topology_is_no_mistake(kueue: Kueue, groups: tuple[TopologyDemand, ...]) -> None:
    assert find_all(beside(kueue, *groups)) == []


def test_a_flavor_that_no_queue_uses_takes_no_nodes() -> None:
    unused = replace(choose(JOB, outsiders=(Outsider("n0", "team/p0"),)), quotas=(Quota("all", "plain", {}),))
    assert find_all(beside(unused, GROUP)) == []


def test_pods_that_use_nodes_of_kueue_s_topology_are_named() -> None:
    there = tuple(Outsider(f"n{number}", f"team/p{number}") for number in range(12))
    ((where, what, fix),) = find_all(beside(choose(outsiders=there)))
    assert where == "ResourceFlavor chosen"
    assert what.startswith("Kueue does not manage 6 pods on its nodes (team/p0, team/p10, team/p2 and 3 more)")
    assert "add a taint" in fix
    assert find_all(beside(choose(outsiders=there[1::2]))) == []  # on nodes of the other zone


def grant(*quotas: Quota, configuration: Configuration | None = None) -> Kueue:
    return Kueue(configuration, (PLAIN, Flavor("rest", {ZONE: "z1"})), quotas)


@pytest.mark.parametrize(
    ("kueue", "said"),
    [
        pytest.param(grant(Quota("a", "plain", {"cpu": 48_500})), "may use 48.5 of cpu", id="one queue"),
        pytest.param(
            grant(Quota("a", "plain", {"cpu": 30_000}), Quota("b", "plain", {"cpu": 30_000})),
            "ClusterQueues a, b may use 60 of cpu, but its nodes (6) have 48",
            id="two queues together",
        ),
        pytest.param(
            grant(Quota("a", "plain", {"memory": 13 * 2**30})), "may use 13Gi of memory, but its nodes (6) have 12Gi"
        ),
        pytest.param(
            grant(Quota("a", "plain", {GPU: 8})), f"may use 8 of {GPU}, but its nodes (6) have 0", id="no node"
        ),
    ],
)
def test_a_quota_above_the_nodes_is_named(kueue: Kueue, said: str) -> None:
    ((where, what, fix),) = find_all(beside(kueue, cpu=8000, memory=2 * 2**30))
    assert where == "ResourceFlavor plain"
    assert said in what
    assert "lower nominalQuota" in fix


@pytest.mark.parametrize(
    "kueue",
    [
        pytest.param(grant(Quota("a", "plain", {"cpu": 48_000})), id="all that the nodes have"),
        pytest.param(
            grant(Quota("a", "plain", {"cpu": 40_000}), Quota("a", "rest", {"cpu": 40_000})), id="two flavors"
        ),
        pytest.param(grant(Quota("a", "gone", {"cpu": 90_000})), id="a flavor that does not exist: Kueue says so"),
        pytest.param(
            grant(Quota("a", "plain", {GPU: 8}), configuration=Configuration("here", None, frozenset({GPU}))),
            id="a resource that Kueue computes",
        ),
    ],
)
def test_a_quota_that_the_nodes_can_give_is_no_mistake(kueue: Kueue) -> None:
    assert find_all(beside(kueue, cpu=8000)) == []


def test_beside_an_autoscaler_a_quota_may_be_above_the_nodes() -> None:
    seen = beside(grant(Quota("a", "plain", {"cpu": 90_000})), cpu=8000)
    assert len(find_all(seen)) == 1
    assert find_all(replace(seen, autoscalers=KARPENTER)) == []
    assert find_all(replace(seen, autoscalers=None)) == []  # it is not known whether there is one


KARPENTER = Autoscalers(karpenter=True, pool_labels=frozenset({"example.com/block"}))
CLUSTER_AUTOSCALER = Autoscalers(cluster_autoscaler=True)


def scale(*changes: Mistake, by: Autoscalers = KARPENTER, requires: str = ZONE) -> Observed:
    """An installation beside an autoscaler, with a gang that requires one domain of a key."""
    seen = replace(shipped_installation(), autoscalers=by, demands=(GROUP._replace(key=requires),))
    for change in changes:
        seen = change(seen)
    return seen


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(scale(), id="Karpenter, by zone"),
        pytest.param(scale(by=CLUSTER_AUTOSCALER, requires="topology.kubernetes.io/region"), id="the other, by region"),
        pytest.param(scale(requires="example.com/block"), id="by a label of a NodePool"),
        pytest.param(scale(set_flag(autoscaler_labels=f"x,{RACK}"), requires=RACK), id="by a label that was told"),
        pytest.param(scale(by=replace(KARPENTER, pool_labels=None), requires=RACK), id="NodePools are unread"),
        pytest.param(scale(by=Autoscalers(), requires=RACK), id="no autoscaler"),
    ],
)
def test_an_autoscaler_that_can_be_asked_is_no_mistake(seen: Observed) -> None:
    assert find_all(seen) == []


def test_two_autoscalers_are_named() -> None:
    ((where, what, fix),) = find_all(scale(by=replace(KARPENTER, cluster_autoscaler=True)))
    assert where == "Karpenter, Cluster Autoscaler"
    assert "one gang may get nodes twice" in what
    assert "delete configmap cluster-autoscaler-status" in fix


def lack(**changes: Any) -> Mistake:
    return lambda seen: replace(seen, **changes)


KEPT = shipped_installation().policies or frozenset()


@pytest.mark.parametrize(
    ("change", "reason", "fix"),
    [
        pytest.param(
            lack(policies=KEPT - {"serried-gate"}),
            "MutatingAdmissionPolicy serried-gate does not exist",
            Piece.GATE,
            id="no policy",
        ),
        pytest.param(
            lack(bound_policies=KEPT - {"serried-gate"}), "has no binding", Piece.GATE, id="a policy without binding"
        ),
        pytest.param(lack(gate_switch=False), "the ConfigMap serried-hold does not exist", Piece.GATE, id="no switch"),
        pytest.param(
            change_selfcheck(schedulesGangs=True),
            "kube-scheduler's own gang scheduling",
            "GenericWorkload",
            id="native gangs",
        ),
        pytest.param(set_flag(hold="filter"), "runs with --hold=filter", "--hold=auto", id="held by filter, by a flag"),
        pytest.param(
            set_flag(autoscaler="none"), "runs with --autoscaler=none", "--autoscaler=auto", id="none by a flag"
        ),
        pytest.param(
            lack(policies=frozenset(KEPT - {"serried-gate"}), server_version="v1.35.2", scheduler_version=""),
            "MutatingAdmissionPolicy serried-gate does not exist",
            "upgrade to 1.36",
            id="an API server without such policies",
        ),
        pytest.param(
            lack(policies=frozenset(KEPT - {"serried-gate"}), server_version="v1.36.4", scheduler_version=""),
            "MutatingAdmissionPolicy serried-gate does not exist",
            Piece.GATE,
            id="the oldest API server with such policies",
        ),
    ],
)
def test_members_that_an_autoscaler_sees_are_named(change: Mistake, reason: str, fix: str) -> None:
    ((where, what, do),) = find_all(scale(change))
    assert where == "Karpenter"
    assert what.startswith("autoscalers may add nodes for gangs that cannot start")
    assert reason in what
    assert fix in do
    assert find_all(scale(change, by=Autoscalers())) == []


def test_a_gate_is_not_missed_where_it_may_not_be_read() -> None:
    assert find_all(scale(lack(policies=None, gate_switch=False))) == []
    assert find_all(scale(lack(gate_switch=None))) == []


def test_members_for_which_nobody_asks_are_named() -> None:
    ((_, what, fix),) = find_all(scale(set_flag(autoscaler="none", hold="gate")))
    assert "with --autoscaler=none Serried never asks for nodes: gangs get no new nodes" in what
    assert fix == "run the extender with --autoscaler=auto"


@pytest.mark.parametrize(
    ("by", "fix"),
    [
        pytest.param(KARPENTER, "name the label in spec.template of a NodePool", id="Karpenter"),
        pytest.param(
            CLUSTER_AUTOSCALER, f"run the extender with --autoscaler-labels={RACK},x", id="Cluster Autoscaler"
        ),
    ],
)
def test_a_topology_key_that_no_new_node_is_known_to_have_is_named(by: Autoscalers, fix: str) -> None:
    seen = scale(set_flag(autoscaler_labels="x"), by=by, requires=RACK)
    ((_, what, do),) = find_all(seen)
    assert what.startswith(f"1 PodGroup requires one domain of {RACK} (team/podgroup/ring)")
    assert "it asks for no nodes for them" in what
    assert do.startswith(fix)
