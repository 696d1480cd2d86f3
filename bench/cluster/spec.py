"""What a cluster is asked to be."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bench.cluster.errors import ClusterError

Api = Literal["native", "fallback"]
Hold = Literal["auto", "filter", "gate"]
Switch = Literal["on", "off"]

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
VERSION = re.compile(r"1\.\d+\.\d+")
SCHEDULER_VERSION = re.compile(r"1\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?")
DEFAULT_VERSION = "1.37.1"

# scheduling.k8s.io changes its served version with every minor.
_API_VERSION = {35: "v1alpha1", 36: "v1alpha2", 37: "v1beta1"}
_NATIVE_GATES = {
    35: ("GenericWorkload", "GangScheduling"),
    36: ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "WorkloadWithJob"),
    37: ("GenericWorkload", "TopologyAwareWorkloadScheduling", "WorkloadWithJob"),
}
_SCHEDULER_GATES = _NATIVE_GATES | {38: ("GenericWorkload", "TopologyAwareWorkloadScheduling")}
_FIRST_MUTATING_POLICY = 36


@dataclass(frozen=True, slots=True)
class Spec:
    """One cluster: its size, its Kubernetes, its API level and what of Serried runs in it.

    Racks are split evenly over blocks and blocks over zones, so that a rack never lies in two blocks. `scheduler` is
    the version of both kube-schedulers, the stock one and Serried's; empty for that of the rest of the control plane.
    A pre-release is accepted there only: its kube-scheduler builds, its API server does not. `server_gates` are gates
    of the API server alone, written `Name=true`, `manager_gates` those of kube-controller-manager alone; `server_flags`
    are more flags of the API server, written `name=value`. With `gates` on, the stock scheduler and
    kube-controller-manager schedule gangs natively (the thing to compare with); Serried's scheduler does with
    `scheduler_gates` of its own. `job_syncs` is how many Jobs kube-controller-manager works on at a time.
    `native_version` is the one version of the Workload API that is served natively, empty for the minor's own.
    `profiles` are scheduler names that Serried's scheduler serves beside its own. With `isolated` it calls the extender
    for marked pods only, and the policy that marks them is installed. With `one_account` it has the extender's account,
    as in the Pod that we ship. `prioritize_weight` is the weight of the extender's scores, 0 if the scheduler does not
    ask for them, None for what is shipped.
    """

    name: str
    nodes: int = 100
    racks: int = 10
    blocks: int = 2
    zones: int = 1
    kubernetes: str = DEFAULT_VERSION
    scheduler: str = ""
    api: Api = "native"
    hold: Hold = "auto"
    node_cpu: str = "32"
    node_memory: str = "256Gi"
    node_pods: int = 110
    serried: bool = True
    gates: Switch = "off"
    server_gates: tuple[str, ...] = ()
    server_flags: tuple[str, ...] = ()
    manager_gates: tuple[str, ...] = ()
    scheduler_gates: tuple[str, ...] = ()
    qps: int = 5000
    job_syncs: int = 5
    serried_args: tuple[str, ...] = ()
    native_version: str = ""
    profiles: tuple[str, ...] = ()
    isolated: bool = False
    one_account: bool = False
    prioritize_weight: int | None = None

    def __post_init__(self) -> None:
        """Refuse what could only fail later, half-way through."""
        if not NAME.fullmatch(self.name):
            raise ClusterError(f"name {self.name!r}: use up to 40 lower-case letters, digits and '-'")
        if not VERSION.fullmatch(self.kubernetes) or self.minor not in _API_VERSION:
            raise ClusterError(f"Kubernetes {self.kubernetes!r}: use 1.35.x, 1.36.x or 1.37.x, for example 1.37.1")
        if not SCHEDULER_VERSION.fullmatch(self.scheduler_version) or self.scheduler_minor not in _SCHEDULER_GATES:
            raise ClusterError(f"kube-scheduler {self.scheduler!r}: use one of 1.35 to 1.38, for example 1.38.0-beta.0")
        if not self.nodes >= self.racks >= self.blocks >= self.zones >= 1:
            raise ClusterError(
                f"{self.nodes} nodes, {self.racks} racks, {self.blocks} blocks, {self.zones} zones: "
                "every level needs at least as many members as the level above it, and at least one"
            )
        if self.api == "fallback" and self.gates == "on":
            raise ClusterError("--api fallback has no native API: --gates on needs --api native")
        if self.hold == "gate" and not self.has_mutating_policies:
            raise ClusterError(f"--hold gate needs Kubernetes 1.36 or newer, not {self.kubernetes}: use --hold filter")
        if self.isolated and not self.has_mutating_policies:
            raise ClusterError(f"--isolated needs Kubernetes 1.36 or newer, not {self.kubernetes}")

    @property
    def minor(self) -> int:
        """37 for 1.37.1."""
        return int(self.kubernetes.split(".")[1])

    @property
    def scheduler_version(self) -> str:
        """The version of kube-scheduler."""
        return self.scheduler or self.kubernetes

    @property
    def scheduler_minor(self) -> int:
        """38 for 1.38.0-beta.0."""
        return int(self.scheduler_version.split(".")[1])

    @property
    def has_mutating_policies(self) -> bool:
        """Whether MutatingAdmissionPolicy v1 is served."""
        return self.minor >= _FIRST_MUTATING_POLICY

    @property
    def gate_policy(self) -> bool:
        """Whether the policy that puts scheduling gates on gang pods is installed."""
        return self.hold != "filter" and self.has_mutating_policies

    @property
    def api_version(self) -> str:
        """The apiVersion of PodGroups and Workloads that Serried uses here."""
        if self.api == "native":
            return f"scheduling.k8s.io/{self.native_version or _API_VERSION[self.minor]}"
        return "scheduling.serried.dev/v1beta1"

    @property
    def runtime_config(self) -> str:
        """The API server's --runtime-config. Composite groups have a version of their own."""
        if self.api == "fallback":
            return ""
        composite = ["scheduling.k8s.io/v1alpha3"] if "CompositePodGroup=true" in self.server_gates else []
        return ",".join(f"{version}=true" for version in (self.api_version, *composite))

    @property
    def api_server_gates(self) -> str:
        """The API server's --feature-gates."""
        if self.api == "fallback":
            return ",".join(self.server_gates)
        names = _NATIVE_GATES[self.minor] if self.gates == "on" else ("GenericWorkload",)
        gates = {f"{name}=true": None for name in names} | dict.fromkeys(self.server_gates)
        return ",".join(gates)

    @property
    def stock_gates(self) -> str:
        """--feature-gates of the stock scheduler."""
        return self._list_gates(_SCHEDULER_GATES[self.scheduler_minor])

    @property
    def controller_manager_gates(self) -> str:
        """kube-controller-manager's --feature-gates."""
        return ",".join(filter(None, (self._list_gates(_NATIVE_GATES[self.minor]), *self.manager_gates)))

    def _list_gates(self, names: Iterable[str]) -> str:
        return ",".join(f"{name}=true" for name in names) if self.gates == "on" else ""
