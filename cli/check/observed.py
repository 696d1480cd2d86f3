"""The values of ``serried check``: what was read from an installation, the findings, and the rights that it needs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from cli.check.autoscalers import Autoscalers
from cli.check.demands import TopologyDemand
from cli.check.durations import parse_duration
from cli.check.installed import KUBECTL, InstallMethod, Piece
from cli.check.kueue import Kueue
from serried.api.kinds import OWNER_KINDS, PARENTS, OwnerKind
from serried.api.names import Raw, read_flag, read_int, read_map, read_objects, read_text
from serried.api.resources import Amounts
from serried.api.topology import LevelTable


class Severity(StrEnum):
    """The importance of a finding."""

    ERROR = "error"
    """Gangs do not start, or Serried does not do what it promises."""

    WARNING = "warning"
    """Serried works, but something is slow, or will fail in a case that may still come."""

    UNKNOWN = "unknown"
    """The check was not possible."""

    NOTE = "note"
    """No mistake, but good to know."""


class Area(StrEnum):
    """A group of checks, as ``--only`` selects it."""

    SCHEDULER = "scheduler"
    EXTENDER = "extender"
    RIGHTS = "rights"
    NODES = "nodes"
    POLICIES = "policies"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake, with its fix."""

    severity: Severity
    area: Area

    where: str
    """The object, field or file with the mistake."""

    what: str
    """The mistake, and its consequence."""

    fix: str
    """The command to run, or the setting to change."""


EXTENDER = "serried"
CONTROLLER = "serried-controller"


class Right(NamedTuple):
    """One verb on one resource for one ServiceAccount."""

    account: str
    verb: str
    group: str
    resource: str
    """The resource, with the subresource if the right is about one: pods/binding."""

    name: str = ""
    """The name of the only object that the right is about, "" for all."""

    home: bool = False
    """True if the right is needed in the namespace of the ServiceAccount only."""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}{f' {self.name}' if self.name else ''}"


class Need(NamedTuple):
    """A purpose for which several rights are needed."""

    verbs: str
    """The verbs, with blanks between them."""

    resources: str
    """The resources in kubectl's form, with blanks between them: jobs/finalizers.batch."""

    without: str
    """The consequence if a right is missing."""

    vital: bool = True
    """True if a missing right is an error, because gangs do not start as promised."""

    name: str = ""
    home: bool = False

    component: Piece | None = None
    """The part of an installation that grants the rights; None for the roles of every installation."""


_extra = partial(Need, vital=False)
_of_component = partial(_extra, component=Piece.VOLUMES_AND_DEVICES)


def _in_both(*resources: str) -> str:
    """Return the resources in both API groups that serve Workloads and PodGroups."""
    return " ".join(
        f"{each}.{group}" for group in ("scheduling.k8s.io", "scheduling.serried.dev") for each in resources
    )


_REVIEWS = _extra(
    "create",
    "tokenreviews.authentication.k8s.io subjectaccessreviews.authorization.k8s.io",
    "metrics and debug pages cannot be read over the network",
)

_PARENTS = tuple(PARENTS.values())


def _name_gangs(row: OwnerKind) -> str:
    return f"{row.kind}s" if row.gang == row.kind else f"their {row.gang}s"


_NO_LEVELS = "Jobs that name a level of the topology, such as rack, wait"

NEEDS: dict[str, tuple[Need, ...]] = {
    EXTENDER: (
        Need("list watch", "nodes", "nothing is planned"),
        _extra("patch", "nodes", "an autoscaler may remove nodes on which a gang is about to start"),
        Need("get list watch", "pods", "nothing is planned"),
        _of_component(
            "list watch",
            "persistentvolumes persistentvolumeclaims storageclasses.storage.k8s.io csidrivers.storage.k8s.io"
            " csistoragecapacities.storage.k8s.io csinodes.storage.k8s.io",
            "Serried learns only from the scheduler's refusals on which nodes a member can have its volumes",
        ),
        _of_component(
            "list watch",
            "deviceclasses.resource.k8s.io resourceslices.resource.k8s.io resourceclaims.resource.k8s.io"
            " devicetaintrules.resource.k8s.io",
            "only the scheduler can count devices, and extended resources that are devices",
        ),
        _extra("list watch", "namespaces", "only the scheduler knows which namespaces an affinity means by label"),
        Need("list watch", "jobs.batch", "nothing is planned, and pods of Jobs wait as JobUnknown"),
        *(_extra("list watch", f"{row.plural}.{row.group}", f"{_name_gangs(row)} are no gangs") for row in _PARENTS),
        Need(
            "list watch",
            _in_both("podgroups", "workloads", "compositepodgroups"),
            "gangs wait: WorkloadAPIMissing",
        ),
        Need("list watch", "priorityclasses.scheduling.k8s.io", "the priority of a group's class does not count"),
        _extra("list watch", "podgroups.scheduling.x-k8s.io", "PodGroups of scheduler-plugins are no gangs"),
        Need(
            "patch",
            _in_both("podgroups/status", "compositepodgroups/status"),
            "no condition says why a gang waits",
        ),
        Need(
            "get list create update delete",
            "reservations.scheduling.serried.dev",
            "no plan can be recorded, so no gang starts",
        ),
        _extra("list watch create", "topologylevels.scheduling.serried.dev", _NO_LEVELS),
        _extra("patch", "topologylevels/status.scheduling.serried.dev", _NO_LEVELS),
        _extra("list watch", "topologies.kueue.x-k8s.io", "levels that only Kueue has labels for are unknown"),
        _extra("list watch", "clustertopologybindings.grove.io", "levels that only Grove has labels for are unknown"),
        Need("create", "pods/binding", "no member is bound"),
        Need("patch", "pods/status", "members are not nominated, so the scheduler is not steered"),
        Need("patch", "pods", "scheduling gates are not removed, and waiting members not retried at once"),
        Need("delete", "pods", "a gang of disruption mode all is deleted only in part"),
        _extra(
            "list watch", "poddisruptionbudgets.policy", "Serried learns only from dry runs which pods may be evicted"
        ),
        Need("create", "pods/eviction", "no pod is evicted for a gang of higher priority"),
        _extra("create patch", "events", "no event says why a gang waits"),
        Need("list watch", "leases.coordination.k8s.io", "the extender never leads", name="serried", home=True),
        _extra("patch", "configmaps", "new members are never held by gate", name="serried-hold", home=True),
        _extra(
            "create",
            "podtemplates",
            "it is unknown whether pods keep the field that names their group, and no ProvisioningRequest is made",
        ),
        _extra("list", "nodepools.karpenter.sh", "gangs ask Karpenter for nodes of zones only, whatever its limits"),
        _extra("get", "configmaps", "Cluster Autoscaler is not found", name="cluster-autoscaler-status"),
        _extra("list", "events", "NoNodesCame does not tell what the autoscaler says"),
        _extra(
            "get create delete",
            "provisioningrequests.autoscaling.x-k8s.io",
            "Cluster Autoscaler is asked for the nodes of a gang one by one",
        ),
        _REVIEWS,
    ),
    CONTROLLER: (
        Need("list watch", "pods", "PodGroups that are being deleted are not protected"),
        Need("list watch", "jobs.batch", "no Job becomes a gang"),
        *(_extra("list watch", f"{row.plural}.{row.group}", f"no {row.gang} becomes a gang") for row in _PARENTS),
        *(
            _extra(
                "update",
                f"{row.plural}/finalizers.{row.group}",
                f"no {row.gang} becomes a gang where OwnerReferencesPermissionEnforcement is on",
            )
            for row in OWNER_KINDS.values()
        ),
        Need(
            "list watch create delete patch",
            _in_both("workloads", "podgroups"),
            "Jobs get no PodGroup, or keep an outdated one",
        ),
        _extra("list watch", "compositepodgroups.scheduling.serried.dev", "groups of a tree get no priority"),
        Need("list watch", "priorityclasses.scheduling.k8s.io", "groups get no priority at the fallback level"),
        _extra("list watch", "topologylevels.scheduling.serried.dev", _NO_LEVELS),
        _extra("patch", "compositepodgroups.scheduling.serried.dev", "groups of a tree get no priority"),
        Need(
            "update",
            "podgroups/priority.scheduling.serried.dev compositepodgroups/priority.scheduling.serried.dev",
            "groups get no priority at the fallback level",
        ),
        _extra("create patch", "events", "no event says what a Job lacks"),
        Need("create", "leases.coordination.k8s.io", "no controller begins to work", home=True),
        Need(
            "get update",
            "leases.coordination.k8s.io",
            "no controller begins to work",
            name="serried-controller",
            home=True,
        ),
        _REVIEWS,
    ),
}

_ELECTION = "leases.coordination.k8s.io"
_LEADS = "no extender begins to lead"
_SLICES = "endpointslices.discovery.k8s.io"
_SERVED = "the Service leads to no extender"

ELECTING_NEEDS = {
    **NEEDS,
    EXTENDER: (
        *(need for need in NEEDS[EXTENDER] if need.resources != _ELECTION),
        Need("create", _ELECTION, _LEADS, home=True),
        Need("get list watch update", _ELECTION, _LEADS, name="serried-extender", home=True),
        Need("create", _SLICES, _SERVED, home=True),
        Need("get patch", _SLICES, _SERVED, name="serried-verbs", home=True),
    ),
}
"""The needs if the extenders elect their leader themselves (``--lease-mode hold``)."""


def list_rights(needs_by_account: Mapping[str, Iterable[Need]]) -> dict[Right, Need]:
    """Return every right with its need; if several needs have a right, the first one."""
    rights: dict[Right, Need] = {}
    for account, needs in needs_by_account.items():
        for need in needs:
            for verb, whole in product(need.verbs.split(), need.resources.split()):
                resource, _, group = whole.partition(".")
                rights.setdefault(Right(account, verb, group, resource, need.name, need.home), need)
    return rights


_USUAL_EXTENDER_SECONDS = 5.0
"""kube-scheduler's default of ``httpTimeout`` (upstream's pkg/scheduler/extender.go)."""

_USUAL_LEASE = "kube-system/kube-scheduler"
_USUAL_QPS = 50


class Managed(NamedTuple):
    """An item of ``managedResources``."""

    name: str
    ignored: bool
    """The field ``ignoredByScheduler``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of ``extenders``."""

    place: int
    """The index in the list."""

    url: str = ""
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    ignorable: bool = False
    node_cache: bool = False
    timeout_seconds: float = _USUAL_EXTENDER_SECONDS
    managed: tuple[Managed, ...] = ()


class Profile(NamedTuple):
    """An item of ``profiles``."""

    scheduler: str

    percentage: int | None
    """The field ``percentageOfNodesToScore``; None if unset."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The fields of a KubeSchedulerConfiguration that Serried depends on."""

    source: str
    """The file or ConfigMap with the configuration."""

    entries: tuple[Entry, ...] = ()
    profiles: tuple[Profile, ...] = (Profile("default-scheduler", None),)

    percentage: int | None = None
    """``percentageOfNodesToScore`` for the profiles that leave it unset."""

    elects: bool = True
    lease: str = _USUAL_LEASE
    """Namespace and name of the Lease, with a slash between them."""

    qps: float = _USUAL_QPS


class Interference(NamedTuple):
    """The effect of another program on Serried, and what to do about it."""

    what: str
    fix: str


_GANGS = Interference(
    "it starts gangs, too: on nodes that both use, each takes room that the other has planned for, so that gangs of "
    "both start later",
    "give each of them nodes of its own, by taints or labels (docs/faq.md)",
)
INTERFERENCES: Mapping[str, Interference] = {
    **dict.fromkeys(("volcano-scheduler", "yunikorn-scheduler", "kai-scheduler", "koord-scheduler"), _GANGS),
    "scheduler-plugins-scheduler": _GANGS,
}
"""Other programs that decide about pods, by a part of the name of their Deployment."""


DEFAULT_FLAGS: Mapping[str, str] = {
    "autoscaler": "auto",
    "autoscaler-labels": "",
    "barrier-deadline": "300",
    "bind-listen": "127.0.0.1:8911",
    "client-ca-file": "",
    "filter-listen": "127.0.0.1:8910",
    "hold": "auto",
    "lease": "serried-system/serried",
    "lease-mode": "follow",
    "other-profiles": "",
    "preemption": "on",
    "scheduler-name": "serried",
    "stamp": "auto",
}
"""The extender's defaults of the flags that are checked. ``isolated`` is not among them: the configuration shows it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The facts about one installation. A fact that was not or could not be read is None; `unread` names the latter."""

    config: SchedulerConfig | None = None

    flags: Mapping[str, str] = field(default_factory=dict)
    """The extender's flags by name without dashes: from its ``/debug/config``, otherwise `DEFAULT_FLAGS`."""

    selfcheck: Raw | None = None
    """The extender's ``/debug/selfcheck``."""

    silence: str = ""
    """The reason why the extender does not answer, "" if it does. `unread` lists what only the extender knows then."""

    skew_seconds: float | None = None
    """Seconds by which the extender's clock is ahead of the API server's."""

    denied: frozenset[Right] | None = None
    """The rights that the shipped roles grant and that are missing here."""

    nodes: Mapping[str, Mapping[str, str]] | None = None
    """The labels of each node."""

    allocatable: Mapping[str, Amounts] = field(default_factory=dict)
    """The allocatable resources of each node. Read with the labels."""

    keys: tuple[str, ...] = ()
    """The topology keys that groups ask for."""

    levels: LevelTable | None = None
    """The labels of the topology levels; None before the extender has written them."""

    policies: frozenset[str] | None = None
    """The names of all admission policies."""

    bound_policies: frozenset[str] = frozenset()
    """The names of the admission policies with a binding."""

    gate_switch: bool | None = None
    """True if the ConfigMap exists with which the extender turns the scheduling gate of new members on and off."""

    autoscalers: Autoscalers | None = None

    kueue: Kueue | None = None
    """The Kueue of the cluster; None also if there is none."""

    demands: tuple[TopologyDemand, ...] = ()
    """The topology keys that PodGroups and Workloads require. Read only beside an autoscaler or Kueue's Topologies."""

    neighbours: tuple[tuple[str, Interference], ...] = ()
    """Other programs that decide about pods, each by its Deployment or webhook."""

    method: InstallMethod = KUBECTL
    """The method by which Serried was installed."""

    definitions: Mapping[str, str] | None = None
    """The release of each of Serried's CRDs by plural name; "" if the CRD does not tell."""

    absence: Finding | None = None
    """The finding that Serried is not installed. Nothing else was read then."""

    server_version: str = ""
    """Version of the API server, for example v1.37.1."""

    scheduler_version: str = ""
    """Version of the kube-scheduler beside the extender; "" if its image does not tell."""

    unread: tuple[tuple[Area, str, str], ...] = ()
    """The facts that could not be read: area, fact, reason."""

    @property
    def extenders_elect(self) -> bool:
        """Return whether the extenders elect their leader themselves: the cluster's own scheduler calls them."""
        return self.flags.get("lease-mode") == "hold"


_MINOR = re.compile(r"v?1\.(\d+)")


def read_minor(version: str) -> int | None:
    """Return the minor version in one of Kubernetes, such as v1.37.1; None for other text."""
    found = _MINOR.match(version)
    return int(found[1]) if found else None


def decode_scheduler_config(source: str, document: Any) -> SchedulerConfig:
    """Return the configuration in a parsed document. Raises ValueError for another document."""
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        raise ValueError(f"{source} holds no KubeSchedulerConfiguration")
    election = read_map(document, "leaderElection")
    namespace = read_text(election, "resourceNamespace", "kube-system")
    profiles = tuple(
        Profile(read_text(each, "schedulerName", "default-scheduler"), _read_percentage(each))
        for each in read_objects(document, "profiles")
    )
    qps = read_map(document, "clientConnection").get("qps")
    return SchedulerConfig(
        source=source,
        entries=tuple(_decode_entry(place, each) for place, each in enumerate(read_objects(document, "extenders"))),
        profiles=profiles or (Profile("default-scheduler", None),),
        percentage=_read_percentage(document),
        elects=election.get("leaderElect") is not False,
        lease=f"{namespace}/{read_text(election, 'resourceName', 'kube-scheduler')}",
        qps=float(qps) if isinstance(qps, int | float) and qps else _USUAL_QPS,
    )


def _decode_entry(place: int, entry: Raw) -> Entry:
    managed = read_objects(entry, "managedResources")
    timeout = read_text(entry, "httpTimeout")
    return Entry(
        place=place,
        url=read_text(entry, "urlPrefix"),
        filter_verb=read_text(entry, "filterVerb"),
        prioritize_verb=read_text(entry, "prioritizeVerb"),
        preempt_verb=read_text(entry, "preemptVerb"),
        bind_verb=read_text(entry, "bindVerb"),
        ignorable=read_flag(entry, "ignorable"),
        node_cache=read_flag(entry, "nodeCacheCapable"),
        timeout_seconds=parse_duration(timeout) if timeout else _USUAL_EXTENDER_SECONDS,
        managed=tuple(Managed(read_text(each, "name"), read_flag(each, "ignoredByScheduler")) for each in managed),
    )


def _read_percentage(obj: Raw) -> int | None:
    return read_int(obj, "percentageOfNodesToScore") if obj.get("percentageOfNodesToScore") is not None else None
