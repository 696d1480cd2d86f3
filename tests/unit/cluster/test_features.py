"""Pods that need what only some kubelets can do (NodeDeclaredFeatures of kube-scheduler)."""

from typing import Any

import pytest

from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.plan.fit import admits
from serried.rules.all import RULES
from tests.support.builders import NodeBuilder, PodBuilder, node, pod

RESTARTS = "RestartAllContainersOnContainerExits"
BINDS, MAPS = "VolumeBindMountOptions", "UserNamespacesHostNetworkSupport"
PULLS, SIGNS = "SecurityProfileOCI", "PodCertificateMLDSA"


def declaring(name: str, *features: str) -> NodeBuilder:
    return node(name).cpu(4).with_field(list(features), "status", "declaredFeatures")


def in_container(**fields: Any) -> PodBuilder:
    found = pod("p").cpu(1)
    container = {**found.raw()["spec"]["containers"][0], **fields}
    return found.with_field([container], "spec", "containers")


def with_spec(**fields: Any) -> PodBuilder:
    found = pod("p").cpu(1)
    for name, value in fields.items():
        found = found.with_field(value, "spec", name)
    return found


def seccomp(kind: str) -> dict[str, Any]:
    return {"seccompProfile": {"type": kind}}


def with_certificate(key: str) -> PodBuilder:
    source = {"podCertificate": {"signerName": "example.com/signer", "keyType": key}}
    return with_spec(volumes=[{"name": "v", "emptyDir": {}}, {"name": "c", "projected": {"sources": [source]}}])


def restarting(action: str = "RestartAllContainers") -> PodBuilder:
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [42]}}
    return in_container(restartPolicyRules=[rule])


@pytest.mark.parametrize(
    ("builder", "features"),
    [
        pytest.param(pod("p"), (), id="a usual pod"),
        pytest.param(restarting(), (RESTARTS,), id="a container that restarts all others"),
        pytest.param(restarting("Restart"), (), id="one that restarts itself"),
        pytest.param(
            in_container(volumeMounts=[{"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}]),
            (BINDS,),
            id="a mount with options",
        ),
        pytest.param(in_container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), (), id="a mount without"),
        pytest.param(
            with_spec(hostNetwork=True, hostUsers=False),
            (MAPS,),
            id="its own users on the network of the host",
        ),
        pytest.param(with_spec(hostNetwork=True), (), id="the network of the host alone"),
        pytest.param(with_spec(securityContext=seccomp("OCI")), (PULLS,), id="a seccomp profile of a registry"),
        pytest.param(in_container(securityContext=seccomp("OCI")), (PULLS,), id="such a profile for one container"),
        pytest.param(in_container(securityContext=seccomp("Localhost")), (), id="a seccomp profile of the node"),
        pytest.param(with_spec(securityContext={"runAsNonRoot": True}), (), id="a user without a profile"),
        pytest.param(with_certificate("MLDSA65"), (SIGNS,), id="a certificate for a key of ML-DSA"),
        pytest.param(with_certificate("ECDSAP256"), (), id="a certificate for another key"),
    ],
)
def test_what_a_pod_needs_is_read_from_its_spec(builder: PodBuilder, features: tuple[str, ...]) -> None:
    assert builder.value().features == features


def open_to(store: Store, found: Pod) -> set[str]:
    return {name for name, each in store.nodes.items() if admits(found.shape, each)}


def stored(*builders: NodeBuilder | PodBuilder) -> Store:
    store = Store(["serried"], rules=RULES)
    for builder in builders:
        if isinstance(builder, NodeBuilder):
            store.put_node(builder.value())
        else:
            store.put_pod(builder.value())
    return store


NEW, OTHER, OLD = declaring("new", "Other", RESTARTS), declaring("other", "Other"), node("old").cpu(4)


@pytest.mark.parametrize("late", [False, True], ids=["nodes first", "pods first"])
def test_a_pod_goes_only_where_its_feature_is_declared(*, late: bool) -> None:
    nodes, pods = (NEW, OTHER, OLD), (restarting(), pod("usual").cpu(1))
    store = stored(*pods, *nodes) if late else stored(*nodes, *pods)
    assert open_to(store, store.pods["pod-p"]) == {"new"}
    assert open_to(store, store.pods["pod-usual"]) == {"new", "other", "old"}


def test_where_no_node_declares_anything_no_scheduler_asks() -> None:
    store = stored(OLD, restarting())
    assert open_to(store, store.pods["pod-p"]) == {"old"}
    store.put_node(OTHER.value())
    assert open_to(store, store.pods["pod-p"]) == set()
    store.drop_node("other")
    assert open_to(store, store.pods["pod-p"]) == {"old"}


def test_a_node_that_is_upgraded_opens_and_one_that_is_set_back_closes() -> None:
    store = stored(OTHER, restarting())
    store.put_node(declaring("other", "Other", RESTARTS).value())
    assert open_to(store, store.pods["pod-p"]) == {"other"}
    store.put_node(OTHER.value())
    assert open_to(store, store.pods["pod-p"]) == set()


def test_a_heartbeat_of_a_node_that_declares_features_is_no_change() -> None:
    store = stored(NEW)
    before = store.nodes["new"]
    store.put_node(declaring("new", "Other", RESTARTS).with_field("9", "metadata", "resourceVersion").value())
    assert store.nodes["new"] is before


def test_nothing_is_kept_of_a_pod_that_went() -> None:
    store = stored(NEW, restarting())
    store.drop_pod("pod-p")
    store.drop_node("new")
    assert all(not rule.remembered for rule in store.all_rules)
