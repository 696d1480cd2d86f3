"""Leadership of this instance: `Leadership` follows the Lease, `Takeover` begins a term, `Idleness` finds idle leaders.

An extender leads while the kube-scheduler in the same Pod holds the scheduler's Lease. The Lease's holderIdentity is
kube-scheduler's hostname (in a Pod, the Pod's name), "_" and a UUID. So there is one election, not two. Where the
extenders hold a Lease of their own, read "extender" for "kube-scheduler" here.

The watch may be late, and another instance may lead already. So leadership expires by the Lease's renewTime, a while
before another instance may acquire the Lease: requests in flight arrive within that time. A wall clock that is set back
would prolong it, so it expires by the monotonic clock, too. A Lease that is released does not expire: another instance
has it at once. kube-scheduler releases it when the extender's probe has failed for long enough. So a process that was
stopped for about that long leads again only after it has seen a later renewal.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from extender.core.binding.committed import UndecidedError
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
"""The time for which a leading extender may be idle, in seconds: caches of a large cluster need tens of seconds.

It doubles with each term that ended so. Caches fill without the Lease, too, but only a leader takes over records. Two
slow pairs with a constant time would pass the Lease to each other for ever.
"""

_ASKED_SECONDS = 15.0
"""The time for which a refused call shows that kube-scheduler leads: it tries a pod again within 10 s."""


class Idleness:
    """Finds out whether a leading extender has planned nothing for too long. If so, its kube-scheduler must not go on.

    Each probe of kube-scheduler calls `may_keep_leading`. An extender that considers groups is not idle, even if all of
    them wait. All times are in seconds of ``clock``. ``leads`` returns whether this instance sees its kube-scheduler
    hold the Lease. ``refused`` returns when a call was last refused because it does not: kube-scheduler only calls
    while it leads, so this instance has missed that. ``planned`` returns when groups were last considered, which only
    counts while ``synced``: caches are full and their watches up to date.
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
        """The last time at which groups were considered with caches that were up to date."""

        self._since = math.inf
        """The time since which kube-scheduler leads; infinity while it does not."""

        self._too_long = False
        """True if the extender has been idle for too long since then."""

        self._turns = 0
        """The number of kube-scheduler's terms in a row that ended because the extender was idle."""

    def may_keep_leading(self) -> bool:
        """Return False if kube-scheduler leads and the extender has been idle for too long."""
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
"""The part of the Lease's duration, from its renewTime on, for which this instance leads: 12 of the usual 15 seconds.

kube-scheduler itself gives up after 10 seconds without a renewal (renewDeadline).
"""

_LOOK_SECONDS = 0.5

STILL_SECONDS = 4.0
"""A process that was stopped for longer may have lost the Lease; kube-scheduler's probe takes longer to fail."""

_UNREAD_SECONDS = 1.0
"""The time after a stop in which events of the watch are not believed: they may have been buffered meanwhile."""

WATCH_TIMING = WatchTiming(silence=10.0)
"""A Lease is renewed every few seconds, so a watch without events for this long has lost its connection.

It is shorter than the time for which one renewal counts, so a new connection shows the next renewal in time. The
reflector counts the silent watch as one that lasted, and opens the next one at once.
"""

NOBODY = Lease("")

UNCONTESTED = Lease("", renewed=2**62, duration=2**62)
"""The Lease of an instance that runs without a Lease, with holder "": it never expires."""


@dataclass(slots=True, eq=False)
class Leadership:
    """Follows one Lease, and knows at each moment whether this instance leads. One per process."""

    _prefix: str
    """The holderIdentity of this instance is this, or begins with this and "_"."""

    _changed: Callable[[bool], None]
    """Called with the new state when leadership is won or lost; it must not block."""

    _wall: Callable[[], float]
    """Seconds since 1970: the holder's clock and this one must agree to within seconds."""

    _clock: Callable[[], float] = time.monotonic
    """The monotonic clock, and not the event loop's: the process may be stopped in the middle of one callback."""

    active: bool = field(default=False, init=False)

    _lease: Lease = field(default=NOBODY, init=False)
    """The Lease as it was seen last."""

    _seen: float = field(default=0.0, init=False)
    """The monotonic time at which its last renewal was seen first."""

    _looked: float | None = field(default=None, init=False)
    """The monotonic time of the last `check_time`; None before `begin_checks`."""

    _believed_from: float = field(default=-math.inf, init=False)
    """The monotonic time before which renewals that were seen do not count."""

    _lapsed: bool = field(default=False, init=False)
    """True if `leads` has returned False for the first time, and ``_changed`` was not called yet."""

    _willing: bool = field(default=True, init=False)
    """False between `suspend` and `resume`."""

    @property
    def holder(self) -> str:
        """The holderIdentity of the Lease as it was seen last; "" for none."""
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
        """Take over the Lease's current state, and lead or stop leading by it."""
        if (lease.holder, lease.renewed) != (self._lease.holder, self._lease.renewed):
            self._seen = self._clock()
        self._lease = lease
        self.review()

    def suspend(self) -> None:
        """Stop leading at once, before the Lease is released, until `resume`."""
        self._willing = False
        self.review()

    def resume(self) -> None:
        """Lead again as soon as the Lease says so."""
        self._willing = True
        self.review()

    def leads(self) -> bool:
        """Return whether kube-scheduler holds the Lease at this moment, as far as this instance can know.

        A caller that got False has left its work to the next leader. So the answer stays False until `review` has
        ended the term.
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
        """Call ``_changed`` if leadership was won or lost, by a change of the Lease or by time alone."""
        active = self._holds()
        if self._lapsed:
            self._turn(active=False)
        if active != self.active:
            self._turn(active=active)

    def _turn(self, *, active: bool) -> None:
        self.active = active
        self._lapsed = False
        if not active and self._willing and self._lease.holder.startswith(self._prefix):
            text = "this instance stops leading: the Lease was not renewed in time, or clocks differ"
            log.warning(text, extra={"holder": self.holder})
        self._changed(active)

    async def watch_time(self) -> None:
        """Notice, until cancelled, that the Lease has expired or that this process was stopped for a while."""
        self.begin_checks()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.check_time()

    def begin_checks(self) -> None:
        """Set the time from which `check_time` is called every half second."""
        self._looked = self._clock()

    def check_time(self) -> None:
        """Stop leading if the Lease has expired, or if the last call of this method is too long ago."""
        if self._stood_still():
            log.warning("this process was stopped for a while: it leads again once it has seen the Lease renewed")
            self._believed_from = self._clock() + _UNREAD_SECONDS
        self._looked = self._clock()
        self.review()


_BACKOFF = Backoff(first=1.0, cap=10.0)
_CONTEST_SECONDS = 5.0
"""The time for which another active instance may go on binding a gang that it has committed, in seconds."""

_READ_SECONDS = 3.0
"""The pause between two tries to read the Reservations, which are not watched."""

_MAX_FAILURES = 3
"""The number of failures in a row after which a failure is reported to the gangs that wait."""


class Takeover:
    """Begins a term when this instance has won leadership: it takes over the records of earlier terms."""

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
        """Set while all caches are full: records are compared with them."""
        self._wall = wall
        self._turned = asyncio.Event()

    def note_turn(self) -> None:
        """Take note that leadership has changed: this instance has won or lost it."""
        self._turned.set()

    async def renew(self, contested: asyncio.Event, begin_anew: Callable[[], None]) -> None:
        """Begin a new term whenever another instance has committed a gang during this one; run until cancelled.

        The other instance may be dead, and then the gang would stay bound in part.
        """
        while True:
            await contested.wait()
            log.warning("another instance is active, too, and has committed a gang: its records are taken over")
            await asyncio.sleep(_CONTEST_SECONDS)
            contested.clear()
            if self._term.plans:
                begin_anew()

    async def watch_records(self, may_read: Callable[[], Awaitable[bool]], begin_anew: Callable[[], bool]) -> None:
        """Begin a new term when the Reservations can no longer be read; run until cancelled.

        The new term tells every gang that waits. One refusal may come from one API server of several, so two in a row
        count. ``begin_anew`` returns whether it has begun a new term.
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
                    continue  # the term ended meanwhile; if this instance leads the next one, recovery starts over
            except (ApiError, UndecidedError) as error:
                self._meet_obstacle(error, attempts.failures + 1)
                await attempts.rest()
                continue
            self._group_scheduler.begin_term(self._wall())
            self._term.active = self._leadership.active  # leadership may have been lost meanwhile
            self._group_scheduler.set_obstacle("")

    def _meet_obstacle(self, error: ApiError | UndecidedError, failures: int) -> None:
        """Log why nothing can be planned in this term yet. If the error lasts, tell the gangs, and serve plain pods."""
        log.error("cannot take over the Reservations, so nothing is planned yet", extra={"err": str(error)})
        lasting = isinstance(error, NotFound | Forbidden) or failures >= _MAX_FAILURES
        if self._leadership.active and lasting:
            self._term.active = True
            self._group_scheduler.set_obstacle(_describe(error))


def _describe(error: ApiError | UndecidedError) -> str:
    """Return a sentence about why the records could not be read or judged, and what an administrator can do."""
    what = f"{RESERVATIONS} ({RESERVATIONS.version})"
    if isinstance(error, NotFound):
        return f"the API server does not serve {what}; install the CRDs"
    if isinstance(error, Forbidden):
        return f"the API server does not let us see {what}; apply the roles"
    return str(error)
