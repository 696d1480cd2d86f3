"""The values of ``serried check``: the facts read from an installation, the findings, and the rights that it needs."""

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
    """Gangs do not start, or Serried breaks one of its guarantees."""

    WARNING = "warning"
    """Serried works, but something is slow, or will fail under conditions that do not hold now."""

    UNKNOWN = "unknown"
    """The check was not possible, because a fact could not be read."""

    NOTE = "note"
    """No mistake, just information."""


class Area(StrEnum):
    """A group of checks that the option ``--only`` selects by this name."""

    SCHEDULER = "scheduler"
    EXTENDER = "extender"
    RIGHTS = "rights"
    NODES = "nodes"
    POLICIES = "policies"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the checks: usually a mistake, with its fix."""

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
    """The right of one ServiceAccount to use one verb on one resource."""

    account: str
    verb: str
    group: str
    resource: str
    """The plural name, with the subresource if the right is about one: ``pods/binding``."""

    name: str = ""
    """The name of the only object to which the right is limited, "" for all objects."""

    home: bool = False
    """True if the right is needed only in the ServiceAccount's own namespace."""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}{f' {self.name}' if self.name else ''}"


class Need(NamedTuple):
    """Rights that a ServiceAccount needs for one purpose: each of ``verbs`` on each of ``resources``.

    ``name`` limits each of them to the object of that name; "" for all objects. If ``home`` is True, each is needed
    only in the ServiceAccount's own namespace.
    """

    verbs: str
    """The verbs, separated by blanks: ``get list watch``."""

    resources: str
    """The resources, separated by blanks, with the API group after a dot: ``jobs/finalizers.batch``."""

    without: str
    """The function that does not work if one of the rights is missing. It is the text of the finding."""

    vital: bool = True
    """True if a missing right is an error, because gangs do not start; False if it is a warning."""

    name: str = ""
    home: bool = False

    component: Piece | None = None
    """The optional part of an installation whose roles grant the rights; None if every installation grants them."""


_extra = partial(Need, vital=False)
_of_component = partial(_extra, component=Piece.VOLUMES_AND_DEVICES)


def _in_both(*resources: str) -> str:
    """Return the resources in both API groups that Serried can use: ``podgroups.scheduling.k8s.io`` and the like.

    The result is separated by blanks, as `Need.resources`.
    """
    return " ".join(
        f"{each}.{group}" for group in ("scheduling.k8s.io", "scheduling.serried.dev") for each in resources
    )


_REVIEWS = _extra(
    "create",
    "tokenreviews.authentication.k8s.io subjectaccessreviews.authorization.k8s.io",
    "users cannot read metrics and debug pages over the network",
)

_PARENTS = tuple(PARENTS.values())


def _name_gangs(row: OwnerKind) -> str:
    return f"{row.kind}s" if row.gang == row.kind else f"their {row.gang}s"


_NO_LEVELS = "Jobs that name a level of the topology, such as rack, wait"

NEEDS: dict[str, tuple[Need, ...]] = {
    EXTENDER: (
        Need("list watch", "nodes", "Serried plans no gang"),
        _extra("patch", "nodes", "an autoscaler may remove nodes on which a gang is about to start"),
        Need("get list watch", "pods", "Serried plans no gang"),
        _of_component(
            "list watch",
            "persistentvolumes persistentvolumeclaims storageclasses.storage.k8s.io csidrivers.storage.k8s.io"
            " csistoragecapacities.storage.k8s.io csinodes.storage.k8s.io",
            "only kube-scheduler's rejections tell Serried on which nodes a member can have its volumes",
        ),
        _of_component(
            "list watch",
            "deviceclasses.resource.k8s.io resourceslices.resource.k8s.io resourceclaims.resource.k8s.io"
            " devicetaintrules.resource.k8s.io",
            "only kube-scheduler can count devices, and extended resources that are devices",
        ),
        _extra("list watch", "namespaces", "only kube-scheduler knows which namespaces an affinity selects by label"),
        Need("list watch", "jobs.batch", "Serried plans no gang, and pods of Jobs wait with reason JobUnknown"),
        *(_extra("list watch", f"{row.plural}.{row.group}", f"{_name_gangs(row)} are no gangs") for row in _PARENTS),
        Need(
            "list watch",
            _in_both("podgroups", "workloads", "compositepodgroups"),
            "gangs wait with reason WorkloadAPIMissing",
        ),
        Need("list watch", "priorityclasses.scheduling.k8s.io", "Serried ignores the PriorityClass of groups"),
        _extra("list watch", "podgroups.scheduling.x-k8s.io", "PodGroups of scheduler-plugins are no gangs"),
        Need(
            "patch",
            _in_both("podgroups/status", "compositepodgroups/status"),
            "no condition says why a gang waits",
        ),
        Need(
            "get list create update delete",
            "reservations.scheduling.serried.dev",
            "Serried can record no plan, so no gang starts",
        ),
        _extra("list watch create", "topologylevels.scheduling.serried.dev", _NO_LEVELS),
        _extra("patch", "topologylevels/status.scheduling.serried.dev", _NO_LEVELS),
        _extra("list watch", "topologies.kueue.x-k8s.io", "Serried does not know levels whose labels only Kueue knows"),
        _extra(
            "list watch",
            "clustertopologybindings.grove.io",
            "Serried does not know levels whose labels only Grove knows",
        ),
        Need("create", "pods/binding", "Serried binds no member"),
        Need(
            "patch", "pods/status", "Serried nominates no member, so kube-scheduler may choose other nodes than planned"
        ),
        Need("patch", "pods", "Serried removes no scheduling gates, and kube-scheduler retries waiting members late"),
        Need("delete", "pods", "Serried deletes gangs of disruption mode all only in part"),
        _extra(
            "list watch", "poddisruptionbudgets.policy", "Serried learns only from dry runs which pods may be evicted"
        ),
        Need("create", "pods/eviction", "Serried evicts no pod for a gang of higher priority"),
        _extra("create patch", "events", "no event says why a gang waits"),
        Need("list watch", "leases.coordination.k8s.io", "the extender never leads", name="serried", home=True),
        _extra(
            "patch", "configmaps", "Serried never holds new members by scheduling gates", name="serried-hold", home=True
        ),
        _extra(
            "create",
            "podtemplates",
            "Serried does not know whether pods keep the field that names their group, and makes no "
            "ProvisioningRequest",
        ),
        _extra(
            "list", "nodepools.karpenter.sh", "Serried asks Karpenter for nodes by zone only, and ignores its limits"
        ),
        _extra("get", "configmaps", "Serried does not find Cluster Autoscaler", name="cluster-autoscaler-status"),
        _extra("list", "events", "the reason NoNodesCame does not say why the autoscaler adds no nodes"),
        _extra(
            "get create delete",
            "provisioningrequests.autoscaling.x-k8s.io",
            "Cluster Autoscaler adds the nodes of a gang one by one",
        ),
        _REVIEWS,
    ),
    CONTROLLER: (
        Need("list watch", "pods", "users can delete PodGroups whose pods still run"),
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
        Need("list watch", "priorityclasses.scheduling.k8s.io", "groups get no priority if Serried's own API is used"),
        _extra("list watch", "topologylevels.scheduling.serried.dev", _NO_LEVELS),
        _extra("patch", "compositepodgroups.scheduling.serried.dev", "groups of a tree get no priority"),
        Need(
            "update",
            "podgroups/priority.scheduling.serried.dev compositepodgroups/priority.scheduling.serried.dev",
            "groups get no priority if Serried's own API is used",
        ),
        _extra("create patch", "events", "no event says what a Job lacks"),
        Need("create", "leases.coordination.k8s.io", "no controller starts to work", home=True),
        Need(
            "get update",
            "leases.coordination.k8s.io",
            "no controller starts to work",
            name="serried-controller",
            home=True,
        ),
        _REVIEWS,
    ),
}

_ELECTION = "leases.coordination.k8s.io"
_LEADS = "no extender starts to lead"
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
"""The needs by ServiceAccount if the extenders elect their leader themselves (``--lease-mode hold``)."""


def list_rights(needs_by_account: Mapping[str, Iterable[Need]]) -> dict[Right, Need]:
    """Return each right with the need that it belongs to. A right that several needs contain belongs to the first."""
    rights: dict[Right, Need] = {}
    for account, needs in needs_by_account.items():
        for need in needs:
            for verb, whole in product(need.verbs.split(), need.resources.split()):
                resource, _, group = whole.partition(".")
                rights.setdefault(Right(account, verb, group, resource, need.name, need.home), need)
    return rights


_USUAL_EXTENDER_SECONDS = 5.0
"""kube-scheduler's default of ``httpTimeout`` in seconds (upstream's pkg/scheduler/extender.go)."""

_USUAL_LEASE = "kube-system/kube-scheduler"
_USUAL_QPS = 50


class Managed(NamedTuple):
    """An item of ``managedResources`` in an entry of ``extenders``."""

    name: str
    ignored: bool
    """The field ``ignoredByScheduler``: True if kube-scheduler does not check that a node has the resource."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of ``extenders`` in the scheduler's configuration."""

    place: int
    """The index in the list, for messages."""

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
    """An item of ``profiles`` in the scheduler's configuration; ``scheduler`` is its schedulerName."""

    scheduler: str

    percentage: int | None
    """The field ``percentageOfNodesToScore``; None if unset."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The fields of a KubeSchedulerConfiguration that matter to Serried, with kube-scheduler's defaults."""

    source: str
    """The file or ConfigMap that has the configuration, for messages."""

    entries: tuple[Entry, ...] = ()
    profiles: tuple[Profile, ...] = (Profile("default-scheduler", None),)

    percentage: int | None = None
    """``percentageOfNodesToScore`` for the profiles that leave it unset."""

    elects: bool = True
    lease: str = _USUAL_LEASE
    """Namespace and name of the Lease that the scheduler holds, with a slash between them."""

    qps: float = _USUAL_QPS


class Interference(NamedTuple):
    """A disturbance of Serried by another program (``what``), and what the user can do about it (``fix``)."""

    what: str
    fix: str


_GANGS = Interference(
    "it starts gangs, too: on nodes that both use, each uses resources that the other has planned with, so gangs of "
    "both start later",
    "give each of them separate nodes, by taints or labels (docs/faq.md)",
)
INTERFERENCES: Mapping[str, Interference] = {
    **dict.fromkeys(("volcano-scheduler", "yunikorn-scheduler", "kai-scheduler", "koord-scheduler"), _GANGS),
    "scheduler-plugins-scheduler": _GANGS,
}
"""Other gang schedulers. A key is a part of the name of the program's Deployment."""


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
"""The extender's flags that the checks read, with their defaults.

``isolated`` is missing, because the checks then take it from the scheduler's configuration.
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The facts about one installation, as far as they were read.

    A fact is None or empty if no requested check needs it, or if it could not be read. `unread` names the latter facts.
    """

    config: SchedulerConfig | None = None

    flags: Mapping[str, str] = field(default_factory=dict)
    """The extender's flags, by name without dashes. `DEFAULT_FLAGS` if the extender does not answer."""

    selfcheck: Raw | None = None
    """The document of ``/debug/selfcheck``; None if the extender does not answer."""

    silence: str = ""
    """The reason why the extender does not answer, "" if it answers. `unread` then has the facts that only it knows."""

    skew_seconds: float | None = None
    """Seconds by which the extender's clock is ahead of the API server's."""

    denied: frozenset[Right] | None = None
    """The rights that Serried's ServiceAccounts need and do not have."""

    nodes: Mapping[str, Mapping[str, str]] | None = None
    """The labels of each node, by the node's name."""

    allocatable: Mapping[str, Amounts] = field(default_factory=dict)
    """The allocatable resources of each node, by the node's name. Read together with `nodes`."""

    keys: tuple[str, ...] = ()
    """The topology keys that existing gangs require or prefer, as the extender reports them."""

    levels: LevelTable | None = None
    """The node label of each topology level, from the status of TopologyLevels.

    None before the extender has written it.
    """

    policies: frozenset[str] | None = None
    """The names of all admission policies in the cluster, of any program."""

    bound_policies: frozenset[str] = frozenset()
    """The names of those admission policies that have a binding, without which a policy has no effect."""

    gate_switch: bool | None = None
    """True if the ConfigMap exists by which the extender turns the scheduling gate of new members on and off.

    None if it could not be read.
    """

    autoscalers: Autoscalers | None = None

    kueue: Kueue | None = None
    """The facts about Kueue; None if Kueue is not installed."""

    demands: tuple[TopologyDemand, ...] = ()
    """The topology keys that PodGroups and Workloads require.

    Read only if the cluster has an autoscaler, or if Kueue chooses nodes by a Topology.
    """

    neighbours: tuple[tuple[str, Interference], ...] = ()
    """Other gang schedulers and webhooks that may disturb Serried, each by its Deployment or configuration."""

    method: InstallMethod = KUBECTL
    """The way in which Serried was installed. The fixes of findings name its commands."""

    definitions: Mapping[str, str] | None = None
    """The release label of each of Serried's CRDs, by plural name; "" if the CRD has no such label."""

    absence: Finding | None = None
    """The finding that Serried is not installed; None if it is. With such a finding, no other fact was read."""

    server_version: str = ""
    """Version of the API server, for example v1.37.1."""

    scheduler_version: str = ""
    """The tag of the image of the kube-scheduler in the extender's pod, for example v1.37.1; "" if unknown."""

    unread: tuple[tuple[Area, str, str], ...] = ()
    """The facts that could not be read, each with its area, its name and the reason."""

    @property
    def extenders_elect(self) -> bool:
        """Return whether the extenders elect their leader themselves (``--lease-mode hold``).

        They do if the cluster's own kube-schedulers call them. Otherwise an extender leads while the kube-scheduler in
        its pod does.
        """
        return self.flags.get("lease-mode") == "hold"


_MINOR = re.compile(r"v?1\.(\d+)")


def read_minor(version: str) -> int | None:
    """Return the minor version in a version of Kubernetes, for example 37 for v1.37.1; None for other text."""
    found = _MINOR.match(version)
    return int(found[1]) if found else None


def decode_scheduler_config(source: str, document: Any) -> SchedulerConfig:
    """Return the parsed KubeSchedulerConfiguration as a `SchedulerConfig`. ``source`` names it in messages.

    Raises ValueError if the document is no KubeSchedulerConfiguration.
    """
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
