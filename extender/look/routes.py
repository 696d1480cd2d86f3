"""The routes of ``/debug`` (`debug_routes`, `process_routes`), the self-check, and the gauges of ``/metrics``.

They read the state and change nothing. `Gauges.sample` runs at each scrape. All handlers are coroutines, although few
of them wait: FastAPI runs plain functions in other threads, and only the event loop's thread may read the state.
"""

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from fastapi import APIRouter, HTTPException

from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.group import GroupState
from extender.features.repair import broken_since
from extender.features.status.reports import Reports
from extender.lead.by_service import EndpointSlice
from extender.lead.holding import HoldSwitch, Isolation
from extender.lead.leadership import Leadership
from extender.look.document import View, add_page
from extender.look.nodes import NodePages, NodeView
from extender.look.simulations import snapshot_routes, whatif_routes
from extender.look.views import (
    DecisionView,
    GroupDetail,
    GroupPages,
    GroupView,
    QueueView,
    ReservationView,
    VacancyView,
    find_start,
)
from extender.wiring import Core
from serried import __version__
from serried.api.group import PodGroup
from serried.api.kinds import OWNER_KINDS
from serried.api.level import NATIVE, ApiLevel
from serried.api.names import GroupKey, GroupKind, write_time
from serried.api.pod import Pod
from serried.api.verdict import Reason, Stage
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.drift import Comparison, Difference, Drift
from serried.feed import Feed, Item
from serried.kube.client import ApiClient
from serried.kube.discovery import stores_pod_group
from serried.ops.metrics import ExtenderMetrics, ReservedResources
from serried.ops.tls import Use, list_expiries
from serried.settings import CommonSettings, describe_settings


class DriftView(View):
    """The differences between the API server and the cache in one kind.

    Objects are named as `namespace/name`, or by name if they have no namespace.
    """

    kind: str

    served: bool
    """True if the API server serves the kind."""

    listed: int
    """The number of objects that the API server has listed."""

    cached: int
    """The number of objects in the process's cache."""

    missing: list[str]
    """The objects that are not in the cache."""

    extra: list[str]
    """The objects in the cache that the API server does not have."""

    stale: list[str]
    """The objects of which the cache has another version than the API server."""

    malformed: list[str]
    """The objects that the process cannot decode. Its cache has the last version that it could decode, if any."""

    leftOff: int
    """The number of further objects that differed at first, and were too many for the second comparison."""

    error: str
    """The reason why the kind could not be compared; "" if it was."""


class CacheDiffView(View):
    """The differences between the API server and the process's cache."""

    equal: bool
    """True if no kind differs, and all could be compared."""

    kinds: list[DriftView]


def _is_equal(view: DriftView) -> bool:
    return not (view.missing or view.extra or view.stale or view.malformed or view.leftOff or view.error)


def _view_drift(drift: Drift) -> DriftView:
    names: dict[str, Any] = {each.value: [name for name, found in drift.named if found is each] for each in Difference}
    names |= {"listed": drift.listed, "cached": drift.cached, "leftOff": drift.left_off}
    return DriftView(kind=drift.kind.value, served=drift.served, error=drift.error, **names)


class SettingView(View):
    """A setting of the process. Values are written as on the command line; "" if it is not set."""

    flag: str

    variable: str
    """The environment variable that sets the same."""

    value: str
    """The value in use. In a URL, user, password and query are replaced by `***`."""

    default: str

    about: str
    """The text of `--help` about the flag."""


class ConfigView(View):
    """The settings of the process, from flags, environment variables and defaults."""

    version: str
    """The version of Serried."""

    settings: list[SettingView]


def conceal(value: str) -> str:
    """Return the value of a setting. If it is a URL, its user, password and query are replaced by ``***``."""
    # Up to the last @: a password may contain more of them, and slashes, if it is not escaped.
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", value))


_USER = re.compile(r"(://).*@", re.DOTALL)
_QUERY = re.compile(r"(://[^?]*\?).+", re.DOTALL)


_COMPATIBLE = "compatible"
"""The value of the metrics' label for the API of a PodGroup, if that is of scheduler-plugins (docs/kinds.md)."""


class Gauges:
    """Sets the gauges of ``/metrics`` that show the extender's state, such as the number of waiting gangs."""

    def __init__(
        self,
        core: Core,
        feed: Feed,
        level: ApiLevel,
        isolation: Isolation,
        *,
        leadership: Leadership,
        metrics: ExtenderMetrics,
    ) -> None:
        self._core = core
        self._feed = feed
        self._level = level
        self._isolation = isolation
        self._leadership = leadership
        self._metrics = metrics

        self._gangs: Counter[tuple[str, str]] = Counter()
        """The number of gangs by the result of `describe_gang`, counted by `count_change` so that scrapes are cheap."""

        self._gated = 0
        """The number of pods with Serried's scheduling gate, counted by `count_change`."""

    def count_change(self, old: Item | None, new: Item | None) -> None:
        """Update the numbers of gangs and gated pods after one change in the Store.

        ``old`` is None for a new object, ``new`` for a deleted one.
        """
        for item, sign in ((old, -1), (new, 1)):
            match item:
                case PodGroup() if item.policy.is_gang:
                    self._gangs[describe_gang(item, self._level)] += sign
                case Pod():
                    self._gated += sign * item.held_by_gate

    def sample(self) -> None:
        """Set every gauge to the current state."""
        core = self._core
        self._sample_groups()
        self._metrics.waiting(measure_waits(core.groups.states, core.store, core.clock()))
        self._metrics.head(core.backfill.seconds_to_forecast())
        self._metrics.vacancies(len(core.store.vacancies))
        self._metrics.unmarked(len(self._isolation.list_unmarked()))
        self._metrics.held("filter", len(core.groups.held))
        self._metrics.held("gate", self._gated)
        self._metrics.active(int(self._leadership.active))
        self._metrics.gangs(self._count_gangs())
        self._metrics.reservations(measure_held(core.ledger, core.store, self._list_cycles(), core.clock()))
        free, largest = core.store.capacity.measure_latest_shape()
        self._metrics.fragmentation(free, largest)
        self._metrics.certificates({use.value: expiry for use, expiry in list_expiries().items()})
        self._feed.set_gauges(time.monotonic())

    def _count_gangs(self) -> Counter[tuple[str, str]]:
        if not self._level.inline:
            return +self._gangs
        # In Kubernetes 1.35 PodGroups are parts of Workloads, and no objects that `count_change` could count.
        groups = self._core.store.groups.values()
        return Counter(describe_gang(group, self._level) for group in groups if group.policy.is_gang)

    def _list_cycles(self) -> list[BindingCycle]:
        return [state.cycle for state in self._core.groups.states.values() if state.cycle is not None]

    def _sample_groups(self) -> None:
        states = self._core.groups.states.values()
        cycles = self._list_cycles()
        stages = Counter(cycle.stage for cycle in cycles)
        for stage in CycleStage:
            self._metrics.groups(stage.value, stages[stage])
        verdicts = [state.verdict for state in states if state.cycle is None and state.verdict is not None]
        waiting = Counter(verdict.reason for verdict in verdicts)
        for reason in Reason:
            if reason.stage in {Stage.PLANNED, Stage.BINDING}:
                continue  # such a group has a cycle, and was counted by its stage
            self._metrics.groups(reason.value, waiting[reason])
        broken = sum(broken_since(state) is not None for state in states)
        self._metrics.partial(broken + sum(0 < len(cycle.bound) < cycle.reservation.need for cycle in cycles))


def describe_gang(group: PodGroup, level: ApiLevel) -> tuple[str, str]:
    """Return two values of metrics' labels for a gang: the API of its PodGroup, and the kind of its owner.

    The API is ``native`` (scheduling.k8s.io), ``fallback`` (Serried's own CRDs), or ``compatible`` (PodGroups of
    scheduler-plugins). ``level`` is the API that Serried uses in the cluster. The kind is "" without an owner,
    ``other`` for a kind that Serried does not know.
    """
    kind = next((owner.kind for owner in group.owners if owner.controller), "")
    # Users may write any kind into a PodGroup, and must not be able to create any number of series.
    known = kind if kind in {"", *OWNER_KINDS} else "other"
    if group.key.kind is GroupKind.COMPATIBLE:
        return _COMPATIBLE, known
    return (level.second_level or level if group.api else level).name, known


def measure_waits(states: Mapping[GroupKey, GroupState], store: Store, now: float) -> dict[str, list[float]]:
    """Return how long each gang that has pods but does not run has waited, in seconds, by namespace.

    ``now`` is loop time.
    """
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for key, state in states.items():
        if state.verdict is not None and state.verdict.reason is not Reason.SCHEDULED and key in store.members:
            waits[key.namespace].append(now - find_start(state))
    return waits


def measure_held(ledger: Ledger, store: Store, cycles: list[BindingCycle], now: float) -> ReservedResources:
    """Return the number of reservations by phase, and how many of their slots are of bound and of unbound members.

    The result also has the resources that the unbound members request, and the age of the oldest binding cycle.

    ``cycles`` are all binding cycles, for the age of the oldest. ``now`` is the loop time.
    """
    unused: Counter[tuple[tuple[str, int], ...]] = Counter()
    waiting = 0
    slots = 0
    phases: Counter[str] = Counter()
    for reservation in ledger:
        phases[reservation.phase.value] += 1
        slots += len(reservation.slots)
        for uid in reservation.slots:
            pod = store.pods.get(uid)
            if pod is not None and not pod.bound:
                waiting += 1
                unused[pod.shape.requests] += 1
    oldest = max((now - cycle.started for cycle in cycles), default=0.0)
    return ReservedResources(phases, slots - waiting, waiting, _sum_up(unused), oldest)


def _sum_up(requests: Mapping[tuple[tuple[str, int], ...], int]) -> dict[str, float]:
    """Return the sum of requests by resource, with CPU in cores. ``requests`` has each request with its number of pods.

    Pseudo resources are left out: requests that Serried adds to pods so that a rule, such as that two pods cannot have
    one host port, counts like a resource. Their names have a colon.
    """
    total: Counter[str] = Counter()
    for request, count in requests.items():
        total.update({name: amount * count for name, amount in request if ":" not in name})
    return {name: amount / 1000 if name == "cpu" else amount for name, amount in total.items()}


log = logging.getLogger(__name__)

_MAX_INVALID_TREES = 100
_SOON_SECONDS = 7 * 86_400.0
"""The seconds before a certificate expires in which the self-check warns, so that a broken renewal can be repaired."""

_FLAGS = {Use.SERVING: "--tls-cert-file", Use.CLIENT_CA: "--client-ca-file"}
"""The flag that names the certificate's file, by the use of the certificate."""

_OUTCOMES = {Use.SERVING: "clients that verify it cannot connect", Use.CLIENT_CA: "no client can call filter and bind"}
"""The consequence when a certificate has expired, by its use."""


class SelfCheck:
    """Creates the document ``/debug/selfcheck``: what the process has found in the cluster, and what hinders it."""

    def __init__(
        self,
        core: Core,
        feed: Feed,
        level: ApiLevel,
        leadership: Leadership,
        *,
        holding: HoldSwitch,
        isolation: Isolation,
        endpoint_slice: EndpointSlice | None,
    ) -> None:
        self._core = core
        self._feed = feed
        self._level = level
        self._leadership = leadership
        self._holding = holding
        self._isolation = isolation
        self._endpoint_slice = endpoint_slice
        self._refused = level.refused
        self._pods_keep_group: bool | None = None

    def set_refused(self, refused: Sequence[str]) -> None:
        """Set the API versions that the process cannot use, each a phrase with the reason."""
        self._refused = tuple(refused)

    async def check_group_field(self, client: ApiClient, namespace: str) -> None:
        """Find out whether the API server keeps the field of pods that names their PodGroup; it may drop it.

        One pod is created in ``namespace`` by dry run. The result is shown in the document; a drop is also logged.
        """
        self._pods_keep_group = await stores_pod_group(client, self._level, namespace)
        if self._pods_keep_group is False and self._level.name == NATIVE.name:
            log.error(
                "the API server drops the PodGroup field of pods, so pods join no gangs: turn on the feature gate "
                "GenericWorkload on all API servers and kube-schedulers"
            )

    def describe(self) -> dict[str, Any]:
        """Return the document, as JSON."""
        now = time.time()
        return {
            "version": __version__,
            "now": write_time(now),
            "api": {
                "level": self._level.name,
                "group": self._level.group,
                "version": self._level.version,
                "shape": self._level.known_version,
                "refused": list(self._refused),
                "podsKeepTheirGroup": self._pods_keep_group,
            },
            "schedulers": sorted(self._core.store.schedulers),
            "schedulesGangs": self._core.store.schedules_gangs,
            "active": self._leadership.active,
            "leaseHolder": self._leadership.holder,
            "planning": self._core.term.plans,
            "obstacle": self._core.term.obstacle,
            "synced": self._feed.synced.is_set(),
            "hold": {
                "mode": self._holding.mode,
                "way": self._holding.way,
                "obstacle": self._holding.obstacle,
                "heldByFilter": len(self._core.groups.held),
            },
            "autoscalers": self._describe_autoscalers(),
            "endpointSlice": None if self._endpoint_slice is None else {"obstacle": self._endpoint_slice.obstacle},
            "nodeProtection": {
                "nodes": len(self._core.store.protections),
                "obstacle": self._core.node_protection.write_error,
            },
            "isolation": self._isolation.describe(),
            "certificates": describe_certificates(list_expiries(), now),
            "objects": self._count_objects(),
            "treesInvalidIn138": self._list_invalid_trees(),
            "watches": self._describe_watches(),
        }

    def _describe_autoscalers(self) -> dict[str, Any]:
        seen = self._core.autoscalers.seen
        return {"found": seen.names, "nodePools": [pool.name for pool in seen.pools], "obstacle": seen.unknown}

    def _count_objects(self) -> dict[str, int]:
        store = self._core.store
        return {
            "nodes": len(store.nodes),
            "pods": len(store.pods),
            "podsOfOtherSchedulers": store.running_elsewhere,
            "podGroups": len(store.groups),
            "workloads": len(store.workloads),
            "jobs": len(store.jobs),
            "reservations": len(self._core.ledger),
        }

    def _list_invalid_trees(self) -> dict[str, str]:
        """Return why kube-scheduler 1.38 would reject trees of groups, by `namespace/name`; at most 100 trees."""
        forest = self._core.store.forest
        found = ((str(key.object_key), forest.find_invalid(key)) for key in self._core.store.groups)
        return dict(islice(((tree, why) for tree, why in found if why), _MAX_INVALID_TREES))

    def _describe_watches(self) -> dict[str, Any]:
        return {
            kind.value: {
                "listed": self._feed.reflectors[kind].listed.is_set(),
                "served": kind not in self._feed.unserved,
                "malformed": self._feed.malformed[kind],
                "silentSeconds": round(time.monotonic() - self._feed.reflectors[kind].last_event_monotonic, 1),
            }
            for kind in self._feed.followed
        }


def describe_certificates(expiries: Mapping[Use, float], now: float) -> dict[str, dict[str, str]]:
    """Return when each certificate of the listener expires, and a warning if that is soon or over; otherwise "".

    The keys are the uses of certificates: ``serving`` is the server's own, ``client_ca`` verifies those of clients.
    ``expiries`` and ``now`` are in seconds since 1970.
    """
    return {
        use.value: {"expires": write_time(expiry), "warning": _warn(use, expiry - now)}
        for use, expiry in expiries.items()
    }


def _warn(use: Use, seconds: float) -> str:
    if seconds > _SOON_SECONDS:
        return ""
    when = "has expired: " if seconds <= 0 else f"expires in {seconds / 86_400:.1f} days; then "
    return f"the certificate in {_FLAGS[use]} {when}{_OUTCOMES[use]}. Replace the file; no restart is needed"


class ProcessPages:
    """The handlers of the pages about the process: its settings, and its cache."""

    def __init__(self, settings: CommonSettings, comparison: Comparison) -> None:
        self._settings = settings
        self._comparison = comparison

    async def show_config(self) -> ConfigView:
        """Return every setting as read from flags, environment and defaults, without the secrets in URLs."""
        read = [each._replace(value=conceal(each.value)) for each in describe_settings(self._settings)]
        return ConfigView(version=__version__, settings=[SettingView(**setting._asdict()) for setting in read])

    async def compare(self, kind: str = "") -> CacheDiffView:
        """List every watched kind, or only `kind`, from the API server, and compare it with the process's cache.

        A watch is always a little behind. So objects that differ are compared again after a second, at most 100 of a
        kind, and are reported only if they still differ. Each comparison costs the API server a list of each kind. So
        there is only one at a time; further requests get 429.
        """
        comparison = self._comparison
        kinds = [each for each in comparison.kinds if kind in ("", each.value)]
        if not kinds:
            raise HTTPException(400, f"kind is one of {', '.join(comparison.kinds)}, not {kind[:100]!r}")
        if comparison.under_way:
            raise HTTPException(429, "another comparison is running; try again when it has ended")
        views = [_view_drift(drift) for drift in await comparison.compare(kinds)]
        return CacheDiffView(equal=all(_is_equal(view) for view in views), kinds=views)


def debug_routes(core: Core, reports: Reports, level: ApiLevel, selfcheck: Callable[[], dict[str, Any]]) -> APIRouter:
    """Return the routes under ``/debug`` about groups, nodes and decisions.

    ``reports`` has the last decisions. ``level`` is the API group and version of PodGroups that the cluster uses.
    ``selfcheck`` returns the document of ``/debug/selfcheck``.
    """
    groups, nodes = GroupPages(core, reports, level), NodePages(core)

    async def check() -> dict[str, Any]:
        """Return what the process has found in the cluster, whether it leads, and the state of its watches."""
        return selfcheck()

    router = APIRouter(prefix="/debug", tags=["debug"])
    page = partial(add_page, router)
    wrong, unknown = "A parameter is invalid; the answer says which values are allowed.", "The group is not known."
    busy = "Too many requests for advice are running."
    page("/groups", groups.list_groups, list[GroupView], bad_request=wrong)
    detail = "/groups/{namespace}/{name:path}"
    page(detail, groups.show_group, GroupDetail, bad_request=wrong, not_found=unknown, too_many_requests=busy)
    lookup, no_kind = "/lookup/{namespace}/{kind}/{name}", "The kind is unknown."
    page(lookup, groups.look_up, bad_request=no_kind, not_found="The object belongs to no group.")
    page("/domains", nodes.list_domains)
    page("/queue", groups.show_queue, QueueView)
    page("/nodes", nodes.list_nodes, list[NodeView])
    page("/reservations", groups.list_reservations, list[ReservationView])
    page("/vacancies", groups.list_vacancies, list[VacancyView])
    page("/decisions", groups.list_decisions, list[DecisionView])
    page("/decisions/{id}", groups.show_decision, not_found="The decision is not among the last ones.")
    page("/selfcheck", check)
    router.include_router(snapshot_routes(core, level))
    router.include_router(whatif_routes(core))
    return router


def process_routes(settings: CommonSettings, comparison: Comparison) -> APIRouter:
    """Return the routes under ``/debug`` about the process: its settings and its cache.

    ``comparison`` compares the cache with the API server.
    """
    pages = ProcessPages(settings, comparison)
    router = APIRouter(prefix="/debug", tags=["debug"])
    add_page(router, "/config", pages.show_config)
    busy = "Another comparison is running."
    add_page(router, "/cache/diff", pages.compare, bad_request="The kind is unknown.", too_many_requests=busy)
    return router
