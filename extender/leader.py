"""Whether this instance leads: it does, while the scheduler beside it holds the scheduler's Lease, and renews it.

One election, not two: kube-scheduler's holderIdentity is its hostname (in a Pod, the Pod's name), "_" and a UUID. What
the watch showed last is not enough: it may be late, and by then another instance may lead. So leadership runs out by
the Lease's own renewTime, a while before others may take the Lease: what is on its way then arrives in time. A wall
clock that is set back would prolong that, so leadership runs out by a clock that nobody sets as well.

A Lease that is given up does not run out: others have it at once. The scheduler gives it up when our probe has failed
for long enough. So who has stood still for about that long leads again only when a renewal has come after that.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from serried.decode.lease import decode_lease
from serried.decode.malformed import Malformed
from serried.kube.changes import Deleted, Event, Upserted
from serried.kube.client import ApiClient
from serried.kube.reflector import Reflector, WatchTiming
from serried.kube.wire import LEASES, Selection, select_name
from serried.model.group import Key
from serried.model.lease import Lease

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


class Leadership:
    """Follows one Lease. ``changed`` is called with the new state whenever it turns; it must not block.

    ``wall`` gives seconds since 1970: the holder's clock and ours must agree to within seconds. ``clock`` is monotonic,
    and not the loop's: that one stands still within a turn, during which the process may have been stopped.
    """

    def __init__(
        self,
        holder_prefix: str,
        changed: Callable[[bool], None],
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.active = False
        self._prefix = holder_prefix
        self._changed = changed
        self._wall = wall
        self._clock = clock

        self._lease = NOBODY
        """The Lease as it was seen last."""

        self._seen = 0.0
        """The monotonic time at which its last renewal was seen first."""

        self._looked: float | None = None
        """The monotonic time of the last look at the Lease; None while nobody looks all the time."""

        self._believed_from = -math.inf
        """The monotonic time from which on a renewal that is seen is believed."""

        self._lapsed = False
        """Whether somebody was told that we do not lead any more, while that turn is not told yet."""

        self._willing = True
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


class AlwaysActive(Leadership):
    """Leadership without a Lease: one instance, always active."""

    def begin(self) -> None:
        """Become active."""
        self.active = True
        self._changed(True)  # noqa: FBT003 - the callback's one argument

    def _holds(self) -> bool:
        return self.active  # nobody else is there
