"""``/debug``: why a gang waits, what is reserved, what was decided. Reads the state, changes nothing.

The routes stand at the end. Beside them: what the process says of its settings, caches and itself, and the gauges of
``/metrics`` that show the state, set at each scrape. Answers are coroutines although few of them wait: FastAPI runs
plain functions in other threads, and the state belongs to the event loop alone.
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
from serried.kube.discovery import keeps_group
from serried.ops.metrics import ExtenderMetrics, HeldRoom
from serried.ops.tls import Use, list_expiries
from serried.settings import CommonSettings, describe_settings


class DriftView(View):
    """One kind of objects. An object is named by namespace and name, or by its name alone."""

    kind: str

    served: bool
    """Whether the API server serves the kind."""

    listed: int
    """How many the API server has."""

    cached: int
    """How many the process knows."""

    missing: list[str]
    """Those that it does not know."""

    extra: list[str]
    """Those that it knows, and the API server does not have."""

    stale: list[str]
    """Those of which it knows an older state."""

    malformed: list[str]
    """Those that it cannot read: it goes by the last state of them that it could."""

    leftOff: int
    """How many more differed when they were listed, and were not looked at again."""

    error: str
    """Why the kind could not be compared, "" if it was."""


class CacheDiffView(View):
    """All kinds."""

    equal: bool
    """Whether nothing differs."""

    kinds: list[DriftView]


def _is_equal(view: DriftView) -> bool:
    return not (view.missing or view.extra or view.stale or view.malformed or view.leftOff or view.error)


def _view_drift(drift: Drift) -> DriftView:
    names: dict[str, Any] = {each.value: [name for name, found in drift.named if found is each] for each in Difference}
    names |= {"listed": drift.listed, "cached": drift.cached, "leftOff": drift.left_off}
    return DriftView(kind=drift.kind.value, served=drift.served, error=drift.error, **names)


class SettingView(View):
    """One flag. A value is written as on the command line, "" for none."""

    flag: str

    variable: str
    """The environment variable that means the same."""

    value: str
    """Of a URL without what may let somebody in: user, password and query are `***`."""

    default: str

    about: str
    """What it says, as `--help` has it."""


class ConfigView(View):
    """The settings."""

    version: str
    """Of Serried."""

    settings: list[SettingView]


def conceal(value: str) -> str:
    """A value without what stands before the host of a URL, and behind its question mark."""
    # Up to the last @: a password may have others, and slashes, where nobody has escaped them.
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", value))


_USER = re.compile(r"(://).*@", re.DOTALL)
_QUERY = re.compile(r"(://[^?]*\?).+", re.DOTALL)


_COMPATIBLE = "compatible"
"""The level of PodGroups of scheduler-plugins (docs/kinds.md)."""


class Gauges:
    """Reads the state of the extender, and changes nothing."""

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
        """The gangs by API level and kind of their owner, kept current: a scrape must not look at every group."""

        self._gated = 0
        """How many pods are held by our scheduling gate, kept current."""

    def note(self, old: Item | None, new: Item | None) -> None:
        """An object came, changed or went."""
        for item, sign in ((old, -1), (new, 1)):
            match item:
                case PodGroup() if item.policy.is_gang:
                    self._gangs[describe_gang(item, self._level)] += sign
                case Pod():
                    self._gated += sign * item.held_by_gate

    def sample(self) -> None:
        """Set every gauge to how things stand now."""
        core = self._core
        self._sample_groups()
        self._metrics.waiting(measure_waits(core.groups.states, core.store, core.clock()))
        self._metrics.head(core.backfill.seconds_ahead())
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
        self._feed.show(time.monotonic())

    def _count_gangs(self) -> Counter[tuple[str, str]]:
        if not self._level.inline:
            return +self._gangs
        # In 1.35 PodGroups are no objects that come and go, but parts of Workloads.
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
                continue  # such a group has a cycle, and was counted by that
            self._metrics.groups(reason.value, waiting[reason])
        broken = sum(broken_since(state) is not None for state in states)
        self._metrics.partial(broken + sum(0 < len(cycle.bound) < cycle.reservation.need for cycle in cycles))


def describe_gang(group: PodGroup, level: ApiLevel) -> tuple[str, str]:
    """Its API level, and the kind of its owner: "" without one, ``other`` for one that is none of ours."""
    kind = next((owner.kind for owner in group.owners if owner.controller), "")
    # Whoever writes a PodGroup may name any kind: the number of series must not be theirs to choose.
    known = kind if kind in {"", *OWNER_KINDS} else "other"
    if group.key.kind is GroupKind.COMPATIBLE:
        return _COMPATIBLE, known
    return (level.beside or level if group.api else level).name, known


def measure_waits(states: Mapping[GroupKey, GroupState], store: Store, now: float) -> dict[str, list[float]]:
    """For how many seconds each gang that has pods and does not run has waited, by namespace."""
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for key, state in states.items():
        if state.verdict is not None and state.verdict.reason is not Reason.SCHEDULED and key in store.members:
            waits[key.namespace].append(now - find_start(state))
    return waits


def measure_held(ledger: Ledger, store: Store, cycles: list[BindingCycle], now: float) -> HeldRoom:
    """What reservations hold, and how much of it nobody uses yet."""
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
    return HeldRoom(phases, slots - waiting, waiting, _sum_up(unused), oldest)


def _sum_up(requests: Mapping[tuple[tuple[str, int], ...], int]) -> dict[str, float]:
    """Amounts in the units of people; what only keeps pods apart is no resource (`serried.api.resources`)."""
    total: Counter[str] = Counter()
    for request, count in requests.items():
        total.update({name: amount * count for name, amount in request if ":" not in name})
    return {name: amount / 1000 if name == "cpu" else amount for name, amount in total.items()}


log = logging.getLogger(__name__)

_MAX_INVALID_TREES = 100
_SOON_SECONDS = 7 * 86_400.0
"""How long before the end of a certificate there is a warning: time to find out why nobody renews it."""

_FLAGS = {Use.SERVING: "--tls-cert-file", Use.CLIENT_CA: "--client-ca-file"}
"""Where the certificates are."""

_OUTCOMES = {Use.SERVING: "callers that check it cannot call", Use.CLIENT_CA: "nobody can call filter and bind"}
"""What comes of it when they expire."""


class SelfCheck:
    """Reads the state of the extender, and changes nothing."""

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

    def note_refused(self, refused: Sequence[str]) -> None:
        """For other reasons than before, or other versions, cannot be used."""
        self._refused = tuple(refused)

    async def check_group_field(self, client: ApiClient, namespace: str) -> None:
        """Find out whether pods keep what they say of their PodGroup; asked once, with a dry run in ``namespace``."""
        self._pods_keep_group = await keeps_group(client, self._level, namespace)
        if self._pods_keep_group is False and self._level.name == NATIVE.name:
            log.error("the API server drops what pods say of their PodGroup: is GenericWorkload on everywhere?")

    def describe(self) -> dict[str, Any]:
        """The document."""
        now = time.time()
        return {
            "version": __version__,
            "now": write_time(now),
            "api": {
                "level": self._level.name,
                "group": self._level.group,
                "version": self._level.version,
                "shape": self._level.shape,
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
                "obstacle": self._core.node_protection.obstacle,
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
        """Return why kube-scheduler 1.38 takes trees for invalid, by namespace and name; of the first hundred."""
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
    """When the certificates of each use expire; with a warning if that is soon, or was."""
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
    """What the pages answer that show the process."""

    def __init__(self, settings: CommonSettings, comparison: Comparison) -> None:
        self._settings = settings
        self._comparison = comparison

    async def show_config(self) -> ConfigView:
        """Every setting as it was read from flags, environment and defaults, but for secrets in URLs."""
        read = [each._replace(value=conceal(each.value)) for each in describe_settings(self._settings)]
        return ConfigView(version=__version__, settings=[SettingView(**setting._asdict()) for setting in read])

    async def compare(self, kind: str = "") -> CacheDiffView:
        """List every kind that is watched, or the `kind` that is asked for, and compare it with what the process knows.

        A watch is always a little behind: what differs is looked at again after a second, and is told only if it
        differs still. At most 100 objects of a kind are. It costs the API server a list of each kind, so there is one
        comparison at a time: another one is answered with 429.
        """
        comparison = self._comparison
        kinds = [each for each in comparison.kinds if kind in ("", each.value)]
        if not kinds:
            raise HTTPException(400, f"kind is one of {', '.join(comparison.kinds)}, not {kind[:100]!r}")
        if comparison.under_way:
            raise HTTPException(429, "another comparison is being made; ask again when it is done")
        views = [_view_drift(drift) for drift in await comparison.compare(kinds)]
        return CacheDiffView(equal=all(_is_equal(view) for view in views), kinds=views)


def debug_routes(core: Core, reports: Reports, level: ApiLevel, selfcheck: Callable[[], dict[str, Any]]) -> APIRouter:
    """The routes under ``/debug`` that show the scheduling state."""
    groups, nodes = GroupPages(core, reports, level), NodePages(core)

    async def check() -> dict[str, Any]:
        """What the process has found in the cluster, whether it leads, and how its watches stand."""
        return selfcheck()

    router = APIRouter(prefix="/debug", tags=["debug"])
    page = partial(add_page, router)
    wrong, unknown = "The answer says what a parameter may be.", "The group is not known."
    busy = "Too many ask for advice at the same time."
    page("/groups", groups.list_groups, list[GroupView], bad_request=wrong)
    detail = "/groups/{namespace}/{name:path}"
    page(detail, groups.show_group, GroupDetail, bad_request=wrong, not_found=unknown, too_many_requests=busy)
    lookup, no_kind = "/lookup/{namespace}/{kind}/{name}", "There is no such kind."
    page(lookup, groups.look_up, bad_request=no_kind, not_found="It leads to no group.")
    page("/domains", nodes.list_domains)
    page("/queue", groups.show_queue, QueueView)
    page("/nodes", nodes.list_nodes, list[NodeView])
    page("/reservations", groups.list_reservations, list[ReservationView])
    page("/vacancies", groups.list_vacancies, list[VacancyView])
    page("/decisions", groups.list_decisions, list[DecisionView])
    page("/decisions/{id}", groups.show_decision, not_found="It is not among the last decisions.")
    page("/selfcheck", check)
    router.include_router(snapshot_routes(core, level))
    router.include_router(whatif_routes(core))
    return router


def process_routes(settings: CommonSettings, comparison: Comparison) -> APIRouter:
    """The routes under ``/debug`` that show the process: its settings, and its caches."""
    pages = ProcessPages(settings, comparison)
    router = APIRouter(prefix="/debug", tags=["debug"])
    add_page(router, "/config", pages.show_config)
    busy = "Another comparison is being made."
    add_page(router, "/cache/diff", pages.compare, bad_request="There is no such kind.", too_many_requests=busy)
    return router
