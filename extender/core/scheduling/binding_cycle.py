r"""One binding cycle of a gang: from a plan that is held in the ledger to its last Binding. State only, no I/O.

    RECORDING -------------> GATHERING -> COMMITTING -> BINDING -> ENDED
       |  \--> PREEMPTING --->/   |
       |           |             |
       \-----------\-------------\-- abort: everything is given back

A cycle whose members need no quorum turns from RECORDING to BINDING at once. The stage is progress, never a permission:
whether a member may be bound is asked of the permit (`extender.core.scheduling.permit`). How far each member is stands
in a record of its own (`Member`).

Cycle and members are changed by the verbs here, and by nobody else. A step that the drawings do not have raises
IllegalTransition before anything has changed: in a test it fails, in production whoever was called from outside (a verb
of the scheduler, the task of a cycle, the loop) logs it and goes on. What may come late, or twice, is no such step.

Whoever learns something (a bind call, a deleted pod, a deadline) changes the cycle at once and sets ``changed``; the
one task that drives the cycle wakes and decides. Nothing here awaits, so no two of these changes interleave.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from extender.core.scheduling.cycle_member import Member, MemberStage
from extender.core.scheduling.seats import Seats
from serried.api.group import PodGroup, list_leaves
from serried.api.names import IllegalTransition
from serried.api.pod import Pod, Shape
from serried.api.reservation import Reservation, Slot
from serried.cluster.members import Members
from serried.plan.quorum import MemberState, count_missing


class CycleStage(StrEnum):
    """How far a cycle is."""

    RECORDING = "Recording"

    PREEMPTING = "Preempting"
    """The victims end; members are held."""

    GATHERING = "Gathering"
    COMMITTING = "Committing"
    BINDING = "Binding"
    ENDED = "Ended"


_LEGAL = {
    CycleStage.RECORDING: {CycleStage.PREEMPTING, CycleStage.GATHERING, CycleStage.BINDING},
    CycleStage.PREEMPTING: {CycleStage.GATHERING},
    CycleStage.GATHERING: {CycleStage.COMMITTING},
    CycleStage.COMMITTING: {CycleStage.BINDING},
    CycleStage.BINDING: set[CycleStage](),
    CycleStage.ENDED: set[CycleStage](),
}
"""But for the end, which may come at any stage."""


@dataclass(slots=True)
class BindingCycle:
    """The state of one cycle. Times are loop seconds."""

    group: PodGroup
    """As it was when the cycle was planned."""

    reservation: Reservation

    started: float

    progressed: float
    """When a bind call came (no more while binding), or a Binding stood, last."""

    stage: CycleStage = CycleStage.RECORDING

    seats: Seats = field(default_factory=Seats)
    """Which slots may be taken now, and in which order."""

    closed: frozenset[str] = frozenset()
    """Nodes that it must not use (`extender.features.backfill`)."""

    preempted: bool = False
    """Whether others were to go for it."""

    eviction_sent: bool = False
    """Whether one of the others may have been told to end: what was said until then can be taken back."""

    cleared: dict[str, Slot] = field(default_factory=dict)
    """The slots for whose room the others end, as they were when the first one was told to, by the member's UID.

    Whoever has come in the place of a member is here in its place, too.
    """

    foreign: frozenset[str] = frozenset()
    """The UIDs of the pods of other schedulers that ran on their nodes then: these have not taken what was left."""

    freed_slots: list[Slot] = field(default_factory=list)
    """The slots of members that were deleted after the first eviction: whoever comes in their place gets them."""

    freed_at: float = 0.0
    """When the last one of them was freed."""

    taken_up: bool = False
    """Whether an earlier term has begun it."""

    binding_sent: bool = False
    """Whether a Binding of the commit has left, or stands.

    From then on the rest is rolled forward; before that the commit can still be withdrawn.
    """

    refill_tried: tuple[object, ...] = ()
    """What was last tried for members without a slot; the same is not tried again."""

    standing: tuple[object, ...] = ()
    """How the gang stood when its repair was settled last; () if that is to be done anew."""

    late_version: int = 0
    """Another one after each change of ``late``."""

    reached: float | None = None
    """When the scheduler came to the first of the members that are with it now; None while it has not."""

    idle_seconds: float = 0.0
    """For how long the cycle has not got on since ``progressed``, though the scheduler was free to get on with it."""

    idle_counted: float = field(init=False)
    """Until when ``idle_seconds`` are counted."""

    late_seconds: float = 0.0
    """The part of ``idle_seconds`` that counts against the gang: kube-scheduler had assumed no member."""

    assumed_seconds: float = 0.0
    """For how long kube-scheduler has been between filter and bind with a member, since ``reached``."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to decide; cleared by the task that drives the cycle."""

    _members: dict[str, Member] = field(default_factory=dict)
    """By UID. Kept also without a slot: a member may get another one in this cycle."""

    _at_bind: set[str] = field(default_factory=set)
    """Whose ``call`` is set, so that the quorum is counted without looking at every member."""

    _calling: set[str] = field(default_factory=set)
    """Those of them whose Binding is not sent: who is AT_BIND."""

    _bound: set[str] = field(default_factory=set)
    """Who is BOUND."""

    _unseen: set[str] = field(default_factory=set)
    """Those of them that our watch may not have shown bound."""

    _failing: dict[str, None] = field(default_factory=dict)
    """Who has a ``failure``."""

    _news: dict[str, None] | None = None
    """The members of which something is known that was not looked at; None before the first look at all of them."""

    _late: dict[str, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle_counted = self.started

    # --- readings ----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the cycle has ended, well or not."""
        return self.stage is CycleStage.ENDED

    @property
    def steers(self) -> bool:
        """Whether members are sent to their slots: the record is written, or none is needed, and no commit is open."""
        return self.stage in (CycleStage.GATHERING, CycleStage.BINDING)

    @property
    def preempts(self) -> bool:
        """Whether members are held until victims have ended: their slots are not free yet."""
        return bool(self.reservation.victims)

    @property
    def pinned(self) -> frozenset[str]:
        """The domain that members without a slot must share; empty without a topology key."""
        return frozenset({self.reservation.domain}) if self.group.topology_key else frozenset()

    @property
    def at_bind(self) -> Set[str]:
        """The members whose bind call is open (UIDs). Changes with the cycle."""
        return self._at_bind

    @property
    def bound(self) -> Set[str]:
        """The members that are bound (UIDs). Changes with the cycle."""
        return self._bound

    @property
    def is_half_done(self) -> bool:
        """Whether the gang is being committed, or is bound in part: only its record tells how to go on."""
        return self.stage is CycleStage.COMMITTING or 0 < len(self._bound) < self.reservation.need

    @property
    def calling(self) -> Set[str]:
        """The members whose bind call is open and whose Binding is not sent (UIDs). Changes with the cycle."""
        return self._calling

    @property
    def late(self) -> Mapping[str, Shape]:
        """The members of its group that wait and have no slot, by UID, with the shapes that they had when seen."""
        return self._late

    def is_done(self) -> bool:
        """Whether every member with a slot is bound."""
        # A member may be bound and have no slot any more, so only the smaller number says enough by itself.
        return len(self._bound) >= len(self.reservation.slots) and self.reservation.slots.keys() <= self._bound

    def has_unseen(self, pending: Callable[[str], bool]) -> bool:
        """Whether a bound member is still ``pending`` to our watch. Who is not is never asked for again."""
        while self._unseen:
            uid = self._unseen.pop()
            if pending(uid):
                self._unseen.add(uid)
                return True
        return False

    def member(self, uid: str) -> Member:
        """What is known of a member, to read only; it waits as long as nothing is."""
        return self._members.get(uid) or self._members.setdefault(uid, Member())

    def list_members(self) -> Iterable[tuple[str, Member]]:
        """Everybody of whom anything is known, by UID, with a slot or without."""
        return self._members.items()

    def find_failure(self) -> str:
        """A sentence about one of the Bindings that are being repeated; "" if none is."""
        return next((self.member(uid).failure for uid in self._failing if uid in self.reservation.slots), "")

    def quorum_at_bind(self) -> bool:
        """Whether enough members are at their bind call, or bound, to commit."""
        if len(self._at_bind) + len(self._bound) < self.reservation.need:
            return False  # no bound member has an open call: the numbers are enough to say so, at every call
        return not self.reservation.lacks(self._at_bind | self._bound)

    def out_of_reach(self) -> bool:
        """Whether too few slots are left for the quorum, or none at all."""
        if not (self.reservation.slots or self._bound):
            return True
        return self.reservation.short and self.reservation.lacks(self.reservation.slots.keys() | self._bound)

    def list_lost(self) -> Set[str]:
        """The members for whose room others end, and that have no slot any more, nor has another one theirs; UIDs."""
        return self.cleared.keys() - self.reservation.slots.keys()

    def may_move(self, uid: str) -> bool:
        """Whether a member's slot is still free to change its node: nothing durable and no bind call names it."""
        slots, committed = self.reservation.slots, self.reservation.committed
        return uid in slots and uid not in committed and self.member(uid).before_bind

    # --- the verbs of a member ---------------------------------------------------------------------------------

    def mark_unschedulable(self, uid: str) -> None:
        """The scheduler puts a member aside. That is old news of one whose bind call is open, or that is further."""
        member = self.member(uid)
        if member.before_bind and member.stage is not MemberStage.UNSCHEDULABLE:
            member.turn(MemberStage.UNSCHEDULABLE)

    def put_aside(self, uid: str, said: str) -> None:
        """A member gets a slot that the scheduler has put aside before, with these words."""
        self.member(uid).said = said
        self.mark_unschedulable(uid)

    def mark_nominating(self, uid: str, *, begun: bool) -> None:
        """A write of our nomination is on its way to a member, or has its answer."""
        self.member(uid).nominating = begun

    def mark_nominated(self, uid: str) -> None:
        """Our nomination is written on a member. The cycle may have ended under the write."""
        self.member(uid).nominated = True

    def mark_filtered(self, uid: str, now: float, said: str = "", nominated: str = "") -> None:
        """Filter has sent a member to its node: the scheduler keeps room there from now on.

        ``said`` and ``nominated`` are the pod's then.
        """
        member = self.member(uid)
        member.filtered_at = now
        if member.stage is not MemberStage.FILTERED:  # else it may have been refused since, and this is the next try
            slot = self.reservation.slots.get(uid)
            member.said, member.sent = said, slot is not None and nominated == slot.node
        if member.before_bind and member.stage is not MemberStage.FILTERED:
            member.turn(MemberStage.FILTERED)
        self.seats.note_taken(uid)
        self._note_reached(now)

    def mark_missed(self, uid: str) -> None:
        """A member's node was not among those that the scheduler offered: it is to be nominated (again)."""
        member = self.member(uid)
        member.missed = True
        self._forget_filter(uid, member)

    def mark_moved(self, uid: str) -> None:
        """A member's slot is on another node: what filter has said of the old one does not count any more."""
        member = self.member(uid)
        member.missed = False
        self._forget_filter(uid, member)

    def open_call(self, uid: str, now: float) -> asyncio.Future[str]:
        """A member has come to its bind call. A newer call replaces an older one, which fails.

        Raises IllegalTransition if the member is bound, or the cycle over: nobody would answer.
        """
        if self.over:
            raise IllegalTransition(f"the cycle of {self.reservation.group} is over and cannot take a bind call")
        member = self.member(uid)
        if member.call is None and member.stage is not MemberStage.SENDING:
            member.turn(MemberStage.AT_BIND)
        member.answer("replaced by a newer bind call of the same pod")
        member.call = call = asyncio.get_running_loop().create_future()
        self._at_bind.add(uid)
        if member.stage is MemberStage.AT_BIND:
            self._calling.add(uid)
        self._note_reached(now)
        if self.stage is not CycleStage.BINDING:
            self._advance(now)  # there a call is none: its Binding may be refused again and again
        self.changed.set()
        return call

    def close_call(self, uid: str, error: str) -> None:
        """Answer a member's open bind call, if it has one."""
        if uid in self._at_bind:
            member = self.member(uid)
            member.answer(error)
            self._leave_bind(uid, member)
        self.changed.set()

    def abandon_call(self, uid: str, call: asyncio.Future[str]) -> None:
        """The scheduler hung up: it has given the member's room away, so the member is not at bind any more.

        Nothing happens if that call is answered, or replaced by a newer one.
        """
        member = self.member(uid)
        if member.call is call:
            member.call = None
            member.filtered_at = None
            self._leave_bind(uid, member)
            if not self._at_bind:
                self.reached = None
            self.changed.set()

    def start_sending(self, uid: str) -> None:
        """The Binding of a member that needs no quorum (any more) is sent, for the call that is open."""
        self.member(uid).turn(MemberStage.SENDING)  # no call is open once the cycle is over
        self._calling.discard(uid)

    def stop_sending(self, uid: str) -> None:
        """That Binding has its answer. A member that is bound by it, or by the watch's word, stays so."""
        member = self.member(uid)
        if not member.bound:
            if member.stage is not MemberStage.SENDING:
                raise IllegalTransition(f"{uid} was not being sent")
            self._turn_back(uid, member)
        self.changed.set()  # a newer call of it may have come meanwhile

    def note_failure(self, uid: str, failure: str) -> None:
        """A Binding has failed, and is repeated."""
        self.member(uid).failure = failure
        self._failing[uid] = None

    def mark_bound(self, uid: str, now: float) -> None:
        """A member's Binding stands; our own answer and the watch may both say so."""
        self._turn_bound(uid, "")
        self.member(uid).failure = ""
        self._failing.pop(uid, None)
        self._advance(now)

    def mark_bound_elsewhere(self, uid: str, error: str) -> None:
        """Somebody else has bound a member, to another node: its call fails, and that is no progress."""
        self._turn_bound(uid, error)

    # --- what is to be looked at -------------------------------------------------------------------------------

    def note_news(self, uid: str) -> None:
        """A member is to be looked at: it has changed, or what the cycle knows of it has. "" is the group itself."""
        if self._news is not None:
            self._news[uid] = None

    def take_news(self) -> Collection[str] | None:
        """Who is to be looked at, and from now on nobody; None for all."""
        taken, self._news = self._news, {}
        return taken

    def note_planned(self, late: Iterable[Pod], standing: tuple[object, ...]) -> None:
        """It was planned from a look at every member: these got no slot, the repair was settled for ``standing``."""
        self._news = {}
        for pod in late:
            self.note_late(pod.uid, pod.shape)
        self.settle(standing)

    def forget_looks(self) -> None:
        """All are to be looked at again."""
        self._news = None

    def note_late(self, uid: str, shape: Shape) -> None:
        """A member waits without a slot."""
        if self._late.get(uid) != shape:
            self._late[uid] = shape
            self.late_version += 1

    def drop_late(self, uid: str) -> None:
        """A member has a slot, or does not wait any more. Nothing happens if it did not."""
        if self._late.pop(uid, None) is not None:
            self.late_version += 1

    def settle(self, standing: tuple[object, ...]) -> None:
        """The repair of the gang is settled for how it stands now."""
        self.standing = standing

    # --- the verbs of the cycle --------------------------------------------------------------------------------

    def enter(self, stage: CycleStage) -> None:
        """The cycle is at its next stage."""
        if stage not in _LEGAL[self.stage]:
            raise IllegalTransition(f"a cycle that is {self.stage} cannot be {stage}")
        self.stage = stage

    def note_victims_gone(self, now: float) -> None:
        """The slots are free: from now on the scheduler can get on with the members."""
        self.started = now
        if self.reached is not None:
            self.reached = now  # whose node was free before waits at bind already
        self._advance(now)
        self.idle_counted = now

    def close_calls(self, error: str) -> None:
        """Answer all open bind calls: their members are to come anew."""
        for uid in list(self._at_bind):
            self.close_call(uid, error)
        self.reached = None

    def take_up(self, bound: Iterable[str]) -> None:
        """An earlier term has bound these members: no progress of ours."""
        for uid in bound:
            self._turn_bound(uid, "")

    def note_eviction_sent(self, foreign: Iterable[Pod]) -> None:
        """One of the others is told to end, or was by an earlier term: if the gang is given up now, it was in vain.

        ``foreign`` are the pods of other schedulers that run on the nodes of its slots.
        """
        self.eviction_sent = True
        self.cleared |= self.reservation.slots
        self.foreign = frozenset(pod.uid for pod in foreign)

    def free_slot(self, slot: Slot, now: float) -> None:
        """A member is gone for which others have ended: its slot waits for another one."""
        self.freed_slots.append(slot)
        self.freed_at = now

    def fill_freed(self, slot: Slot, by: Slot) -> None:
        """Another member has that slot: ``by`` is how it has it."""
        self.freed_slots.remove(slot)
        self.cleared.pop(slot.uid, None)
        self.cleared[by.uid] = by

    def note_binding_sent(self) -> None:
        """A Binding of the commit leaves, or stands: there is no way back from here."""
        self.binding_sent = True

    def close_nodes(self, nodes: Iterable[str]) -> None:
        """It must not use these nodes (any more)."""
        self.closed = self.closed.union(nodes)

    def note_refill(self, tried: tuple[object, ...]) -> None:
        """This was tried for members without a slot; after an empty one everything is tried again."""
        self.refill_tried = tried

    def count_idle(self, now: float, seconds: float, *, assumed: bool) -> None:
        """Add to the idle time: of the time since the last count ``seconds`` were idle.

        ``assumed`` is whether kube-scheduler is between filter and bind with a member: that is no delay of the gang.
        """
        if not assumed:
            self.late_seconds += seconds
        elif self.reached is not None:
            self.assumed_seconds += now - max(self.idle_counted, self.reached)
        self.idle_counted = now
        self.idle_seconds += seconds

    def end(self, error: str) -> None:
        """Close the cycle: every call that is still open fails with this text. Nothing more happens if it has ended."""
        self.stage = CycleStage.ENDED
        for uid in list(self._at_bind):
            self.close_call(uid, error)
        self.changed.set()

    # --- what the verbs share ----------------------------------------------------------------------------------

    def _note_reached(self, now: float) -> None:
        if self.reached is None:
            self.reached, self.assumed_seconds = now, 0.0

    def _advance(self, now: float) -> None:
        self.progressed = now
        self.idle_seconds = self.late_seconds = 0.0

    def _forget_filter(self, uid: str, member: Member) -> None:
        member.filtered_at = None
        if member.stage is MemberStage.FILTERED:
            member.turn(MemberStage.WAITING)
        self.note_news(uid)

    def _leave_bind(self, uid: str, member: Member) -> None:
        self._at_bind.discard(uid)
        self._calling.discard(uid)
        if member.stage is MemberStage.AT_BIND:
            self._turn_back(uid, member)

    def _turn_back(self, uid: str, member: Member) -> None:
        member.turn_back()
        if member.stage is MemberStage.AT_BIND:
            self._calling.add(uid)
        self.note_news(uid)

    def _turn_bound(self, uid: str, error: str) -> None:
        member = self.member(uid)
        if not member.bound:
            member.turn(MemberStage.BOUND)
            member.answer(error)
            self._at_bind.discard(uid)
            self._calling.discard(uid)
            self._bound.add(uid)
            self._unseen.add(uid)
        self.changed.set()


def describe_standing(reservation: Reservation, group: PodGroup, members: Members) -> tuple[object, ...]:
    """All that a gang's members and its commit are to its repair, beside its vacancies. O(PodGroups of the tree)."""
    placed = members.count_placed(group.key)
    short = frozenset(leaf.name for leaf in list_leaves(group.tree) if count_missing(leaf, placed))
    kinds = [each for each in MemberState if any(True for _ in members.iterate_standing(group.key, each))]
    return bool(reservation.committed), count_missing(group.tree, placed) == 0, short, *kinds
