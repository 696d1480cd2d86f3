"""The real manager of Kueue, built from its module and run beside a cluster.

Installed is what its own kustomization says, as its own ServiceAccount may. The manager is a process of this machine,
so its Service is a name for the loopback address, and its certificates are written where a kubelet would mount them.
"""

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.cluster import Cluster
from bench.cluster.installation import kubeconfig
from bench.cluster.ports import LOOPBACK, pick
from bench.cluster.processes import Process, spawn, stop, tail
from tests.e2e.kinds import operators
from tests.e2e.kinds.operators import JOB_SET, Operator
from tests.support.cluster_stage import eventually

KUEUE = Operator("kueue", "sigs.k8s.io/kueue", "v0.19.1", "./cmd/kueue", "config/default", "", "")

PATIENT: dict[str, Any] = {"timeout": "30m"}
"""``waitForPodsReady`` as it is by default."""

IMPATIENT: dict[str, Any] = {
    "timeout": "8s",
    "recoveryTimeout": "8s",
    "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 1, "backoffMaxSeconds": 2},
}
"""A workload that is not ready 8 s after its admission, or after a loss, is evicted, and requeued within 2 s."""

_NAMESPACE = "kueue-system"
_ACCOUNT = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/kueue-controller-manager/token"
_SECRET = f"/api/v1/namespaces/{_NAMESPACE}/secrets/kueue-webhook-server-cert"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Its aggregated API, and the Pod that the process stands for.
_LEFT_OUT = {"APIService", "Deployment"}

Raw = dict[str, Any]


class Kueue:
    """Kueue in a cluster: `install` creates its objects, `start` starts its manager. ``directory`` is for its files."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._ports = pick(["webhook", "health"], taken=())
        self._certificates = directory / "certificates"
        self._certificates.mkdir()
        self._configuration: Raw = {}
        self._process: Process | None = None

    def install(self) -> None:
        """Create the objects of its kustomization, and its credentials. Return when its kinds are served."""
        rendered = self._cluster.kubectl("kustomize", str(KUEUE.source / KUEUE.crds))
        objects = [each for each in yaml.safe_load_all(rendered) if each["kind"] not in _LEFT_OUT]
        for each in objects:
            self._adapt(each)
        file = self._directory / "kueue.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        self._cluster.kubectl("create", "-f", str(file))
        names = {each["metadata"]["name"] for each in objects if each["kind"] == "CustomResourceDefinition"}
        eventually("Kueue's kinds", lambda: all(map(self._is_served, names)))
        account = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._cluster.api.post(_ACCOUNT, account)["status"]["token"]
        authority = (self._cluster.pki / "ca.crt").read_bytes()
        self._kubeconfig.write_text(json.dumps(kubeconfig(self._cluster.server, authority, token)))

    def _adapt(self, each: Raw) -> None:
        """Change the fields of an object that a process on this machine needs otherwise than a Pod does."""
        match each["kind"], each["metadata"]["name"]:
            case "Service", "kueue-webhook-service":
                each["spec"] = {"type": "ExternalName", "externalName": LOOPBACK}
            case "ConfigMap", "kueue-manager-config":
                self._configuration = yaml.safe_load(each["data"]["controller_manager_config.yaml"])
            case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration", _:
                for hook in each["webhooks"]:
                    hook["clientConfig"]["service"]["port"] = self._ports["webhook"]
            case "CustomResourceDefinition", _ if "conversion" in each["spec"]:
                each["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] = self._ports["webhook"]

    def _is_served(self, name: str) -> bool:
        conditions = self._cluster.api.get(f"{_CRDS}/{name}").get("status", {}).get("conditions") or []
        return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)

    @property
    def _kubeconfig(self) -> Path:
        return self._directory / "kubeconfig"

    @property
    def _log(self) -> Path:
        return self._directory / "kueue.log"

    def start(self, wait_for_pods_ready: Raw) -> None:
        """Start the manager with this ``waitForPodsReady``. Return when it is ready."""
        file = self._directory / "configuration.yaml"
        file.write_text(yaml.safe_dump(self._configure(wait_for_pods_ready)))
        argv = [str(operators.build(KUEUE)), "--config", str(file), "--zap-log-level", "2"]
        environment = os.environ | {"KUBECONFIG": str(self._kubeconfig)}
        self._process = spawn(argv, self._log, self._directory, environment)
        eventually("certificates of Kueue", self._write_certificates, 60)
        eventually("Kueue", self._is_ready, 60)

    def _configure(self, wait_for_pods_ready: Raw) -> Raw:
        """Return the configuration as shipped, but for addresses, leader election and time-outs."""
        return self._configuration | {
            "health": {"healthProbeBindAddress": f"{LOOPBACK}:{self._ports['health']}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": LOOPBACK, "port": self._ports["webhook"], "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "featureGates": {"VisibilityOnDemand": False},
            "waitForPodsReady": wait_for_pods_ready,
        }

    def _write_certificates(self) -> bool:
        """Write the Secret that the manager fills into files, as a kubelet does. Return whether it is filled."""
        assert self._process, "not started"
        assert self._process.alive, tail(self._log)
        data = self._cluster.api.get(_SECRET).get("data") or {}
        for name in ("tls.key", "tls.crt"):
            if name in data:
                (self._certificates / name).write_bytes(base64.b64decode(data[name]))
        return "tls.crt" in data

    def _is_ready(self) -> bool:
        assert self._process, "not started"
        assert self._process.alive, tail(self._log)
        with suppress(httpx.TransportError):
            return httpx.get(f"http://{LOOPBACK}:{self._ports['health']}/readyz").is_success
        return False

    def stop(self) -> None:
        """End the manager, if it runs."""
        if self._process:
            stop([self._process])
        self._process = None

    @contextmanager
    def configured(self, wait_for_pods_ready: Raw) -> Iterator[None]:
        """Run the manager with another ``waitForPodsReady`` while the body runs, and as usual after it."""
        self.stop()
        self.start(wait_for_pods_ready)
        try:
            yield
        finally:
            self.stop()
            self.start(PATIENT)


@contextmanager
def at_work(cluster: Cluster, directories: pytest.TempPathFactory) -> Iterator[Kueue]:
    """Kueue, with the controller of JobSet, in a cluster for as long as the body runs."""
    kueue = Kueue(cluster, directories.mktemp("kueue"))
    processes = []
    try:
        operators.install(JOB_SET, cluster)
        processes.append(operators.run(JOB_SET, cluster, directories.mktemp("jobset")))
        kueue.install()
        kueue.start(PATIENT)
        yield kueue
    finally:
        kueue.stop()
        stop(processes)
