"""The settings of a local cluster, checked when they are made."""

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

# By minor version of Kubernetes: the version of scheduling.k8s.io that it serves.
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
    """The settings of one cluster: its size, its Kubernetes, its API level, and Serried's processes in it.

    Racks are split evenly over blocks, and blocks over zones, so that a rack is never in two blocks.
    """

    name: str
    nodes: int = 100
    racks: int = 10
    blocks: int = 2
    zones: int = 1
    kubernetes: str = DEFAULT_VERSION
    scheduler: str = ""
    """Version of both kube-schedulers, the stock one and Serried's; "" for ``kubernetes``. Only this version may be a
    pre-release: the kube-scheduler of one can be built, its API server cannot."""

    api: Api = "native"
    hold: Hold = "auto"
    node_cpu: str = "32"
    node_memory: str = "256Gi"
    node_pods: int = 110
    serried: bool = True
    """False for a control plane and nodes without Serried."""

    gates: Switch = "off"
    """on: the stock scheduler and kube-controller-manager schedule gangs natively, to compare with Serried."""

    server_gates: tuple[str, ...] = ()
    """Feature gates of the API server only, written ``Name=true``."""

    server_flags: tuple[str, ...] = ()
    """More flags of the API server, written ``name=value``."""

    manager_gates: tuple[str, ...] = ()
    """Feature gates of kube-controller-manager only, written ``Name=true``."""

    scheduler_gates: tuple[str, ...] = ()
    """Feature gates of Serried's kube-scheduler only, written ``Name=true``."""

    qps: int = 5000
    """Rate limit of the schedulers' and kube-controller-manager's clients, in requests per second."""

    job_syncs: int = 5
    """Number of Jobs that kube-controller-manager reconciles at a time."""

    serried_args: tuple[str, ...] = ()
    """More arguments of the extender."""

    native_version: str = ""
    """Version of the Workload API that is served natively; "" for the default of the minor version."""

    profiles: tuple[str, ...] = ()
    """Names of more profiles of Serried's kube-scheduler."""

    isolated: bool = False
    """True to call the extender for marked pods only, and to install the policy that marks them."""

    one_account: bool = False
    """True if kube-scheduler uses the extender's ServiceAccount, as in the shipped pod."""

    prioritize_weight: int | None = None
    """Weight of the extender's scores; 0 for no prioritize calls, None for the shipped weight."""

    def __post_init__(self) -> None:
        """Raise ClusterError for settings with which a start would fail later."""
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
        """Minor version of Kubernetes: 37 for 1.37.1."""
        return int(self.kubernetes.split(".")[1])

    @property
    def scheduler_version(self) -> str:
        """Version of both kube-schedulers."""
        return self.scheduler or self.kubernetes

    @property
    def scheduler_minor(self) -> int:
        """Minor version of the kube-schedulers: 38 for 1.38.0-beta.0."""
        return int(self.scheduler_version.split(".")[1])

    @property
    def has_mutating_policies(self) -> bool:
        """True if the API server serves MutatingAdmissionPolicy v1."""
        return self.minor >= _FIRST_MUTATING_POLICY

    @property
    def gate_policy(self) -> bool:
        """True if the policy that adds scheduling gates to pods of gangs is installed."""
        return self.hold != "filter" and self.has_mutating_policies

    @property
    def api_version(self) -> str:
        """The apiVersion of the PodGroups and Workloads that Serried uses in this cluster."""
        if self.api == "native":
            return f"scheduling.k8s.io/{self.native_version or _API_VERSION[self.minor]}"
        return "scheduling.serried.dev/v1beta1"

    @property
    def runtime_config(self) -> str:
        """The API server's --runtime-config. CompositePodGroups have a version of their own."""
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
        """The stock scheduler's --feature-gates."""
        return self._list_gates(_SCHEDULER_GATES[self.scheduler_minor])

    @property
    def controller_manager_gates(self) -> str:
        """kube-controller-manager's --feature-gates."""
        return ",".join(filter(None, (self._list_gates(_NATIVE_GATES[self.minor]), *self.manager_gates)))

    def _list_gates(self, names: Iterable[str]) -> str:
        return ",".join(f"{name}=true" for name in names) if self.gates == "on" else ""
