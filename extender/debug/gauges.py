"""The gauges of ``/metrics`` that show the state: set at each scrape, so that nobody keeps them current."""

from extender.core import Core
from extender.isolation import Isolation
from extender.scheduling.cycle import CycleStage
from serried.metrics import ExtenderMetrics
from serried.model.verdict import Reason

_WAITING = frozenset(Reason) - {Reason.PLANNED, Reason.BINDING}


class Gauges:
    """Reads the state of the extender, and changes nothing."""

    def __init__(self, core: Core, isolation: Isolation, metrics: ExtenderMetrics) -> None:
        self._core = core
        self._isolation = isolation
        self._metrics = metrics

    def sample(self) -> None:
        """Set every gauge to how things stand now."""
        self._sample_groups()
        store = self._core.store
        self._metrics.head(self._core.queue.backfill.seconds_ahead())
        self._metrics.vacancies(len(store.vacancies))
        self._metrics.unmarked(len(self._isolation.list_unmarked()))
        self._metrics.held("filter", len(self._core.held))
        self._metrics.held("gate", sum(pod.held_by_gate for pod in store.pods.values()))

    def _sample_groups(self) -> None:
        gangs = self._core.groups.states.values()
        for stage in CycleStage:
            self._metrics.groups(stage.value, sum(g.cycle is not None and g.cycle.stage is stage for g in gangs))
        for reason in _WAITING:
            waiting = sum(g.cycle is None and g.verdict is not None and g.verdict.reason is reason for g in gangs)
            self._metrics.groups(reason.value, waiting)
