"""The harness itself against the real control plane, without Serried in it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster, Spec, cluster, kwok, nodes, processes, state
from bench.cluster.errors import ClusterError

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: plain, namespace: default}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  template:
    metadata: {annotations: {bench.serried.dev/succeed-after: 1s}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: none, resources: {requests: {cpu: "1"}}}]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.STATE, str(tmp_path_factory.mktemp("state")))
        yield state.root()


@pytest.fixture(scope="module")
def pair(root: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """A native and a fallback cluster side by side."""
    native = Cluster.up(Spec(name="native", nodes=40, racks=4, blocks=2, zones=2, serried=False))
    try:
        fallback = Cluster.up(Spec(name="fallback", nodes=10, racks=1, blocks=1, api="fallback", serried=False))
        try:
            yield native, fallback
        finally:
            fallback.down()
    finally:
        native.down()


def test_nodes_are_ready_and_labelled(pair: tuple[Cluster, Cluster]) -> None:
    native, fallback = pair

    assert nodes.ready_nodes(native.api) == 40
    assert nodes.ready_nodes(fallback.api) == 10
    racks = native.kubectl("get", "nodes", "-l", f"{nodes.RACK}=rack-3,{nodes.BLOCK}=block-1,{nodes.ZONE}=zone-1")
    assert len(racks.splitlines()) == 11


def test_only_native_serves_the_workload_api(pair: tuple[Cluster, Cluster]) -> None:
    native, fallback = pair

    assert "podgroups" in native.kubectl("api-resources", "--api-group=scheduling.k8s.io")
    assert "podgroups" not in fallback.kubectl("api-resources", "--api-group=scheduling.k8s.io")


def test_the_clusters_share_nothing(pair: tuple[Cluster, Cluster]) -> None:
    native, fallback = pair

    assert native.server != fallback.server
    assert set(native.pids.values()).isdisjoint(fallback.pids.values())
    assert all(native.alive.values())
    assert all(fallback.alive.values())
    assert [found["name"] for found in cluster.status()] == ["fallback", "native"]


def test_a_component_that_gave_up_before_the_api_server_was_there_is_started_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_running = kwok.running

    def end_one(place: state.Place) -> dict[str, processes.Process]:
        found = find_running(place)
        processes.stop([found["kube-controller-manager"]])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(kwok, "running", end_one)
        started = Cluster.up(Spec(name="again", nodes=1, racks=1, blocks=1, serried=False))
    try:
        assert all(started.alive.values())
    finally:
        started.down()


def test_a_job_runs_and_ends(pair: tuple[Cluster, Cluster]) -> None:
    native, _ = pair
    command = [str(native.kubectl_program), "--kubeconfig", str(native.kubeconfig), "create", "-f", "-"]
    subprocess.run(command, input=JOB, text=True, check=True, capture_output=True)

    native.kubectl("wait", "--for=condition=complete", "--timeout=60s", "job/plain")


def test_tokens_are_issued_and_rbac_is_enforced(pair: tuple[Cluster, Cluster]) -> None:
    native, _ = pair
    native.kubectl("create", "serviceaccount", "somebody")
    token = native.kubectl("create", "token", "somebody").strip()
    admin = native.kubeconfig.parent / "pki" / "ca.crt"
    arguments = ("--server", native.server, "--certificate-authority", str(admin), "--token", token)
    command = [str(native.kubectl_program), "--kubeconfig", "/dev/null", *arguments, "get", "nodes"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "Forbidden" in done.stderr
    assert "system:serviceaccount:default:somebody" in done.stderr


def test_down_leaves_no_process_and_no_directory(root: Path) -> None:
    started = Cluster.up(Spec(name="short", nodes=1, racks=1, blocks=1, serried=False))
    pids = started.pids
    with pytest.raises(ClusterError, match="exists already"):
        Cluster.up(Spec(name="short"))

    started.down()

    assert len(pids) == 5
    assert all(processes.start_time(pid) is None for pid in pids.values())
    assert not (root / "short").exists()


def test_a_component_that_cannot_start_is_named_and_nothing_is_left(root: Path) -> None:
    with pytest.raises(ClusterError, match=r"(?s)kube-apiserver.*NoSuchGate"):
        Cluster.up(Spec(name="broken", nodes=1, racks=1, blocks=1, serried=False, server_gates=("NoSuchGate=true",)))

    assert not (root / "broken").exists()
