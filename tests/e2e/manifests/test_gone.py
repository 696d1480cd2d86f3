"""Serried goes and leaves nothing, whichever way it is taken out, also when nobody of it is alive."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.installation import REPOSITORY
from bench.cluster.spec import DEFAULT_VERSION
from tests.e2e.manifests.server import GROUP, KUSTOMIZE, NAMESPACE, Json, Server, eventually
from tests.support.clusters import LEVELS, on_kubernetes, on_older_kubernetes, run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

TEAM = "team"
GATE = f"{GROUP}/held"
_REFRESH_SECONDS = 3.0
"""Longer than an API server takes to go by the policies that there are."""

ALIVE = pytest.mark.parametrize("state", ["alive", "dead"])


WITH_GATES = [
    *(f"{DEFAULT_VERSION} {level}" for level in LEVELS),
    *(on_older_kubernetes("1.36.4", level) for level in LEVELS),
]
WITHOUT_GATES = [on_older_kubernetes("1.35.4", level) for level in LEVELS]


@pytest.fixture(params=[*WITH_GATES, *WITHOUT_GATES])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster with Serried, one gang that runs and one that waits for a rack of its size, held by gates from 1.36."""
    version, level = request.param.split()
    spec = Spec(f"gone-{level}", nodes=6, racks=3, blocks=1, api=level, hold="filter", kubernetes=version)
    if spec.has_mutating_policies:
        spec = replace(spec, hold="gate", isolated=True)
    with run_cluster(spec, tmp_path_factory) as cluster:
        server = Server(cluster, tmp_path_factory.mktemp("objects"))
        server.apply(overlay(server))
        server.run("create", "namespace", TEAM)
        server.write("create", gang("runs", 4, "1"), gang("waits", 4, "30"))
        eventually(lambda: bound(server, "runs") == 4, 60)
        eventually(lambda: waits(server), 30)
        yield server


def overlay(server: Server) -> str:
    return "overlays/isolated" if server.cluster.spec.has_mutating_policies else "base"


def gang(name: str, size: int, cpu: str) -> Json:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    template = {"spec": {"schedulerName": "serried", "restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": template}
    annotations = {f"{GROUP}/required-topology": "topology.serried.dev/rack"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM, "annotations": annotations},
        "spec": spec,
    }


def pods(server: Server, job: str) -> list[Json]:
    return list(server.get("pods", "-n", TEAM, "-l", f"batch.kubernetes.io/job-name={job}")["items"])


def bound(server: Server, job: str) -> int:
    return sum("nodeName" in pod["spec"] for pod in pods(server, job))


def held(server: Server) -> int:
    return sum({"name": GATE} in pod["spec"].get("schedulingGates", ()) for pod in pods(server, "waits"))


def waits(server: Server) -> bool:
    """Return whether all pods of the gang that waits are held, by a gate or by the filter."""
    if server.cluster.spec.hold == "gate":
        return held(server) == 4
    conditions = [pod["status"].get("conditions", ()) for pod in pods(server, "waits")]
    return len(conditions) == 4 and all(any(each["type"] == "PodScheduled" for each in own) for own in conditions)


def kill(cluster: Cluster) -> None:
    """Kill all processes of Serried, as where its Deployments are gone."""
    for name in ("extender", "controller", "scheduler"):
        cluster.kill(name)


def uninstall(server: Server, *options: str) -> str:
    done = ask(server, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ask(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.app import main; raise SystemExit(main())"]
    return subprocess.run(
        [*command, "uninstall", "--yes", "--kubeconfig", str(server.cluster.kubeconfig), *options],
        capture_output=True, text=True, check=False, timeout=180, cwd=REPOSITORY,
    )  # fmt: skip


def traces(server: Server) -> dict[str, str]:
    """Objects that say anything of Serried, but for the Jobs of people and their pods, with the place that does."""
    found = {}
    for place, item in server.list_objects().items():
        item["metadata"].pop("managedFields", None)
        text = json.dumps(item)
        if "serried" in text and place.split("/")[0] not in {"jobs.batch", "pods", "nodes"}:
            found[place] = text[max(0, text.index("serried") - 60) :][:120]
    return found


@ALIVE
def test_kubectl_delete_does_not_hang_and_the_command_takes_what_it_leaves(server: Server, state: str) -> None:
    if state == "dead":
        kill(server.cluster)
    server.run("delete", "-k", str(KUSTOMIZE / overlay(server)), "--timeout=90s")
    kill(server.cluster)
    uninstall(server)
    server.run("delete", "jobs", "--all", "-n", TEAM, "--timeout=60s")
    server.run("delete", "namespace", TEAM, "--timeout=60s")
    assert traces(server) == {}


def test_the_command_frees_what_waits_and_leaves_what_runs(server: Server) -> None:
    running_before = {pod["metadata"]["uid"] for pod in pods(server, "runs")}
    kill(server.cluster)
    said = uninstall(server, "--purge")
    assert held(server) == 0
    if server.cluster.spec.hold == "gate":
        assert f"freed pods {TEAM}/waits-0" in said
    assert {pod["metadata"]["uid"] for pod in pods(server, "runs")} == running_before
    for pod in (*pods(server, "runs"), *pods(server, "waits")):
        assert f"{GROUP}/pod-group" not in pod["metadata"].get("labels", {})
        assert "nominatedNodeName" not in pod["status"]
    assert traces(server) == {}
    server.run("delete", "namespace", TEAM, "--timeout=60s")


@pytest.mark.parametrize("server", WITHOUT_GATES, indirect=True)
def test_where_no_policy_could_hand_pods_over_the_command_says_so_and_changes_nothing(server: Server) -> None:
    before = traces(server)
    done = ask(server, "--hand-to", "default-scheduler")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--hand-to needs MutatingAdmissionPolicies, of Kubernetes 1.36 and newer" in done.stderr
    assert traces(server).keys() == before.keys()


@pytest.mark.parametrize("server", WITH_GATES, indirect=True)
def test_waiting_pods_are_handed_to_another_scheduler(server: Server) -> None:
    kill(server.cluster)
    uninstall(server, "--hand-to", "default-scheduler")
    # Two of them fit on each node, and now no rack is asked for.
    eventually(lambda: bound(server, "waits") == 4, 60)
    assert {pod["spec"]["schedulerName"] for pod in pods(server, "waits")} == {"default-scheduler"}
    assert bound(server, "runs") == 4
    job = server.get("job", "waits", "-n", TEAM)
    assert not job["status"].get("failed")
    assert not job["spec"].get("suspend")


@pytest.mark.parametrize("version", ["1.37.1", on_kubernetes("1.36.4")])
def test_a_policy_that_was_gone_follows_its_config_map_once_the_api_server_has_started_again(
    tmp_path_factory: pytest.TempPathFactory, version: str
) -> None:
    """kubernetes/kubernetes#130887: without bindings the watch of ConfigMaps ends, and none begins after that."""
    spec = Spec("param", nodes=1, racks=1, blocks=1, api="fallback", kubernetes=version, hold="filter", serried=False)
    with run_cluster(spec, tmp_path_factory) as cluster:
        server = Server(cluster, tmp_path_factory.mktemp("objects"))
        server.apply("overlays/isolated")
        server.patch("configmap/serried-hold", {"data": {"hold": "gate"}}, "-n", NAMESPACE)
        eventually(lambda: gates(server))
        server.run(
            "delete",
            "mutatingadmissionpolicybindings",
            "serried-gate",
            "serried-marker",
            "serried-namespaces",
            "--ignore-not-found",
        )
        eventually(lambda: not gates(server))
        time.sleep(_REFRESH_SECONDS)
        server.apply("gate")
        eventually(lambda: gates(server))
        server.patch("configmap/serried-hold", {"data": {"hold": "filter"}}, "-n", NAMESPACE)
        time.sleep(_REFRESH_SECONDS)
        assert gates(server)
        cluster.restart("kube-apiserver")
        eventually(lambda: not gates(server), 30)


def gates(server: Server) -> bool:
    """Return whether a member that is created now would get our gate."""
    container = {"name": "c", "image": "none"}
    metadata = {"name": "member", "namespace": "default", "labels": {f"{GROUP}/pod-group": "g"}}
    spec = {"schedulerName": "serried", "containers": [container]}
    member = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    (made,) = server.write("create", member, options=("--dry-run=server",))
    return {"name": GATE} in made["spec"].get("schedulingGates", ())
