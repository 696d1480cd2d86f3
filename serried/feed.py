"""Keeps the Store, the cache of watched objects, up to date with the API server (`Feed`).

For each kind a reflector lists and watches the objects. Each object is decoded and put into the Store, or dropped from
it if it was deleted, and then the process is told (`Feed.on_change`). All of this happens synchronously for one event
before the next event is read. Extender and controller each run one `Feed`, with the kinds that they need.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from serried.api.budget import DisruptionBudget, decode_budget
from serried.api.group import (
    Composite,
    PodGroup,
    Workload,
    decode_compatible_group,
    decode_composite,
    decode_pod_group,
    decode_workload,
)
from serried.api.job import Job, decode_job
from serried.api.kinds import PARENTS
from serried.api.level import FALLBACK, ApiLevel
from serried.api.names import COMPATIBLE_API, GroupKey, GroupKind, Key, Malformed
from serried.api.node import Node, decode_node
from serried.api.parent import OwnerKey, Parent, decode_parent
from serried.api.pod import Pod, decode_pod
from serried.api.priority import PriorityClass, decode_priority_class
from serried.api.topology import (
    ForeignLevels,
    TopologyLevels,
    decode_grove_binding,
    decode_kueue_topology,
    decode_topology_levels,
)
from serried.cluster.cache import Layers, Store
from serried.cluster.rule import KindState, RuleKind
from serried.kube.client import ApiClient
from serried.kube.reflector import Deleted, Denied, Event, Listed, Reflector, Relisted, Unserved, Upserted, WatchTiming
from serried.kube.wire import (
    BUDGETS,
    EVERYTHING,
    GROVE_BINDINGS,
    JOBS,
    JSON,
    KUEUE_TOPOLOGIES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TOPOLOGY_LEVELS,
    Resource,
    Selection,
    composites,
    identity,
    owners,
    pod_groups,
    workloads,
)

log = logging.getLogger(__name__)

Item: TypeAlias = (
    Node
    | Pod
    | Job
    | PodGroup
    | Workload
    | Parent
    | PriorityClass
    | Composite
    | DisruptionBudget
    | TopologyLevels
    | ForeignLevels
)
OnChange = Callable[[Item | None, Item | None], None]
"""A function that is called after each change of the Store, with the object before and after the change.

The first is None if the object is new, the second if it was deleted.
"""

OnMalformed = Callable[[Malformed, Mapping[str, str]], None]
"""A function that is called when an object cannot be decoded, once for each problem.

It gets the problem, and a reference to the object as in the field ``regarding`` of an Event.
"""

V = TypeVar("V", bound=Item)
I = TypeVar("I")  # noqa: E741 - the identity under which the Store keeps a V


class Kind(StrEnum):
    """The kinds that can be watched. The value is the plural of the resource, with the API group where two share it."""

    NODES = "nodes"
    PODS = "pods"
    JOBS = "jobs"
    POD_GROUPS = "podgroups"
    COMPOSITES = "compositepodgroups"
    WORKLOADS = "workloads"
    COMPATIBLE_POD_GROUPS = "podgroups.scheduling.x-k8s.io"
    PRIORITY_CLASSES = "priorityclasses"
    vars().update({row.plural: row.plural for row in PARENTS.values()})  # as in `GroupKind`
    VOLUMES = "persistentvolumes"
    VOLUME_CLAIMS = "persistentvolumeclaims"
    STORAGE_CLASSES = "storageclasses"
    STORAGE_CAPACITIES = "csistoragecapacities"
    CSI_DRIVERS = "csidrivers"
    CSI_NODES = "csinodes"
    DEVICE_CLASSES = "deviceclasses"
    RESOURCE_SLICES = "resourceslices"
    RESOURCE_CLAIMS = "resourceclaims"
    DEVICE_TAINT_RULES = "devicetaintrules"
    NAMESPACES = "namespaces"
    BUDGETS = "poddisruptionbudgets"
    TOPOLOGY_LEVELS = "topologylevels"
    KUEUE_TOPOLOGIES = "topologies.kueue.x-k8s.io"
    GROVE_BINDINGS = "clustertopologybindings.grove.io"
    SECOND_POD_GROUPS = "podgroups.scheduling.serried.dev"
    """PodGroups of Serried's CRD while the native API is in use: these are read as well (`ApiLevel.second_level`)."""
    SECOND_WORKLOADS = "workloads.scheduling.serried.dev"
    """Workloads of Serried's CRD while the native API is in use (`ApiLevel.second_level`)."""
    SECOND_COMPOSITES = "compositepodgroups.scheduling.serried.dev"
    """CompositePodGroups of Serried's CRD while the native API is in use (`ApiLevel.second_level`)."""
    vars().update({f"pods.{row.plural}": f"pods.{row.plural}" for row in PARENTS.values() if row.followed_pods})
    # Each selects some more pods, for a process that does not watch all pods. No pod may match two selections.


PARENT_KINDS = {Kind(row.plural): row.kind for row in PARENTS.values()}
"""The owner kinds such as JobSets that Serried watches, with their kind in the API, for instance ``JobSet``."""

SELECTED_PODS = {
    Kind(f"pods.{row.plural}"): Selection(labels=row.followed_pods) for row in PARENTS.values() if row.followed_pods
}
"""The label selectors of the pods that the controller watches instead of all pods, by kind.

They are pods of owner kinds that have no Jobs, such as LeaderWorkerSets. The extender watches all pods (`Kind.PODS`).
"""

ALL_KINDS = tuple(kind for kind in Kind if kind not in SELECTED_PODS)

_PODS = (Kind.PODS, *SELECTED_PODS)

_SECOND_LEVEL_KINDS = frozenset({Kind.SECOND_POD_GROUPS, Kind.SECOND_WORKLOADS, Kind.SECOND_COMPOSITES})

_FOR_RULES = frozenset(
    {
        *(Kind.VOLUMES, Kind.VOLUME_CLAIMS, Kind.STORAGE_CLASSES, Kind.STORAGE_CAPACITIES),
        *(Kind.CSI_DRIVERS, Kind.CSI_NODES, Kind.NAMESPACES),
        *(Kind.DEVICE_CLASSES, Kind.RESOURCE_SLICES, Kind.RESOURCE_CLAIMS, Kind.DEVICE_TAINT_RULES),
    }
)
"""The kinds that are watched for scheduling rules (`serried.cluster.rule.Rule`): volumes, devices, namespaces."""

OPTIONAL_KINDS = frozenset(
    {
        *(Kind.COMPOSITES, Kind.COMPATIBLE_POD_GROUPS),
        *(Kind.BUDGETS, Kind.TOPOLOGY_LEVELS, Kind.KUEUE_TOPOLOGIES, Kind.GROVE_BINDINGS),
        *_FOR_RULES,
        *PARENT_KINDS,
        *_SECOND_LEVEL_KINDS,
    }
)
"""The kinds that the API server need not serve, or need not let Serried read: Serried works without them."""

GROUP_KINDS = frozenset({Kind.WORKLOADS, Kind.POD_GROUPS})
"""The kinds that define gangs at the API level of the cluster."""

_WATCH_TIMING = WatchTiming()

_OPTIONAL_WATCH_TIMING = WatchTiming(unserved=15.0, absent_after=0.0)
"""The timing of the reflectors of optional kinds.

A kind that is not served is retried only every 15 s, because nothing waits for it. Its first 404 already counts: most
clusters lack some of these kinds, and a start must not wait until a second 404 confirms the first.
"""

_WANTED_POLL_SECONDS = 1.0
"""The interval of checks whether a simulated pod needs a kind that is not watched yet, such as device classes.

The pods of a simulated gang are not in the cluster, so no event of a watch announces them.
"""

_MAX_PROBLEMS = 1000
"""The maximum number of decoding problems that are remembered, so that each is logged once."""


@dataclass(eq=False)
class Feed:
    """Keeps ``store``, the cache of watched objects, up to date with the API server for ``kinds``, while `run` runs.

    ``selections`` restrict kinds by selectors; an object that does not match any more counts as deleted. A kind in
    ``optional`` that the API server does not serve, or forbids to read, counts as listed without objects, and is
    retried. ``Store.obstacles`` says if Workloads or PodGroups (also those of scheduler-plugins) cannot be read, or if
    a kind that is not optional is not served.
    """

    client: ApiClient
    level: ApiLevel
    store: Store
    kinds: InitVar[Iterable[Kind]] = ALL_KINDS
    on_change: OnChange = field(default=lambda _old, _new: None, kw_only=True)
    selections: Mapping[Kind, Selection] = field(default_factory=dict, kw_only=True)
    optional: Collection[Kind] = field(default=OPTIONAL_KINDS, kw_only=True)
    on_malformed: OnMalformed = field(default=lambda _problem, _about: None, kw_only=True)

    channels: "Mapping[Kind, Channel[Any, Any]]" = field(init=False)
    """For each kind the functions that decode its objects and put them into the Store; also of kinds not watched."""

    reflectors: Mapping[Kind, Reflector] = field(init=False)
    """The reflectors of the kinds that this feed watches, now or as soon as a pod needs them (`RuleKind.lazy`)."""

    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the first lists of all kinds are in the Store; cleared while a required kind is not served.

    Kinds that are watched only when a pod needs them, such as device classes, do not count before that.
    """

    unserved: set[Kind] = field(default_factory=set, init=False)
    """The watched kinds for which the API server answers 404 at the moment."""

    malformed: Counter[Kind] = field(default_factory=Counter, init=False)
    """The number of versions of objects that could not be decoded, by kind. The Store keeps the last valid version."""

    _cached: Counter[Kind] = field(default_factory=Counter, init=False)
    """The number of objects in the Store by kind. Counted here, because one map of the Store may have several kinds."""

    _idle: set[Kind] = field(default_factory=set, init=False)
    """The kinds that only scheduling rules read, and that are not watched yet, because no pod needs them so far.

    Device classes, for instance (`RuleKind.lazy`).
    """

    _obstacles: dict[Kind, str] = field(default_factory=dict, init=False)
    """For kinds of GROUP_KINDS the sentence why the kind cannot be read; "" or no entry if it can."""

    _problems: set[Malformed] = field(default_factory=set, init=False)
    """The decoding problems that have been logged."""

    def __post_init__(self, kinds: Iterable[Kind]) -> None:
        self.channels = _channels(self.store, self.level)
        followed = [kind for kind in kinds if kind in self.channels and kind not in _list_unavailable(self.level)]
        self._of_rules = {Kind(each.plural): (rule, each) for rule in self.store.all_rules for each in rule.kinds}
        self._idle = {kind for kind in followed if kind in self._of_rules and self._of_rules[kind][1].lazy}
        self._needed = {kind: asyncio.Event() for kind in self._idle}
        self._unlisted = set(followed) - self._idle
        for kind in self._of_rules.keys() & self._unlisted:
            self._note_state(kind, KindState.LISTING)
        self.reflectors = {
            kind: Reflector(
                self.client,
                self.channels[kind].resource,
                self._sink(kind, self.channels[kind]),
                selection=self.selections.get(kind, EVERYTHING),
                timing=_OPTIONAL_WATCH_TIMING if kind in OPTIONAL_KINDS else _WATCH_TIMING,
            )
            for kind in followed
        }

    @property
    def unlisted(self) -> frozenset[Kind]:
        """The kinds that are not in the Store yet: their first list is missing, or a required one is not served."""
        return frozenset(self._unlisted)

    @property
    def followed(self) -> tuple[Kind, ...]:
        """The kinds that this feed watches now: without those, such as device classes, that no pod needs so far."""
        return tuple([kind for kind in self.reflectors if kind not in self._idle])

    @property
    def blind_since(self) -> float:
        """The monotonic time since which no changes of some required kind arrive; infinity if all watches work.

        Workloads or PodGroups do not count while the API server does not serve them, or forbids to read them:
        ``Store.obstacles`` reports that.
        """
        needed = self.reflectors.keys() - self.optional - {kind for kind, what in self._obstacles.items() if what}
        return min((self.reflectors[kind].blind_since_monotonic for kind in needed), default=math.inf)

    def set_gauges(self, now: float) -> None:
        """Set the metrics of cached objects and of the time since each watch received anything.

        ``now`` is the monotonic time.
        """
        for kind, reflector in self.reflectors.items():
            self.client.metrics.cached(kind.value, self._cached[kind])
            if reflector.listed.is_set():
                self.client.metrics.silent(kind.value, now - reflector.last_event_monotonic)

    async def run(self) -> None:
        """Watch all kinds until cancelled. Some, such as device classes, are watched as soon as a pod needs them."""
        async with asyncio.TaskGroup() as tasks:
            for kind, reflector in self.reflectors.items():
                tasks.create_task(self._follow(kind, reflector), name=f"watch {kind}")
            tasks.create_task(self._poll_wanted(), name="questions")

    async def _follow(self, kind: Kind, reflector: Reflector) -> None:
        if kind in self._needed:
            await self._needed[kind].wait()
        await reflector.run()

    def _sink(self, kind: Kind, channel: "Channel[Any, Any]") -> Callable[[Event], None]:
        def take(event: Event) -> None:
            match event:
                case Upserted(obj):
                    self._upsert(kind, channel, obj)
                case Deleted(obj):
                    self._delete(kind, channel, obj)
                case Listed() | Relisted():
                    self._note_listed(kind)
                case Unserved(resource):
                    self._note_unserved(kind, resource)
                case Denied(resource):
                    self._note_denied(kind, resource)

        return take

    def _upsert(self, kind: Kind, channel: "Channel[Any, Any]", obj: JSON) -> None:
        new = channel.decode(obj)
        if isinstance(new, Malformed):
            self._note_malformed(kind, new, obj)
            return
        old = channel.held.get(channel.identify(obj))
        if old is not None and new.version and old.version == new.version:
            return  # a new list repeats known objects
        channel.put(new)
        self._cached[kind] += old is None
        if self._idle:
            self._start_wanted()
        self.on_change(old, new)

    def _start_wanted(self) -> None:
        """Start the watches of the kinds that a pod needs by now, as their scheduling rule reports (`Rule.wanted`).

        Only for kinds such as device classes that are not watched before a pod needs them (`RuleKind.lazy`).
        """
        begun = [kind for kind in self._idle if self._of_rules[kind][0].wanted]
        self._idle.difference_update(begun)
        for kind in begun:
            self._needed[kind].set()
            self._note_state(kind, KindState.LISTING)

    async def _poll_wanted(self) -> None:
        """Check every second whether a simulated pod needs a kind that is not watched, and start the watch then.

        Ends when all kinds are watched. Pods in the cluster cause the check by the events of their watch. Pods of a
        simulated gang have no events.
        """
        while self._idle:
            self._start_wanted()
            await asyncio.sleep(_WANTED_POLL_SECONDS)

    def _note_state(self, kind: Kind, state: KindState, why: str = "") -> None:
        if kind in self._of_rules:
            self.store.note_state(self._of_rules[kind][1].type, state, why)

    def _delete(self, kind: Kind, channel: "Channel[Any, Any]", obj: JSON) -> None:
        # The last state may be missing or malformed, so only the identity is read.
        key = channel.identify(obj)
        old = channel.held.get(key)
        if old is not None:
            channel.drop(key)
            self._cached[kind] -= 1
            self.on_change(old, None)

    def _note_listed(self, kind: Kind) -> None:
        self.unserved.discard(kind)
        self._note_obstacle(kind, "")
        self._note_state(kind, KindState.KNOWN)
        if kind in PARENT_KINDS:
            self.store.membership.followed.add(PARENT_KINDS[kind])
        self._mark_listed(kind)

    def _note_denied(self, kind: Kind, resource: Resource) -> None:
        what = f"the API server does not let Serried read {resource} ({resource.version})"
        self._note_obstacle(kind, what)
        self._note_state(kind, KindState.DENIED, what)
        if kind in self.optional:
            self._note_absent(kind)

    def _note_obstacle(self, kind: Kind, what: str) -> None:
        if kind is Kind.COMPATIBLE_POD_GROUPS and self.store.obstacles.compatible != what:
            self.store.set_compatible_obstacle(what)
        if kind in GROUP_KINDS and self._obstacles.get(kind, "") != what:
            self._obstacles[kind] = what
            self.store.set_obstacle(next(filter(None, self._obstacles.values()), ""))

    def _note_absent(self, kind: Kind) -> None:
        if kind in PARENT_KINDS:
            self.store.membership.followed.discard(PARENT_KINDS[kind])
        self._mark_listed(kind)

    def _mark_listed(self, kind: Kind) -> None:
        self._unlisted.discard(kind)
        if not self._unlisted:
            self.synced.set()
            self.store.set_plan_obstacle("")

    def _note_unserved(self, kind: Kind, resource: Resource) -> None:
        if kind in self.unserved:
            return  # reported again after each retry
        self.unserved.add(kind)
        what = f"the API server does not serve {resource} ({resource.version})"
        self._note_obstacle(kind, what)
        self._note_state(kind, KindState.UNSERVED, what)
        if kind in self.optional:
            self._note_absent(kind)
            return
        self._unlisted.add(kind)
        self.synced.clear()
        if kind not in GROUP_KINDS:  # GROUP_KINDS have an obstacle of their own with a better reason
            self.store.set_plan_obstacle(what)
        text = "the API server does not serve a resource; waiting until it does"
        log.error(text, extra={"resource": str(resource), "version": resource.version})

    def _note_malformed(self, kind: Kind, problem: Malformed, obj: JSON) -> None:
        self.malformed[kind] += 1
        self.client.metrics.malformed(kind.value)
        if problem in self._problems:
            return
        if len(self._problems) >= _MAX_PROBLEMS:
            self._problems.clear()
        self._problems.add(problem)
        text = "an object could not be decoded, so this version of it is ignored"
        log.warning(text, extra={"kind": problem.kind, "object": problem.key, "err": problem.problem})
        namespace, name, uid = identity(obj)
        about = {
            "apiVersion": self.reflectors[kind].resource.api_version,
            "kind": problem.kind,
            "name": name,
            "uid": uid,
        }
        self.on_malformed(problem, about | ({"namespace": namespace} if namespace else {}))


@dataclass(frozen=True, slots=True)
class Channel(Generic[V, I]):
    """The functions by which a `Feed` decodes the objects of one kind and puts them into the Store. Has no state."""

    resource: Resource
    """The resource to list and watch."""

    decode: Callable[[object], V | Malformed]
    """Function that decodes an object of the API."""

    identify: Callable[[JSON], I]
    """Function that returns the identity of an object of the API: its key in ``held``."""

    held: Mapping[I, V]
    """The Store's map of the decoded objects by identity. It may have objects of several kinds (see ``owns``)."""

    put: Callable[[V], None]
    """Function that adds or replaces a decoded object in the Store."""

    drop: Callable[[I], None]
    """Function that removes the object with this identity from the Store."""

    owns: Callable[[I], bool] = lambda _: True
    """Function that returns whether the object with this identity in ``held`` is of this kind."""


def _list_unavailable(level: ApiLevel) -> set[Kind]:
    """Return the kinds that are not watched at an API level, because they do not exist there."""
    absent = set() if level.second_level is not None else set(_SECOND_LEVEL_KINDS)
    if level.inline:
        absent.add(Kind.POD_GROUPS)
    if not level.has_composites:
        absent.add(Kind.COMPOSITES)
    return absent


def _channels(store: Store, level: ApiLevel) -> dict[Kind, Channel[Any, Any]]:
    read_pod = partial(decode_pod, apis=level.readable_versions, rule=level.resize_rule)
    return {
        **_group_channels(store, level),
        **{kind: _parent_channel(store, parent) for kind, parent in PARENT_KINDS.items()},
        Kind.NODES: Channel(NODES, decode_node, _name, store.shown_nodes, store.put_node, store.drop_node),
        **dict.fromkeys(_PODS, Channel(PODS, read_pod, _uid, store.pods, store.put_pod, store.drop_pod)),
        Kind.JOBS: Channel(JOBS, decode_job, _key, store.jobs, store.put_job, store.drop_job),
        Kind.PRIORITY_CLASSES: Channel(
            *(PRIORITY_CLASSES, decode_priority_class, _name),
            *(store.priority_classes, store.put_priority_class, store.drop_priority_class),
        ),
        **{Kind(each.plural): _rule_channel(store, each) for rule in store.all_rules for each in rule.kinds},
        Kind.BUDGETS: Channel(BUDGETS, decode_budget, _key, store.budgets, store.put_budget, store.drop_budget),
        **_level_channels(store),
    }


def _level_channels(store: Store) -> dict[Kind, Channel[Any, Any]]:
    """Return how to decode and store the kinds that say which node labels are topology levels.

    These are TopologyLevels of Serried, Topologies of Kueue and ClusterTopologyBindings of Grove.
    """
    levels = store.levels
    return {
        Kind.TOPOLOGY_LEVELS: Channel(
            *(TOPOLOGY_LEVELS, decode_topology_levels, _name),
            *(levels.declared, store.put_levels, store.drop_levels),
        ),
        Kind.KUEUE_TOPOLOGIES: Channel(
            *(KUEUE_TOPOLOGIES, decode_kueue_topology, _name),
            *(levels.kueue, partial(levels.put, levels.kueue), partial(levels.drop, levels.kueue)),
        ),
        Kind.GROVE_BINDINGS: Channel(
            *(GROVE_BINDINGS, decode_grove_binding, _name),
            *(levels.grove, partial(levels.put, levels.grove), partial(levels.drop, levels.grove)),
        ),
    }


def _rule_channel(store: Store, kind: RuleKind) -> Channel[Any, Any]:
    resource = Resource(kind.group, kind.version, kind.plural, namespaced=kind.namespaced)
    identify = _key if kind.namespaced else _name
    return Channel(resource, kind.decode, identify, kind.held, store.put_object, partial(store.drop_object, kind.type))


def _parent_channel(store: Store, kind: str) -> Channel[Any, Any]:
    held, put, drop = store.parents, store.put_parent, store.drop_parent
    decode, identify = partial(decode_parent, kind), partial(_owner_key, kind)
    return Channel(owners(kind), decode, identify, held, put, drop, owns=lambda key: key.kind == kind)


def _group_channels(store: Store, level: ApiLevel) -> dict[Kind, Channel[Any, Any]]:
    """Return how to decode and store the kinds that define gangs, such as PodGroups, in all APIs that Serried reads.

    These are the API of ``level``, Serried's CRDs beside it (`ApiLevel.second_level`), and that of scheduler-plugins.
    """
    pod_group, workload, composite = map(
        _make_second_level_marker(level), (decode_pod_group, decode_workload, decode_composite)
    )
    first, second = (level.group, level.version), (FALLBACK.group, FALLBACK.version)
    groups = Layers(_keep_key, store.put_group, store.drop_group)
    trees = Layers(_keep_key, store.put_composite, store.drop_composite)
    loads = Layers(_keep_key, store.put_workload, store.drop_workload)
    return {
        Kind.POD_GROUPS: Channel(pod_groups(*first), decode_pod_group, _group_key, *groups.above),
        Kind.SECOND_POD_GROUPS: Channel(pod_groups(*second), pod_group, _group_key, *groups.below),
        Kind.COMPOSITES: Channel(composites(level), decode_composite, _key, *trees.above),
        Kind.SECOND_COMPOSITES: Channel(composites(FALLBACK), composite, _key, *trees.below),
        Kind.WORKLOADS: Channel(workloads(*first), decode_workload, _key, *loads.above),
        Kind.SECOND_WORKLOADS: Channel(workloads(*second), workload, _key, *loads.below),
        Kind.COMPATIBLE_POD_GROUPS: Channel(
            *(pod_groups(*COMPATIBLE_API.split("/")), decode_compatible_group, _compatible_key),
            *(store.groups, store.put_group, store.drop_group),
            owns=lambda key: key.kind is GroupKind.COMPATIBLE,
        ),
    }


def _keep_key(item: Any) -> Any:
    return item.key


def _make_second_level_marker(level: ApiLevel) -> Callable[[Callable[[object], Any]], Callable[[object], Any]]:
    """Return a function that wraps a decoder of Serried's CRDs, which are read beside those of the native ``level``.

    The wrapped decoder sets the field ``api`` of each object to the CRDs' apiVersion (`ApiLevel.second_level`), so that
    the Store can tell them from objects of ``level``.
    """
    api = level.second_level.api_version if level.second_level is not None else ""

    def mark(decode: Callable[[object], Any]) -> Callable[[object], Any]:
        def decode_second(obj: object) -> Any:
            found = decode(obj)
            return found if isinstance(found, Malformed) else replace(found, api=api)

        return decode_second

    return mark


def _name(obj: JSON) -> str:
    return identity(obj)[1]


def _uid(obj: JSON) -> str:
    return identity(obj)[2]


def _key(obj: JSON) -> Key:
    namespace, name, _ = identity(obj)
    return Key(namespace, name)


def _group_key(obj: JSON) -> GroupKey:
    return GroupKey(*_key(obj))


def _compatible_key(obj: JSON) -> GroupKey:
    return GroupKey(*_key(obj), GroupKind.COMPATIBLE)


def _owner_key(kind: str, obj: JSON) -> OwnerKey:
    return OwnerKey(kind, _key(obj))
