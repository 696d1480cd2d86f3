"""The domains for which nodes are asked, and the gangs that ask for none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from extender.autoscalers import FoundAutoscalers
from extender.features.asking.targets import NoTarget, Supply, Target, accepts, choose_target, list_needed
from serried.api.node import Node
from serried.api.node_pool import NodePool, decode_node_pool
from serried.api.pod import Pod
from serried.api.selectors import Requirement, Taint
from serried.api.verdict import DomainShortage, Reason, Verdict
from serried.plan.request import PlanRequest
from tests.support.builders import PodBuilder, node, pod

ZONE, RACK = "topology.kubernetes.io/zone", "example.com/rack"
PLAIN = NodePool("plain", {})
ZONES = NodePool("zones", {}, (Requirement(ZONE, "In", ("a", "b")),))
NODES = {each.name: each for each in (node("n1").label(ZONE, "c").value(), node("n2").label(RACK, "r1").value())}


def ask(count: int = 4, key: str | None = ZONE, builder: PodBuilder | None = None) -> PlanRequest:
    builder = builder or pod("m").cpu(2)
    members = [replace(builder.value(), uid=f"m{number}") for number in range(count)]
    return PlanRequest(members, count, key)


def refused(have: int = 0, **slots: int) -> Verdict:
    domains = tuple(DomainShortage(name, count) for name, count in sorted(slots.items(), key=lambda item: -item[1]))
    return Verdict(Reason.NO_DOMAIN_FITS, have, 4, ZONE, domains, len(domains))


def choose(*pools: NodePool, request: PlanRequest | None = None, refusal: Verdict | None = None) -> Target | NoTarget:
    return choose_from(FoundAutoscalers(karpenter=True, pools=pools), request or ask(), refusal or refused())


def choose_from(
    seen: FoundAutoscalers,
    request: PlanRequest,
    refusal: Verdict,
    nodes: Mapping[str, Node] = NODES,
    tried: Sequence[str] = (),
) -> Target | NoTarget:
    needed = list_needed(request, lambda _: True)
    keys = frozenset({"example.com/cell"})
    return choose_target(request, needed, refusal, Supply(seen, nodes), keys, tried)


def test_a_domain_of_an_existing_node_will_do_where_the_pool_leaves_it_open() -> None:
    assert choose(PLAIN) == Target(ZONE, "c", frozenset({"plain"}))


def test_the_pool_s_own_domains_count_though_no_node_is_there() -> None:
    assert choose(ZONES) == Target(ZONE, "a", frozenset({"zones"}))


def test_the_domain_with_the_most_room_comes_first() -> None:
    assert choose(ZONES, refusal=refused(a=1, b=3)) == Target(ZONE, "b", frozenset({"zones"}), have=3)


@pytest.mark.parametrize(
    ("request_", "domain"),
    [
        pytest.param(replace(ask(), pinned=frozenset({"b"})), "b", id="where the gang runs"),
        pytest.param(ask(builder=pod("m").cpu(2).node_selector(ZONE, "b")), "b", id="that its members select"),
        pytest.param(replace(ask(), taken=frozenset({"a"})), "b", id="that no other gang has for itself"),
    ],
)
def test_only_a_domain_is_asked_for(request_: PlanRequest, domain: str) -> None:
    found = choose(ZONES, request=request_)
    assert isinstance(found, Target)
    assert found.domain == domain


@pytest.mark.parametrize(
    ("pools", "request_", "why"),
    [
        pytest.param(
            (PLAIN,),
            ask(key=RACK),
            "does not know whether new nodes get the label example.com/rack",
            id="whose key no node gets",
        ),
        pytest.param(
            (NodePool("gpu", {}, (), (Taint("gpu", "", "NoSchedule"),)),),
            ask(key=None),
            "no NodePool adds nodes to the cluster whose taints and labels suit the members",
            id="that tolerates the taints of no NodePool",
        ),
        pytest.param(
            (PLAIN,),
            ask(key=None, builder=pod("m").cpu(2).node_selector("team", "x")),
            "no NodePool adds nodes to the cluster whose taints and labels suit the members",
            id="that selects a label of no NodePool",
        ),
        pytest.param(
            (NodePool("small", {}, limits={"cpu": 7_000}),),
            ask(key=None),
            "the limits of small leave too little cpu",
            id="that a NodePool's limit does not hold",
        ),
        pytest.param(
            (NodePool("none", {}, limits={"nodes": 0}),),
            ask(key=None),
            "the limits of none leave too little nodes",
            id="where a NodePool may add no node",
        ),
        pytest.param(
            (PLAIN,),
            replace(ask(key=None), parts=(ask(key=RACK),)),
            "need topology domains of their own",
            id="whose groups have domains of their own",
        ),
        pytest.param((), ask(key=None), "no NodePool adds nodes", id="where there is no NodePool"),
    ],
)
def test_no_nodes_are_asked_for_a_gang(pools: tuple[NodePool, ...], request_: PlanRequest, why: str) -> None:
    found = choose(*pools, request=request_)
    assert isinstance(found, NoTarget)
    assert why in found.why


def test_a_zone_whose_pool_is_full_is_passed_over() -> None:
    full = NodePool("in-a", {ZONE: "a"}, limits={"cpu": 1_000})
    assert choose(full, NodePool("in-b", {ZONE: "b"})) == Target(ZONE, "b", frozenset({"in-b"}))


def test_what_has_room_already_needs_none_of_the_limit() -> None:
    pool = NodePool("small", {}, limits={"cpu": 4_000})
    assert isinstance(choose(pool, refusal=refused(c=2)), Target)
    assert isinstance(choose(pool, refusal=refused(c=1)), NoTarget)


@pytest.mark.parametrize(
    ("provided", "seen", "asked"),
    [
        pytest.param(8_000, 0, False, id="as Karpenter has counted"),
        pytest.param(0, 8, False, id="as is seen before Karpenter has counted"),
        pytest.param(2_000, 2, True, id="and what is left will do"),
    ],
)
def test_what_a_pool_has_added_counts(provided: int, seen: int, asked: bool) -> None:  # noqa: FBT001
    pool = NodePool("p", {}, limits={"cpu": 12_000}, provided={"cpu": provided})
    nodes = {"new": node("new").cpu(seen).label("karpenter.sh/nodepool", "p").value()} if seen else {}
    found = choose_from(FoundAutoscalers(karpenter=True, pools=(pool,)), ask(key=None), refused(), nodes)
    assert isinstance(found, Target) is asked


@pytest.mark.parametrize("key", [RACK, "example.com/cell"])
def test_a_key_counts_that_a_pool_or_the_user_names(key: str) -> None:
    pool = NodePool("named", {RACK: "r9"})
    request = ask(key=key)
    nodes = {**NODES, "n3": node("n3").label("example.com/cell", "c1").value()}
    found = choose_from(FoundAutoscalers(karpenter=True, pools=(pool,)), request, refused(), nodes)
    assert isinstance(found, Target)
    assert found.domain in {"r9", "c1"}


def test_cluster_autoscaler_is_asked_for_the_domains_of_existing_nodes() -> None:
    found = choose_from(FoundAutoscalers(cluster_autoscaler=True), ask(), refused())
    assert found == Target(ZONE, "c")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param({"x"}, {"x", "y"}, True, id="that may use one NodePool"),
        pytest.param({"x"}, {"y"}, False, id="that may not use the same NodePool"),
        pytest.param({"x"}, {"*"}, True, id="where an autoscaler does not say which it has"),
    ],
)
def test_two_gangs_ask_after_each_other(one: set[str], other: set[str], same: bool) -> None:  # noqa: FBT001
    assert Target(pools=frozenset(one)).shares_pool_with(frozenset(other)) is same


ARCH = "kubernetes.io/arch"


@pytest.mark.parametrize(
    ("builder", "taken"),
    [
        pytest.param(pod("m"), True, id="that wants nothing"),
        pytest.param(pod("m").node_selector(ARCH, "amd64"), True, id="that selects a value that the NodePool lists"),
        pytest.param(pod("m").node_selector(ARCH, "arm64"), False, id="that selects a value that it does not list"),
        pytest.param(pod("m").node_selector("karpenter.sh/nodepool", "p"), True, id="that names it"),
        pytest.param(pod("m").node_selector("karpenter.sh/nodepool", "q"), False, id="that names another one"),
        pytest.param(pod("m").node_selector("kubernetes.io/hostname", "n1"), False, id="that selects a node by name"),
        pytest.param(pod("m").node_selector("node.kubernetes.io/instance-type", "x"), True, id="that selects a type"),
    ],
)
def test_a_node_pool_takes_a_pod(builder: PodBuilder, taken: bool) -> None:  # noqa: FBT001
    pool = NodePool("p", {}, (Requirement(ARCH, "In", ("amd64",)),))
    member: Pod = builder.value()
    assert accepts(pool, member.shape) is taken


def test_a_node_pool_is_read_with_what_it_may_still_add() -> None:
    raw = {
        "metadata": {"name": "p"},
        "spec": {
            "limits": {"cpu": "10"},
            "template": {
                "metadata": {"labels": {"team": "x"}},
                "spec": {
                    "requirements": [{"key": ARCH, "operator": "In", "values": ["amd64"]}],
                    "taints": [{"key": "gpu", "effect": "NoSchedule"}],
                },
            },
        },
        "status": {"resources": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert decode_node_pool(raw) == NodePool(
        "p",
        {"team": "x"},
        (Requirement(ARCH, "In", ("amd64",)),),
        (Taint("gpu", "", "NoSchedule"),),
        limits={"cpu": 10_000},
        provided={"cpu": 4_000},
    )


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, id="that is not ready"),
        pytest.param({"spec": {"replicas": 3}}, id="with a fixed number of nodes"),
        pytest.param(
            {"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, id="that is being deleted"
        ),
    ],
)
def test_a_node_pool_adds_no_nodes_for_pods(raw: dict[str, object]) -> None:
    pool = decode_node_pool({"metadata": {"name": "p"}, **raw})
    assert isinstance(pool, NodePool)
    assert not pool.adds_nodes
