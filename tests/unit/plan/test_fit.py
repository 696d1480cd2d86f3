"""The rules of NodeAffinity, TaintToleration, NodeUnschedulable and NodeResourcesFit."""

import pytest

from serried.api.resources import SHARES
from serried.api.selectors import NodeSelectorTerm, Requirement
from serried.plan.fit import admits, count_fitting, matches, matches_terms
from tests.support.builders import NodeBuilder, PodBuilder, node, pod

CORDON = "node.kubernetes.io/unschedulable"


@pytest.mark.parametrize(
    ("operator", "values", "label", "met"),
    [
        ("In", ("a", "b"), "a", True), ("In", ("a",), "c", False), ("In", ("a",), None, False),
        ("In", ("",), "", True), ("In", ("",), None, False), ("In", (), "a", False),
        ("NotIn", ("a",), "b", True), ("NotIn", ("a",), "a", False), ("NotIn", ("a",), None, True),
        ("NotIn", (), "a", False),
        ("Exists", (), "a", True), ("Exists", (), "", True), ("Exists", (), None, False),
        ("Exists", ("a",), "a", False),
        ("DoesNotExist", (), None, True), ("DoesNotExist", (), "a", False), ("DoesNotExist", ("a",), None, False),
        ("Gt", ("5",), "6", True), ("Gt", ("5",), "5", False), ("Gt", ("-1",), "0", True), ("Gt", ("5",), None, False),
        ("Gt", ("9",), "10", True), ("Gt", ("5",), "six", False), ("Gt", ("x",), "6", False),
        ("Gt", ("1", "2"), "6", False),
        ("Gt", ("1",), "1_0", False), ("Gt", ("1",), " 2", False),
        ("Lt", ("5",), "4", True), ("Lt", ("5",), "5", False), ("Lt", (), "5", False), ("Lt", ("5",), None, False),
        ("Like", ("a",), "a", False), ("", (), "a", False),
    ],
)  # fmt: skip
def test_match_expressions(operator: str, values: tuple[str, ...], label: str | None, met: bool) -> None:  # noqa: FBT001
    labels = {} if label is None else {"key": label}
    assert matches(Requirement("key", operator, values), labels) is met


A = Requirement("a", "Exists")
B = Requirement("b", "Exists")
HERE = Requirement("metadata.name", "In", ("n",))
ELSEWHERE = Requirement("metadata.name", "NotIn", ("n",))


@pytest.mark.parametrize(
    ("terms", "met"),
    [
        pytest.param((), False, id="no term matches nothing"),
        pytest.param((NodeSelectorTerm(),), False, id="an empty term matches nothing"),
        pytest.param((NodeSelectorTerm((A,)),), True, id="a label"),
        pytest.param((NodeSelectorTerm((A, B)),), False, id="all expressions of a term must hold"),
        pytest.param((NodeSelectorTerm((B,)), NodeSelectorTerm((A,))), True, id="one term is enough"),
        pytest.param((NodeSelectorTerm((), (HERE,)),), True, id="by name"),
        pytest.param((NodeSelectorTerm((), (ELSEWHERE,)),), False, id="anywhere but here"),
        pytest.param((NodeSelectorTerm((A,), (ELSEWHERE,)),), False, id="labels and fields must hold"),
        pytest.param(
            (NodeSelectorTerm((), (Requirement("metadata.name", "In", ("n", "m")),)),),
            False,
            id="a field takes exactly one value",
        ),
        pytest.param(
            (NodeSelectorTerm((), (Requirement("metadata.name", "Exists"),)),),
            False,
            id="a field knows In and NotIn only",
        ),
        pytest.param(
            (NodeSelectorTerm((), (Requirement("metadata.uid", "In", ("n",)),)),), False, id="there is no other field"
        ),
    ],
)
def test_node_selector_terms(terms: tuple[NodeSelectorTerm, ...], met: bool) -> None:  # noqa: FBT001
    assert matches_terms(terms, node("n").label("a", "1").value()) is met


@pytest.mark.parametrize(
    ("guest", "host", "admitted"),
    [
        pytest.param(pod("p"), node("n"), True, id="any pod on any node"),
        pytest.param(pod("p"), node("n").taint("t"), False, id="a taint keeps it away"),
        pytest.param(pod("p"), node("n").taint("t", "NoExecute"), False, id="so does NoExecute"),
        pytest.param(pod("p"), node("n").taint("t", "PreferNoSchedule"), True, id="a preference does not"),
        pytest.param(pod("p").tolerating(), node("n").taint("t").taint("u", "NoExecute"), True, id="all is tolerated"),
        pytest.param(pod("p").tolerating("t"), node("n").taint("t", value="x"), True, id="Exists takes any value"),
        pytest.param(pod("p").tolerating("t"), node("n").taint("t").taint("u"), False, id="each taint needs its own"),
        pytest.param(pod("p").tolerating("t", "Equal", "x"), node("n").taint("t", value="x"), True, id="equal values"),
        pytest.param(
            pod("p").tolerating("t", "Equal", "x"), node("n").taint("t", value="y"), False, id="unequal values"
        ),
        pytest.param(
            pod("p").tolerating("t", "", "x"), node("n").taint("t", value="x"), True, id="Equal is the default"
        ),
        pytest.param(pod("p").tolerating("t", "Gt", "1"), node("n").taint("t", value="2"), False, id="Gt is not on"),
        pytest.param(
            pod("p").tolerating("", "Equal", "x"), node("n").taint("t", value="x"), True, id="any key, one value"
        ),
        pytest.param(
            pod("p").tolerating("t", effect="NoExecute"),
            node("n").taint("t"),
            False,
            id="a toleration of another effect",
        ),
        pytest.param(pod("p"), node("n").cordoned(), False, id="a cordoned node"),
        pytest.param(pod("p").tolerating(CORDON), node("n").cordoned(), True, id="a cordon is tolerated as its taint"),
        pytest.param(
            pod("p").tolerating(CORDON, effect="NoExecute"), node("n").cordoned(), False, id="a cordon is NoSchedule"
        ),
        pytest.param(pod("p").node_selector("a", "1"), node("n").label("a", "1"), True, id="a node selector met"),
        pytest.param(pod("p").node_selector("a", "1"), node("n").label("a", "2"), False, id="a node selector not met"),
        pytest.param(pod("p").node_selector("a", ""), node("n"), False, id="an empty value is not an absent label"),
        pytest.param(
            pod("p").node_selector("a", "1").node_affinity({"matchExpressions": [{"key": "b", "operator": "Exists"}]}),
            node("n").label("a", "1"),
            False,
            id="selector and affinity must both hold",
        ),
        pytest.param(pod("p").node_affinity(), node("n"), False, id="affinity without terms matches nothing"),
    ],
)
def test_which_nodes_admit_a_pod(guest: PodBuilder, host: NodeBuilder, admitted: bool) -> None:  # noqa: FBT001
    assert admits(guest.value().shape, host.value()) is admitted


@pytest.mark.parametrize(
    ("guest", "host", "used", "count"),
    [
        pytest.param(pod("p").cpu(2), node("n").cpu(8), {}, 4, id="an empty node"),
        pytest.param(pod("p").cpu(2), node("n").cpu(8), {"cpu": 1000}, 3, id="the rest of a used one"),
        pytest.param(pod("p").cpu(1).memory("1Gi"), node("n").cpu(8).memory("2Gi"), {}, 2, id="the scarcest resource"),
        pytest.param(pod("p"), node("n").pods(3), {"pods": 1}, 2, id="a pod that asks for nothing takes a place"),
        pytest.param(pod("p").cpu(1), node("n").pods(0), {}, 0, id="a node without places"),
        pytest.param(pod("p").cpu(1), node("n").cpu(1), {"cpu": 2000}, 0, id="an over-committed node"),
        pytest.param(pod("p").memory(1), node("n").cpu(1), {"cpu": 2000}, 110, id="what is not asked does not matter"),
        pytest.param(pod("p").request("example.com/gpu", 1), node("n"), {}, 0, id="a resource that it lacks"),
        pytest.param(pod("p").cpu(1), node("n").cordoned(), {}, 0, id="a node that does not admit it"),
        pytest.param(pod("p").host_port(80), node("n"), {}, 1, id="a port of the host is there once"),
        pytest.param(pod("p").host_port(80), node("n"), {"hostPort:TCP/80": SHARES}, 0, id="and not where it is taken"),
        pytest.param(pod("p").host_port(80), node("n"), {"hostPort:UDP/80": SHARES}, 1, id="another port is"),
        pytest.param(
            pod("p").label("a", "b").anti_affinity({"a": "b"}), node("n"), {}, 1, id="one that keeps its like away"
        ),
    ],
)
def test_how_many_fit(guest: PodBuilder, host: NodeBuilder, used: dict[str, int], count: int) -> None:
    assert count_fitting(guest.value().shape, host.value(), used) == count
