r"""One binding cycle of a gang: from a plan that is held in the ledger to its last Binding. State only, no I/O.

    RECORDING -> GATHERING -> COMMITTING -> BINDING -> ENDED
         \______________\______ abort: everything is given back

The stage is progress, never a permission: whether a member may be bound is asked at the door
(`extender.scheduling.permit`). Whoever learns something (a bind call, a deleted pod, a deadline) changes the cycle at
once and sets ``changed``; the one task that drives the cycle wakes and decides. Nothing here awaits, so no two of these
changes interleave.
"""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from serried.model.group import PodGroup
from serried.model.reservation import Reservation


class CycleStage(StrEnum):
    """How far a cycle is."""

    RECORDING = "Recording"
    GATHERING = "Gathering"
    COMMITTING = "Committing"
    BINDING = "Binding"
    ENDED = "Ended"


@dataclass(slots=True)
class BindingCycle:
    """The state of one cycle.

    ``calls`` are the open bind calls by member UID; each future ends with the error text for the scheduler, "" for
    success. ``confirmed`` has the loop time at which filter answered the planned node for a member; ``bound`` the
    members whose Binding is known to stand, ``sending`` those whose Binding is on its way; ``stamped`` and
    ``restamped`` the members that were nominated once and twice; ``asleep`` those that the scheduler has put aside
    and tries again only when a write of ours wakes them; ``refilled`` what was last tried for members without a
    slot. ``met`` is when the scheduler came to the first of the members that are with it now, None while it has
    not; ``idled`` how many seconds have passed without progress though it was free to make some, ``looked`` until
    when they are counted. ``failures`` has a sentence about each Binding that is being repeated. ``begun`` is whether a
    Binding of the commit has been sent, or stands: from then on the rest is rolled forward, before that the commit can
    still be withdrawn. A ``loose`` cycle has room to spare: its members need no stamp, they take any node of the domain
    that is offered. ``closed`` are nodes that it must not use (``backfill``). Times are loop seconds.
    """

    group: PodGroup
    reservation: Reservation
    started: float
    progressed: float
    stage: CycleStage = CycleStage.RECORDING
    calls: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    confirmed: dict[str, float] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    stamped: set[str] = field(default_factory=set)
    restamped: set[str] = field(default_factory=set)
    asleep: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    sending: set[str] = field(default_factory=set)
    begun: bool = False
    loose: bool = False
    closed: frozenset[str] = frozenset()
    refilled: tuple[object, ...] = ()
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    met: float | None = None
    idled: float = 0.0
    looked: float = field(init=False)

    def __post_init__(self) -> None:
        self.looked = self.started

    @property
    def over(self) -> bool:
        """Whether the cycle has ended, well or not."""
        return self.stage is CycleStage.ENDED

    @property
    def steers(self) -> bool:
        """Whether members are sent to their slots: the record is written, or none is needed, and no commit is open."""
        return self.stage in (CycleStage.GATHERING, CycleStage.BINDING)

    @property
    def pinned(self) -> frozenset[str]:
        """The domain that members without a slot must share; empty without a topology key."""
        return frozenset({self.reservation.domain}) if self.group.topology_key else frozenset()

    def quorum_at_bind(self) -> bool:
        """Whether enough members are at their bind call, or bound, to commit."""
        return not self.reservation.lacks(self.calls.keys() | self.bound)

    def out_of_reach(self) -> bool:
        """Whether too few slots are left for the quorum."""
        return self.reservation.lacks(self.reservation.slots.keys() | self.bound)

    def may_move(self, uid: str) -> bool:
        """Whether a member's slot is still free to change its node: nothing durable and no bind call names it."""
        fixed = uid in self.calls or uid in self.sending or uid in self.bound or uid in self.reservation.committed
        return uid in self.reservation.slots and not fixed

    def confirm(self, uid: str, now: float) -> None:
        """Filter has sent a member to its node: the scheduler keeps room there from now on."""
        self.confirmed[uid] = now
        self.asleep.discard(uid)
        self.met = now if self.met is None else self.met

    def advance(self, now: float) -> None:
        """The cycle gets on."""
        self.progressed, self.idled = now, 0.0

    def open_call(self, uid: str, now: float) -> asyncio.Future[str]:
        """A member has come to its bind call. A newer call replaces an older one, which fails."""
        self.close_call(uid, "replaced by a newer bind call of the same pod")
        call: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.calls[uid] = call
        self.met = now if self.met is None else self.met
        self.advance(now)
        self.changed.set()
        return call

    def close_call(self, uid: str, error: str) -> None:
        """Answer a member's open bind call, if it has one."""
        call = self.calls.pop(uid, None)
        if call is not None and not call.done():
            call.set_result(error)
        self.changed.set()

    def abandon_call(self, uid: str, call: asyncio.Future[str]) -> None:
        """The scheduler hung up: it has given the member's room away, so the member is not at bind any more."""
        if self.calls.get(uid) is call:
            del self.calls[uid]
            self.confirmed.pop(uid, None)
            if not self.calls:
                self.met = None
            self.changed.set()

    def mark_bound(self, uid: str, now: float) -> None:
        """A member's Binding stands."""
        self.bound.add(uid)
        self.failures.pop(uid, None)
        self.advance(now)
        self.close_call(uid, "")

    def end(self, error: str) -> None:
        """Close the cycle: every call that is still open fails with this text."""
        self.stage = CycleStage.ENDED
        for uid in list(self.calls):
            self.close_call(uid, error)
        self.changed.set()
