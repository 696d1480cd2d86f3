"""The gauges of ``/metrics`` that show the state: set at each scrape, so that nobody keeps them current."""

from extender.isolation import Isolation
from extender.scheduling.cycle import CycleStage
from extender.scheduling.group_scheduler import GroupScheduler
from serried.metrics import ExtenderMetrics
from serried.model.verdict import Reason

_WAITING = frozenset(Reason) - {Reason.PLANNED, Reason.BINDING}


class Gauges:
    """Reads the state of the extender, and changes nothing."""

    def __init__(self, group_scheduler: GroupScheduler, isolation: Isolation, metrics: ExtenderMetrics) -> None:
        self._group_scheduler = group_scheduler
        self._isolation = isolation
        self._metrics = metrics

    def sample(self) -> None:
        """Set every gauge to how things stand now."""
        self._sample_groups()
        store = self._group_scheduler.store
        self._metrics.head(self._group_scheduler.queue.backfill.seconds_ahead())
        self._metrics.vacancies(len(store.vacancies))
        self._metrics.unmarked(len(self._isolation.list_unmarked()))
        self._metrics.held("filter", len(self._group_scheduler.held))
        self._metrics.held("gate", sum(pod.held_by_gate for pod in store.pods.values()))

    def _sample_groups(self) -> None:
        gangs = self._group_scheduler.gangs.values()
        for stage in CycleStage:
            self._metrics.groups(stage.value, sum(g.cycle is not None and g.cycle.stage is stage for g in gangs))
        for reason in _WAITING:
            waiting = sum(g.cycle is None and g.verdict is not None and g.verdict.reason is reason for g in gangs)
            self._metrics.groups(reason.value, waiting)
