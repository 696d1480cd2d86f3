"""Uninstall takes what an installation has written, and nothing else, on a real API server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench.cluster import Spec
from bench.cluster.installation import REPOSITORY
from serried.api.names import INSTALLATION
from tests.e2e.manifests.server import KUSTOMIZE, NAMESPACE, Json, Server, eventually
from tests.support.clusters import run_cluster
from tests.support.commands import done_line

pytestmark = [pytest.mark.e2e]

SHARED = "shared"
"""A namespace in which Serried is installed beside other things."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster without anything of ours."""
    spec = Spec("uninstall", nodes=1, racks=1, blocks=1, api="fallback", hold="filter", serried=False)
    with run_cluster(spec, tmp_path_factory) as cluster:
        yield Server(cluster, tmp_path_factory.mktemp("objects"))


def ask(server: Server, *options: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.app import main; raise SystemExit(main())"]
    return subprocess.run(
        [*command, "uninstall", "--yes", "--kubeconfig", str(kubeconfig or server.cluster.kubeconfig), *options],
        capture_output=True, text=True, check=False, timeout=180, cwd=REPOSITORY,
    )  # fmt: skip


def uninstall(server: Server, *options: str) -> str:
    done = ask(server, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tell_all(would: str) -> str:
    """Return the lines that are printed when the removals announced by these lines of a dry run are done."""
    return "".join(map(done_line, would.splitlines(keepends=True)))


def apply_in(server: Server, namespace: str) -> None:
    """Apply the manifests as Helm does in an existing namespace: the same objects with its name, and no Namespace."""
    text = server.run("kustomize", str(KUSTOMIZE / "overlays" / "isolated")).replace(NAMESPACE, namespace)
    server.write("apply", *(each for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"))


def labelled(server: Server) -> set[str]:
    return {
        place
        for place, each in server.list_objects().items()
        if INSTALLATION in each["metadata"].get("labels", {}) and not place.startswith("customresourcedefinitions")
    }


def claim(name: str, namespace: str) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def test_a_namespace_with_a_claim_of_others_stays_and_goes_without_it(server: Server) -> None:
    server.apply("overlays/isolated")
    server.write("create", claim("dataset", NAMESPACE))
    would = uninstall(server, "--dry-run")
    assert uninstall(server) == tell_all(would)
    assert would.endswith(f"would leave namespace {NAMESPACE}: it contains persistentvolumeclaims dataset\n")
    assert labelled(server) == {f"namespaces/{NAMESPACE}"}

    server.run("delete", "pvc", "dataset", "-n", NAMESPACE, "--timeout=60s")
    assert uninstall(server).endswith(f"deleted namespaces {NAMESPACE}\n")
    assert labelled(server) == set()


def test_a_shared_namespace_stays_and_a_wrong_one_is_refused(server: Server) -> None:
    for name in (SHARED, "training-data"):
        server.run("create", "namespace", name)
        server.write("create", claim("dataset", name))
    apply_in(server, SHARED)
    before = labelled(server)
    done = ask(server, "--serried-namespace", "training-data")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Serried is not installed in namespace training-data, but in {SHARED}" in done.stderr
    assert labelled(server) == before

    would = uninstall(server, "--serried-namespace", SHARED, "--dry-run", "--purge")
    assert labelled(server) == before
    assert uninstall(server, "--serried-namespace", SHARED, "--purge") == tell_all(would)
    assert would.endswith(f"would leave namespace {SHARED}: Serried did not create it\n")
    assert labelled(server) == set()
    for name in (SHARED, "training-data"):
        assert server.get("pvc", "dataset", "-n", name)["metadata"]["name"] == "dataset"
    done = ask(server, "--serried-namespace", SHARED)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_viewer_is_told_so_before_the_first_step(server: Server) -> None:
    server.apply("overlays/isolated")
    before = labelled(server)
    server.run("create", "serviceaccount", "viewer", "-n", "default")
    server.run("create", "clusterrolebinding", "viewer", "--clusterrole=view", "--serviceaccount=default:viewer")
    server.run("create", "clusterrole", "reader", "--verb=get,list", "--resource=*.*")
    done = as_account(server, "viewer")
    assert (done.returncode, done.stdout) == (1, "")
    assert "you may not list " in done.stderr
    assert done.stderr.count("\n") == 1

    server.run("create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:viewer")
    eventually(lambda: "you may not delete " in as_account(server, "viewer").stderr)
    assert labelled(server) == before
    uninstall(server, "--purge")


def as_account(server: Server, name: str) -> subprocess.CompletedProcess[str]:
    """Uninstall with the token of a ServiceAccount."""
    return ask(server, kubeconfig=write_kubeconfig(server, name, "default"))


def write_kubeconfig(server: Server, account: str, namespace: str) -> Path:
    """A kubeconfig with the token of a ServiceAccount, beside that of the cluster."""
    kubeconfig = server.cluster.kubeconfig
    own = kubeconfig.with_name(f"{account}.kubeconfig")
    config = json.loads(server.run("config", "view", "--raw", "-o", "json"))
    token = server.run("create", "token", account, "-n", namespace).strip()
    config["users"] = [{"name": account, "user": {"token": token}}]
    for each in config["contexts"]:
        each["context"]["user"] = account
    for each in config["clusters"]:
        if "certificate-authority" in each["cluster"]:
            authority = each["cluster"]["certificate-authority"]
            each["cluster"]["certificate-authority"] = str(kubeconfig.parent / authority)
    own.write_text(json.dumps(config))
    return own


def test_a_job_that_waits_is_suspended_and_resumed_for_another_scheduler(server: Server) -> None:
    server.apply("overlays/isolated")
    container = {"name": "c", "image": "none"}
    template = {"spec": {"schedulerName": "serried", "restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    metadata = {"name": "train", "namespace": "default"}
    server.write("create", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    eventually(lambda: len(server.get("pods", "-n", "default")["items"]) == 2, 30)
    said = uninstall(server, "--hand-to", "default-scheduler", "--purge")
    assert "suspended jobs.batch default/train\n" in said
    assert "resumed jobs.batch default/train\n" in said
    eventually(lambda: all("nodeName" in pod["spec"] for pod in server.get("pods", "-n", "default")["items"]), 60)
    job = server.get("job", "train", "-n", "default")
    assert not job["status"].get("failed")
    assert "scheduling.serried.dev/suspended" not in job["metadata"].get("labels", {})
    server.run("delete", "job", "train", "-n", "default", "--timeout=60s")
