r"""The state of one binding cycle of a gang, from its reservation in the ledger to its last Binding. No I/O.

    RECORDING -------------> GATHERING -> COMMITTING -> BINDING -> ENDED
       |  \--> PREEMPTING --->/   |
       |           |             |
       \-----------\-------------\-- abort: all slots are released

A cycle whose members need no quorum goes from RECORDING to BINDING at once. The stage says how far the cycle is. It
never permits a Binding: that is decided by `extender.core.scheduling.permit` before each attempt. The stage of each
member is in its `Member`.

`SchedulingCycle` makes a `BindingCycle`, and one task drives it (`extender.core.binding.run`). Bind calls, watch events
and deadlines change it through its methods, which set ``changed`` to wake the task. Nothing here awaits, so changes do
not interleave. Only these methods change cycle and members. A step that the drawings do not have raises
IllegalTransition before anything has changed: a test fails then, and in production the outermost caller (a verb, the
task of the cycle, the loop) logs it and continues. Events that may come late or twice do not raise.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from extender.core.scheduling.cycle_member import Member, MemberStage
from extender.core.scheduling.open_slots import OpenSlots
from serried.api.group import PodGroup, list_leaves
from serried.api.names import IllegalTransition
from serried.api.pod import Pod, Shape
from serried.api.reservation import Reservation, Slot
from serried.cluster.members import Members
from serried.plan.quorum import MemberState, count_missing


class CycleStage(StrEnum):
    """The progress of a cycle, as drawn above."""

    RECORDING = "Recording"

    PREEMPTING = "Preempting"
    """The victims are evicted. Filter holds the members until all have ended."""

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
"""The stages that may follow each stage; ENDED may follow any."""


@dataclass(slots=True)
class BindingCycle:
    """The state of one cycle. It belongs to the group's `GroupState` until it ends. Times are loop seconds."""

    group: PodGroup
    """The PodGroup as it was when the cycle was planned."""

    reservation: Reservation

    started: float

    progressed: float
    """The time of the last progress: a bind call (not while BINDING), or a new Binding."""

    stage: CycleStage = CycleStage.RECORDING

    open_slots: OpenSlots = field(default_factory=OpenSlots)
    """The slots that may be taken now, and their order."""

    closed: frozenset[str] = frozenset()
    """The nodes that the cycle must not use (`extender.features.backfill`)."""

    preempted: bool = False
    """True if the cycle was planned with victims."""

    eviction_sent: bool = False
    """True once an eviction may have been sent. Before, the preemption can be cancelled without loss."""

    evicted_for: dict[str, Slot] = field(default_factory=dict)
    """The slots that get the room of victims, as they were at the first eviction, by the member's UID.

    The replacement of a deleted member takes over its entry.
    """

    foreign_pods: frozenset[str] = frozenset()
    """The UIDs of the pods of other schedulers that ran on these nodes at the first eviction.

    Other pods of theirs found there later have taken room of the victims.
    """

    freed_slots: list[Slot] = field(default_factory=list)
    """The slots of members that were deleted after the first eviction, kept for their replacements."""

    freed_at: float = 0.0
    """The time when the last of ``freed_slots`` was added."""

    from_earlier_term: bool = False
    """True if an earlier term began the cycle."""

    binding_sent: bool = False
    """True once a Binding of the commit was sent or exists.

    From then on the commit is rolled forward; before, it can be withdrawn.
    """

    refill_tried: tuple[object, ...] = ()
    """The state for which slots for late members were last planned; the plan is not repeated for the same state."""

    checked_state: tuple[object, ...] = ()
    """The state of the gang at the last check for replacements (`describe_gang_state`); () to check again."""

    late_version: int = 0
    """A counter that grows with each change of ``late``."""

    first_reached_at: float | None = None
    """The time when kube-scheduler reached the first of the members that it has now; None if it has none."""

    idle_seconds: float = 0.0
    """The seconds since ``progressed`` in which kube-scheduler was free to work on the gang, but did not."""

    idle_counted_until: float = field(init=False)
    """The time up to which ``idle_seconds`` are counted."""

    late_seconds: float = 0.0
    """The part of ``idle_seconds`` that counts towards the gang's deadline: no member was assumed."""

    assumed_seconds: float = 0.0
    """The seconds since ``reached`` in which kube-scheduler had assumed a member: it was between filter and bind."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to decide. The task that drives the cycle clears it."""

    _members: dict[str, Member] = field(default_factory=dict)
    """The members by UID. A member that has lost its slot stays, because it may get another one in this cycle."""

    _at_bind: set[str] = field(default_factory=set)
    """The UIDs of members whose ``call`` is set, so that the quorum is counted without a loop over all members."""

    _calling: set[str] = field(default_factory=set)
    """The UIDs of members in stage AT_BIND."""

    _bound: set[str] = field(default_factory=set)
    """The UIDs of members in stage BOUND."""

    _unseen: set[str] = field(default_factory=set)
    """The UIDs of bound members that the watch may not have shown bound yet."""

    _failing: dict[str, None] = field(default_factory=dict)
    """The UIDs of members with a ``failure``, in the order in which they failed."""

    _changed: dict[str, None] | None = None
    """The members (UIDs) to check at the next update; None before the first check, which is of all members."""

    _late: dict[str, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle_counted_until = self.started

    # --- readings ----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True once the cycle has ended, for whatever reason."""
        return self.stage is CycleStage.ENDED

    @property
    def serves_slots(self) -> bool:
        """True while filter answers members with their slots: any needed record is written, and no commit is open."""
        return self.stage in (CycleStage.GATHERING, CycleStage.BINDING)

    @property
    def waits_for_victims(self) -> bool:
        """True while filter holds the members because victims still use their slots."""
        return bool(self.reservation.victims)

    @property
    def pinned(self) -> frozenset[str]:
        """The domain in which late members must be placed; empty without a topology key."""
        return frozenset({self.reservation.domain}) if self.group.topology_key else frozenset()

    @property
    def at_bind(self) -> Set[str]:
        """The UIDs of members whose bind call is open. A live view."""
        return self._at_bind

    @property
    def bound(self) -> Set[str]:
        """The UIDs of members that are bound. A live view."""
        return self._bound

    @property
    def is_half_done(self) -> bool:
        """True while the gang is being committed or is bound in part: a restart then needs its record."""
        return self.stage is CycleStage.COMMITTING or 0 < len(self._bound) < self.reservation.need

    @property
    def calling(self) -> Set[str]:
        """The UIDs of members whose bind call is open and whose Binding is not sent. A live view."""
        return self._calling

    @property
    def late(self) -> Mapping[str, Shape]:
        """The members that wait without a slot, by UID, with their shapes when they were last checked."""
        return self._late

    def is_done(self) -> bool:
        """Return whether every member with a slot is bound."""
        # A member may be bound and have no slot any more, so only the smaller number says enough by itself.
        return len(self._bound) >= len(self.reservation.slots) and self.reservation.slots.keys() <= self._bound

    def has_unseen(self, pending: Callable[[str], bool]) -> bool:
        """Return whether the watch still shows any bound member as ``pending``.

        Members that it shows bound are dropped.
        """
        while self._unseen:
            uid = self._unseen.pop()
            if pending(uid):
                self._unseen.add(uid)
                return True
        return False

    def member(self, uid: str) -> Member:
        """Return the state of a member, to be read only. An unknown member is added in stage WAITING."""
        return self._members.get(uid) or self._members.setdefault(uid, Member())

    def list_members(self) -> Iterable[tuple[str, Member]]:
        """Return all members with any state, by UID, with or without a slot."""
        return self._members.items()

    def find_failure(self) -> str:
        """Return a sentence about one of the Bindings that are being repeated; "" if there is none."""
        return next((self.member(uid).failure for uid in self._failing if uid in self.reservation.slots), "")

    def quorum_at_bind(self) -> bool:
        """Return whether enough members are at their bind call or bound to commit."""
        if len(self._at_bind) + len(self._bound) < self.reservation.need:
            return False  # no bound member has an open call, so the sum counts no member twice
        return not self.reservation.lacks(self._at_bind | self._bound)

    def out_of_reach(self) -> bool:
        """Return whether too few slots are left for the quorum, or none at all."""
        if not (self.reservation.slots or self._bound):
            return True
        return self.reservation.short and self.reservation.lacks(self.reservation.slots.keys() | self._bound)

    def list_lost(self) -> Set[str]:
        """Return the UIDs of members that were to get the room of victims, and whose slots are lost."""
        return self.evicted_for.keys() - self.reservation.slots.keys()

    def may_move(self, uid: str) -> bool:
        """Return whether a member's slot may move to another node: no commit, Binding or bind call names its node."""
        slots, committed = self.reservation.slots, self.reservation.committed
        return uid in slots and uid not in committed and self.member(uid).before_bind

    # --- the verbs of a member ---------------------------------------------------------------------------------

    def mark_unschedulable(self, uid: str) -> None:
        """Note that kube-scheduler rejects a member. Ignored for a member at bind or beyond: the condition is older."""
        member = self.member(uid)
        if member.before_bind and member.stage is not MemberStage.UNSCHEDULABLE:
            member.enter(MemberStage.UNSCHEDULABLE)

    def mark_rejected_before(self, uid: str, said: str) -> None:
        """Note that a new member was rejected by kube-scheduler before, with the condition's message ``said``."""
        self.member(uid).last_message = said
        self.mark_unschedulable(uid)

    def mark_nominating(self, uid: str, *, begun: bool) -> None:
        """Note that the write of a member's nomination begins, or has ended."""
        self.member(uid).nominating = begun

    def mark_nominated(self, uid: str) -> None:
        """Note that a member's nomination is written. The cycle may have ended meanwhile."""
        self.member(uid).nominated = True

    def mark_filtered(self, uid: str, now: float, said: str = "", nominated: str = "") -> None:
        """Note that filter has answered a member's node. kube-scheduler assumes the member there from now on.

        ``said`` and ``nominated`` are the pod's condition message and nominated node at that time.
        """
        member = self.member(uid)
        member.filtered_at = now
        if member.stage is not MemberStage.FILTERED:  # else this is another try, maybe after a refusal
            slot = self.reservation.slots.get(uid)
            member.last_message, member.nominated_at_filter = said, slot is not None and nominated == slot.node
        if member.before_bind and member.stage is not MemberStage.FILTERED:
            member.enter(MemberStage.FILTERED)
        self.open_slots.note_taken(uid)
        self._note_reached(now)

    def mark_not_offered(self, uid: str) -> None:
        """Note that kube-scheduler did not offer a member's node. The caller nominates the member (again)."""
        member = self.member(uid)
        member.not_offered = True
        self._forget_filter(uid, member)

    def mark_moved(self, uid: str) -> None:
        """Note that a member's slot was moved to another node. The last answer of filter does not count any more."""
        member = self.member(uid)
        member.not_offered = False
        self._forget_filter(uid, member)

    def open_call(self, uid: str, now: float) -> asyncio.Future[str]:
        """Open the bind call of a member. Return the future for its answer. An older open call fails.

        Raise IllegalTransition if the member is bound or the cycle over: the call would never be answered.
        """
        if self.over:
            raise IllegalTransition(f"the cycle of {self.reservation.group} is over and cannot take a bind call")
        member = self.member(uid)
        if member.call is None and member.stage is not MemberStage.SENDING:
            member.enter(MemberStage.AT_BIND)
        member.answer("replaced by a newer bind call of the same pod")
        member.call = call = asyncio.get_running_loop().create_future()
        self._at_bind.add(uid)
        if member.stage is MemberStage.AT_BIND:
            self._calling.add(uid)
        self._note_reached(now)
        if self.stage is not CycleStage.BINDING:
            self._advance(now)  # while binding, a call is no progress: its Binding may fail again and again
        self.changed.set()
        return call

    def close_call(self, uid: str, error: str) -> None:
        """Answer a member's open bind call with ``error``, if it has one."""
        if uid in self._at_bind:
            member = self.member(uid)
            member.answer(error)
            self._leave_bind(uid, member)
        self.changed.set()

    def abandon_call(self, uid: str, call: asyncio.Future[str]) -> None:
        """Note that kube-scheduler hung up on a bind call: it does not assume the member any more.

        Ignored if the call is answered or replaced by a newer one.
        """
        member = self.member(uid)
        if member.call is call:
            member.call = None
            member.filtered_at = None
            self._leave_bind(uid, member)
            if not self._at_bind:
                self.first_reached_at = None
            self.changed.set()

    def start_sending(self, uid: str) -> None:
        """Note that the Binding of a member that needs no quorum (any more) is being sent, outside of the commit."""
        self.member(uid).enter(MemberStage.SENDING)  # no call is open once the cycle is over
        self._calling.discard(uid)

    def stop_sending(self, uid: str) -> None:
        """Note that this Binding has its answer. A member that is bound by now stays bound.

        Raise IllegalTransition if no Binding of the member was being sent.
        """
        member = self.member(uid)
        if not member.bound:
            if member.stage is not MemberStage.SENDING:
                raise IllegalTransition(f"{uid} was not being sent")
            self._step_back(uid, member)
        self.changed.set()  # the member may have a newer call by now

    def note_failure(self, uid: str, failure: str) -> None:
        """Note why a Binding has failed; it is repeated."""
        self.member(uid).failure = failure
        self._failing[uid] = None

    def mark_bound(self, uid: str, now: float) -> None:
        """Note that a member is bound. Both the response to the Binding and the watch may say so, in any order."""
        self._set_bound(uid, "")
        self.member(uid).failure = ""
        self._failing.pop(uid, None)
        self._advance(now)

    def mark_bound_elsewhere(self, uid: str, error: str) -> None:
        """Note that a member was bound to another node, not by Serried. Its call fails; it counts as no progress."""
        self._set_bound(uid, error)

    # --- members to check --------------------------------------------------------------------------------------

    def mark_changed(self, uid: str) -> None:
        """Have a member checked at the next update, because it has changed; "" stands for the group itself."""
        if self._changed is not None:
            self._changed[uid] = None

    def take_changed(self) -> Collection[str] | None:
        """Remove and return the members to check; None for all."""
        taken, self._changed = self._changed, {}
        return taken

    def note_planned(self, late: Iterable[Pod], state: tuple[object, ...]) -> None:
        """Initialize a new cycle, whose plan has checked every member. ``late`` got no slot."""
        self._changed = {}
        for pod in late:
            self.note_late(pod.uid, pod.shape)
        self.note_checked(state)

    def check_all_members(self) -> None:
        """Have all members checked at the next update."""
        self._changed = None

    def note_late(self, uid: str, shape: Shape) -> None:
        """Note that a member waits without a slot."""
        if self._late.get(uid) != shape:
            self._late[uid] = shape
            self.late_version += 1

    def drop_late(self, uid: str) -> None:
        """Note that a member has a slot or does not wait any more. Ignored if it was not late."""
        if self._late.pop(uid, None) is not None:
            self.late_version += 1

    def note_checked(self, state: tuple[object, ...]) -> None:
        """Note the state of the gang for which replacements were checked; () to check again."""
        self.checked_state = state

    # --- the verbs of the cycle --------------------------------------------------------------------------------

    def enter(self, stage: CycleStage) -> None:
        """Enter the next stage. Raise IllegalTransition for one that the drawing does not have."""
        if stage not in _LEGAL[self.stage]:
            raise IllegalTransition(f"a cycle that is {self.stage} cannot be {stage}")
        self.stage = stage

    def note_victims_gone(self, now: float) -> None:
        """Note that all victims have ended. The gang's deadline starts anew."""
        self.started = now
        if self.first_reached_at is not None:
            self.first_reached_at = now  # a member whose node was free all the time may be at bind already
        self._advance(now)
        self.idle_counted_until = now

    def close_calls(self, error: str) -> None:
        """Fail all open bind calls, so that kube-scheduler tries their members again."""
        for uid in list(self._at_bind):
            self.close_call(uid, error)
        self.first_reached_at = None

    def restore_bound(self, bound: Iterable[str]) -> None:
        """Note the members that were bound by an earlier term; they count as no progress."""
        for uid in bound:
            self._set_bound(uid, "")

    def note_eviction_sent(self, foreign: Iterable[Pod]) -> None:
        """Note that the first eviction is sent, or was by an earlier term. Giving up from now on wastes it.

        ``foreign`` are the pods of other schedulers that run on the nodes of the gang's slots.
        """
        self.eviction_sent = True
        self.evicted_for |= self.reservation.slots
        self.foreign_pods = frozenset(pod.uid for pod in foreign)

    def keep_freed_slot(self, slot: Slot, now: float) -> None:
        """Keep the slot of a deleted member, whose victims have ended, for its replacement."""
        self.freed_slots.append(slot)
        self.freed_at = now

    def fill_freed(self, slot: Slot, by: Slot) -> None:
        """Note that a replacement has taken the freed ``slot``; ``by`` is its own slot."""
        self.freed_slots.remove(slot)
        self.evicted_for.pop(slot.uid, None)
        self.evicted_for[by.uid] = by

    def note_binding_sent(self) -> None:
        """Note that a Binding of the commit is being sent or exists: the commit cannot be withdrawn any more."""
        self.binding_sent = True

    def close_nodes(self, nodes: Iterable[str]) -> None:
        """Add nodes that the cycle must not use."""
        self.closed = self.closed.union(nodes)

    def note_refill(self, tried: tuple[object, ...]) -> None:
        """Note the state for which slots for late members were planned; () to plan again."""
        self.refill_tried = tried

    def count_idle(self, now: float, seconds: float, *, assumed: bool) -> None:
        """Add ``seconds`` to the idle time, and note that it is counted up to ``now``.

        ``assumed`` says whether kube-scheduler has assumed a member, so that the gang itself is not late.
        """
        if not assumed:
            self.late_seconds += seconds
        elif self.first_reached_at is not None:
            self.assumed_seconds += now - max(self.idle_counted_until, self.first_reached_at)
        self.idle_counted_until = now
        self.idle_seconds += seconds

    def end(self, error: str) -> None:
        """End the cycle: all open bind calls fail with this text. Does nothing if the cycle has ended."""
        self.stage = CycleStage.ENDED
        for uid in list(self._at_bind):
            self.close_call(uid, error)
        self.changed.set()

    # --- what the verbs share ----------------------------------------------------------------------------------

    def _note_reached(self, now: float) -> None:
        if self.first_reached_at is None:
            self.first_reached_at, self.assumed_seconds = now, 0.0

    def _advance(self, now: float) -> None:
        self.progressed = now
        self.idle_seconds = self.late_seconds = 0.0

    def _forget_filter(self, uid: str, member: Member) -> None:
        member.filtered_at = None
        if member.stage is MemberStage.FILTERED:
            member.enter(MemberStage.WAITING)
        self.mark_changed(uid)

    def _leave_bind(self, uid: str, member: Member) -> None:
        self._at_bind.discard(uid)
        self._calling.discard(uid)
        if member.stage is MemberStage.AT_BIND:
            self._step_back(uid, member)

    def _step_back(self, uid: str, member: Member) -> None:
        member.step_back()
        if member.stage is MemberStage.AT_BIND:
            self._calling.add(uid)
        self.mark_changed(uid)

    def _set_bound(self, uid: str, error: str) -> None:
        member = self.member(uid)
        if not member.bound:
            member.enter(MemberStage.BOUND)
            member.answer(error)
            self._at_bind.discard(uid)
            self._calling.discard(uid)
            self._bound.add(uid)
            self._unseen.add(uid)
        self.changed.set()


def describe_gang_state(reservation: Reservation, group: PodGroup, members: Members) -> tuple[object, ...]:
    """Return a value that differs when a failed repair of a gang is worth another try, dead members apart.

    O(PodGroups of the tree).
    """
    placed = members.count_placed(group.key)
    short = frozenset(leaf.name for leaf in list_leaves(group.tree) if count_missing(leaf, placed))
    kinds = [each for each in MemberState if any(True for _ in members.iterate_in_state(group.key, each))]
    return bool(reservation.committed), count_missing(group.tree, placed) == 0, short, *kinds
