"""Backfill: nodes are kept for the first gang that does not fit, the *head*; gangs behind it may pass (decision 12).

At most one gang has nodes kept for it: those that are forecast to hold it first. They are kept in memory only, and for
a limited time. A gang behind the head may use them only if it is known to end before the forecast. Pods of no gang are
kept off only if a setting says so (`extender.features.plain_pods`).

A rejected gang contends for the head (`unschedulable`, `revisit`) until it gets room or no longer waits (`left`).
`hints` finds out which contender comes first. Plans avoid the head's nodes (`filter`, `closed_to`, `kept_from`). Other
features ask for the head's room and forecast (`expect_room`, `list_promised`, `list_kept`, `keep_from_pod`).
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
from extender.core.scheduling.unschedulable import find_most
from extender.options import BackfillMode
from serried.api.group import PodGroup
from serried.api.names import GroupKey, write_time
from serried.api.pod import Pod
from serried.api.resources import Resources, add, count_slots, subtract, total
from serried.api.verdict import Mark, Reason, Verdict
from serried.cluster.run_times import PodEnds, Trust
from serried.ops.steps import Work
from serried.plan.capacity import Capacity
from serried.plan.forecast import Forecast, find_forecast
from serried.plan.request import Plan, PlanRequest, QueueKey, Snapshot, Waiting

_MARGIN_SECONDS = 5.0
"""A gang that passes must end this long before the head's forecast, as its pods do not start at once."""

_REFRESH_SECONDS = 60.0
"""The age from which a forecast may be replaced by a better one, in seconds."""

_MAX_DOUBLINGS = 12
"""The number of times that the time for which room is kept is doubled, at most."""

_MAX_SHARED = 64
"""The number of head's nodes that are checked one by one for shared use; more of them are kept as a whole."""

_MAX_VAIN = 16
"""The number of gangs of one namespace with forecasts in vain, after which its other gangs wait for theirs."""

_MAX_VAIN_DOUBLINGS = 5
"""The number of times that the pause after a forecast in vain is doubled, at most."""

_REVIEW_SECONDS = 30.0
"""The pause between two searches for the first contender: ageing alone may change which one it is."""

_MAX_CANDIDATES = 4
"""The number of gangs for which forecasts are made at the same time."""

_CONTENDERS_PER_STEP = 500
"""The number of contenders that are sorted in one step."""

_KEPT_SECONDS = 30.0
"""A forecast counts as kept if its gang is placed at most this long after it: pods may take that long to end."""


@dataclass(slots=True)
class Head:
    """The first gang that does not fit, and the nodes kept for it. Times are loop seconds."""

    waiting: Waiting
    """The gang as the queue sees it."""

    forecast: Forecast
    """The nodes kept for it, and the time at which they should have room."""

    made: float
    """The time at which the forecast was made, or confirmed."""

    until: float
    """The time until which the nodes are kept at the latest."""

    text: str
    """The forecast as a phrase for users."""

    exclusive_in: str | None = None
    """The topology key of which it wants a domain for itself; None if it does not."""

    beyond_share: bool = False
    """True if the nodes exceed the share of its namespace, so that they are not kept from other namespaces."""

    late: bool = False
    """True if a forecast for it was missed."""

    missed: float | None = None
    """The first missed forecast since the gang became the head; None if there is none."""

    passed: dict[GroupKey, float] = field(default_factory=dict)
    """The time at which each gang will have ended that may use the head's nodes before the forecast."""

    @property
    def group(self) -> GroupKey:
        """The key of the gang."""
        return self.waiting.group


@dataclass(slots=True)
class _Rest:
    """A pause in which no room is kept for a gang, as room was kept in vain, or there was no forecast."""

    until: float = -math.inf
    """The end of the pause, in loop seconds; minus infinity once it is over."""

    turns: int = 0
    """The number of times that room was kept in vain."""

    vain: int = 0
    """The number of times in a row that no room could be kept."""

    nodes: Counter[str] = field(default_factory=Counter)
    """The number of times that each node was kept in vain. A forecast without a time prefers other nodes."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """The nodes on which the members of a gang that was the head have slots, and the gang's priority."""

    priority: int
    nodes: frozenset[str]


class Backfill(Feature):
    """The feature that keeps room for the head. ``clock`` gives loop seconds, ``wall`` seconds since 1970."""

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
        """The gangs for which no room is kept because of their namespace's share, with the phrase that says so."""

        self.contenders: dict[GroupKey, None] = {}
        """The gangs that wait for room, and may become the head."""

        self._namespaces: Counter[str] = Counter()
        """The number of contenders by namespace."""

        self._promises: dict[GroupKey, float | None] = {}
        """The first forecast that was made for each gang, in loop seconds; None if it had no time."""

        self._rests: dict[GroupKey, _Rest] = {}

        self._displaced: list[GroupKey] = []
        """The gangs that have just lost the head's room, and are planned again so that their verdicts change."""

        self._waiting: dict[GroupKey, Waiting] = {}
        """The contenders with a forecast, or whose forecast is still to be made, as the queue sees them."""

        self._unforeseen: dict[GroupKey, tuple[Waiting, PlanRequest, Verdict]] = {}
        """The rejected gangs whose forecast is being made: place in the queue, request and refusal."""

        self._behind: set[GroupKey] = set()
        """The gangs that would fit on the head's nodes."""

        self._reviewed = -math.inf
        """The loop time of the last search for the first contender."""

        self._eligible: dict[GroupKey, None] = {}
        """The gangs about which any other field may remember something, also the head."""

        self._former: Head | None = None
        """The head at the last call of `keep_from_pod`."""

        self._placed: dict[GroupKey, _Placed] = {}
        """The former heads whose members have slots and are not bound yet."""

        self.busy = self._eligible

    def restore(self, head: Head) -> None:
        """Set the head from a captured state, for replays and simulations."""
        self.head = head
        self._eligible[head.group] = None

    def __contains__(self, group: GroupKey) -> bool:
        return self.head is not None and self.head.group == group

    # --- gangs that are planned --------------------------------------------------------------------------------

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Return the plan if it avoids the head's nodes, or if the gang will have ended before the head's forecast.

        Otherwise return another plan beside the head, or the refusal. Raises Unfinished while that plan is being made.
        """
        group = waiting.group
        self._note_try(group)
        closed = self.closed_to(waiting, request)
        if closed.isdisjoint(plan.nodes.values()) or self._let_pass(group, request):
            return plan
        before = self._forecast()
        answer = self._queue.plan_beside(request.closing(closed))
        if isinstance(answer, Plan):
            return answer
        self._waiting.pop(group, None)
        self._behind.add(group)
        # Room that is freed on the head's other nodes may be enough for both.
        self._queue.put_back(group, request.closing(closed & self._find_narrow(request)), answer)
        self._wake_if_changed(before)
        return self.refuse(request)

    def _note_try(self, group: GroupKey) -> None:
        self._forget_pass(group)
        self._behind.discard(group)

    def unschedulable(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Keep room for the gang if it is the first; return the refusal with the room that is kept in its detail."""
        before = self._forecast()
        self._note_try(waiting.group)
        answer = self._contend(waiting, request, refusal)
        self._wake_if_changed(before)
        return answer

    def _contend(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Let a rejected gang contend for the head, now or when its forecast is made. Return its verdict."""
        group = waiting.group
        self._waiting.pop(group, None)
        self._unforeseen.pop(group, None)
        if not waiting.rejected and self._is_eligible(group, request, refusal):
            self._eligible[group] = None
            try:
                contends = self._has_turn_later(waiting) or self._contend_for_head(waiting, request)
            except Unfinished:
                self._unforeseen[group] = (waiting, request, refusal)
                contends = group in self
            if contends:
                self._waiting[group] = waiting
        return self._explain(group, refusal)

    def _has_turn_later(self, waiting: Waiting) -> bool:
        """Return whether forecasts are being made for enough gangs of the namespace before this one.

        The gang still counts as a contender, and gets its forecast after theirs.
        """
        before = (
            other
            for other, _, _ in self._unforeseen.values()
            if other.group.namespace == waiting.group.namespace and self._order.precedes(other, waiting)
        )
        return len(list(islice(before, _MAX_CANDIDATES))) == _MAX_CANDIDATES

    def revisit(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Return the verdict with the forecast of a gang that did not fit, if it was computed since; else ``said``."""
        found = self._unforeseen.get(group.key)
        if found is None or group.key not in self._queue:
            return said
        before = self._forecast()
        _, request, refusal = found
        # The gang stays unschedulable in the queue as it was rejected: room freed since then still wakes it.
        answer = self._contend(waiting, request, refusal)
        self._wake_if_changed(before)
        return answer

    def left(self, group: GroupKey, *, placed: bool) -> None:
        """Take note that a gang got its room (``placed``), or no longer waits for room."""
        before = self._forecast()
        self._behind.discard(group)
        self._waiting.pop(group, None)
        self._unforeseen.pop(group, None)
        if placed:
            self._note_placed(group)
        else:
            self._withdraw(group)
        self._eligible.pop(group, None)
        self._wake_if_changed(before)

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Review the head as time passes; requeue gangs that may become the head, or that it kept off nodes."""
        now = self._context.clock()
        before = self._forecast()
        for group in self._review():
            self._queue.requeue(group)
        self._wake_if_changed(before)
        if now - self._reviewed < _REVIEW_SECONDS and (self.head is not None or not self._waiting):
            return ()
        self._reviewed = now
        self._order.note_levels()
        first: list[tuple[QueueKey, GroupKey]] = []
        rest = iter(list(self._waiting.values()))
        while some := [(self._order.turn_of(waiting), waiting.group) for waiting in islice(rest, _CONTENDERS_PER_STEP)]:
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

    def _wake_if_changed(self, before: Forecast | None) -> None:
        """Requeue the gangs behind the head if its forecast has changed, as its former nodes may be open to them."""
        if before is not None and before is not self._forecast():
            for group in self._behind:
                if group in self._queue:
                    self._queue.requeue(group)
            self._behind.clear()

    def expect_room(self, group: GroupKey) -> float | None:
        """Return the loop time of the head's forecast if the gang is the head and its forecasts are reliable."""
        head = self.head
        return None if head is None or head.group != group or self._has_missed() else head.forecast.at

    def list_kept(self) -> Iterable[frozenset[str]]:
        """Return the nodes of the head."""
        if self.head is not None:
            yield self.head.forecast.nodes

    # --- pods of no gang ---------------------------------------------------------------------------------------

    def keep_from_pod(self, pod: Pod | None) -> Iterable[frozenset[str]]:
        """Return the nodes kept from a pod: those of the head, and those of former heads until they are bound.

        For None, return the nodes kept from any pod.
        """
        self._follow_head()
        if pod is None:
            if self.head is not None:
                yield self.head.forecast.nodes
        elif kept := self._kept_from_plain(pod):
            yield kept
        yield from (each.nodes for each in self._placed.values() if pod is None or pod.priority <= each.priority)

    def _follow_head(self) -> None:
        """Keep the slots of a former head that has been placed, until its cycle has ended."""
        ledger, former = self._context.ledger, self._former
        if self.head is not former:
            self._former = self.head
            reservation = ledger.of_group(former.group) if former is not None else None
            if former is not None and reservation is not None:
                self._placed[former.group] = _Placed(former.waiting.priority, reservation.nodes)
        for group in [each for each in self._placed if ledger.of_group(each) is None]:
            del self._placed[group]

    # --- the head ----------------------------------------------------------------------------------------------

    def _is_eligible(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> bool:
        """Return whether room may be kept for a rejected gang: it waits for its quorum, and is not in a pause.

        False also for a gang whose namespace may have no more exclusive domains, as room alone would not help.
        """
        rest = self._rests.get(group)
        resting = rest is not None and self._context.clock() < rest.until
        return (
            self._context.options.backfill is BackfillMode.FORECAST
            and _is_foreseeable(request, refusal)
            and not resting
            and self.count_vain(group.namespace) < _MAX_VAIN
        )

    def count_vain(self, namespace: str) -> int:
        """Return the number of gangs of a namespace that are in a pause after a forecast in vain."""
        now = self._context.clock()
        return sum(
            rest.vain > 0 and now < rest.until for group, rest in self._rests.items() if group.namespace == namespace
        )

    def _rest_of(self, group: GroupKey) -> _Rest:
        """Return the pause of a gang; an empty one if it has none."""
        return self._rests.get(group) or _Rest()

    def _rest_in_vain(self, group: GroupKey, now: float) -> None:
        rest = self._rests.setdefault(group, _Rest())
        rest.until = now + _REFRESH_SECONDS * 2.0 ** min(rest.vain, _MAX_VAIN_DOUBLINGS)
        rest.vain += 1

    def _contend_for_head(self, waiting: Waiting, request: PlanRequest) -> bool:
        """Make an eligible gang the head if it is the first, or renew its forecast if it is the head already.

        Return False if the forecast says that room could never hold it. Raises Unfinished while it is being made.
        """
        now = self._context.clock()
        self._note_contender(waiting.group, now)
        head = self.head
        if head is not None and head.group != waiting.group and not self._order.precedes(waiting, head.waiting):
            return True
        if head is not None and head.group == waiting.group:
            return self._renew(head, waiting, request, now)
        forecast = self._find_forecast_within_share(waiting.group, request)
        if forecast is not None:
            turns = self._rest_of(waiting.group).turns
            at = now if forecast.at is None else forecast.at
            until = at + self._context.options.patience_seconds * 2.0 ** min(turns, _MAX_DOUBLINGS)
            text = self._describe(forecast)
            beyond = self._is_beyond_share(forecast)
            own = request.topology_key if request.exclusive else None
            self.head = Head(waiting, forecast, now, until, text, own, beyond, late=turns > 0)
            self._promise(waiting.group, forecast)
        else:
            self._rest_in_vain(waiting.group, now)
        return forecast is not None

    def _note_contender(self, group: GroupKey, now: float) -> None:
        """Add a contender. A head of another namespace that is beyond its share loses its room."""
        if group not in self.contenders:
            self.contenders[group] = None
            self._namespaces[group.namespace] += 1
        head = self.head
        if head is not None and head.beyond_share and head.group.namespace != group.namespace:
            self._say_beyond_share(head.group, head.forecast)
            self._rest_in_vain(head.group, now)
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
            head.late = True
            head.missed = head.forecast.at if head.missed is None else head.missed
        if not outdated and now - head.made < _REFRESH_SECONDS:
            return True
        forecast = self._find_forecast_within_share(head.group, request)
        if forecast is None:
            self._rest_in_vain(head.group, now)
            self.head = None
        elif outdated or _is_better(forecast, head.forecast, now):
            head.forecast = forecast
            head.beyond_share = self._is_beyond_share(forecast)
            head.text = self._describe(forecast)
            self._promise(head.group, forecast)
        head.made = now
        return forecast is not None

    def _explain(self, group: GroupKey, refusal: Verdict) -> Verdict:
        """Return the refusal; the detail says which room is kept for the head, or why none may be."""
        said = self.head.text if group in self and self.head is not None else self._beyond_share.get(group, "")
        return replace(refusal, detail=", ".join(part for part in (refusal.detail, said) if part)) if said else refusal

    def _review(self) -> list[GroupKey]:
        """Release the head's room if its time is over. Return the gangs to be planned again.

        These are the head if its forecast was missed or its nodes are gone, and the gangs whose pause is over.
        """
        now = self._context.clock()
        due = [*self._take_rested(now), *self._displaced]
        self._displaced.clear()
        if self.head is not None and now >= self.head.until:
            self._give_up(self.head, now)
        elif self.head is not None and self._is_outdated(self.head, now):
            due.append(self.head.group)
        return due

    def _is_outdated(self, head: Head, now: float) -> bool:
        missed = head.forecast.at is not None and now > head.forecast.at
        return missed or not head.forecast.nodes <= self._context.store.nodes.keys()

    def _take_rested(self, now: float) -> Iterator[GroupKey]:
        for group, rest in self._rests.items():
            if -math.inf < rest.until <= now:
                rest.until = -math.inf
                yield group

    def _give_up(self, head: Head, now: float) -> None:
        # The pause is as long as the time for which room was kept in vain, and the next time is twice as long. So
        # neither the gang nor those behind it wait for ever.
        rest = self._rests.setdefault(head.group, _Rest())
        rest.until = now + self._context.options.patience_seconds * 2.0 ** min(rest.turns, _MAX_DOUBLINGS)
        rest.turns += 1
        rest.nodes.update(head.forecast.nodes)
        self.head = None

    def _note_placed(self, group: GroupKey) -> None:
        """Report the forecast error of a gang that got its room, and forget the gang."""
        if group in self._promises:
            error = _classify_error(self._promises.pop(group), self._context.clock())
            self._context.metrics.observe_forecast_error(*error)
        self._release(group)

    def _withdraw(self, group: GroupKey) -> None:
        """Forget a gang that no longer waits for room and got none."""
        if group in self._promises:
            del self._promises[group]
            self._context.metrics.observe_forecast_error("withdrawn", None)
        self._release(group)

    def _release(self, group: GroupKey) -> None:
        self._rests.pop(group, None)
        self._beyond_share.pop(group, None)
        self._drop_contender(group)
        if self.head is not None and self.head.group == group:
            self.head = None

    def _promise(self, group: GroupKey, forecast: Forecast) -> None:
        # The first forecast counts for the metric: one that is put off again and again would look exact.
        if self._promises.get(group) is None:
            self._promises[group] = forecast.at
            if forecast.at is not None:
                self._context.metrics.observe_forecast_wait(forecast.at - self._context.clock())

    def _has_missed(self) -> bool:
        """Return whether a forecast for the head was missed by so much that later ones are not reliable either."""
        missed = self.head.missed if self.head is not None else None
        return missed is not None and self._context.clock() > missed + _KEPT_SECONDS

    def seconds_ahead(self) -> float:
        """Return the seconds until the head's forecast; NaN if there is none."""
        at = self.head.forecast.at if self.head is not None else None
        return math.nan if at is None else at - self._context.clock()

    # --- who may pass ------------------------------------------------------------------------------------------

    def closed_to(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that a gang must not use, for the head's sake.

        These are the nodes of the head that do not hold the whole gang beside the head, if the gang is behind the head
        and was not let pass. To a gang that is exclusive by the head's topology key all of the head's domain is closed.
        Late members of a running gang may use any node.
        """
        kept = self.kept_from(waiting, request)
        if self.head is None or not kept:
            return kept
        wanted = _add_up(request)
        return kept.difference(
            each for each in self._list_shared(wanted) if self._holds(each, wanted, beside_pods=True)
        )

    def kept_from(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return all nodes of the head that a gang behind the head must not use, but where its plan holds both.

        A member that joins the gang after its plan may use none of them: the plan did not count it.
        """
        head = self.head
        if head is None or request.need == 0 or waiting.group == head.group or waiting.group in head.passed:
            return frozenset()
        if head.beyond_share and waiting.group.namespace != head.group.namespace:
            return frozenset()
        if self._order.precedes(waiting, head.waiting):
            return frozenset()
        return head.forecast.nodes | (self._list_own_domain(head, request) if request.exclusive else frozenset())

    def _find_narrow(self, request: PlanRequest) -> frozenset[str]:
        """Return the nodes of the head that could not hold the head and a whole gang even without any other pod."""
        if self.head is None:
            return frozenset()
        wanted = _add_up(request)
        return self.head.forecast.nodes.difference(
            each for each in self._list_shared(wanted) if self._holds(each, wanted)
        )

    def _list_shared(self, wanted: Resources) -> Collection[str]:
        """Return the nodes of the head that could hold another gang, too, if they are large enough.

        Return no node if there are too many to look at each, or if either gang has rules about other pods, volumes or
        devices: the names of their amounts have a colon, and one may be in the way of another.
        """
        shares = self.head.forecast.shares if self.head is not None else {}
        asked = chain(wanted, *(share.requests for share in shares.values())) if len(shares) <= _MAX_SHARED else [":"]
        return () if any(":" in name for name in asked) else shares.keys()

    def _holds(self, name: str, wanted: Resources, *, beside_pods: bool = False) -> bool:
        """Return whether a node holds ``wanted`` and the head. Only resources count that both request.

        ``beside_pods``: and the pods that are there, but for those whose end the forecast counts on.
        """
        node = self._context.store.nodes.get(name)
        if self.head is None or node is None:
            return False
        share = self.head.forecast.shares[name]
        used = share.requests
        if beside_pods:
            occupancy = self._context.store.occupancy
            usages = [usage for uid in share.leaving if (usage := occupancy.usage_of(uid)) and usage[0] == name]
            staying = subtract(occupancy.used.get(name, {}), total(dict(requests) for _, requests in usages))
            used = add(used, staying)
        both = {resource: amount for resource, amount in wanted.items() if resource in share.requests}
        return count_slots(node.allocatable, used, both) > 0

    def _list_own_domain(self, head: Head, request: PlanRequest) -> frozenset[str]:
        """Return the nodes of the head's exclusive domain if the request wants one of the same key; else none."""
        key, domain = head.exclusive_in, head.forecast.domain
        if key is None or key != request.topology_key:
            return frozenset()
        return frozenset(name for name, node in self._context.store.nodes.items() if node.labels.get(key) == domain)

    def list_promised(self, waiting: Waiting, key: str | None) -> frozenset[str]:
        """Return the exclusive domain of this key that the head will get, if the gang is behind it in its namespace.

        The domain counts in the namespace's share, so that gangs behind the head do not use up the share.
        """
        head = self.head
        if head is None or key is None or head.exclusive_in != key or not head.forecast.domain:
            return frozenset()
        behind = waiting.group != head.group and not self._order.precedes(waiting, head.waiting)
        own = waiting.group.namespace == head.group.namespace
        return frozenset({head.forecast.domain}) if behind and own else frozenset()

    def _let_pass(self, group: GroupKey, request: PlanRequest) -> bool:
        """Let a gang pass if it will have ended before the head's forecast; return whether it may."""
        head = self.head
        end = self._find_end(head, request.members) if head is not None else None
        if head is None or end is None:
            return False
        head.passed[group] = end
        return True

    def lets_pass(self, request: PlanRequest) -> bool:
        """Return whether a gang would be let pass, without letting it."""
        return self.head is not None and self._find_end(self.head, request.members) is not None

    def _find_end(self, head: Head, members: Sequence[Pod]) -> float | None:
        """Return the loop time at which all members will have ended; None if that is not before the head's forecast."""
        if head.forecast.at is None:
            return None
        end = self._pod_ends.find_last(members, Trust.DEADLINES if head.late else Trust.MEASURED)
        return None if end is None or end + _MARGIN_SECONDS > head.forecast.at else end

    def _kept_from_plain(self, pod: Pod) -> frozenset[str]:
        """Return the head's nodes if they are kept from a pod of no gang; else none.

        The pod is before the head only if its priority is higher, as its waiting time is not known. It passes if it
        will have ended before the head's forecast.
        """
        head = self.head
        if head is None or pod.priority > self._order.raised_priority(head.waiting):
            return frozenset()
        if head.beyond_share and pod.namespace != head.group.namespace:
            return frozenset()
        return head.forecast.nodes if self._find_end(head, [pod]) is None else frozenset()

    def _forget_pass(self, group: GroupKey) -> None:
        """Forget that a gang was let pass, as it is planned again: by now it may end too late."""
        if self.head is not None:
            self.head.passed.pop(group, None)

    def refuse(self, request: PlanRequest) -> Verdict:
        """Return the verdict of a gang that would fit on the head's nodes."""
        head = self.head
        assert head is not None  # noqa: S101 - narrows for the type checker: nothing is closed without a head
        return Verdict(Reason.BEHIND_HEAD, need=request.need, key=self._name(head.group), detail=head.text)

    def _name(self, group: GroupKey) -> str:
        owner = self._context.store.membership.name_owner(group)
        return f"{owner} ({group})" if owner else str(group)

    # --- forecasts ---------------------------------------------------------------------------------------------

    def _find_forecast_within_share(self, group: GroupKey, request: PlanRequest) -> Forecast | None:
        """Return the forecast; None if it exceeds the namespace's share while gangs of other namespaces wait."""
        forecast = self._find_forecast(group, request)
        self._beyond_share.pop(group, None)
        alone = self._namespaces[group.namespace] == len(self.contenders)
        if forecast is None or alone or not self._is_beyond_share(forecast):
            return forecast
        self._say_beyond_share(group, forecast)
        return None

    def _is_beyond_share(self, forecast: Forecast) -> bool:
        return len(forecast.nodes) > self._find_most()

    def _find_most(self) -> int:
        return find_most(self._context.options.share_percent, len(self._context.store.nodes))

    def _say_beyond_share(self, group: GroupKey, forecast: Forecast) -> None:
        self._beyond_share[group] = (
            f"{len(forecast.nodes)} of {len(self._context.store.nodes)} nodes would have to be kept for it, and"
            f" {self._find_most()} may be for one namespace, so none are"
        )

    def _find_forecast(self, group: GroupKey, request: PlanRequest) -> Forecast | None:
        def make(snapshot: Snapshot, capacity: Capacity) -> Forecast | None:
            endings = self._pod_ends.list_others(group, request, self._rest_of(group).nodes, snapshot.limit)
            return find_forecast(snapshot, request, endings, capacity)

        return self._planning_tasks.find_forecast(group, request, make)

    def _describe(self, forecast: Forecast) -> str:
        place = f"{len(forecast.nodes)} nodes{f' of {forecast.domain}' if forecast.domain else ''}"
        if forecast.at is None:
            return f"{place} are kept for it, and nobody can tell when they will have room"
        return f"{place} are kept for it, and are expected to have room at {self.tell_time(forecast.at)}"

    def tell_time(self, at: float) -> str:
        """Return a loop time in RFC 3339, to the second."""
        return write_time(self._context.wall() + at - self._context.clock())


def _add_up(request: PlanRequest) -> dict[str, int]:
    """Return the sum of the requests of all members of a gang, by resource."""
    return total(dict(member.shape.requests) for member in request.members)


def _is_foreseeable(request: PlanRequest, refusal: Verdict) -> bool:
    opens = request.exclusive or not request.taken
    return request.need > 0 and opens and Mark.ROOM in refusal.reason.marks


def _classify_error(at: float | None, now: float) -> tuple[str, float | None]:
    if at is None:
        return "unforeseen", None
    return ("kept" if now - at <= _KEPT_SECONDS else "missed"), now - at


def _is_better(new: Forecast, old: Forecast, now: float) -> bool:
    """Return whether a new forecast is worth a change: it saves a tenth of the wait, or has a time at all."""
    if new.at is None or old.at is None:
        return new.at is not None
    return new.at - now < 0.9 * (old.at - now)
