"""Helm installs, upgrades, rolls back and removes Serried in a real cluster, and leaves nothing but the CRDs behind."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.chart.__main__ import CHART
from bench.cluster import ClusterError, Spec
from bench.cluster.installation import REPOSITORY
from bench.cluster.release import HELM_VERSIONS
from serried import __version__
from serried.api.level import NEWEST_MINOR
from tests.e2e.manifests.charts import RELEASE, Helm, find_helm, read_objects, registry
from tests.e2e.manifests.server import GROUP, NAMESPACE, Json, Server, eventually, pod
from tests.e2e.manifests.test_uninstall import ask, write_kubeconfig
from tests.support.clusters import on_kubernetes, run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

DEFINITIONS = {f"customresourcedefinitions.apiextensions.k8s.io/{name}.{GROUP}" for name in (
    "compositepodgroups", "podgroups", "reservations", "topologylevels", "workloads",
)} | {f"apiservices.apiregistration.k8s.io/v1beta1.{GROUP}"}  # fmt: skip
"""The objects that Helm leaves: it deletes no CRDs."""

HELD = {"name": f"{GROUP}/held"}
"""Serried's gate."""

OPERATORS = {"monitoring.enabled=true": "the Prometheus operator", "tls.issuer.name=ca": "cert-manager"}
"""Values, and what of others they need."""

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
    with run_cluster(spec, tmp_path_factory) as cluster:
        server = Server(cluster, tmp_path_factory.mktemp("objects"))
        eventually(lambda: has_its_own_objects(server), 30)
        yield server


def has_its_own_objects(server: Server) -> bool:
    """Return whether each namespace has its ServiceAccount: controllers make them a while after the cluster is up."""
    accounts = [each for each in server.get("serviceaccounts", "-A")["items"] if each["metadata"]["name"] == "default"]
    return len(accounts) == len(server.get("namespaces")["items"])


@pytest.fixture(params=HELM_VERSIONS)
def helm(request: pytest.FixtureRequest, server: Server) -> Callable[..., str]:
    """Helm with the credentials of the cluster."""
    found: Helm = find_helm(request.param)
    kubeconfig = str(server.cluster.kubeconfig)

    def run(*arguments: str, namespace: str = NAMESPACE) -> str:
        return found.run(*arguments, "--kubeconfig", kubeconfig, "--namespace", namespace)

    return run


def shape(server: Server) -> str:
    return "shape=base" if server.cluster.spec.minor == 35 else "shape=isolated"


def replicas(server: Server) -> int:
    return int(server.get("deployment", "serried", "-n", NAMESPACE)["spec"]["replicas"])


def test_the_life_of_a_release(server: Server, helm: Callable[..., str]) -> None:
    before = set(server.list_objects())
    for value, missing in OPERATORS.items():
        with pytest.raises(ClusterError, match=f"{value.partition('=')[0]} needs {missing}"):
            helm("install", RELEASE, str(CHART), "--create-namespace", "--set", f"{shape(server)},{value}")
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

    helm("uninstall", RELEASE, "--no-hooks", "--wait", "--timeout", "60s")
    server.run("delete", "namespace", NAMESPACE, "--timeout=60s")
    assert set(server.list_objects()) - before == DEFINITIONS
    server.run("delete", "-f", str(CHART / "crds"), "--timeout=60s")
    assert set(server.list_objects()) == before


def test_uninstall_frees_what_waits_by_a_hook_that_may_nothing_else(server: Server, helm: Callable[..., str]) -> None:
    before = install_beside_a_gang(server, helm)
    members = {each["metadata"]["uid"] for each in members_of_the_gang(server)}
    with ThreadPoolExecutor() as others:
        removal = others.submit(helm, "uninstall", RELEASE, "--timeout", "120s")
        name, words = wait_for_hook(server)
        account = write_kubeconfig(server, "serried-uninstall", NAMESPACE)
        command = [sys.executable, *words, "--kubeconfig", str(account)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=REPOSITORY)
        assert done.returncode == 0, done.stdout + done.stderr
        ended = json.dumps({"status": {"phase": "Succeeded"}})
        server.run("patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", ended)
        removal.result()
    assert {each["metadata"]["uid"] for each in members_of_the_gang(server)} == members
    assert held(server) == 0
    remove_the_gang(server)
    assert set(server.list_objects()) - before == DEFINITIONS
    server.run("delete", "-f", str(CHART / "crds"), "--timeout=60s")


def test_a_hook_that_does_not_end_holds_nothing_up_and_the_command_does_its_work(
    server: Server, helm: Callable[..., str]
) -> None:
    before = install_beside_a_gang(server, helm)
    with pytest.raises(ClusterError):  # nobody stands in for the hook's pod, as where its image cannot be pulled
        helm("uninstall", RELEASE, "--timeout", "5s")
    with pytest.raises(ClusterError, match="not found"):
        helm("status", RELEASE)
    assert server.get("deployments", "-n", NAMESPACE)["items"] == []
    done = ask(server, "--purge")
    assert done.returncode == 0, done.stdout + done.stderr
    assert held(server) == 0
    remove_the_gang(server)
    assert set(server.list_objects()) == before


def install_beside_a_gang(server: Server, helm: Callable[..., str]) -> set[str]:
    """Install the chart, and create a gang that waits by gates; the objects that were there before."""
    before = set(server.list_objects())
    helm("install", RELEASE, str(CHART), "--create-namespace", "--wait", "--timeout", "120s", "--set", shape(server))
    server.run("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    # The gates are in the template: after an earlier release no API server follows the ConfigMap of the policy
    # (kubernetes/kubernetes#130887), which test_gone.py tells.
    pods = {"schedulerName": "serried", "restartPolicy": "Never", "schedulingGates": [HELD]}
    template = {"spec": {**pods, "containers": [{"name": "c", "image": "none"}]}}
    spec = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "template": template}
    metadata = {"name": "waits", "namespace": "default"}
    server.write("create", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    eventually(lambda: held(server) == 3, 30)
    return before


def members_of_the_gang(server: Server) -> list[Json]:
    return list(server.get("pods", "-n", "default", "-l", "batch.kubernetes.io/job-name=waits")["items"])


def held(server: Server) -> int:
    return sum(HELD in each["spec"].get("schedulingGates", ()) for each in members_of_the_gang(server))


def remove_the_gang(server: Server) -> None:
    server.run("delete", "job", "waits", "-n", "default", "--timeout=60s")
    eventually(lambda: members_of_the_gang(server) == [], 30)
    server.run("delete", "namespace", NAMESPACE, "--timeout=60s")


def wait_for_hook(server: Server) -> tuple[str, list[str]]:
    """The name of the hook's pod when it runs, and what stands behind python in its command."""
    selected = ("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=serried-uninstall")
    eventually(lambda: [each["status"]["phase"] for each in server.get(*selected)["items"]] == ["Running"], 90)
    (found,) = server.get(*selected)["items"]
    (container,) = found["spec"]["containers"]
    return found["metadata"]["name"], [*container["command"][1:], *container["args"]]


def test_the_command_takes_a_release_out_of_a_shared_namespace(server: Server, helm: Callable[..., str]) -> None:
    before = set(server.list_objects())
    server.run("create", "namespace", "shared")
    server.run("create", "configmap", "theirs", "-n", "shared")
    helm("install", RELEASE, str(CHART), "--wait", "--timeout", "120s", "--set", shape(server), namespace="shared")
    done = ask(server, "--purge", "--serried-namespace", "shared")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left namespace shared: Serried did not create it\n" in done.stdout
    record = f"left the record of Helm's release {RELEASE}: helm uninstall {RELEASE} --namespace shared --no-hooks\n"
    assert done.stdout.endswith(record)
    helm("uninstall", RELEASE, "--no-hooks", "--wait", "--timeout", "60s", namespace="shared")
    assert "theirs" in server.run("get", "configmaps", "-n", "shared")
    server.run("delete", "namespace", "shared", "--timeout=60s")
    assert set(server.list_objects()) == before


def test_the_notes_say_it_if_nobody_has_tried_this_kubernetes(
    server: Server, helm: Callable[..., str], tmp_path: Path
) -> None:
    older = tmp_path / "chart"
    shutil.copytree(CHART, older)
    about = older / "Chart.yaml"
    about.write_text(about.read_text().replace(f'newest-tested: "1.{NEWEST_MINOR}"', 'newest-tested: "1.34"'))
    options = ["--set", shape(server), "--dry-run=server"]
    minor = server.cluster.spec.minor
    said = f"WARNING: Kubernetes 1.{minor} is not tested with Serried {__version__}; the newest tested is 1.34."
    assert said in helm("install", RELEASE, str(older), *options).splitlines()
    assert "WARNING" not in helm("install", RELEASE, str(CHART), *options)


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

    helm("uninstall", RELEASE, "--no-hooks", "--wait", "--timeout", "60s")
    server.run("delete", "namespace", NAMESPACE, "--timeout=60s")
    server.run("delete", "-f", str(CHART / "crds"), "--ignore-not-found", "--timeout=60s")


def test_in_a_namespace_of_another_name_accounts_may_what_they_need_and_policies_limit_them(
    server: Server, helm: Callable[..., str]
) -> None:
    before = set(server.list_objects())
    options = ["--wait", "--timeout", "120s", "--set", shape(server)]
    with pytest.raises(ClusterError, match="run: kubectl label namespace gangs pod-security"):
        helm("install", RELEASE, str(CHART), *options, "--set", "namespace.create=true", namespace="gangs")
    notes = helm("install", RELEASE, str(CHART), "--create-namespace", *options, namespace="gangs")
    assert "kubectl label namespace gangs pod-security.kubernetes.io/enforce=restricted" in notes
    server.run("label", "namespace", "gangs", "pod-security.kubernetes.io/enforce=restricted")
    account = "system:serviceaccount:gangs:serried"
    for right in (["update", "leases/serried"], ["create", "pods", "--subresource=binding"]):
        assert server.run("auth", "can-i", *right, "-n", "gangs", "--as", account).strip() == "yes"
    server.write("create", pod("victim"))
    said = "may delete no pods but those that say that they are preempted"
    delete = ("delete", "pod", "victim", "--force", "--grace-period=0", "--as", account, "--dry-run=server")
    eventually(lambda: said in refusal(server, *delete))
    server.run("delete", "pod", "victim", "--force", "--grace-period=0")

    assert "kubectl label" not in helm("upgrade", RELEASE, str(CHART), *options, namespace="gangs")
    helm("uninstall", RELEASE, "--no-hooks", "--wait", "--timeout", "60s", namespace="gangs")
    server.run("delete", "namespace", "gangs", "--timeout=60s")
    server.run("delete", "-f", str(CHART / "crds"), "--timeout=60s")
    assert set(server.list_objects()) == before


def refusal(server: Server, *command: str) -> str:
    """Return the message with which the command is refused; "" if it is not."""
    try:
        server.run(*command)
    except ClusterError as error:
        return str(error)
    return ""


def test_the_cluster_s_own_scheduler_finds_its_configuration_and_the_service(
    server: Server, helm: Callable[..., str]
) -> None:
    if not server.cluster.spec.has_mutating_policies:
        pytest.skip("this shape needs Kubernetes 1.36")
    parts = "compatible.enabled=true,labelledNamespaces.enabled=true,networkPolicy.enabled=true"
    wanted = f"shape=control-plane,{parts}"
    notes = helm("install", RELEASE, str(CHART), "--create-namespace", "--wait", "--timeout", "120s", "--set", wanted)
    assert f"kubectl label namespace {NAMESPACE} pod-security.kubernetes.io/enforce=restricted" in notes
    (name,) = (
        each["metadata"]["name"]
        for each in server.get("configmaps", "-n", NAMESPACE)["items"]
        if each["metadata"]["name"].startswith("serried-scheduler-config")
    )
    assert name in notes
    config = server.get("configmap", name, "-n", NAMESPACE)["data"]["scheduler-config.yaml"]
    assert f"https://serried-verbs.{NAMESPACE}.svc:8910" in config
    assert {port["port"] for port in server.get("service", "serried-verbs", "-n", NAMESPACE)["spec"]["ports"]} == {
        8910,
        8911,
    }
    deployment = server.get("deployment", "serried", "-n", NAMESPACE)
    (extender,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--filter-listen=[::]:8910" in extender["args"]

    helm("uninstall", RELEASE, "--no-hooks", "--wait", "--timeout", "60s")
    kept = "customresourcedefinition/podgroups.scheduling.x-k8s.io"
    with pytest.raises(ClusterError, match="Leave the value out"):
        helm("install", RELEASE, str(CHART), "--set", wanted, namespace="team")
    server.run("delete", kept, f"namespace/{NAMESPACE}", "--timeout=60s")
    server.run("delete", "-f", str(CHART / "crds"), "--timeout=60s")


def test_from_a_registry_the_same_is_installed_as_from_the_folder(
    server: Server, helm: Callable[..., str], tmp_path: Path
) -> None:
    with registry() as address:
        helm("package", str(CHART), "--destination", str(tmp_path))
        helm("push", str(tmp_path / f"serried-{__version__}.tgz"), f"oci://{address}/charts", "--plain-http")
        source = [f"oci://{address}/charts/serried", "--version", __version__, "--plain-http"]
        options = ["--create-namespace", "--wait", "--timeout", "120s", "--set", shape(server)]
        helm("install", RELEASE, *source, *options)
        assert len(server.get("pods", "-n", NAMESPACE)["items"]) == 4
        installed = helm("get", "manifest", RELEASE)
        helm("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values")
        assert read_objects(helm("get", "manifest", RELEASE)) == read_objects(installed)
        definitions = read_objects(helm("show", "crds", *source))
    helm("uninstall", RELEASE, "--no-hooks", "--wait", "--timeout", "60s")
    server.run("delete", "namespace", NAMESPACE, "--timeout=60s")
    assert len(definitions) == len(list((CHART / "crds").iterdir()))
    server.run("delete", "-f", str(CHART / "crds"), "--timeout=60s")
