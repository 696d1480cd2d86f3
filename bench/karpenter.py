"""The real Karpenter beside a cluster: its kwok provider, built from its Go module, which makes Nodes without machines.

kwok makes these Nodes ready, as it does all others of the cluster. There is one instance type, of 32 CPU, offered in
the zones that the caller names.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster import Cluster, ClusterError
from bench.cluster.binaries import cache
from bench.cluster.build import COMPILED, environment
from bench.cluster.locks import exclusive
from bench.cluster.nodes import ZONE
from bench.cluster.ports import pick
from bench.cluster.processes import Process, spawn, stop, tail
from bench.cluster.progress import Report, silent
from bench.cluster.waiting import answers, wait_for
from serried.api.resources import parse_cpu

MODULE, VERSION = "sigs.k8s.io/karpenter", "v1.11.2"
NODE_CPU = 32
"""The CPUs of the instance type. Karpenter keeps a tenth of one for the kubelet, so a pod may ask for 31 of them."""

CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
POOL_LABEL = "karpenter.sh/nodepool"
_CAPACITY_TYPE = "karpenter.sh/capacity-type"
_CRDS = ("pkg/apis/crds", "kwok/apis/crds")
_CRD_LIST = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_READY_TIMEOUT = 60.0


@dataclass(frozen=True)
class Batch:
    """The number of pods for which Karpenter bought nodes in one provisioning loop, and of NodeClaims made for them."""

    pods: int
    claims: int


class Karpenter:
    """A running Karpenter. `log` is its log, one JSON object a line."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self.log = Path(process.log)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop Karpenter by SIGSTOP while the body runs."""
        self._process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send(signal.SIGCONT)

    def create_pool(
        self,
        name: str,
        zones: Sequence[str],
        *,
        cpu_limit: int | None = None,
        consolidate_after: str = "Never",
        labels: dict[str, str] | None = None,
        delay: str = "0s",
    ) -> None:
        """Create a NodePool, which may buy nodes in these zones, and its KWOKNodeClass of the same name.

        ``cpu_limit`` is the most CPUs that it may have, None for no limit. ``consolidate_after`` is how long a node is
        empty before Karpenter removes it. ``labels`` are more labels of its nodes. ``delay`` is the
        time from a NodeClaim to its Node. Durations are as Karpenter writes them.
        """
        kwok_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": name}}
        self._cluster.api.post(CLASSES, kwok_class | {"spec": {"nodeRegistrationDelay": delay}})
        requirements = [
            {"key": ZONE, "operator": "In", "values": list(zones)},
            {"key": _CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
        ]
        reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name}
        spec: dict[str, Any] = {
            "template": {
                "metadata": {"labels": labels or {}},
                "spec": {"requirements": requirements, "nodeClassRef": reference, "expireAfter": "Never"},
            },
            "disruption": {
                "consolidationPolicy": "WhenEmpty",
                "consolidateAfter": consolidate_after,
                "budgets": [{"nodes": "100%"}],
            },
        }
        if cpu_limit is not None:
            spec["limits"] = {"cpu": cpu_limit}
        body = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}
        self._cluster.api.post(POOLS, body)

    def pool_is_ready(self, name: str) -> bool:
        """Return whether the NodePool is ready, so that Karpenter adds nodes for it."""
        conditions = self._cluster.api.get(f"{POOLS}/{name}").get("status", {}).get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def list_pools(self) -> set[str]:
        """Return the names of the NodePools."""
        return {str(each["metadata"]["name"]) for each in self._cluster.api.get(POOLS)["items"]}

    def list_claims(self, pool: str) -> list[dict[str, Any]]:
        """Return the NodeClaims of a NodePool."""
        found: list[dict[str, Any]] = self._cluster.api.get(CLAIMS)["items"]
        return [each for each in found if each["metadata"]["labels"].get(POOL_LABEL) == pool]

    def list_nodes(self, pool: str) -> list[dict[str, Any]]:
        """Return the Nodes of a NodePool."""
        found: list[dict[str, Any]] = self._cluster.api.get(f"/api/v1/nodes?labelSelector={POOL_LABEL}={pool}")["items"]
        return found

    def delete_claims(self, pool: str) -> None:
        """Delete the NodeClaims of a NodePool; Karpenter deletes their Nodes before they are gone."""
        for claim in self.list_claims(pool):
            self._cluster.api.delete(f"{CLAIMS}/{claim['metadata']['name']}")

    def delete_pool(self, name: str) -> None:
        """Delete a NodePool. Delete its NodeClaims before, because Karpenter ignores NodeClaims without a NodePool."""
        self._cluster.api.delete(f"{POOLS}/{name}")
        self._cluster.api.delete(f"{CLASSES}/{name}")

    def list_batches(self, skip: int = 0) -> list[Batch]:
        """Return the batches of NodeClaims since Karpenter started, in order, without the first ``skip`` batches."""
        bought = self._read_log("computed new nodeclaim(s) to fit pod(s)")
        return [Batch(line["pods"], line["nodeclaims"]) for line in bought][skip:]

    def list_requests(self) -> list[int]:
        """Return the milli-CPUs that the pods of each NodeClaim request together, in the order of creation."""
        return [parse_cpu(line["requests"]["cpu"]) for line in self._read_log("created nodeclaim")]

    def _read_log(self, message: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]


@contextmanager
def at_work(cluster: Cluster, zones: Sequence[str], directory: Path, report: Report = silent) -> Iterator[Karpenter]:
    """Install Karpenter's kinds in a cluster and run Karpenter as long as the body runs, with its log in ``directory``.

    Raise ClusterError without Go, if the build fails, and if Karpenter does not start.
    """
    program = build(report)
    install(cluster)
    process = _spawn(program, cluster, zones, directory)
    try:
        yield Karpenter(cluster, process)
    finally:
        stop([process])


def build(report: Report = silent) -> Path:
    """Return the path of Karpenter's binary. The first build takes minutes, then it is cached. Raise ClusterError."""
    binary = cache() / "operators" / f"karpenter-{VERSION}"
    with exclusive(binary.parent / ".karpenter.lock", report, "waiting for another process that builds Karpenter"):
        if not binary.is_file():
            report(f"building Karpenter {VERSION}: minutes when Go's cache is cold")
            _build(binary)
    return binary


def _build(binary: Path) -> None:
    fresh = binary.with_suffix(f".{os.getpid()}")
    command = ["go", "build", "-mod=readonly", *COMPILED, "-ldflags", "-s -w", "-o", str(fresh), "./kwok"]
    done = subprocess.run(command, cwd=locate(), env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"go build of Karpenter {VERSION} failed:\n{done.stderr.strip()}")
    fresh.replace(binary)


def locate() -> Path:
    """Return the module's directory in Go's cache; download it first if needed. Raise ClusterError."""
    if shutil.which("go") is None:
        raise ClusterError("Karpenter is built from its Go module, and there is no 'go' in PATH")
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    done = subprocess.run(command, cwd="/", env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{MODULE}@{VERSION} could not be downloaded:\n{done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def install(cluster: Cluster) -> None:
    """Install Karpenter's kinds, and return when they are served."""
    for directory in _CRDS:
        cluster.kubectl("apply", "--server-side", "-f", str(locate() / directory))
    wait_for("Karpenter's kinds", lambda: _are_served(cluster), {}, _READY_TIMEOUT)


def _are_served(cluster: Cluster) -> bool:
    """Return whether the CRDs are established. Raises ApiError while one is established and not yet served."""
    crds = [each for each in cluster.api.get(_CRD_LIST)["items"] if each["spec"]["group"].startswith("karpenter.")]
    conditions = [each.get("status", {}).get("conditions") or () for each in crds]
    established = [any((c["type"], c["status"]) == ("Established", "True") for c in each) for each in conditions]
    return all(established) and all(cluster.api.get(path) is not None for path in (CLAIMS, POOLS, CLASSES))


def _spawn(program: Path, cluster: Cluster, zones: Sequence[str], directory: Path) -> Process:
    types = directory / "instance-types.json"
    types.write_text(json.dumps([_instance_type(zones)]))
    ports = pick(["metrics", "health"], taken=())
    settings = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": str(ports["metrics"]),
        "HEALTH_PROBE_PORT": str(ports["health"]),
        "SYSTEM_NAMESPACE": "default",
    }
    process = spawn([str(program)], directory / "karpenter.log", directory, os.environ | settings)
    url = f"http://127.0.0.1:{ports['health']}/readyz"
    try:
        wait_for("Karpenter", lambda: answers(url), {"karpenter": process}, _READY_TIMEOUT)
    except ClusterError as error:
        stop([process])
        raise ClusterError(f"{error}\n{tail(process.log)}") from error
    return process


def _instance_type(zones: Sequence[str]) -> dict[str, Any]:
    """Return the only instance type in the kwok provider's format, at the same price in all zones."""
    offerings = [
        {
            "Price": 1.0,
            "Available": True,
            "Requirements": [
                {"key": _CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
                {"key": ZONE, "operator": "In", "values": [zone]},
            ],
        }
        for zone in zones
    ]
    return {
        "name": f"c-{NODE_CPU}x-amd64-linux",
        "offerings": offerings,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": str(NODE_CPU), "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"},
    }
