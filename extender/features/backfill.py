"""Backfill: nodes are kept for the *head*, the first gang in the queue order that does not fit (decision 12).

Without this, smaller gangs behind the head would use every freed resource, and a large gang would never fit. Serried
forecasts on which nodes the head will fit first, and keeps these nodes for it, in memory and for a limited time. A gang
behind the head may still use them if it is known to end before the forecast, or if head and gang both fit there. Pods
of no gang are affected only if a setting says so (`extender.features.plain_pods`).

A gang that the planner rejects becomes a *contender*, a gang that may become the head (`unschedulable`, `revisit`),
until it is placed or no longer waits (`left_queue`). `list_requeues` searches for the contender that comes first in the
queue order. Plans of other gangs avoid the head's nodes (`filter`, `list_closed_nodes`, `list_kept_nodes`). Other
features query the head's nodes and forecast (`find_forecast_time`, `list_kept_domains`, `list_protected_nodes`,
`list_kept_from_pod`).
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import chain, islice

from extender.core.feature import Decision, Feature
from extender.core.parts import Parts
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning_tasks import Unfinished
from extender.core.scheduling.unschedulable import count_share
from extender.options import BackfillMode
from serried.api.group import PodGroup
from serried.api.names import GroupKey, count_things, write_time
from serried.api.pod import Pod
from serried.api.resources import Resources, add, count_slots, subtract, total
from serried.api.verdict import Reason, Trait, Verdict
from serried.cluster.run_times import PodEnds, Trust
from serried.ops.steps import Work
from serried.plan.capacity import Capacity
from serried.plan.forecast import Forecast, find_forecast
from serried.plan.request import Plan, PlanRequest, QueueKey, Snapshot, Waiting

_MARGIN_SECONDS = 5.0
"""A gang may use the head's nodes only if it ends at least this long before the head's forecast.

The margin is for the time until its pods start.
"""

_REFRESH_SECONDS = 60.0
"""The age from which a forecast is computed again, and the first pause of a gang without a forecast, in seconds."""

_MAX_DOUBLINGS = 12
"""The most times that the period for which nodes are kept for a gang is doubled.

Each time that nodes were kept for a gang in vain, the next period is twice as long.
"""

_MAX_SHARED = 64
"""The most nodes of the head that are checked one by one for whether another gang fits beside the head.

If the head has more nodes, a gang behind it may use none of them.
"""

_MAX_PAUSED = 16
"""The most gangs of a namespace that may be paused (i.e. cannot be the head) because no forecast was found for them.

While so many are, other gangs of the namespace get no forecast. Forecasts take computing time, and one namespace must
not use it all.
"""

_MAX_PAUSE_DOUBLINGS = 5
"""The most times that the pause of a gang without a forecast is doubled."""

_SEARCH_SECONDS = 30.0
"""The pause between two searches for the gang that should be the head.

Ageing alone, without any event, may make another gang the first one in the queue order.
"""

_MAX_CANDIDATES = 4
"""The most forecasts that are computed at the same time for gangs of one namespace.

It is also the most gangs that one search for the next head requeues, so that their forecasts are computed.
"""

_CONTENDERS_PER_STEP = 500
"""The number of gangs that may become the head and are sorted in one step, before other work gets its turn."""

_TOLERANCE_SECONDS = 30.0
"""A forecast counts as missed only if its gang is placed more than this long after it, as pods take time to end."""


@dataclass(slots=True)
class Head:
    """The head of the queue, and the nodes kept for it. `Backfill` has at most one. Times are loop seconds."""

    waiting: Waiting
    """The gang's place in the queue: its priority and the time since which it waits, for instance."""

    forecast: Forecast
    """The nodes kept for the gang, and the time from which it should fit on them."""

    made: float
    """The time at which the forecast was made, or was computed again and found to be still the best."""

    until: float
    """The time at which the nodes are released if the gang still does not fit."""

    text: str
    """The forecast as a phrase for users."""

    exclusive_in: str | None = None
    """The topology key of which the gang wants a domain exclusively; None if it wants none."""

    beyond_share: bool = False
    """True if the forecast has more nodes than one namespace may have (``--namespace-share``).

    That is allowed while only gangs of one namespace wait. Gangs of other namespaces may use the nodes then.
    """

    has_missed: bool = False
    """True if the gang did not fit by an earlier forecast, or nodes were kept for it in vain before.

    From then on, run times that were measured in earlier Jobs are not trusted. A gang behind the head may use its nodes
    only if a deadline (activeDeadlineSeconds) ends the members before the forecast.
    """

    first_missed: float | None = None
    """The time of the first forecast at which the gang did not fit, since it became the head; None if there is none."""

    passed: dict[GroupKey, float] = field(default_factory=dict)
    """The gangs behind the head that may use its nodes, because all their members will have ended before the forecast.

    The value is the time at which they will have ended.
    """

    @property
    def group(self) -> GroupKey:
        """The key of the gang that is the head."""
        return self.waiting.group


@dataclass(slots=True)
class _Pause:
    """The pause of a gang, i.e. a time in which it cannot be the head, and how often there was cause for one.

    A gang is paused when nodes were kept for it in vain, and when no forecast was found for it. The next pause is
    longer each time.
    """

    until: float = -math.inf
    """The end of the pause, in loop seconds; minus infinity if the gang is not paused now."""

    times_released: int = 0
    """The number of times that nodes were kept for the gang until `Head.until` without it fitting.

    The next pause is twice as long with each.
    """

    times_without_forecast: int = 0
    """The number of times in a row that no forecast was found, or one with more nodes than the namespace may have.

    The next pause is twice as long with each.
    """

    nodes_in_vain: Counter[str] = field(default_factory=Counter)
    """The number of times that each node was kept for the gang in vain, by node name.

    A new forecast without a known time prefers other nodes.
    """


@dataclass(frozen=True, slots=True)
class _FormerHead:
    """The priority of a gang that was the head and is placed now, and the nodes of its slots."""

    priority: int
    nodes: frozenset[str]


class Backfill(Feature):
    """The feature that keeps nodes for the head of the queue, so that smaller gangs do not use all freed resources.

    The core calls its methods. The context's ``clock`` gives loop seconds, ``wall`` seconds since 1970.
    """

    def __init__(self, parts: Parts) -> None:
        self._context = parts.context
        self._queue = parts.queue
        self._order = parts.queue.order
        self._planning_tasks = parts.planning_tasks
        store = parts.context.store
        self._pod_ends = PodEnds(
            store.pods,
            store.groups,
            store.members,
            store.occupancy,
            store.vacancies,
            endings=store.endings,
            clock=parts.context.clock,
            wall=parts.context.wall,
        )

        self.head: Head | None = None

        self._beyond_share: dict[GroupKey, str] = {}
        """The gangs that need more nodes than their namespace may have, so none are kept; with a phrase for users."""

        self.contenders: dict[GroupKey, None] = {}
        """The rejected gangs that wait for free resources and may become the head."""

        self._namespaces: Counter[str] = Counter()
        """The number of gangs in ``contenders`` by namespace."""

        self._first_forecasts: dict[GroupKey, float | None] = {}
        """The time of the first forecast of each gang, in loop seconds; None if it had no time. For metrics."""

        self._pauses: dict[GroupKey, _Pause] = {}

        self._displaced: list[GroupKey] = []
        """The gangs that have just lost the head's nodes to another namespace.

        They are requeued so that their verdicts change.
        """

        self._waiting: dict[GroupKey, Waiting] = {}
        """The gangs in ``contenders`` among which the next head is searched, each with its place in the queue."""

        self._forecasting: dict[GroupKey, tuple[Waiting, PlanRequest, Verdict]] = {}
        """The rejected gangs whose forecast is being computed, with place in the queue, request and verdict."""

        self._blocked: set[GroupKey] = set()
        """The gangs that would fit if they could use the head's nodes."""

        self._searched_at = -math.inf
        """The loop time of the last search for the gang that should be the head."""

        self._remembered: dict[GroupKey, None] = {}
        """The gangs about which any other field may hold something, including the head. As a dict: an ordered set."""

        self._last_head: Head | None = None
        """The head at the last call of `list_kept_from_pod`."""

        self._former_heads: dict[GroupKey, _FormerHead] = {}
        """The former heads that have slots and whose members are not all bound yet."""

        self.busy = self._remembered

    def restore(self, head: Head) -> None:
        """Set the head to that of a captured cluster state, when a replay or a simulation of this state begins."""
        self.head = head
        self._remembered[head.group] = None

    def __contains__(self, group: GroupKey) -> bool:
        return self.head is not None and self.head.group == group

    # --- gangs that are planned --------------------------------------------------------------------------------

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Check the plan of a gang against the nodes that are kept for the head.

        Return it if it avoids them (`list_closed_nodes`), or if the gang ends before the head's forecast. Else return a
        plan that avoids them, or the verdict `Reason.BEHIND_HEAD` if there is none. Raises Unfinished while that plan
        is being computed; the gang is requeued when it is there.
        """
        group = waiting.group
        self._forget_last_plan(group)
        closed = self.list_closed_nodes(waiting, request)
        if closed.isdisjoint(plan.nodes.values()) or self._let_pass(group, request):
            return plan
        before = self._forecast()
        answer = self._queue.plan_again(request.closing(closed))
        if isinstance(answer, Plan):
            return answer
        self._waiting.pop(group, None)
        self._blocked.add(group)
        # Resources freed on the head's other nodes may be enough for both gangs, so they requeue this one.
        self._queue.put_back(group, request.closing(closed & self._list_too_small(request)), answer)
        self._requeue_if_changed(before)
        return self.make_refusal(request)

    def _forget_last_plan(self, group: GroupKey) -> None:
        self._forget_pass(group)
        self._blocked.discard(group)

    def unschedulable(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Add a rejected gang to those that may become the head, if it is eligible (`_is_eligible`).

        It is the head at once if it is first in the queue order and its forecast is known. Return ``refusal``, the
        planner's verdict. If the gang is the head, the verdict's detail also says how many nodes Serried keeps for it.
        If the gang needs more nodes than its namespace may have, the detail says that Serried keeps none for this
        reason.
        """
        before = self._forecast()
        self._forget_last_plan(waiting.group)
        answer = self._contend(waiting, request, refusal)
        self._requeue_if_changed(before)
        return answer

    def _contend(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Add a rejected gang to those that may become the head, if it is eligible (`_is_eligible`).

        It is the head at once if it is first in the queue order. Return ``refusal`` with the addition of `_add_detail`.
        If the forecast is still being computed, note the gang in ``_forecasting``; `revisit` tries again.
        """
        group = waiting.group
        self._waiting.pop(group, None)
        self._forecasting.pop(group, None)
        if not waiting.rejected and self._is_eligible(group, request, refusal):
            self._remembered[group] = None
            try:
                contends = self._waits_for_forecasts(waiting) or self._contend_for_head(waiting, request)
            except Unfinished:
                self._forecasting[group] = (waiting, request, refusal)
                contends = group in self
            if contends:
                self._waiting[group] = waiting
        return self._add_detail(group, refusal)

    def _waits_for_forecasts(self, waiting: Waiting) -> bool:
        """Return whether the forecasts of four gangs of the namespace, all ahead in the queue, are being computed.

        If so, this gang has to wait for its forecast, and cannot become the head yet.
        """
        before = (
            other
            for other, _, _ in self._forecasting.values()
            if other.group.namespace == waiting.group.namespace and self._order.precedes(other, waiting)
        )
        return len(list(islice(before, _MAX_CANDIDATES))) == _MAX_CANDIDATES

    def revisit(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Continue to compute the forecast (when the gang will first fit) for a gang that still waits.

        Return its verdict, completed by the forecast if that is known by now. Return ``said``, the last verdict, if no
        forecast of the gang is being computed.
        """
        found = self._forecasting.get(group.key)
        if found is None or group.key not in self._queue:
            return said
        before = self._forecast()
        _, request, refusal = found
        # In the queue the gang stays unschedulable with its old request: resources freed since then still requeue it.
        answer = self._contend(waiting, request, refusal)
        self._requeue_if_changed(before)
        return answer

    def left_queue(self, group: GroupKey, *, placed: bool) -> None:
        """Forget a gang that no longer waits for free resources. If it was the head, release its nodes.

        ``placed`` is True if the gang got its resources, False if it was deleted or has lost its quorum.
        """
        before = self._forecast()
        self._blocked.discard(group)
        self._waiting.pop(group, None)
        self._forecasting.pop(group, None)
        if placed:
            self._forget_placed(group)
        else:
            self._forget_withdrawn(group)
        self._remembered.pop(group, None)
        self._requeue_if_changed(before)

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Release the head's nodes if their time is over, and search every 30 s for the gang that should be the head.

        While there is no head and gangs wait, search at each call. Requeue the first gangs that come before the head,
        at most four, so that one becomes the head; the gangs that `_check_head` returns; and, if the head's forecast
        has changed, those that would fit only on its nodes. The generator, which does this step by step, returns no
        gang, as all are requeued here.
        """
        now = self._context.clock()
        before = self._forecast()
        for group in self._check_head():
            self._queue.requeue(group)
        self._requeue_if_changed(before)
        if now - self._searched_at < _SEARCH_SECONDS and (self.head is not None or not self._waiting):
            return ()
        self._searched_at = now
        self._order.refresh_priorities()
        first: list[tuple[QueueKey, GroupKey]] = []
        rest = iter(list(self._waiting.values()))
        while some := [
            (self._order.sort_key(waiting), waiting.group) for waiting in islice(rest, _CONTENDERS_PER_STEP)
        ]:
            first = nsmallest(_MAX_CANDIDATES, [*first, *some])
            if len(some) == _CONTENDERS_PER_STEP:
                yield
        head = self.head
        for _, group in first:
            waiting = self._waiting.get(group)
            if waiting is not None and (head is None or self._order.precedes(waiting, head.waiting)):
                self._queue.requeue(group)
        return ()

    def _forecast(self) -> Forecast | None:
        return None if self.head is None else self.head.forecast

    def _requeue_if_changed(self, before: Forecast | None) -> None:
        """Requeue the gangs that would fit only on the head's nodes, if the head's forecast was replaced or dropped.

        ``before`` is the old forecast, None if there was none; then nothing is done. By the change these gangs may be
        allowed to use some of the nodes.
        """
        if before is not None and before is not self._forecast():
            for group in self._blocked:
                if group in self._queue:
                    self._queue.requeue(group)
            self._blocked.clear()

    def find_forecast_time(self, group: GroupKey) -> float | None:
        """Return the loop time from which the gang should fit: the forecast's time.

        Return None if the gang is not the head, the time is unknown, or an earlier forecast was clearly missed.
        """
        head = self.head
        return None if head is None or head.group != group or self._has_missed() else head.forecast.at

    def list_protected_nodes(self) -> Iterable[frozenset[str]]:
        """Yield the set of nodes kept for the head, so that no autoscaler removes them.

        Yield nothing without a head.
        """
        if self.head is not None:
            yield self.head.forecast.nodes

    # --- pods of no gang ---------------------------------------------------------------------------------------

    def list_kept_from_pod(self, pod: Pod | None) -> Iterable[frozenset[str]]:
        """Yield the sets of nodes that a pod of no gang must not use.

        These are the head's nodes, and the nodes of former heads whose slots are still reserved, i.e. whose members are
        not all bound. Nothing is kept from a pod with a higher priority. `_list_kept_from_plain_pod` has more
        exceptions for the head's nodes. For None, yield all sets that are kept from any pod.
        """
        self._track_former_heads()
        if pod is None:
            if self.head is not None:
                yield self.head.forecast.nodes
        elif kept := self._list_kept_from_plain_pod(pod):
            yield kept
        yield from (each.nodes for each in self._former_heads.values() if pod is None or pod.priority <= each.priority)

    def _track_former_heads(self) -> None:
        """If the last head was placed, add it to ``_former_heads`` with the nodes of its slots.

        Remove former heads whose reservation has ended.
        """
        ledger, former = self._context.ledger, self._last_head
        if self.head is not former:
            self._last_head = self.head
            reservation = ledger.of_group(former.group) if former is not None else None
            if former is not None and reservation is not None:
                self._former_heads[former.group] = _FormerHead(former.waiting.priority, reservation.nodes)
        for group in [each for each in self._former_heads if ledger.of_group(each) is None]:
            del self._former_heads[group]

    # --- the head ----------------------------------------------------------------------------------------------

    def _is_eligible(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> bool:
        """Return whether a gang that the planner rejected with the verdict ``refusal`` may become the head.

        It must lack resources for its quorum, and not be paused. Return False also if ``--backfill`` is off, if too
        many gangs of its namespace are paused, or if its namespace may have no more exclusive domains: then free
        resources alone would not help the gang.
        """
        pause = self._pauses.get(group)
        paused = pause is not None and self._context.clock() < pause.until
        return (
            self._context.options.backfill is BackfillMode.FORECAST
            and _may_have_forecast(request, refusal)
            and not paused
            and self.count_paused(group.namespace) < _MAX_PAUSED
        )

    def count_paused(self, namespace: str) -> int:
        """Return the number of gangs of a namespace that are paused now because no forecast was found for them."""
        now = self._context.clock()
        return sum(
            pause.times_without_forecast > 0 and now < pause.until
            for group, pause in self._pauses.items()
            if group.namespace == namespace
        )

    def _pause_of(self, group: GroupKey) -> _Pause:
        """Return the gang's entry in ``_pauses``, or an empty one that is not stored."""
        return self._pauses.get(group) or _Pause()

    def _pause_gang(self, group: GroupKey, now: float) -> None:
        pause = self._pauses.setdefault(group, _Pause())
        pause.until = now + _REFRESH_SECONDS * 2.0 ** min(pause.times_without_forecast, _MAX_PAUSE_DOUBLINGS)
        pause.times_without_forecast += 1

    def _contend_for_head(self, waiting: Waiting, request: PlanRequest) -> bool:
        """Add a gang to those that may become the head, and make it the head if it is first in the queue order.

        If it is the head already, update its forecast. Return False if it is first but cannot be the head: no forecast
        was found, or the forecast has more nodes than the namespace may have. Raises Unfinished while the forecast is
        being computed.
        """
        now = self._context.clock()
        self._add_contender(waiting.group, now)
        head = self.head
        if head is not None and head.group != waiting.group and not self._order.precedes(waiting, head.waiting):
            return True
        if head is not None and head.group == waiting.group:
            return self._renew(head, waiting, request, now)
        forecast = self._find_forecast_within_share(waiting.group, request)
        if forecast is not None:
            times = self._pause_of(waiting.group).times_released
            at = now if forecast.at is None else forecast.at
            until = at + self._context.options.patience_seconds * 2.0 ** min(times, _MAX_DOUBLINGS)
            text = self._describe(waiting.group, forecast)
            beyond = self._is_beyond_share(forecast)
            own = request.topology_key if request.exclusive else None
            self.head = Head(waiting, forecast, now, until, text, own, beyond, has_missed=times > 0)
            self._record_forecast(waiting.group, forecast)
        else:
            self._pause_gang(waiting.group, now)
        return forecast is not None

    def _add_contender(self, group: GroupKey, now: float) -> None:
        """Add a gang to ``contenders``, the gangs that may become the head. ``now`` is in loop seconds.

        A head of another namespace stops being the head if it has more nodes than one namespace may have
        (``--namespace-share``): that is allowed only while only gangs of one namespace wait.
        """
        if group not in self.contenders:
            self.contenders[group] = None
            self._namespaces[group.namespace] += 1
        head = self.head
        if head is not None and head.beyond_share and head.group.namespace != group.namespace:
            self._note_beyond_share(head.group, head.forecast)
            self._pause_gang(head.group, now)
            self._displaced.append(head.group)
            self.head = None

    def _drop_contender(self, group: GroupKey) -> None:
        if group in self.contenders:
            del self.contenders[group]
            self._namespaces -= Counter((group.namespace,))

    def _renew(self, head: Head, waiting: Waiting, request: PlanRequest, now: float) -> bool:
        head.waiting = waiting
        outdated = self._is_outdated(head, now)
        if head.forecast.at is not None and now > head.forecast.at:
            head.has_missed = True
            head.first_missed = head.forecast.at if head.first_missed is None else head.first_missed
        if not outdated and now - head.made < _REFRESH_SECONDS:
            return True
        forecast = self._find_forecast_within_share(head.group, request)
        if forecast is None:
            self._pause_gang(head.group, now)
            self.head = None
        elif outdated or _is_better(forecast, head.forecast, now):
            head.forecast = forecast
            head.beyond_share = self._is_beyond_share(forecast)
            head.text = self._describe(head.group, forecast)
            self._record_forecast(head.group, forecast)
        head.made = now
        return forecast is not None

    def _add_detail(self, group: GroupKey, refusal: Verdict) -> Verdict:
        """Return the verdict ``refusal``, with an addition to its detail about the nodes kept for the gang.

        If the gang is the head, that is how many nodes are kept for it, and when it should fit. If none are kept
        because it needs more nodes than its namespace may have, that is the reason. Otherwise return ``refusal`` as it
        is.
        """
        said = self.head.text if group in self and self.head is not None else self._beyond_share.get(group, "")
        return replace(refusal, detail="; ".join(part for part in (refusal.detail, said) if part)) if said else refusal

    def _check_head(self) -> list[GroupKey]:
        """Release the head's nodes if their time is over. Return the gangs to be planned again.

        These are the head if its forecast was missed or one of its nodes was deleted, gangs whose pause has ended, and
        gangs that have just stopped being the head in favour of another namespace (`_add_contender`).
        """
        now = self._context.clock()
        due = [*self._end_pauses(now), *self._displaced]
        self._displaced.clear()
        if self.head is not None and now >= self.head.until:
            self._give_up_head(self.head, now)
        elif self.head is not None and self._is_outdated(self.head, now):
            due.append(self.head.group)
        return due

    def _is_outdated(self, head: Head, now: float) -> bool:
        missed = head.forecast.at is not None and now > head.forecast.at
        return missed or not head.forecast.nodes <= self._context.store.nodes.keys()

    def _end_pauses(self, now: float) -> Iterator[GroupKey]:
        for group, pause in self._pauses.items():
            if -math.inf < pause.until <= now:
                pause.until = -math.inf
                yield group

    def _give_up_head(self, head: Head, now: float) -> None:
        # The pause is as long as the time for which nodes were kept in vain, and the next time is twice as long. So
        # neither this gang nor the gangs behind it wait for ever.
        pause = self._pauses.setdefault(head.group, _Pause())
        pause.until = now + self._context.options.patience_seconds * 2.0 ** min(pause.times_released, _MAX_DOUBLINGS)
        pause.times_released += 1
        pause.nodes_in_vain.update(head.forecast.nodes)
        self.head = None

    def _forget_placed(self, group: GroupKey) -> None:
        """Forget a gang that was placed, and observe the error of its first forecast as a metric."""
        if group in self._first_forecasts:
            error = _classify_error(self._first_forecasts.pop(group), self._context.clock())
            self._context.metrics.observe_forecast_error(*error)
        self._forget(group)

    def _forget_withdrawn(self, group: GroupKey) -> None:
        """Forget a gang that no longer waits and was not placed, and count its forecast as withdrawn in the metric."""
        if group in self._first_forecasts:
            del self._first_forecasts[group]
            self._context.metrics.observe_forecast_error("withdrawn", None)
        self._forget(group)

    def _forget(self, group: GroupKey) -> None:
        self._pauses.pop(group, None)
        self._beyond_share.pop(group, None)
        self._drop_contender(group)
        if self.head is not None and self.head.group == group:
            self.head = None

    def _record_forecast(self, group: GroupKey, forecast: Forecast) -> None:
        # The first forecast counts for the metric: one that is put off again and again would look exact.
        if self._first_forecasts.get(group) is None:
            self._first_forecasts[group] = forecast.at
            if forecast.at is not None:
                self._context.metrics.observe_forecast_wait(forecast.at - self._context.clock())

    def _has_missed(self) -> bool:
        """Return whether the head has missed a forecast by more than 30 s. Then later ones are not reliable either."""
        missed = self.head.first_missed if self.head is not None else None
        return missed is not None and self._context.clock() > missed + _TOLERANCE_SECONDS

    def seconds_to_forecast(self) -> float:
        """Return the seconds until the head's forecast, negative if it has passed; NaN without head or known time."""
        at = self.head.forecast.at if self.head is not None else None
        return math.nan if at is None else at - self._context.clock()

    # --- who may pass ------------------------------------------------------------------------------------------

    def list_closed_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that the plan of a gang must not use because they are kept for the head.

        These are the nodes of `list_kept_nodes`, except those on which the whole gang fits besides the head and besides
        the running pods that the forecast does not expect to end.
        """
        kept = self.list_kept_nodes(waiting, request)
        if self.head is None or not kept:
            return kept
        wanted = _sum_requests(request)
        return kept.difference(
            each for each in self._list_shareable(wanted) if self._has_room_for_both(each, wanted, with_pods=True)
        )

    def list_kept_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return all nodes that are kept from a gang for the head.

        If the gang wants a domain exclusively, all nodes of the domain that the head will get exclusively are among
        them, provided that both have the same topology key. Return none in these cases:

        - The gang is the head, or comes before it in the queue.
        - All members of the gang will have ended before the head's forecast (`Head.passed`).
        - The gang's quorum runs already, and the request is only for further members.
        - The head has more nodes than one namespace may have, and the gang is of another namespace.
        """
        head = self.head
        if head is None or request.need == 0 or waiting.group == head.group or waiting.group in head.passed:
            return frozenset()
        if head.beyond_share and waiting.group.namespace != head.group.namespace:
            return frozenset()
        if self._order.precedes(waiting, head.waiting):
            return frozenset()
        return head.forecast.nodes | (self._list_exclusive_domain(head, request) if request.exclusive else frozenset())

    def _list_too_small(self, request: PlanRequest) -> frozenset[str]:
        """Return the head's nodes that have no room for both the head and ``request``, even without other pods.

        A node has room if all members of the request fit besides what the head needs there. Nodes for which this is not
        known (see `_list_shareable`) count as having no room.
        """
        if self.head is None:
            return frozenset()
        wanted = _sum_requests(request)
        return self.head.forecast.nodes.difference(
            each for each in self._list_shareable(wanted) if self._has_room_for_both(each, wanted)
        )

    def _list_shareable(self, wanted: Resources) -> Collection[str]:
        """Return the nodes of which the head needs only a part, so that another gang might fit there as well.

        ``wanted`` are the gang's total requests. Return no node if the head has more than 64, as each is checked.
        Return none if either gang has rules about other pods, volumes or devices: totals do not say whether both gangs
        fit then. Such a rule shows in ``wanted`` as a resource with a colon in its name: Serried adds it to pods and
        nodes so that the rule counts like a resource.
        """
        shares = self.head.forecast.shares if self.head is not None else {}
        asked = chain(wanted, *(share.requests for share in shares.values())) if len(shares) <= _MAX_SHARED else [":"]
        return () if any(":" in name for name in asked) else shares.keys()

    def _has_room_for_both(self, name: str, wanted: Resources, *, with_pods: bool = False) -> bool:
        """Return whether the node ``name`` has enough resources for ``wanted`` besides what the head needs there.

        Only resources that both request are compared. If ``with_pods`` is True, what running pods use is subtracted,
        except for pods that the forecast expects to end. If it is False, the node counts as empty of pods.
        """
        node = self._context.store.nodes.get(name)
        if self.head is None or node is None:
            return False
        share = self.head.forecast.shares[name]
        used = share.requests
        if with_pods:
            occupancy = self._context.store.occupancy
            usages = [usage for uid in share.leaving if (usage := occupancy.usage_of(uid)) and usage[0] == name]
            staying = subtract(occupancy.used.get(name, {}), total(dict(requests) for _, requests in usages))
            used = add(used, staying)
        both = {resource: amount for resource, amount in wanted.items() if resource in share.requests}
        return count_slots(node.allocatable, used, both) > 0

    def _list_exclusive_domain(self, head: Head, request: PlanRequest) -> frozenset[str]:
        """Return all nodes of the domain that the head will get exclusively.

        Return none if the head wants no domain exclusively, or the request has another topology key.
        """
        key, domain = head.exclusive_in, head.forecast.domain
        if key is None or key != request.topology_key:
            return frozenset()
        return frozenset(name for name, node in self._context.store.nodes.items() if node.labels.get(key) == domain)

    def list_kept_domains(self, waiting: Waiting, key: str | None) -> frozenset[str]:
        """Return the domain of ``key`` that the head will get exclusively, for a gang behind it in the same namespace.

        The domain counts as one of those that the namespace may have exclusively, so that gangs behind the head do not
        take the last one from it. Return the empty set for gangs of other namespaces and gangs ahead of the head, and
        if the head gets no domain of this key exclusively.
        """
        head = self.head
        if head is None or key is None or head.exclusive_in != key or not head.forecast.domain:
            return frozenset()
        behind = waiting.group != head.group and not self._order.precedes(waiting, head.waiting)
        own = waiting.group.namespace == head.group.namespace
        return frozenset({head.forecast.domain}) if behind and own else frozenset()

    def _let_pass(self, group: GroupKey, request: PlanRequest) -> bool:
        """If all members of a gang will have ended before the head's forecast, add it to `Head.passed` and return True.

        Else return False. A gang in `Head.passed` may use the head's nodes.
        """
        head = self.head
        end = self._find_end(head, request.members) if head is not None else None
        if head is None or end is None:
            return False
        head.passed[group] = end
        return True

    def may_pass(self, request: PlanRequest) -> bool:
        """Return whether the members would end before the head's forecast, so that the gang may use the head's nodes.

        Unlike `_let_pass` it changes nothing. False without a head.
        """
        return self.head is not None and self._find_end(self.head, request.members) is not None

    def _find_end(self, head: Head, members: Sequence[Pod]) -> float | None:
        """Return the loop time at which all members will have ended; None unless that is before the head's forecast.

        Return None also if less than 5 s are left between both. The time is known from deadlines, and from run times of
        earlier Jobs unless the head has missed a forecast.
        """
        if head.forecast.at is None:
            return None
        end = self._pod_ends.find_last(members, Trust.DEADLINES if head.has_missed else Trust.MEASURED)
        return None if end is None or end + _MARGIN_SECONDS > head.forecast.at else end

    def _list_kept_from_plain_pod(self, pod: Pod) -> frozenset[str]:
        """Return the head's nodes if they are kept from a pod of no gang; else none.

        They are not kept from a pod with a priority above the head's (which ageing raises while the head waits), nor
        from a pod that will have ended before the forecast. If the head has more nodes than one namespace may have,
        they are not kept from other namespaces.
        """
        head = self.head
        if head is None or pod.priority > self._order.raised_priority(head.waiting):
            return frozenset()
        if head.beyond_share and pod.namespace != head.group.namespace:
            return frozenset()
        return head.forecast.nodes if self._find_end(head, [pod]) is None else frozenset()

    def _forget_pass(self, group: GroupKey) -> None:
        """Withdraw a gang's permission to use the head's nodes (`Head.passed`), as the gang is planned again.

        By now it may end after the forecast.
        """
        if self.head is not None:
            self.head.passed.pop(group, None)

    def make_refusal(self, request: PlanRequest) -> Verdict:
        """Return the verdict of a gang that would fit only on the head's nodes.

        Its reason is `Reason.BEHIND_HEAD`; it names the head and its forecast.
        """
        head = self.head
        assert head is not None  # noqa: S101 - narrows for the type checker: without a head no node is kept
        return Verdict(Reason.BEHIND_HEAD, need=request.need, key=self._name(head.group), detail=head.text)

    def _name(self, group: GroupKey) -> str:
        owner = self._context.store.membership.name_owner(group)
        return f"{owner} ({group})" if owner else str(group)

    # --- forecasts ---------------------------------------------------------------------------------------------

    def _find_forecast_within_share(self, group: GroupKey, request: PlanRequest) -> Forecast | None:
        """Return the forecast for a gang; None if there is none, or if it has more nodes than the namespace may have.

        The limit (``--namespace-share``) does not apply while only gangs of one namespace wait. Raises Unfinished while
        the forecast is being computed.
        """
        forecast = self._find_forecast(group, request)
        self._beyond_share.pop(group, None)
        alone = self._namespaces[group.namespace] == len(self.contenders)
        if forecast is None or alone or not self._is_beyond_share(forecast):
            return forecast
        self._note_beyond_share(group, forecast)
        return None

    def _is_beyond_share(self, forecast: Forecast) -> bool:
        return len(forecast.nodes) > self._find_most()

    def _find_most(self) -> int:
        return count_share(self._context.options.share_percent, len(self._context.store.nodes))

    def _note_beyond_share(self, group: GroupKey, forecast: Forecast) -> None:
        self._beyond_share[group] = (
            f"Serried keeps no nodes for the gang, because it would need {len(forecast.nodes)} of"
            f" {len(self._context.store.nodes)} nodes, and one namespace may have {self._find_most()}"
            " (--namespace-share)"
        )

    def _find_forecast(self, group: GroupKey, request: PlanRequest) -> Forecast | None:
        def make(snapshot: Snapshot, capacity: Capacity) -> Forecast | None:
            endings = self._pod_ends.list_others(group, request, self._pause_of(group).nodes_in_vain, snapshot.limit)
            return find_forecast(snapshot, request, endings, capacity)

        return self._planning_tasks.find_forecast(group, request, make)

    def _describe(self, group: GroupKey, forecast: Forecast) -> str:
        place = f"{count_things(len(forecast.nodes), 'node')}{f' of {forecast.domain}' if forecast.domain else ''}"
        name = self._name(group)
        if forecast.at is None:
            return f"Serried keeps {place} for {name}, and cannot tell when the gang will fit"
        return f"Serried keeps {place} for {name}, which is expected to fit at {self.format_time(forecast.at)}"

    def format_time(self, at: float) -> str:
        """Return a loop time as a wall-clock time in RFC 3339, to the second."""
        return write_time(self._context.wall() + at - self._context.clock())


def _sum_requests(request: PlanRequest) -> dict[str, int]:
    """Return the sum of the requests of all members of a gang, by resource."""
    return total(dict(member.shape.requests) for member in request.members)


def _may_have_forecast(request: PlanRequest, refusal: Verdict) -> bool:
    opens = request.exclusive or not request.taken
    return request.need > 0 and opens and Trait.NEEDS_RESOURCES in refusal.reason.traits


def _classify_error(at: float | None, now: float) -> tuple[str, float | None]:
    if at is None:
        return "unforeseen", None
    return ("kept" if now - at <= _TOLERANCE_SECONDS else "missed"), now - at


def _is_better(new: Forecast, old: Forecast, now: float) -> bool:
    """Return whether a new forecast should replace the old one. ``now`` is in loop seconds.

    A forecast with a known time replaces one without. If both have a time, the remaining wait must become shorter by
    more than a tenth.
    """
    if new.at is None or old.at is None:
        return new.at is not None
    return new.at - now < 0.9 * (old.at - now)
