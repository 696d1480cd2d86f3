"""Helm installs, upgrades, rolls back and removes Serried in a real cluster, and leaves nothing but the CRDs behind."""

import json
from collections.abc import Callable, Iterator

import pytest

from bench.chart.__main__ import CHART
from bench.cluster import ClusterError, Spec
from bench.cluster.release import HELM_VERSIONS
from tests.e2e.manifests.charts import RELEASE, Helm, find_helm
from tests.e2e.manifests.server import GROUP, NAMESPACE, Server, eventually
from tests.support.clusters import on_kubernetes, running

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

DEFINITIONS = {f"customresourcedefinitions.apiextensions.k8s.io/{name}.{GROUP}" for name in (
    "compositepodgroups", "podgroups", "reservations", "workloads",
)} | {f"apiservices.apiregistration.k8s.io/v1beta1.{GROUP}"}  # fmt: skip
"""What Helm leaves: it deletes no CRDs."""

OLD = {"metadata": {"labels": {"app.kubernetes.io/version": "0.1.0"}}}


@pytest.fixture(
    scope="module",
    params=["1.37.1", on_kubernetes("1.36.4"), on_kubernetes("1.35.4")],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster without anything of ours."""
    name = f"helm-{request.param.replace('.', '-')}"
    spec = Spec(
        name, nodes=3, racks=3, blocks=1, api="fallback", hold="filter", serried=False, kubernetes=request.param
    )
    with running(spec, tmp_path_factory) as cluster:
        server = Server(cluster, tmp_path_factory.mktemp("objects"))
        eventually(lambda: has_its_own_objects(server), 30)
        yield server


def has_its_own_objects(server: Server) -> bool:
    """Whether each namespace has its ServiceAccount: controllers make them a while after the cluster is up."""
    accounts = [each for each in server.get("serviceaccounts", "-A")["items"] if each["metadata"]["name"] == "default"]
    return len(accounts) == len(server.get("namespaces")["items"])


@pytest.fixture(params=HELM_VERSIONS)
def helm(request: pytest.FixtureRequest, server: Server) -> Callable[..., str]:
    """Helm with the credentials of the cluster."""
    found: Helm = find_helm(request.param)
    kubeconfig = str(server.cluster.kubeconfig)

    def run(*arguments: str) -> str:
        return found.run(*arguments, "--kubeconfig", kubeconfig, "--namespace", NAMESPACE)

    return run


def shape(server: Server) -> str:
    return "shape=base" if server.cluster.spec.minor == 35 else "shape=isolated"


def replicas(server: Server) -> int:
    return int(server.get("deployment", "serried", "-n", NAMESPACE)["spec"]["replicas"])


def test_the_life_of_a_release(server: Server, helm: Callable[..., str]) -> None:
    before = set(server.list_objects())
    helm("install", RELEASE, str(CHART), "--create-namespace", "--wait", "--timeout", "120s", "--set", shape(server))
    pods = server.get("pods", "-n", NAMESPACE)["items"]
    assert len(pods) == 4
    version = server.cluster.spec.kubernetes
    images = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    assert f"registry.k8s.io/kube-scheduler:v{version}" in images
    server.run("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")

    if server.cluster.spec.has_mutating_policies:  # what the extender writes is no obstacle, and stays
        switch = f"/api/v1/namespaces/{NAMESPACE}/configmaps/serried-hold"
        server.patch_bare(switch, {"data": {"hold": "gate"}}).raise_for_status()
    helm("upgrade", RELEASE, str(CHART), "--wait", "--set", f"{shape(server)},extender.replicas=3")
    assert replicas(server) == 3
    helm("rollback", RELEASE, "1", "--wait")
    assert replicas(server) == 2
    if server.cluster.spec.has_mutating_policies:
        assert server.get("configmap", "serried-hold", "-n", NAMESPACE)["data"] == {"hold": "gate"}

    helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    server.run("delete", "namespace", NAMESPACE, "--timeout=60s")
    assert set(server.list_objects()) - before == DEFINITIONS
    server.run("delete", "-f", str(CHART / "crds"), "--timeout=60s")
    assert set(server.list_objects()) == before


def test_with_old_definitions_an_upgrade_is_refused_until_they_are_those_of_the_release(
    server: Server, helm: Callable[..., str]
) -> None:
    definition = f"podgroups.{GROUP}"
    helm("install", RELEASE, str(CHART), "--create-namespace", "--set", shape(server))
    server.run("patch", "crd", definition, "--type=merge", "-p", json.dumps(OLD))
    with pytest.raises(ClusterError, match=f"The CRD {definition} in the cluster is older than") as refused:
        helm("upgrade", RELEASE, str(CHART), "--set", shape(server))
    assert "helm show crds CHART" in str(refused.value)

    (server.cluster.kubeconfig.parent / "crds.yaml").write_text(helm("show", "crds", str(CHART)))
    file = str(server.cluster.kubeconfig.parent / "crds.yaml")
    server.run("apply", "--server-side", "--force-conflicts", "-f", file)
    helm("upgrade", RELEASE, str(CHART), "--set", shape(server))
    server.run("delete", "crd", definition)
    with pytest.raises(ClusterError, match=r"older than .* or missing"):
        helm("upgrade", RELEASE, str(CHART), "--set", shape(server))

    helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    server.run("delete", "namespace", NAMESPACE, "--timeout=60s")
    server.run("delete", "-f", str(CHART / "crds"), "--ignore-not-found", "--timeout=60s")
