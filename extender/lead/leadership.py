"""Whether this instance leads, whether it is to go on, and how a term begins: with the records of earlier ones.

It leads while the scheduler beside it holds the scheduler's Lease, whose holderIdentity is its hostname (in a Pod, the
Pod's name), "_" and a UUID. There is one election, not two; where the extenders hold a Lease themselves, what is said
here of the scheduler is true of the extender.

What the watch showed last may be old, and by then another instance may lead. So leadership runs out by the Lease's own
renewTime, a while before others may take it: what is on its way then arrives in time. A wall clock that is set back
would prolong that, so it runs out by a clock that nobody sets as well. A Lease that is given up does not run out:
others have it at once. The scheduler gives it up when our probe has failed for long enough, so a process that has stood
still for about that long leads again only after a later renewal.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from extender.core.binding.committed import UnjudgedError
from extender.core.binding.recovery import Recovery
from extender.core.scheduling.effects import Term
from extender.core.scheduling.group_scheduler import GroupScheduler
from serried.api.names import Key, Malformed
from serried.kube.client import ApiClient
from serried.kube.election import Lease, decode_lease
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.reflector import Deleted, Event, Reflector, Upserted, WatchTiming
from serried.kube.retry import Attempts, Backoff
from serried.kube.wire import LEASES, RESERVATIONS, Selection, select_name

PATIENCE = Backoff(first=60.0, cap=3600.0)
"""How long an extender may be idle, in seconds: the caches of a large cluster take some tens of seconds to fill.

It doubles whenever that was too short. Caches fill on without the Lease, but many records are taken over by a leader
only, so two slow pairs that were as patient each time would hand the Lease to and fro for ever.
"""

_ASKED_SECONDS = 15.0
"""For how long a refused call shows that the scheduler leads: it tries a pod again after 10 s at the latest."""


class Idleness:
    """Whether an extender that is to plan does not for long: then its scheduler gives the Lease to the other pair.

    Each probe of the scheduler looks at it. Who looks at groups is not idle, even if they all have to wait. All times
    are seconds of ``clock``. ``leads`` says whether we see that the scheduler beside us holds the Lease. ``refused`` is
    when it was last told that it does not: it calls nobody without the Lease, so then it is we who cannot see.
    ``planned`` is when groups were last looked at, which counts while the caches are ``synced``: full, and shown all
    changes.
    """

    def __init__(
        self,
        leads: Callable[[], bool],
        refused: Callable[[], float],
        planned: Callable[[], float],
        synced: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._leads = leads
        self._refused = refused
        self._planned = planned
        self._synced = synced
        self._clock = clock

        self._worked = -math.inf
        """When groups were last looked at by caches that follow the cluster."""

        self._since = math.inf
        """Since when the scheduler leads, infinity while it does not."""

        self._too_long = False
        """Whether the extender has been idle for too long in that time."""

        self._turns = 0
        """How many times of the scheduler in a row have ended so."""

    def may_go_on(self) -> bool:
        """Whether the scheduler may keep the Lease, if it has it."""
        now = self._clock()
        if not self._leads() and now - self._refused() > _ASKED_SECONDS:
            self._turns += 1 if self._too_long else 0
            self._too_long = False
            self._since = math.inf
            return True
        self._since = min(self._since, now)
        if self._synced():
            self._worked = self._planned()
        if self._worked >= self._since:
            self._turns = 0
        self._too_long = now - max(self._since, self._worked) >= PATIENCE.delay(self._turns + 1)
        return not self._too_long


log = logging.getLogger(__name__)

_SHARE = 0.8
"""The part of the Lease's duration, from its renewTime on, for which we lead: 12 of the usual 15 seconds.

kube-scheduler itself gives up after 10 seconds without a renewal (renewDeadline).
"""

_LOOK_SECONDS = 0.5

STILL_SECONDS = 4.0
"""Standing still for longer than this may have cost the scheduler the Lease: its probe takes longer to fail."""

_UNREAD_SECONDS = 1.0
"""What the watch shows so soon after standing still may be older: it was kept for us meanwhile."""

WATCH_TIMING = WatchTiming(silence=10.0)
"""A Lease is renewed every few seconds: a watch that shows nothing for so long has lost its connection.

It is shorter than the time for which we lead, so that another connection shows the renewals before that is over; a
reflector counts it as a watch that lasted, and makes the next one at once.
"""

NOBODY = Lease("")

UNCONTESTED = Lease("", renewed=2**62, duration=2**62)
"""By what one instance without a Lease leads, as holder "": it never runs out."""


@dataclass(slots=True, eq=False)
class Leadership:
    """Follows one Lease."""

    _prefix: str
    """What our holder's name begins with."""

    _changed: Callable[[bool], None]
    """Called with the new state whenever it turns; it must not block."""

    _wall: Callable[[], float]
    """Seconds since 1970: the holder's clock and ours must agree to within seconds."""

    _clock: Callable[[], float] = time.monotonic
    """Not the loop's: that one stands still within a turn, during which the process may have been stopped."""

    active: bool = field(default=False, init=False)

    _lease: Lease = field(default=NOBODY, init=False)
    """The Lease as it was seen last."""

    _seen: float = field(default=0.0, init=False)
    """The monotonic time at which its last renewal was seen first."""

    _looked: float | None = field(default=None, init=False)
    """The monotonic time of the last look at the Lease; None while nobody looks all the time."""

    _believed_from: float = field(default=-math.inf, init=False)
    """The monotonic time from which on a renewal that is seen is believed."""

    _lapsed: bool = field(default=False, init=False)
    """Whether somebody was told that we do not lead any more, while that turn is not told yet."""

    _willing: bool = field(default=True, init=False)
    """Whether we lead if the Lease says so."""

    @property
    def holder(self) -> str:
        """Who holds the Lease by what was seen last, "" for nobody."""
        return self._lease.holder

    async def watch(self, client: ApiClient, lease: Key) -> None:
        """Follow this Lease until cancelled."""
        selection = Selection(namespace=lease.namespace, fields=select_name(lease.name))
        async with asyncio.TaskGroup() as tasks:
            follower = Reflector(client, LEASES, self.follow, selection=selection, timing=WATCH_TIMING)
            tasks.create_task(follower.run())
            tasks.create_task(self.watch_time())

    def follow(self, event: Event) -> None:
        """The sink of the Lease's watch."""
        if isinstance(event, Upserted):
            lease = decode_lease(event.obj)
            if not isinstance(lease, Malformed):
                self.take(lease)
        elif isinstance(event, Deleted):
            self.take(NOBODY)

    def take(self, lease: Lease) -> None:
        """The Lease looks like this now."""
        if (lease.holder, lease.renewed) != (self._lease.holder, self._lease.renewed):
            self._seen = self._clock()
        self._lease = lease
        self.review()

    def lay_down(self) -> None:
        """Lead no more from this moment, before the Lease shows it, until ``take_up``."""
        self._willing = False
        self.review()

    def take_up(self) -> None:
        """Lead again, if the Lease says so."""
        self._willing = True
        self.review()

    def leads(self) -> bool:
        """Whether the scheduler beside us holds the Lease at this moment, for all that anybody can know.

        Who has heard a no has left something to the next leader: it is no until that turn is told.
        """
        holds = self._holds()
        self._lapsed = self._lapsed or (self.active and not holds)
        return holds and not self._lapsed

    def _holds(self) -> bool:
        lease = self._lease
        ours = lease.holder == self._prefix or lease.holder.startswith(self._prefix + "_")
        if not ours or lease.renewed is None or not self._willing:
            return False
        if self._stood_still() or self._seen < self._believed_from:
            return False
        share = _SHARE * lease.duration
        return self._wall() < lease.renewed + share and self._clock() < self._seen + share

    def _stood_still(self) -> bool:
        return self._looked is not None and self._clock() > self._looked + STILL_SECONDS

    def review(self) -> None:
        """Look whether the state has turned: with a change of the Lease, or with time alone."""
        active = self._holds()
        if self._lapsed:
            self._turn(active=False)
        if active != self.active:
            self._turn(active=active)

    def _turn(self, *, active: bool) -> None:
        self.active = active
        self._lapsed = False
        if not active and self._willing and self._lease.holder.startswith(self._prefix):
            log.warning("the Lease was not renewed in time, or clocks differ", extra={"holder": self.holder})
        self._changed(active)

    async def watch_time(self) -> None:
        """Notice the end of a Lease that nobody renews, and that we stood still, until cancelled."""
        self.begin_to_look()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def begin_to_look(self) -> None:
        """From now on `look` is called all the time."""
        self._looked = self._clock()

    def look(self) -> None:
        """Look at the Lease, and at how long ago the last look was."""
        if self._stood_still():
            log.warning("this process stood still for long: the Lease may be another's by now")
            self._believed_from = self._clock() + _UNREAD_SECONDS
        self._looked = self._clock()
        self.review()


_BACKOFF = Backoff(first=1.0, cap=10.0)
_CONTEST_SECONDS = 5.0
"""How long another that is active may go on with what it has committed: what it has bound by then is seen."""

_READ_SECONDS = 3.0
"""How often it is looked whether Reservations can be read: they are not watched."""

_MAX_FAILURES = 3
"""How many failures in a row are passed over; after them it is no matter of moments."""


class Takeover:
    """Begins a term whenever leadership has turned to us."""

    def __init__(
        self,
        term: Term,
        group_scheduler: GroupScheduler,
        leadership: Leadership,
        recovery: Recovery,
        *,
        synced: asyncio.Event,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._term = term
        self._group_scheduler = group_scheduler
        self._leadership = leadership
        self._recovery = recovery
        self._synced = synced
        """Set while all caches are whole: the records are judged by them."""
        self._wall = wall
        self._turned = asyncio.Event()

    def note_turn(self) -> None:
        """Leadership has turned, to us or away."""
        self._turned.set()

    async def renew(self, contested: asyncio.Event, begin_anew: Callable[[], None]) -> None:
        """Have a new term begun whenever this one meets a commit of another that it has not taken over.

        Whoever has written it may be dead, and then nobody would go on with it. Runs until cancelled.
        """
        while True:
            await contested.wait()
            log.warning("another instance is active, too, and has committed a gang: its records are taken over")
            await asyncio.sleep(_CONTEST_SECONDS)
            contested.clear()
            if self._term.plans:
                begin_anew()

    async def watch_records(self, may_read: Callable[[], Awaitable[bool]], begin_anew: Callable[[], bool]) -> None:
        """Have a new term begun when the Reservations cannot be read any more: it tells every gang that waits.

        One refusal may be that of one API server of several, so two in a row count. ``begin_anew`` returns whether it
        has begun one. Runs until cancelled.
        """
        refused = 0
        while True:
            await asyncio.sleep(_READ_SECONDS)
            refused = refused + 1 if self._term.plans and not await may_read() else 0
            if refused > 1:
                refused = 0
                if begin_anew():
                    log.error("the Reservations cannot be read any more, so nothing is planned")

    async def run(self) -> None:
        """Begin terms until cancelled."""
        while True:
            await self._turned.wait()
            self._turned.clear()
            await self._begin()

    async def _begin(self) -> None:
        attempts = Attempts(_BACKOFF)
        while self._leadership.active and not self._term.plans:
            await self._synced.wait()
            try:
                if not await self._recovery.recover():
                    continue  # the term ended under it; if the next one is ours, too, it begins at the beginning
            except (ApiError, UnjudgedError) as error:
                self._meet_obstacle(error, attempts.failures + 1)
                await attempts.rest()
                continue
            self._group_scheduler.begin_term(self._wall())
            self._term.active = self._leadership.active  # it may have turned meanwhile
            self._group_scheduler.set_obstacle("")

    def _meet_obstacle(self, error: ApiError | UnjudgedError, failures: int) -> None:
        """Nothing can be planned in this term yet: say so, and let go of whom it does not concern."""
        log.error("cannot take over the Reservations, so nothing is planned yet", extra={"err": str(error)})
        lasting = isinstance(error, NotFound | Forbidden) or failures >= _MAX_FAILURES
        if self._leadership.active and lasting:
            self._term.active = True
            self._group_scheduler.set_obstacle(_describe(error))


def _describe(error: ApiError | UnjudgedError) -> str:
    """What keeps us from the records, or from judging them, and what helps."""
    what = f"{RESERVATIONS} ({RESERVATIONS.version})"
    if isinstance(error, NotFound):
        return f"the API server does not serve {what}; install the CRDs"
    if isinstance(error, Forbidden):
        return f"the API server does not let us see {what}; apply the roles"
    return str(error)
