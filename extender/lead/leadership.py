"""Leadership of this instance: `Leadership` follows the Lease, `Takeover` begins a term, `Idleness` finds idle leaders.

An extender leads while the kube-scheduler in the same Pod holds the scheduler's Lease. The Lease's holderIdentity is
kube-scheduler's hostname (in a Pod, the Pod's name), "_" and a UUID. So there is one election, not two. Where the
extenders have an election with a Lease of their own, the extender itself is the holder.

This instance may see a change of the Lease late, when another instance leads already. So it stops leading some seconds
before another instance could acquire the Lease, counted from the Lease's renewTime; its requests in flight arrive in
these seconds. A wall clock that is set back would prolong that, so the monotonic clock limits it, too.

Another instance can acquire a released Lease at once. kube-scheduler releases it when its liveness probe, which checks
the extender, has failed for long enough. So a process that was stopped (SIGSTOP, a paused VM) for about that long
leads again only after it has seen a later renewal.
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
"""The time for which an extender may lead without planning, in seconds: a large cluster's caches need tens of seconds.

It doubles with each term in a row that ended because of it. Otherwise two pairs that need longer to begin a term, for
instance to read many records, would pass the Lease to each other for ever.
"""

_ASKED_SECONDS = 15.0
"""The time for which one call from kube-scheduler shows that it leads, in seconds: it tries a pod again within 10 s."""


class Idleness:
    """Finds out whether an extender does not plan although its kube-scheduler leads. Then another pair should lead.

    kube-scheduler's liveness probe calls `may_keep_leading`; a False restarts kube-scheduler. An extender that
    considers groups is not idle, even if none of them fits. All times are by ``clock``, in seconds.

    ``leads`` returns whether this instance sees its kube-scheduler hold the Lease. ``refused`` returns when the
    extender last refused a call of kube-scheduler because it did not see that. As kube-scheduler calls only while it
    leads, such a call shows that it does, and that the extender has missed it. ``planned`` returns when the extender
    last considered groups. That counts only while ``synced`` returns True: caches are full, and watches up to date.
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

        self._last_worked = -math.inf
        """The last time at which the extender considered groups with caches that were up to date."""

        self._since = math.inf
        """The time since which kube-scheduler leads; infinity while it does not."""

        self._too_long = False
        """The last result: True if the extender has been idle for too long in this term of kube-scheduler."""

        self._idle_terms = 0
        """The number of terms of kube-scheduler in a row that ended because the extender was idle."""

    def may_keep_leading(self) -> bool:
        """Return False if kube-scheduler leads and the extender has considered no group for longer than `PATIENCE`."""
        now = self._clock()
        if not self._leads() and now - self._refused() > _ASKED_SECONDS:
            self._idle_terms += 1 if self._too_long else 0
            self._too_long = False
            self._since = math.inf
            return True
        self._since = min(self._since, now)
        if self._synced():
            self._last_worked = self._planned()
        if self._last_worked >= self._since:
            self._idle_terms = 0
        self._too_long = now - max(self._since, self._last_worked) >= PATIENCE.delay(self._idle_terms + 1)
        return not self._too_long


log = logging.getLogger(__name__)

_LEASE_PART = 0.8
"""The fraction of the Lease's duration for which this instance leads after a renewal: 12 of the usual 15 seconds.

kube-scheduler itself stops after 10 seconds without a renewal (renewDeadline).
"""

_LOOK_SECONDS = 0.5

STILL_SECONDS = 4.0
"""The longest time for which this process may be stopped and still lead, in seconds.

The Lease cannot have been released in it, because kube-scheduler's liveness probe takes longer to fail.
"""

_UNREAD_SECONDS = 1.0
"""The seconds after a stop of this process in which renewals do not count: the watch may have buffered old ones."""

WATCH_TIMING = WatchTiming(silence=10.0)
"""The timing of the Lease's watch: it is opened anew after 10 seconds without an event.

A Lease is renewed every few seconds, so such a watch has lost its connection. This instance leads for longer than that
after a renewal, so the new watch shows the next renewal in time. The reflector opens it without a pause.
"""

NO_LEASE = Lease("")

UNCONTESTED = Lease("", renewed=2**62, duration=2**62)
"""The Lease that never expires, with holder "", for an instance that runs without leader election."""


@dataclass(slots=True, eq=False)
class Leadership:
    """Follows one Lease by a watch, and knows at each moment whether this instance leads. One per process."""

    _prefix: str
    """The name of this instance: it leads if the Lease's holderIdentity is this name, or this name, "_" and more."""

    _changed: Callable[[bool], None]
    """Called with True when this instance has won leadership, with False when it has lost it. It must not block."""

    _wall: Callable[[], float]
    """Returns the seconds since 1970. This clock and that of the Lease's holder may differ by a few seconds at most."""

    _clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds.

    The loop time would not do: it is not read anew if the process is stopped in a callback.
    """

    active: bool = field(default=False, init=False)

    _lease: Lease = field(default=NO_LEASE, init=False)
    """The Lease as it was seen last."""

    _renewal_seen: float = field(default=0.0, init=False)
    """The time by ``_clock`` at which this instance saw the Lease's present holder and renewTime for the first time."""

    _last_check: float | None = field(default=None, init=False)
    """The time of the last `check_time` by ``_clock``; None before `begin_checks`."""

    _believed_from: float = field(default=-math.inf, init=False)
    """The time by ``_clock`` from which on a renewal must be seen to count. It is set after a stop of this process."""

    _lapsed: bool = field(default=False, init=False)
    """True while `leads` has returned False to a caller in this term, but ``_changed`` was not called yet."""

    _willing: bool = field(default=True, init=False)
    """False between `suspend` and `resume`, when this instance must not lead."""

    @property
    def holder(self) -> str:
        """The holderIdentity of the Lease as it was seen last; "" for none."""
        return self._lease.holder

    async def watch(self, client: ApiClient, lease: Key) -> None:
        """Watch the Lease of this name, and call `check_time` every half second. Run until cancelled."""
        selection = Selection(namespace=lease.namespace, fields=select_name(lease.name))
        async with asyncio.TaskGroup() as tasks:
            follower = Reflector(client, LEASES, self.handle_event, selection=selection, timing=WATCH_TIMING)
            tasks.create_task(follower.run())
            tasks.create_task(self.watch_time())

    def handle_event(self, event: Event) -> None:
        """Set the Lease from an event of its watch. A Lease that cannot be decoded changes nothing."""
        if isinstance(event, Upserted):
            lease = decode_lease(event.obj)
            if not isinstance(lease, Malformed):
                self.set_lease(lease)
        elif isinstance(event, Deleted):
            self.set_lease(NO_LEASE)

    def set_lease(self, lease: Lease) -> None:
        """Set the Lease as it is on the API server now. This instance may win or lose leadership by it."""
        if (lease.holder, lease.renewed) != (self._lease.holder, self._lease.renewed):
            self._renewal_seen = self._clock()
        self._lease = lease
        self.update()

    def suspend(self) -> None:
        """Stop leading at once, whatever the Lease says, until `resume`. Called before the Lease is released."""
        self._willing = False
        self.update()

    def resume(self) -> None:
        """End a `suspend`: this instance leads again as soon as it holds the Lease."""
        self._willing = True
        self.update()

    def leads(self) -> bool:
        """Return whether kube-scheduler holds the Lease at this moment, as far as this instance can know.

        A caller that got False has left work undone, which only a new term repeats. So the answer stays False until
        `update` has ended this term, even if the Lease is renewed meanwhile.
        """
        holds = self._holds()
        self._lapsed = self._lapsed or (self.active and not holds)
        return holds and not self._lapsed

    def _holds(self) -> bool:
        lease = self._lease
        ours = lease.holder == self._prefix or lease.holder.startswith(self._prefix + "_")
        if not ours or lease.renewed is None or not self._willing:
            return False
        if self._was_stopped() or self._renewal_seen < self._believed_from:
            return False
        seconds = _LEASE_PART * lease.duration
        return self._wall() < lease.renewed + seconds and self._clock() < self._renewal_seen + seconds

    def _was_stopped(self) -> bool:
        return self._last_check is not None and self._clock() > self._last_check + STILL_SECONDS

    def update(self) -> None:
        """Tell the process if this instance has won or lost leadership, because the Lease changed or has expired.

        For that, call ``_changed``, the callback from the constructor: with True after a win, with False after a loss.
        """
        active = self._holds()
        if self._lapsed:
            self._set_active(active=False)
        if active != self.active:
            self._set_active(active=active)

    def _set_active(self, *, active: bool) -> None:
        self.active = active
        self._lapsed = False
        if not active and self._willing and self._lease.holder.startswith(self._prefix):
            text = "this instance stops leading: the Lease was not renewed in time, or clocks differ"
            log.warning(text, extra={"holder": self.holder})
        self._changed(active)

    async def watch_time(self) -> None:
        """Call `check_time` every half second, until cancelled."""
        self.begin_checks()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.check_time()

    def begin_checks(self) -> None:
        """Begin to detect stops of this process: from now on `check_time` has to be called every half second."""
        self._last_check = self._clock()

    def check_time(self) -> None:
        """Stop leading if the Lease has expired, or if this process was stopped for longer than `STILL_SECONDS`.

        A stop is detected by the time since the last call of this method.
        """
        if self._was_stopped():
            log.warning("this process was stopped for a while: it leads again once it has seen the Lease renewed")
            self._believed_from = self._clock() + _UNREAD_SECONDS
        self._last_check = self._clock()
        self.update()


_BACKOFF = Backoff(first=1.0, cap=10.0)
_CONTEST_SECONDS = 5.0
"""The pause before the records are taken over from another instance that has committed a gang, in seconds.

If that instance is alive, it can finish its Bindings in this time.
"""

_READ_SECONDS = 3.0
"""The pause between two checks that the Reservations can still be read, in seconds: they are not watched."""

_MAX_FAILURES = 3
"""The number of failures in a row after which the waiting gangs get the failure as their reason."""


class Takeover:
    """Begins a term when this instance has won leadership: takes over the records of earlier terms, starts planning.

    Enter by `run`. ``recovery`` reads the records; ``group_scheduler`` plans from then on. ``wall`` returns the seconds
    since 1970.
    """

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
        """Set while all caches are full. A term does not begin before, because records are compared with the caches."""
        self._wall = wall
        self._leadership_changed = asyncio.Event()

    def on_leadership_change(self) -> None:
        """Wake up `run`, which begins a term if this instance leads. Called when it has won or lost leadership."""
        self._leadership_changed.set()

    async def watch_contested(self, contested: asyncio.Event, begin_next_term: Callable[[], None]) -> None:
        """Begin a new term whenever another instance has written a commit during this term. Run until cancelled.

        ``contested`` is set when such a record is found. The other instance may be dead. Then its gang would stay bound
        in part, unless a new term takes over its record. ``begin_next_term`` ends this term and begins the next one.
        """
        while True:
            await contested.wait()
            log.warning("another instance is active, too, and has committed a gang: its records are taken over")
            await asyncio.sleep(_CONTEST_SECONDS)
            contested.clear()
            if self._term.plans:
                begin_next_term()

    async def watch_records(self, may_read: Callable[[], Awaitable[bool]], begin_next_term: Callable[[], bool]) -> None:
        """Begin a new term when the API server does not let Serried read the Reservations any more.

        The new term cannot take over the records, so all waiting gangs get that as their reason. ``may_read`` returns
        whether a read is allowed; only two refusals in a row count, because one may come from one API server of
        several. ``begin_next_term`` returns False if it could not end this term now. Run until cancelled.
        """
        refused = 0
        while True:
            await asyncio.sleep(_READ_SECONDS)
            refused = refused + 1 if self._term.plans and not await may_read() else 0
            if refused > 1:
                refused = 0
                if begin_next_term():
                    log.error("the Reservations cannot be read any more, so nothing is planned")

    async def run(self) -> None:
        """Begin a term each time that this instance has won leadership. Run until cancelled."""
        while True:
            await self._leadership_changed.wait()
            self._leadership_changed.clear()
            await self._begin()

    async def _begin(self) -> None:
        attempts = Attempts(_BACKOFF)
        while self._leadership.active and not self._term.plans:
            await self._synced.wait()
            try:
                if not await self._recovery.recover():
                    continue  # the term ended meanwhile; if this instance leads the next one, recovery starts over
            except (ApiError, UndecidedError) as error:
                self._report_error(error, attempts.failures + 1)
                await attempts.rest()
                continue
            self._group_scheduler.begin_term(self._wall())
            self._term.active = self._leadership.active  # leadership may have been lost meanwhile
            self._group_scheduler.set_obstacle("")

    def _report_error(self, error: ApiError | UndecidedError, failures: int) -> None:
        """Log why the records could not be taken over, so that no gang can be planned in this term yet.

        If the error lasts, all waiting gangs get it as their reason. From then on kube-scheduler's calls about pods in
        no gang are answered as usual. ``failures`` is the number of failures in a row.
        """
        log.error("cannot take over the Reservations, so nothing is planned yet", extra={"err": str(error)})
        lasting = isinstance(error, NotFound | Forbidden) or failures >= _MAX_FAILURES
        if self._leadership.active and lasting:
            self._term.active = True
            self._group_scheduler.set_obstacle(_describe(error))


def _describe(error: ApiError | UndecidedError) -> str:
    """Return why the records could not be taken over, and what an administrator can do, as a phrase."""
    what = f"{RESERVATIONS} ({RESERVATIONS.version})"
    if isinstance(error, NotFound):
        return f"the API server does not serve {what}: install the CRDs"
    if isinstance(error, Forbidden):
        return f"the API server does not let Serried read {what}: apply the roles"
    return str(error)
