"""The real controllers of JobSet and LeaderWorkerSet, built from their modules and run beside a cluster.

Their webhooks are configured as their modules say, with a URL of this machine in place of a Service.
"""

import base64
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cluster import Cluster, Spec
from bench.cluster.binaries import cache
from bench.cluster.build import environment
from bench.cluster.ports import LOOPBACK, pick
from bench.cluster.processes import Process, spawn, stop, tail
from tests.support.cluster_stage import eventually
from tests.support.clusters import run_cluster
from tests.support.go_modules import locate

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True)
class Operator:
    """A controller with webhooks. ``member`` is the label that its pods carry, the others are paths in its module."""

    name: str
    module: str
    version: str
    package: str
    crds: str
    webhooks: str
    member: str

    @property
    def source(self) -> Path:
        """Return the folder of the operator's module in Go's cache."""
        return locate(self.module, self.version)


JOB_SET = Operator(
    "jobset", "sigs.k8s.io/jobset", "v0.12.0", ".", "config/components/crd/bases",
    "config/components/webhook/manifests.yaml", "jobset.sigs.k8s.io/jobset-name",
)  # fmt: skip
LEADER_WORKER_SET = Operator(
    "lws", "sigs.k8s.io/lws", "v0.9.0", "./cmd", "config/crd/bases",
    "config/webhook/manifests.yaml", "leaderworkerset.sigs.k8s.io/name",
)  # fmt: skip


def build(operator: Operator) -> Path:
    """The binary: minutes the first time, then from the cache."""
    binary = cache() / "operators" / f"{operator.name}-{operator.version}"
    if not binary.is_file():
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_suffix(f".{os.getpid()}")
        command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o", str(fresh), operator.package]
        done = subprocess.run(
            command, cwd=operator.source, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        fresh.replace(binary)
    return binary


@contextmanager
def at_work(spec: Spec, directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster in which both controllers are at work."""
    operators = (JOB_SET, LEADER_WORKER_SET)
    for operator in operators:
        build(operator)
    with run_cluster(spec, directories) as cluster:
        processes = []
        try:
            for operator in operators:
                install(operator, cluster)
                processes.append(run(operator, cluster, directories.mktemp(operator.name)))
            yield cluster
        finally:
            stop(processes)


def install(operator: Operator, cluster: Cluster) -> None:
    """Create the operator's CRDs and wait until their kinds are served."""
    cluster.kubectl("create", "-f", str(operator.source / operator.crds))
    eventually("served kinds", lambda: all(_is_established(crd) for crd in cluster.api.get(_CRDS)["items"]))


def _is_established(crd: dict[str, Any]) -> bool:
    # kubectl wait gives up on a CRD that has no conditions yet.
    conditions = crd.get("status", {}).get("conditions") or []
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


def run(operator: Operator, cluster: Cluster, directory: Path) -> Process:
    """The controller at work, its webhooks called by the API server."""
    ports = pick(["webhook", "health"], taken=())
    config = directory / f"{operator.name}.yaml"
    config.write_text(yaml.safe_dump(_configuration(operator, ports, _certificates(cluster, directory))))
    argv = [str(build(operator)), "--config", str(config)]
    log = directory / f"{operator.name}.log"
    process = spawn(argv, log, directory, os.environ | {"KUBECONFIG": str(cluster.kubeconfig)})
    eventually(f"{operator.name}'s webhook", lambda: "Serving webhook server" in log.read_text(), 60)
    hooks = directory / f"{operator.name}-webhooks.yaml"
    hooks.write_text(yaml.safe_dump_all(_webhooks(operator, cluster, ports["webhook"])))
    cluster.kubectl("create", "-f", str(hooks))
    assert process.alive, tail(log)
    return process


def _configuration(operator: Operator, ports: dict[str, int], certificates: Path) -> dict[str, Any]:
    return {
        "apiVersion": f"config.{operator.name}.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": LOOPBACK, "port": ports["webhook"], "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{ports['health']}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }


def _pki(cluster: Cluster) -> Path:
    return cluster.kubeconfig.parent / "pki"


def _certificates(cluster: Cluster, directory: Path) -> Path:
    """The cluster's own certificate, which is one for servers on loopback too, by the names that webhooks look for."""
    certificates = directory / "certificates"
    certificates.mkdir(exist_ok=True)
    for name, ending in (("tls.crt", "crt"), ("tls.key", "key")):
        (certificates / name).write_bytes((_pki(cluster) / f"admin.{ending}").read_bytes())
    return certificates


def _webhooks(operator: Operator, cluster: Cluster, port: int) -> Iterator[dict[str, Any]]:
    authority = base64.b64encode((_pki(cluster) / "ca.crt").read_bytes()).decode()
    for configuration in yaml.safe_load_all((operator.source / operator.webhooks).read_text()):
        configuration["metadata"]["name"] = f"{operator.name}-{configuration['metadata']['name']}"
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://{LOOPBACK}:{port}{path}", "caBundle": authority}
            if hook["rules"][0]["resources"] == ["pods"]:
                hook["objectSelector"] = {"matchExpressions": [{"key": operator.member, "operator": "Exists"}]}
        yield configuration
