"""The gauges of ``/metrics`` that show the state: set at each scrape, so that nobody keeps them current."""

import time
from collections import Counter
from collections.abc import Mapping

from extender.core import Core
from extender.isolation import Isolation
from extender.leader import Leadership
from extender.scheduling.cycle import BindingCycle, CycleStage
from serried.callers.certificates import list_expiries
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.feed import Feed, Item
from serried.metrics import ExtenderMetrics, HeldRoom
from serried.model.group import GroupKind, PodGroup
from serried.model.level import ApiLevel
from serried.model.parent import JOB, PARENT_APIS
from serried.model.pod import Pod
from serried.model.verdict import Reason

_WAITING = frozenset(Reason) - {Reason.PLANNED, Reason.BINDING}

_COMPATIBLE = "compatible"
"""The level of PodGroups of scheduler-plugins (docs/api-levels.md)."""


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
        self._metrics.head(core.queue.backfill.seconds_ahead())
        self._metrics.vacancies(len(core.store.vacancies))
        self._metrics.unmarked(len(self._isolation.list_unmarked()))
        self._metrics.held("filter", len(core.held))
        self._metrics.held("gate", self._gated)
        self._metrics.active(int(self._leadership.active))
        self._metrics.gangs(self._count_gangs())
        self._metrics.reservations(measure_held(core.ledger, core.store, self._list_cycles(), core.clock()))
        free, largest = core.store.capacity.measure_latest()
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
        for reason in _WAITING:
            self._metrics.groups(reason.value, waiting[reason])
        broken = sum(state.broken_since is not None for state in states)
        self._metrics.partial(broken + sum(0 < len(cycle.bound) < cycle.reservation.need for cycle in cycles))


def describe_gang(group: PodGroup, level: ApiLevel) -> tuple[str, str]:
    """Its API level, and the kind of its owner: "" without one, ``other`` for one that is none of ours."""
    kind = next((owner.kind for owner in group.owners if owner.controller), "")
    # Whoever writes a PodGroup may name any kind: the number of series must not be theirs to choose.
    known = kind if kind in {"", JOB, *PARENT_APIS} else "other"
    if group.key.kind is GroupKind.COMPATIBLE:
        return _COMPATIBLE, known
    return (level.beside or level if group.api else level).name, known


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
    """Amounts in the units of people; what only keeps pods apart is no resource (`serried.model.resources`)."""
    total: Counter[str] = Counter()
    for request, count in requests.items():
        total.update({name: amount * count for name, amount in request if ":" not in name})
    return {name: amount / 1000 if name == "cpu" else amount for name, amount in total.items()}
