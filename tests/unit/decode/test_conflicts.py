"""Host ports and anti-affinity, as amounts."""

from typing import Any

import pytest

from serried.api.interpod import read_interpod_rules
from serried.api.pod import read_conflicts
from serried.api.resources import SHARES
from tests.support.builders import PodBuilder, pod

HOST = "apart:kubernetes.io/hostname|"
ANY = "0.0.0.0"  # noqa: S104 - nothing listens here
PORT = {"containerPort": 80, "hostPort": 80}


def sidecar(**fields: Any) -> PodBuilder:
    return pod("p").with_field([{"name": "side", "ports": [PORT], **fields}], "spec", "initContainers")


@pytest.mark.parametrize(
    ("builder", "asked"),
    [
        pytest.param(pod("p"), {}, id="a plain pod asks for nothing"),
        pytest.param(pod("p").host_port(80), {"hostPort:TCP/80": SHARES}, id="all of a port"),
        pytest.param(
            pod("p").with_field([{"ports": [PORT]}], "spec", "containers"),
            {"hostPort:TCP/80": SHARES},
            id="TCP by default",
        ),
        pytest.param(pod("p").host_port(80, ANY), {"hostPort:TCP/80": SHARES}, id="so on the address of all"),
        pytest.param(
            pod("p").host_port(80, "10.0.0.1"),
            {"hostPort:TCP/80": 1, "hostPort:TCP/80/10.0.0.1": SHARES},
            id="one address of a port is a share of it",
        ),
        pytest.param(
            pod("p").host_port(80, "10.0.0.1").host_port(80, "10.0.0.2").host_port(80, "10.0.0.1"),
            {"hostPort:TCP/80": 2, "hostPort:TCP/80/10.0.0.1": SHARES, "hostPort:TCP/80/10.0.0.2": SHARES},
            id="each address counts once",
        ),
        pytest.param(
            pod("p").host_port(80).host_port(80, "10.0.0.1"),
            {"hostPort:TCP/80": SHARES, "hostPort:TCP/80/10.0.0.1": SHARES},
            id="all addresses are no less than all",
        ),
        pytest.param(
            pod("p").host_port(53, protocol="UDP").host_port(53),
            {"hostPort:UDP/53": SHARES, "hostPort:TCP/53": SHARES},
            id="each protocol has its own",
        ),
        pytest.param(pod("p").host_port(0), {}, id="a port of the container alone is none"),
        pytest.param(sidecar(restartPolicy="Always"), {"hostPort:TCP/80": SHARES}, id="a sidecar's port counts"),
        pytest.param(sidecar(), {}, id="an init container's does not"),
    ],
)
def test_ports_of_the_host(builder: PodBuilder, asked: dict[str, int]) -> None:
    assert read_conflicts(builder.raw()) == asked


RING = pod("p").label("app", "ring")


@pytest.mark.parametrize(
    ("builder", "names"),
    [
        pytest.param(
            RING.anti_affinity({"app": "ring"}), ["apart:default/app In (ring)"], id="a pod that its own term means"
        ),
        pytest.param(
            RING.anti_affinity({"app": "other"}), [f"{HOST}default/app In (other)"], id="others, that it does not mean"
        ),
        pytest.param(
            RING.anti_affinity({"app": "ring"}, key="topology.kubernetes.io/zone"),
            ["apart:topology.kubernetes.io/zone|default/app In (ring)"],
            id="in other domains",
        ),
        pytest.param(RING.anti_affinity({}), ["apart:default/"], id="an empty selector means every pod"),
        pytest.param(RING.anti_affinity({}, labelSelector=None), [], id="without a selector it means none"),
        pytest.param(
            RING.anti_affinity({"app": "ring"}, namespaces=["other", "default"]),
            ["apart:default,other/app In (ring)"],
            id="in the namespaces that it names",
        ),
        pytest.param(
            RING.anti_affinity({"app": "ring"}, namespaces=["other"]),
            [f"{HOST}other/app In (ring)"],
            id="those of another namespace",
        ),
        pytest.param(
            RING.anti_affinity({"app": "ring"}, namespaces=["other"], namespaceSelector={}),
            ["apart:*/app In (ring)"],
            id="in all namespaces",
        ),
        pytest.param(
            RING.anti_affinity({"app": "ring"}, namespaceSelector={"matchLabels": {"a": "b"}}),
            [f"{HOST}+(a In (b))/app In (ring)"],
            id="namespaces by label",
        ),
        pytest.param(
            RING.anti_affinity({"app": "ring"}).anti_affinity({}),
            ["apart:default/", "apart:default/app In (ring)"],
            id="each term",
        ),
        pytest.param(
            RING.with_field(
                [], "spec", "affinity", "podAntiAffinity", "preferredDuringSchedulingIgnoredDuringExecution"
            ),
            [],
            id="a preference is none",
        ),
    ],
)
def test_anti_affinity(builder: PodBuilder, names: list[str]) -> None:
    asked = conflicts_of(builder)
    assert sorted(asked) == names
    # Only two that have a term which means both share no node by that alone; who is meant by others has to be known.
    assert all(amount == (1 if "|" in name else SHARES) for name, amount in asked.items())


def conflicts_of(builder: PodBuilder) -> dict[str, int]:
    raw = builder.raw()
    return read_conflicts(raw, read_interpod_rules(raw))


EXPRESSIONS: list[tuple[str, list[str], bool]] = [
    ("In", ["ring", "star"], True),
    ("In", ["star"], False),
    ("NotIn", ["star"], True),
    ("NotIn", ["ring"], False),
    ("Exists", [], True),
    ("DoesNotExist", [], False),
    ("Gt", ["1"], False),
]


@pytest.mark.parametrize(("operator", "values", "met"), EXPRESSIONS)
def test_expressions_of_a_selector(operator: str, values: list[str], met: bool) -> None:  # noqa: FBT001
    selector = {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}
    assert (SHARES in conflicts_of(RING.anti_affinity({}, labelSelector=selector)).values()) is met


def test_one_selector_has_one_name_however_it_is_written() -> None:
    expressions = [
        {"key": "b", "operator": "Exists"},
        {"key": "app", "operator": "In", "values": ["ring"]},
    ]
    written = RING.label("b", "").anti_affinity({}, labelSelector={"matchExpressions": expressions})
    other = {"matchLabels": {"app": "ring"}, "matchExpressions": expressions[:1]}
    assert conflicts_of(written) == conflicts_of(RING.label("b", "").anti_affinity({}, labelSelector=other))


def test_they_are_part_of_what_a_pod_asks_for() -> None:
    requests = RING.cpu(1).host_port(80).anti_affinity({"app": "ring"}).value().shape.requests
    assert requests == (
        ("apart:default/app In (ring)", SHARES), ("cpu", 1000), ("hostPort:TCP/80", SHARES), ("pods", 1),
    )  # fmt: skip
