"""The terms of ``serried check``: what was found out about an installation, what is said of it, the rights it needs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from cli.check.installed import KUBECTL, Piece, Way
from serried.api.kinds import OWNER_KINDS, PARENTS, OwnerKind
from serried.api.names import Raw, read_flag, read_int, read_map, read_objects, read_text
from serried.api.topology import LevelTable


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """A promise of Serried does not hold, or gangs do not start."""

    WARNING = "warning"
    """It works, but costs something, or fails in a case that has not come yet."""

    UNKNOWN = "unknown"
    """It could not be looked at."""

    NOTE = "note"
    """No mistake, but good to know."""


class Area(StrEnum):
    """What is checked together, and is chosen by ``--only``."""

    SCHEDULER = "scheduler"
    EXTENDER = "extender"
    RIGHTS = "rights"
    NODES = "nodes"
    POLICIES = "policies"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake."""

    severity: Severity
    area: Area

    where: str
    """The object, the field or the file."""

    what: str
    """The mistake, and what follows from it."""

    fix: str
    """What to do."""


EXTENDER = "serried"
CONTROLLER = "serried-controller"


class Right(NamedTuple):
    """One verb on one resource for one ServiceAccount."""

    account: str
    verb: str
    group: str
    resource: str
    """With its subresource, if it is about one: pods/binding."""

    name: str = ""
    """The only object that it is about; "" for every one."""

    home: bool = False
    """Whether it is about the namespace of the ServiceAccount alone."""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}{f' {self.name}' if self.name else ''}"


class Need(NamedTuple):
    """What several rights are for."""

    verbs: str
    """One or more, with blanks between them."""

    resources: str
    """The same, as kubectl writes them: jobs/finalizers.batch."""

    without: str
    """What follows where they are missing."""

    vital: bool = True
    """Whether gangs do not start as promised without them."""

    name: str = ""
    home: bool = False

    component: Piece | None = None
    """The part of an installation that grants them; None for the roles that every installation has."""


_extra = partial(Need, vital=False)
_of_component = partial(_extra, component=Piece.VOLUMES_AND_DEVICES)


def _both(*resources: str) -> str:
    """These resources in both groups that serve Workloads and PodGroups."""
    return " ".join(
        f"{each}.{group}" for group in ("scheduling.k8s.io", "scheduling.serried.dev") for each in resources
    )


_REVIEWS = _extra(
    "create",
    "tokenreviews.authentication.k8s.io subjectaccessreviews.authorization.k8s.io",
    "nobody may look at metrics and debug pages over the network",
)

_PARENTS = tuple(PARENTS.values())


def _name_gangs(row: OwnerKind) -> str:
    return f"{row.kind}s" if row.gang == row.kind else f"their {row.gang}s"


_NO_LEVELS = "Jobs that name a level of the topology, such as rack, wait"

NEEDS: dict[str, tuple[Need, ...]] = {
    EXTENDER: (
        Need("list watch", "nodes", "nothing is planned"),
        Need("get list watch", "pods", "nothing is planned"),
        _of_component(
            "list watch",
            "persistentvolumes persistentvolumeclaims storageclasses.storage.k8s.io csidrivers.storage.k8s.io"
            " csistoragecapacities.storage.k8s.io csinodes.storage.k8s.io",
            "only the scheduler's refusals tell on which nodes a member can have its volumes",
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
        Need("list watch", _both("podgroups", "workloads", "compositepodgroups"), "gangs wait: WorkloadAPIMissing"),
        Need("list watch", "priorityclasses.scheduling.k8s.io", "the priority of a group's class does not count"),
        _extra("list watch", "podgroups.scheduling.x-k8s.io", "PodGroups of scheduler-plugins are no gangs"),
        Need("patch", _both("podgroups/status", "compositepodgroups/status"), "no condition says why a gang waits"),
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
        Need("patch", "pods", "scheduling gates are not lifted, and members not woken"),
        Need("delete", "pods", "a gang of disruption mode all goes in part"),
        _extra("list watch", "poddisruptionbudgets.policy", "only dry runs tell which pods may be evicted"),
        Need("create", "pods/eviction", "nobody is evicted for a gang of higher priority"),
        _extra("create patch", "events", "no event says why a gang waits"),
        Need("list watch", "leases.coordination.k8s.io", "the extender never leads", name="serried", home=True),
        _extra("patch", "configmaps", "new members are never held by gate", name="serried-hold", home=True),
        _extra("create", "podtemplates", "nobody knows whether pods keep the field that names their group", home=True),
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
            _both("workloads", "podgroups"),
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
"""The same where the extenders elect their leader themselves (``--lease-mode hold``)."""


def list_rights(needs_by_account: Mapping[str, Iterable[Need]]) -> dict[Right, Need]:
    """Every right, and what it is for; the first need where several have it."""
    rights: dict[Right, Need] = {}
    for account, needs in needs_by_account.items():
        for need in needs:
            for verb, whole in product(need.verbs.split(), need.resources.split()):
                resource, _, group = whole.partition(".")
                rights.setdefault(Right(account, verb, group, resource, need.name, need.home), need)
    return rights


_USUAL_EXTENDER_SECONDS = 5.0
"""kube-scheduler's ``httpTimeout`` where none is said (upstream's pkg/scheduler/extender.go)."""

_USUAL_LEASE = "kube-system/kube-scheduler"
_USUAL_QPS = 50
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Managed(NamedTuple):
    """One of ``managedResources``."""

    name: str
    ignored: bool
    """``ignoredByScheduler``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One of ``extenders``."""

    place: int
    """Its index in the list."""

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
    """One of ``profiles``."""

    scheduler: str

    percentage: int | None
    """``percentageOfNodesToScore``; None where nothing is said."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """A KubeSchedulerConfiguration, as far as Serried depends on it."""

    source: str
    """The file or ConfigMap."""

    entries: tuple[Entry, ...] = ()
    profiles: tuple[Profile, ...] = (Profile("default-scheduler", None),)

    percentage: int | None = None
    """``percentageOfNodesToScore`` of all profiles that say nothing."""

    elects: bool = True
    lease: str = _USUAL_LEASE
    """Namespace and name."""

    qps: float = _USUAL_QPS


class Neighbour(NamedTuple):
    """What another one does, and what to do about it."""

    what: str
    fix: str


_GANGS = Neighbour(
    "it starts gangs, too: on nodes that both use, each takes room that the other has planned for, so that gangs of "
    "both start later",
    "give each of them nodes of its own, by taints or labels (docs/faq.md)",
)
NEIGHBOURS: Mapping[str, Neighbour] = {
    **dict.fromkeys(("volcano-scheduler", "yunikorn-scheduler", "kai-scheduler", "koord-scheduler"), _GANGS),
    "scheduler-plugins-scheduler": _GANGS,
    "kueue-controller-manager": Neighbour(
        "it lets Jobs in before they have pods; for a ResourceFlavor with a topologyName it chooses domains, too",
        "leave topologyName out of what Jobs of Serried use",
    ),
}
"""Who else decides about pods, by a part of the name of its Deployment."""


DEFAULT_FLAGS: Mapping[str, str] = {
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
"""What an extender without flags does, of what is looked at. ``isolated`` is not here: the configuration shows it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """An installation. What is None was not looked at, or could not be: `unread` says which and why."""

    config: SchedulerConfig | None = None

    flags: Mapping[str, str] = field(default_factory=dict)
    """The extender's flags, without dashes before the name: from its ``/debug/config``, else `DEFAULT_FLAGS`."""

    selfcheck: Raw | None = None
    """The extender's ``/debug/selfcheck``."""

    silence: str = ""
    """Why the extender gives no answer; "" where it does, or was not asked. What only it knows is in `unread` then."""

    skew_seconds: float | None = None
    """By how much the extender's clock is ahead of the API server's."""

    denied: frozenset[Right] | None = None
    """The rights that the shipped roles would grant, and nobody grants."""

    nodes: Mapping[str, Mapping[str, str]] | None = None
    """The labels of each node."""

    keys: tuple[str, ...] = ()
    """The topology keys that groups ask for."""

    levels: LevelTable | None = None
    """Which label stands for each level; None before the extender has written it."""

    policies: frozenset[str] | None = None
    """The names of all admission policies."""

    bound_policies: frozenset[str] = frozenset()
    """The names of those that have a binding."""

    autoscalers: tuple[str, ...] | None = None

    neighbours: tuple[tuple[str, Neighbour], ...] = ()
    """What else decides about pods: the Deployment or the webhook of each."""

    way: Way = KUBECTL
    """How it was installed."""

    definitions: Mapping[str, str] | None = None
    """Of which release each CRD of ours is, by its plural; "" for one that does not say."""

    absence: Finding | None = None
    """That nothing is installed. Then nothing else was looked at."""

    server_version: str = ""
    """Of the API server, for example v1.37.1."""

    scheduler_version: str = ""
    """Of the kube-scheduler beside the extender; "" where its image does not say."""

    unread: tuple[tuple[Area, str, str], ...] = ()
    """What could not be looked at: area, what, why."""

    @property
    def extenders_elect(self) -> bool:
        """Whether the extenders elect their leader themselves, because the cluster's own scheduler calls them."""
        return self.flags.get("lease-mode") == "hold"


def decode_scheduler_config(source: str, document: Any) -> SchedulerConfig:
    """The configuration in a parsed document. Raises ValueError for any other."""
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


def parse_duration(text: str) -> float:
    """The seconds in a duration as Go writes it. Raises ValueError for anything else."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 15m or 5s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
