"""Room that is kept for the first gang that does not fit, and who may use it meanwhile (decision 12).

At most one gang, the *head*, has such a reservation: the nodes that are forecast to hold it first. It is memory only,
and it ends. A gang behind the head gets a node of these only if it is known to have ended before. Pods of no gang are
bound by it only if a setting says so (`extender.features.plain_pods`).

A refused gang contends (`unschedulable`, `go_on`) until it has ``left``; who is the first, `hints` looks for. A plan
spares the head's nodes (`filter`, `closed_to`, `kept_from`). Others ask for what the head is to get (`expect_room`,
`list_promised`, `list_kept`, `keep_from_pod`).
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
from serried.plan.request import Plan, PlanRequest, Snapshot, Turn, Waiting

_MARGIN_SECONDS = 5.0
"""A gang that passes must have ended this long before the head's forecast: its pods do not start at once."""

_REFRESH_SECONDS = 60.0
"""A forecast that is older than this may be replaced by a better one."""

_MAX_DOUBLINGS = 12
"""How often the time for which room is kept is doubled at most."""

_MAX_SHARED = 64
"""Up to how many nodes of the head are looked at one by one; more of them are kept whole."""

_MAX_VAIN = 16
"""For how many gangs of one namespace forecasts are made in vain before others of it have to wait for theirs."""

_MAX_VAIN_DOUBLINGS = 5
"""How often the pause after forecasts in vain is doubled at most, so that others of the namespace have their turn."""

_REVIEW_SECONDS = 30.0
"""How often the first of the gangs that do not fit is looked for: waiting alone may change who it is."""

_MAX_CANDIDATES = 4
"""How many gangs at a time are asked whether room can be kept for them."""

_CONTENDERS_PER_STEP = 500
"""Among how many gangs the first ones are looked for in one step."""

_KEPT_SECONDS = 30.0
"""A forecast was kept if its gang is placed no later than this after it: that long, pods may take to end."""


@dataclass(slots=True)
class Head:
    """The first gang that does not fit. Times are loop seconds."""

    waiting: Waiting
    """The gang as the queue sees it."""

    forecast: Forecast
    """Where room is kept for it, and when it is expected there."""

    made: float
    """When the forecast was made, or looked at again."""

    until: float
    """When the reservation ends at the latest."""

    text: str
    """The forecast as people read it."""

    exclusive_in: str | None = None
    """The topology key of which it wants a domain for itself; None if it does not."""

    beyond_share: bool = False
    """Whether that is more than its namespace may have kept from gangs of others."""

    late: bool = False
    """Whether a forecast for it has been missed."""

    missed: float | None = None
    """The first forecast that was missed since it is the head; None if there is none."""

    passed: dict[GroupKey, float] = field(default_factory=dict)
    """The gangs that were let onto its nodes because they will have ended in time, and when they will have."""

    @property
    def group(self) -> GroupKey:
        """Whose reservation it is."""
        return self.waiting.group


@dataclass(slots=True)
class _Rest:
    """A time in which no room is kept for a gang: that was done in vain before, or would not help it."""

    until: float = -math.inf
    """The end of the rest, in loop seconds; minus infinity once it is over."""

    turns: int = 0
    """How often room was kept in vain."""

    vain: int = 0
    """How often in a row no room could be kept."""

    nodes: Counter[str] = field(default_factory=Counter)
    """How often each node was kept in vain: next time others are, if nobody can tell where there will be room."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """The nodes on which the members of a gang that was the head have slots, and the gang's priority."""

    priority: int
    nodes: frozenset[str]


class Backfill(Feature):
    """Keeps room for the head. ``clock`` gives loop seconds, ``wall`` seconds since 1970."""

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
        """The gangs for which no room is kept as it would be too much for one namespace, and what is said of that."""

        self.contenders: dict[GroupKey, None] = {}
        """The gangs that wait for room, and for which it might be kept."""

        self._namespaces: Counter[str] = Counter()
        """How many of these there are in each namespace."""

        self._promises: dict[GroupKey, float | None] = {}
        """The first forecast that was made for each gang, in loop seconds; None if it had no time."""

        self._rests: dict[GroupKey, _Rest] = {}

        self._displaced: list[GroupKey] = []
        """The gangs that were the head and are to be told that they are it no more."""

        self._waiting: dict[GroupKey, Waiting] = {}
        """The contenders of which the last look has found that room could ever hold them, as the queue sees them."""

        self._unforeseen: dict[GroupKey, tuple[Waiting, PlanRequest, Verdict]] = {}
        """Refused gangs whose forecast is being made: as the queue sees them, what was asked for, and the refusal."""

        self._behind: set[GroupKey] = set()
        """Gangs that would fit but for the head."""

        self._reviewed = -math.inf
        """When the first of those that wait was looked for last, in loop seconds."""

        self._eligible: dict[GroupKey, None] = {}
        """The gangs of which anything above may be remembered: the head is one of them."""

        self._former: Head | None = None
        """The head when pods of no gang were kept off its nodes last."""

        self._placed: dict[GroupKey, _Placed] = {}
        """The gangs that were the head, and whose members have slots and are not bound yet."""

        self.busy = self._eligible

    def restore(self, head: Head) -> None:
        """Keep room as an earlier process did."""
        self.head = head
        self._eligible[head.group] = None

    def __contains__(self, group: GroupKey) -> bool:
        return self.head is not None and self.head.group == group

    # --- gangs that are planned --------------------------------------------------------------------------------

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Return the plan if it takes nothing that is kept for the head, or will have ended before; else another one.

        Raises Unfinished as long as that one is being made.
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
        # What is freed on the head's other nodes may leave enough for both.
        self._queue.put_back(group, request.closing(closed & self._find_narrow(request)), answer)
        self._wake_if_changed(before)
        return self.refuse(request)

    def _note_try(self, group: GroupKey) -> None:
        self._forget_pass(group)
        self._behind.discard(group)

    def unschedulable(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Keep room for the gang if it is the first; return the refusal, and what is kept."""
        before = self._forecast()
        self._note_try(waiting.group)
        answer = self._contend(waiting, request, refusal)
        self._wake_if_changed(before)
        return answer

    def _contend(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Room may be kept for a gang that was refused, now or when its forecast is there; what is said of it."""
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
        """Whether forecasts are being made for enough gangs of the namespace that are before this one.

        It contends all the same: the next look at those who do asks it if they did not fit.
        """
        before = (
            other
            for other, _, _ in self._unforeseen.values()
            if other.group.namespace == waiting.group.namespace and self._order.precedes(other, waiting)
        )
        return len(list(islice(before, _MAX_CANDIDATES))) == _MAX_CANDIDATES

    def go_on(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Go on with a refused gang whose forecast may be there now; return what is to be said of it then."""
        found = self._unforeseen.get(group.key)
        if found is None or group.key not in self._queue:
            return said
        before = self._forecast()
        _, request, refusal = found
        # The unschedulable groups go on with what they know: room that was freed since the refusal counts.
        answer = self._contend(waiting, request, refusal)
        self._wake_if_changed(before)
        return answer

    def left(self, group: GroupKey, *, placed: bool) -> None:
        """A gang got its room, or waits for none any more."""
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
        """Look at the head as time passes; have gangs planned again that may become it, or that it keeps away."""
        now = self._context.clock()
        before = self._forecast()
        for group in self._review():
            self._queue.requeue(group)
        self._wake_if_changed(before)
        if now - self._reviewed < _REVIEW_SECONDS and (self.head is not None or not self._waiting):
            return ()
        self._reviewed = now
        self._order.note_levels()
        first: list[tuple[Turn, GroupKey]] = []
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
        """Wake those who were kept away from nodes by another forecast: these may be free now, or for longer."""
        if before is not None and before is not self._forecast():
            for group in self._behind:
                if group in self._queue:
                    self._queue.requeue(group)
            self._behind.clear()

    def expect_room(self, group: GroupKey) -> float | None:
        """Return the head's forecast if it can be relied on."""
        head = self.head
        return None if head is None or head.group != group or self._has_missed() else head.forecast.at

    def list_kept(self) -> Iterable[frozenset[str]]:
        """Return the nodes of the head."""
        if self.head is not None:
            yield self.head.forecast.nodes

    # --- pods of no gang ---------------------------------------------------------------------------------------

    def keep_from_pod(self, pod: Pod | None) -> Iterable[frozenset[str]]:
        """Return the nodes of the head, and those of gangs that were it until they are bound."""
        self._follow_head()
        if pod is None:
            if self.head is not None:
                yield self.head.forecast.nodes
        elif kept := self._kept_from_plain(pod):
            yield kept
        yield from (each.nodes for each in self._placed.values() if pod is None or pod.priority <= each.priority)

    def _follow_head(self) -> None:
        """Keep the nodes of each gang that is the head no more, as it has got them: until it is bound, or fails."""
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
        """Whether room may be kept for a gang that was refused: its quorum is at stake, and it is not resting.

        None is kept for one whose namespace may have no more domains: what it waits for is not room alone.
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
        """For how many gangs of a namespace a forecast was made in vain of late."""
        now = self._context.clock()
        return sum(
            rest.vain > 0 and now < rest.until for group, rest in self._rests.items() if group.namespace == namespace
        )

    def _rest_of(self, group: GroupKey) -> _Rest:
        """What is remembered of the times in which room was kept for a gang in vain."""
        return self._rests.get(group) or _Rest()

    def _rest_in_vain(self, group: GroupKey, now: float) -> None:
        rest = self._rests.setdefault(group, _Rest())
        rest.until = now + _REFRESH_SECONDS * 2.0 ** min(rest.vain, _MAX_VAIN_DOUBLINGS)
        rest.vain += 1

    def _contend_for_head(self, waiting: Waiting, request: PlanRequest) -> bool:
        """Make an eligible gang the head if it is the first, or keep it so; whether room could ever hold it.

        Raises Unfinished as long as its forecast is being made.
        """
        now = self._context.clock()
        self._note_contender(waiting.group, now)
        head = self.head
        if head is not None and head.group != waiting.group and not self._order.precedes(waiting, head.waiting):
            return True
        if head is not None and head.group == waiting.group:
            return self._renew(head, waiting, request, now)
        forecast = self._foresee_share(waiting.group, request)
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
        """A gang waits for room; a head of another namespace that is beyond its share loses what is kept for it."""
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
        forecast = self._foresee_share(head.group, request)
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
        """The refusal of a gang; that of the head says what is kept for it, or why nothing may be."""
        said = self.head.text if group in self and self.head is not None else self._beyond_share.get(group, "")
        return replace(refusal, detail=", ".join(part for part in (refusal.detail, said) if part)) if said else refusal

    def _review(self) -> list[GroupKey]:
        """End the head's reservation if its time is over; the gangs that are to be planned anew.

        These are the head if its forecast has been missed or cannot hold, and those that have rested.
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
        # Others have their turn for as long as it had them wait in vain, and then it has a longer one: so nobody
        # waits for ever, neither it nor those that it keeps away.
        rest = self._rests.setdefault(head.group, _Rest())
        rest.until = now + self._context.options.patience_seconds * 2.0 ** min(rest.turns, _MAX_DOUBLINGS)
        rest.turns += 1
        rest.nodes.update(head.forecast.nodes)
        self.head = None

    def _note_placed(self, group: GroupKey) -> None:
        """A gang got its room."""
        if group in self._promises:
            self._context.metrics.observe_forecast_error(*_judge(self._promises.pop(group), self._context.clock()))
        self._release(group)

    def _withdraw(self, group: GroupKey) -> None:
        """A gang does not wait for room any more, though it got none."""
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
        # What counts is what was said first: a forecast that is put off again and again keeps no promise.
        if self._promises.get(group) is None:
            self._promises[group] = forecast.at
            if forecast.at is not None:
                self._context.metrics.observe_forecast_wait(forecast.at - self._context.clock())

    def _has_missed(self) -> bool:
        """Whether a forecast for the head was missed by so much that later ones are no better.

        Pods take some time to end.
        """
        missed = self.head.missed if self.head is not None else None
        return missed is not None and self._context.clock() > missed + _KEPT_SECONDS

    def seconds_ahead(self) -> float:
        """How far ahead the head's forecast lies; not a number if there is none."""
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
            claims = [claim for uid in share.leaving if (claim := occupancy.claim_of(uid)) and claim[0] == name]
            staying = subtract(occupancy.used.get(name, {}), total(dict(requests) for _, requests in claims))
            used = add(used, staying)
        both = {resource: amount for resource, amount in wanted.items() if resource in share.requests}
        return count_slots(node.allocatable, used, both) > 0

    def _list_own_domain(self, head: Head, request: PlanRequest) -> frozenset[str]:
        """The nodes of the domain that the head is to have for itself, against those who want one of the same key."""
        key, domain = head.exclusive_in, head.forecast.domain
        if key is None or key != request.topology_key:
            return frozenset()
        return frozenset(name for name, node in self._context.store.nodes.items() if node.labels.get(key) == domain)

    def list_promised(self, waiting: Waiting, key: str | None) -> frozenset[str]:
        """The domain of this key that the head is to have for itself; none for gangs before it or of other namespaces.

        Those behind it may not have what its namespace may have only once.
        """
        head = self.head
        if head is None or key is None or head.exclusive_in != key or not head.forecast.domain:
            return frozenset()
        behind = waiting.group != head.group and not self._order.precedes(waiting, head.waiting)
        own = waiting.group.namespace == head.group.namespace
        return frozenset({head.forecast.domain}) if behind and own else frozenset()

    def _let_pass(self, group: GroupKey, request: PlanRequest) -> bool:
        """Whether a gang behind the head will have ended before the head's forecast; it may use its nodes then."""
        head = self.head
        end = self._find_end(head, request.members) if head is not None else None
        if head is None or end is None:
            return False
        head.passed[group] = end
        return True

    def lets_pass(self, request: PlanRequest) -> bool:
        """The same as a question: nobody is let pass by it."""
        return self.head is not None and self._find_end(self.head, request.members) is not None

    def _find_end(self, head: Head, members: Sequence[Pod]) -> float | None:
        """When all of these will have ended, if that is before the head's forecast."""
        if head.forecast.at is None:
            return None
        end = self._pod_ends.find_last(members, Trust.DEADLINES if head.late else Trust.MEASURED)
        return None if end is None or end + _MARGIN_SECONDS > head.forecast.at else end

    def _kept_from_plain(self, pod: Pod) -> frozenset[str]:
        """The nodes that are kept from a pod of no gang, if it is treated like a gang.

        It is before the head if its priority is higher: nobody knows since when it waits. It passes if it will have
        ended before the head's forecast.
        """
        head = self.head
        if head is None or pod.priority > self._order.raised_priority(head.waiting):
            return frozenset()
        if head.beyond_share and pod.namespace != head.group.namespace:
            return frozenset()
        return head.forecast.nodes if self._find_end(head, [pod]) is None else frozenset()

    def _forget_pass(self, group: GroupKey) -> None:
        """A gang that was let pass is planned anew: by now it may end too late."""
        if self.head is not None:
            self.head.passed.pop(group, None)

    def refuse(self, request: PlanRequest) -> Verdict:
        """The verdict of a gang that would fit but for the head."""
        head = self.head
        assert head is not None  # noqa: S101 - narrows for the type checker: nothing is closed without a head
        return Verdict(Reason.BEHIND_HEAD, need=request.need, key=self._name(head.group), detail=head.text)

    def _name(self, group: GroupKey) -> str:
        owner = self._context.store.membership.name_owner(group)
        return f"{owner} ({group})" if owner else str(group)

    # --- forecasts ---------------------------------------------------------------------------------------------

    def _foresee_share(self, group: GroupKey, request: PlanRequest) -> Forecast | None:
        """The forecast, unless its nodes are beyond the share of a namespace while gangs of others wait for room."""
        forecast = self._foresee(group, request)
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

    def _foresee(self, group: GroupKey, request: PlanRequest) -> Forecast | None:
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
        """A loop time as people read it, RFC 3339 to the second."""
        return write_time(self._context.wall() + at - self._context.clock())


def _add_up(request: PlanRequest) -> dict[str, int]:
    """Return the sum of the requests of all members of a gang, by resource."""
    return total(dict(member.shape.requests) for member in request.members)


def _is_foreseeable(request: PlanRequest, refusal: Verdict) -> bool:
    opens = request.exclusive or not request.taken
    return request.need > 0 and opens and Mark.ROOM in refusal.reason.marks


def _judge(at: float | None, now: float) -> tuple[str, float | None]:
    if at is None:
        return "unforeseen", None
    return ("kept" if now - at <= _KEPT_SECONDS else "missed"), now - at


def _is_better(new: Forecast, old: Forecast, now: float) -> bool:
    """Whether changing over is worth it: a tenth of the wait, or a time where there was none."""
    if new.at is None or old.at is None:
        return new.at is not None
    return new.at - now < 0.9 * (old.at - now)
