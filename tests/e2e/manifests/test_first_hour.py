"""From nothing to a gang that runs with one command, in under a minute; and when it is taken out, nothing is left."""

import copy
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from bench.cluster import Spec
from bench.cluster.errors import ClusterError
from bench.cluster.installation import REPOSITORY
from serried import __version__
from tests.e2e.manifests.server import NAMESPACE, Json, Server, eventually
from tests.support.clusters import LEVELS, on_kubernetes, run_cluster
from tests.support.pod_proxy import PodProxy

pytestmark = [pytest.mark.e2e, pytest.mark.full]

IMAGE = f"registry.example/serried:{__version__}"
MOST_SECONDS = 60.0
TEAM = "team"


@pytest.fixture(
    params=[("1.37.1", level) for level in LEVELS]
    + [on_kubernetes("1.36.4", "1.36.4", "fallback"), on_kubernetes("1.35.4", "1.35.4", "fallback")],
    ids="-".join,
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A fresh control plane with nodes, and nothing of ours."""
    version, level = request.param
    newer = version != "1.35.4"
    spec = Spec(
        f"first-{version.replace('.', '-')}-{level}",
        nodes=6,
        racks=3,
        blocks=1,
        api=level,
        kubernetes=version,
        hold="gate" if newer else "filter",
        isolated=newer,
        one_account=True,
        serried=False,
    )
    with run_cluster(spec, tmp_path_factory) as cluster:
        server = Server(cluster, tmp_path_factory.mktemp("objects"))
        eventually(lambda: has_its_own_objects(server), 60)
        yield server


class Extender(PodProxy):
    """The extender at its address, which says that it listens where the shipped one does: kwok's pods run nothing."""

    def __init__(self, server: Server) -> None:
        self._ports = {
            server.cluster.filter_url: "http://127.0.0.1:8910",
            server.cluster.bind_url: "http://127.0.0.1:8911",
        }
        super().__init__([], {"/debug": f"{server.cluster.ops_url}/debug"})

    def reply(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Return the extender's own answer, with other ports; 503 while it does not run."""
        try:
            status, said = super().reply(method, target, body)
        except httpx.HTTPError:
            return 503, b"{}"
        for own, shipped in self._ports.items():
            said = said.replace(own.removeprefix("http://").encode(), shipped.removeprefix("http://").encode())
        return status, said


@pytest.fixture
def extender(server: Server) -> Iterator[str]:
    with Extender(server) as front:
        yield front.url


def has_its_own_objects(server: Server) -> bool:
    """Return whether each namespace has its ServiceAccount: controllers make them a while after the cluster is up."""
    accounts = [each for each in server.get("serviceaccounts", "-A")["items"] if each["metadata"]["name"] == "default"]
    return len(accounts) == len(server.get("namespaces")["items"])


def begin(server: Server, extender: str, *words: str) -> subprocess.Popen[str]:
    """A command of an administrator."""
    environ = os.environ | {"PYTHONPATH": str(REPOSITORY), "SERRIED_SERVER": extender}
    command = [sys.executable, "-m", "cli", *words, "--kubeconfig", str(server.cluster.kubeconfig)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, cwd=REPOSITORY
    )


def run(server: Server, extender: str, *words: str) -> str:
    done = begin(server, extender, *words)
    said, _ = done.communicate(timeout=180)
    assert done.returncode == 0, said
    return said


def is_installed(server: Server) -> bool:
    try:
        server.get("deployment", "serried-controller", "-n", NAMESPACE)
    except ClusterError:
        return False
    return True


def gang() -> Json:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"schedulerName": "serried", "restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": TEAM}, "spec": spec}


def bound(server: Server) -> int:
    pods = server.get("pods", "-n", TEAM)["items"]
    return sum("nodeName" in pod["spec"] for pod in pods)


def settled(objects: dict[str, Json]) -> dict[str, Json]:
    """All that is said of objects, but for what changes by itself: versions, statuses, and who owns which field."""
    plain = copy.deepcopy(objects)
    for each in plain.values():
        each.pop("status", None)
        for name in ("resourceVersion", "managedFields", "generation"):
            each["metadata"].pop(name, None)
    return plain


def test_one_command_and_a_gang_runs_and_another_one_and_all_is_as_it_was(server: Server, extender: str) -> None:
    before = settled(server.list_objects())
    begun = time.monotonic()
    command = begin(server, extender, "install", "--image", IMAGE)
    eventually(lambda: is_installed(server), 60)
    server.cluster.start_serried()
    said, _ = command.communicate(timeout=120)
    assert command.returncode == 0, said
    assert f"created deployments.apps {NAMESPACE}/serried" in said
    assert "kubectl create -f -" in said
    server.run("create", "namespace", TEAM)
    server.write("create", gang())
    eventually(lambda: bound(server) == 4, 60)
    took = time.monotonic() - begun
    print(f"{took:.1f} s from nothing to a gang that runs")  # noqa: T201 - the time is to be seen
    assert took < MOST_SECONDS

    images = {
        container["image"]
        for pod in server.get("pods", "-n", NAMESPACE)["items"]
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    }
    assert images == {IMAGE, f"registry.k8s.io/kube-scheduler:v{server.cluster.spec.kubernetes}"}
    again = run(server, extender, "install", "--image", IMAGE)
    assert "created" not in again
    assert "changed" not in again

    for name in ("extender", "controller", "scheduler"):
        server.cluster.kill(name)
    server.run("delete", "job", "train", "-n", TEAM, "--timeout=60s")
    run(server, extender, "uninstall", "--purge", "--yes")
    server.run("delete", "namespace", TEAM, "--timeout=60s")
    eventually(lambda: settled(server.list_objects()).keys() == before.keys(), 30)
    assert settled(server.list_objects()) == before
