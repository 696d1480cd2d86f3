"""The gauges of ``/metrics`` that show the state: set at each scrape, so that nobody keeps them current."""

from collections import Counter

from extender.core import Core
from extender.isolation import Isolation
from extender.scheduling.cycle import CycleStage
from serried.metrics import ExtenderMetrics
from serried.model.verdict import Reason

_WAITING = frozenset(Reason) - {Reason.PLANNED, Reason.BINDING}


class Gauges:
    """Reads the state of the extender, and changes nothing."""

    def __init__(self, core: Core, isolation: Isolation, metrics: ExtenderMetrics) -> None:
        self._pods = core.store.pods
        self._vacancies = core.store.vacancies
        self._groups = core.groups
        self._held = core.held
        self._backfill = core.queue.backfill
        self._isolation = isolation
        self._metrics = metrics

    def sample(self) -> None:
        """Set every gauge to how things stand now."""
        self._sample_groups()
        self._metrics.head(self._backfill.seconds_ahead())
        self._metrics.vacancies(len(self._vacancies))
        self._metrics.unmarked(len(self._isolation.list_unmarked()))
        self._metrics.held("filter", len(self._held))
        self._metrics.held("gate", sum(pod.held_by_gate for pod in self._pods.values()))

    def _sample_groups(self) -> None:
        states = self._groups.states.values()
        for stage in CycleStage:
            begun = sum(state.cycle is not None and state.cycle.stage is stage for state in states)
            self._metrics.groups(stage.value, begun)
        verdicts = [state.verdict for state in states if state.cycle is None and state.verdict is not None]
        waiting = Counter(verdict.reason for verdict in verdicts)
        for reason in _WAITING:
            self._metrics.groups(reason.value, waiting[reason])
