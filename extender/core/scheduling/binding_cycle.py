r"""The state of one binding cycle of a gang, from its reservation in the ledger to its last Binding. No I/O.

    RECORDING -------------> GATHERING -> COMMITTING -> BINDING -> ENDED
       |  \--> PREEMPTING --->/   |
       |           |             |
       \-----------\-------------\-- abort: all slots are released

A cycle whose members need no quorum goes from RECORDING to BINDING at once. The stage says how far the cycle is. It
never permits a Binding: `extender.core.scheduling.permit` decides that before each attempt. The stage of each member is
in its `Member`.

`SchedulingCycle` makes a `BindingCycle`, and one task drives it (`extender.core.binding.run`). Bind calls, watch events
and deadlines change it through its methods, which set ``changed`` to wake the task. Nothing here awaits, so changes do
not interleave. Only these methods change the cycle and its members. A step that is not in the drawings, here and in
`cycle_member`, raises IllegalTransition before anything has changed. A test fails then. In production the outermost
caller (a handler of kube-scheduler's call, the task of the cycle, the loop) logs the error and continues. Events that
may arrive late or twice do not raise.
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
    """The progress of a binding cycle, as drawn at the top of this module.

    The record of a plan with victims is written (RECORDING), victims are evicted (PREEMPTING), bind calls of the quorum
    are awaited (GATHERING), the record is written as Committed (COMMITTING), and members are bound (BINDING). The cycle
    is ENDED when all are bound, and also when it was given up or left to the next leader.
    """

    RECORDING = "Recording"

    PREEMPTING = "Preempting"
    """The gang's victims are being evicted. The stage ends when all of them have ended."""

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
    """The state of one binding cycle: one gang from its plan to its last Binding. Times are loop seconds.

    The group's `GroupState` owns it until it ends. Members that the plan left out, or that were created later, are
    *late*: they wait without a slot, and get one while the cycle runs if there are free resources.
    """

    group: PodGroup
    """The PodGroup as it was when the cycle was planned."""

    reservation: Reservation

    started: float

    progressed: float
    """The time of the last progress: a Binding, a bind call of a member, or the end of the victims.

    While BINDING, bind calls are no progress, because a Binding may fail again and again.
    """

    stage: CycleStage = CycleStage.RECORDING

    open_slots: OpenSlots = field(default_factory=OpenSlots)
    """The members that may take slots now, i.e. for which filter may answer a planned node, and their order."""

    closed: frozenset[str] = frozenset()
    """The nodes to which no slot of the cycle may move.

    They are kept for other gangs. Or kube-scheduler does not offer them to members with devices or resources that only
    it can count.
    """

    preempted: bool = False
    """True if the cycle was planned with victims. It stays True when they have ended."""

    eviction_sent: bool = False
    """True once an eviction of a victim may have been sent.

    As long as it is False, the preemption can be cancelled without loss.
    """

    evicted_for: dict[str, Slot] = field(default_factory=dict)
    """The slots of all members at the first eviction, by member UID; empty before it.

    They get the resources of the victims. The replacement of a deleted member takes over its entry.
    """

    foreign_pods: frozenset[str] = frozenset()
    """The UIDs of pods of other schedulers that ran on the nodes of the slots at the first eviction.

    A pod of another scheduler that is found there later has taken resources that were freed by evictions.
    """

    freed_slots: list[Slot] = field(default_factory=list)
    """The slots of members that were deleted while victims ended, kept for the members' replacements.

    Slots that a replacement has taken are removed.
    """

    freed_at: float = 0.0
    """The time when the last of ``freed_slots`` was added; 0 for none."""

    from_earlier_term: bool = False
    """True if an earlier leader began the cycle, and this one continues it from its record."""

    binding_sent: bool = False
    """True once a Binding of a committed member was sent or was found in the cluster.

    From then on the commit is rolled forward: all committed members are bound in the end. Before, it can be withdrawn.
    """

    refill_tried: tuple[object, ...] = ()
    """The state of cluster and gang when slots were last planned for members without one; () if they never were.

    While the state is the same, no such plan is made again.
    """

    checked_state: tuple[object, ...] = ()
    """The value of `describe_gang_state` when features last looked for replacements of members; () to look again.

    While the value is the same, they are not asked again.
    """

    late_version: int = 0
    """A counter that grows whenever ``late`` (members without a slot) changes, so that a change is found cheaply."""

    first_reached_at: float | None = None
    """The time of the first filter answer with a planned node, or of the first bind call.

    From this time on kube-scheduler, too, keeps resources for the gang, so the total deadline (``--barrier-deadline``)
    runs. None before, and again after all bind calls have failed or kube-scheduler has closed them.
    """

    idle_seconds: float = 0.0
    """The seconds since ``progressed`` in which kube-scheduler could have worked on the gang, but did not.

    `SchedulerActivity.count_idle` adds them.
    """

    idle_counted_until: float = field(init=False)
    """The time up to which ``idle_seconds``, ``late_seconds`` and ``assumed_seconds`` are counted."""

    late_seconds: float = 0.0
    """The part of ``idle_seconds`` in which no member was assumed.

    The cycle times out when it exceeds the gang's idle deadline (``--barrier-idle``).
    """

    assumed_seconds: float = 0.0
    """The seconds since ``first_reached_at`` in which kube-scheduler had assumed a member, between filter and bind.

    They postpone the gang's total deadline (``--barrier-deadline``).
    """

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the cycle has changed. The task that drives the cycle waits for it and clears it."""

    _members: dict[str, Member] = field(default_factory=dict)
    """The members by UID. A member that has lost its slot stays, because it may get another one in this cycle."""

    _at_bind: set[str] = field(default_factory=set)
    """The UIDs of members whose bind call is open, so that the quorum is counted without a loop over all members."""

    _calling: set[str] = field(default_factory=set)
    """The UIDs of members whose bind call is open, and whose Binding is not being sent outside of the commit."""

    _bound: set[str] = field(default_factory=set)
    """The UIDs of members that are bound."""

    _unseen: set[str] = field(default_factory=set)
    """The UIDs of bound members that the watch may not have shown as bound yet."""

    _failing: dict[str, None] = field(default_factory=dict)
    """The UIDs of members whose Binding failed and is being repeated, in the order of the failures; used as a set."""

    _changed: dict[str, None] | None = None
    """The UIDs of members that `CycleUpdates.update` has to check; used as an ordered set.

    "" stands for the PodGroup itself. None if all members have to be checked, as before the first check.
    """

    _late: dict[str, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.idle_counted_until = self.started

    # --- readings ----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True once the cycle has ended, for any reason: bound, given up, or handed to the next leader."""
        return self.stage is CycleStage.ENDED

    @property
    def accepts_members(self) -> bool:
        """True in the stages GATHERING and BINDING: filter answers members their slots, and late ones may get a slot.

        In other stages the record is not written yet, victims still run, or the commit is being written.
        """
        return self.stage in (CycleStage.GATHERING, CycleStage.BINDING)

    @property
    def waits_for_victims(self) -> bool:
        """True while victims of the gang have not ended, so that slots on their nodes cannot be used yet."""
        return bool(self.reservation.victims)

    @property
    def pinned(self) -> frozenset[str]:
        """The domain in which a member that gets a slot later must be placed, as the only element of a set.

        Empty if the gang has no topology key, so that any node will do.
        """
        return frozenset({self.reservation.domain}) if self.group.topology_key else frozenset()

    @property
    def at_bind(self) -> Set[str]:
        """The UIDs of members whose bind call waits for its answer. A live view, not a copy."""
        return self._at_bind

    @property
    def bound(self) -> Set[str]:
        """The UIDs of members that are bound. A live view, not a copy."""
        return self._bound

    @property
    def is_half_done(self) -> bool:
        """True during the stage COMMITTING, and while some members are bound but fewer than the quorum needs.

        If this process ends at such a time, the next leader needs the record to finish.
        """
        return self.stage is CycleStage.COMMITTING or 0 < len(self._bound) < self.reservation.need

    @property
    def calling(self) -> Set[str]:
        """The UIDs of members whose bind call is open, while no Binding of theirs is being sent outside of the commit.

        Such members are in stage AT_BIND. In contrast to `at_bind`, members in stage SENDING are left out: for each of
        them a Binding of its own is being sent, not as part of the quorum's commit. A live view, not a copy.
        """
        return self._calling

    @property
    def late(self) -> Mapping[str, Shape]:
        """The late members, which wait without a slot, by UID.

        The value is the `Shape` (requests and constraints) that the member had when it was last checked.
        """
        return self._late

    def is_done(self) -> bool:
        """Return whether every member with a slot is bound."""
        # Fewer bound members than slots prove that one is missing. Otherwise bound members may have no slot any more.
        return len(self._bound) >= len(self.reservation.slots) and self.reservation.slots.keys() <= self._bound

    def has_unseen(self, pending: Callable[[str], bool]) -> bool:
        """Return whether the watch does not show all bound members as bound yet.

        ``pending`` takes a UID, and returns whether the watch shows that pod without a node. A member for which it
        returned False is not asked about again.
        """
        while self._unseen:
            uid = self._unseen.pop()
            if pending(uid):
                self._unseen.add(uid)
                return True
        return False

    def member(self, uid: str) -> Member:
        """Return the state of a member, which only this class may change.

        If the UID is new, add a member in stage WAITING.
        """
        return self._members.get(uid) or self._members.setdefault(uid, Member())

    def list_members(self) -> Iterable[tuple[str, Member]]:
        """Return the UID and the state of each member that the cycle knows, with or without a slot."""
        return self._members.items()

    def find_failure(self) -> str:
        """Return a sentence about a Binding that failed and is being repeated; "" if there is none.

        If there are several, the one that failed first counts.
        """
        return next((self.member(uid).failure for uid in self._failing if uid in self.reservation.slots), "")

    def quorum_at_bind(self) -> bool:
        """Return whether the gang can commit: enough members have an open bind call or are bound.

        In a tree, each planned PodGroup must have enough.
        """
        if len(self._at_bind) + len(self._bound) < self.reservation.need:
            return False  # no bound member has an open call, so the sum counts no member twice
        return not self.reservation.misses_quorum(self._at_bind | self._bound)

    def out_of_reach(self) -> bool:
        """Return whether the gang cannot start with its slots: too few are left for the quorum, or none at all.

        Bound members count as if they had a slot.
        """
        if not (self.reservation.slots or self._bound):
            return True
        reservation = self.reservation
        return reservation.below_quorum and reservation.misses_quorum(reservation.slots.keys() | self._bound)

    def list_lost(self) -> Set[str]:
        """Return the UIDs of members for which victims were evicted, but which have lost their slots since."""
        return self.evicted_for.keys() - self.reservation.slots.keys()

    def may_move(self, uid: str) -> bool:
        """Return whether the slot of a member may move to another node.

        It may not once the member is committed or bound, its bind call is open, or its Binding is being sent. False
        for a member without a slot.
        """
        slots, committed = self.reservation.slots, self.reservation.committed
        return uid in slots and uid not in committed and self.member(uid).before_bind

    # --- changes of a member -----------------------------------------------------------------------------------

    def mark_unschedulable(self, uid: str) -> None:
        """Note that kube-scheduler has rejected a member, so that it retries the member only after a write to the pod.

        Ignored for a member that is bound or has a bind call: the rejection is older than that call.
        """
        member = self.member(uid)
        if member.before_bind and member.stage is not MemberStage.UNSCHEDULABLE:
            member.enter(MemberStage.UNSCHEDULABLE)

    def mark_rejected_before(self, uid: str, message: str) -> None:
        """Note that kube-scheduler had rejected a member before the member got its slot.

        ``message`` is the message of the pod's condition PodScheduled. A later message that differs is a new rejection.
        """
        self.member(uid).last_message = message
        self.mark_unschedulable(uid)

    def mark_nominating(self, uid: str, *, begun: bool) -> None:
        """Note that the write of a member's nomination begins (``begun``), or has ended, with success or not."""
        self.member(uid).nominating = begun

    def mark_nominated(self, uid: str) -> None:
        """Note that a member's nomination is written. Allowed also after the cycle has ended."""
        self.member(uid).nominated = True

    def mark_filtered(self, uid: str, now: float, message: str = "", nominated: str = "") -> None:
        """Note that filter has answered a member's node, so that kube-scheduler assumes the member there.

        ``message`` and ``nominated`` are the message of the pod's condition and its nominated node at that time, "" for
        none.
        """
        member = self.member(uid)
        member.filtered_at = now
        if member.stage is not MemberStage.FILTERED:  # else this is another try, maybe after a rejection
            slot = self.reservation.slots.get(uid)
            member.last_message, member.nominated_at_filter = message, slot is not None and nominated == slot.node
        if member.before_bind and member.stage is not MemberStage.FILTERED:
            member.enter(MemberStage.FILTERED)
        self.open_slots.note_taken(uid)
        self._note_reached(now)

    def mark_not_offered(self, uid: str) -> None:
        """Note that kube-scheduler's filter call for a member did not offer the node of its slot.

        The caller then nominates the member to that node.
        """
        member = self.member(uid)
        member.not_offered = True
        self._forget_filter(uid, member)

    def mark_moved(self, uid: str) -> None:
        """Note that a member's slot was moved to another node.

        Filter has not answered the new node yet, so a member in stage FILTERED returns to WAITING.
        """
        member = self.member(uid)
        member.not_offered = False
        self._forget_filter(uid, member)

    def open_call(self, uid: str, now: float) -> asyncio.Future[str]:
        """Note a bind call of kube-scheduler for a member. Return the future that gets its answer.

        The result is "" for success, else the error text for kube-scheduler. If the member has an open call already,
        that one gets an error. Raise IllegalTransition if the member is bound or the cycle is over: the call would
        never be answered.
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
        """Answer a member's open bind call with the text ``error`` ("" for success), if it has one."""
        if uid in self._at_bind:
            member = self.member(uid)
            member.answer(error)
            self._leave_bind(uid, member)
        self.changed.set()

    def abandon_call(self, uid: str, call: asyncio.Future[str]) -> None:
        """Note that kube-scheduler closed the connection of a bind call, so it does not assume the member any more.

        Ignored if ``call`` is answered, or if the member has a newer call.
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
        """Note that a member's Binding is being sent outside of the commit.

        That is done for members that do not need a quorum, or whose gang has its quorum.
        """
        self.member(uid).enter(MemberStage.SENDING)  # no call is open once the cycle is over
        self._calling.discard(uid)

    def stop_sending(self, uid: str) -> None:
        """Note that the Binding for which `start_sending` was called is not being sent any more.

        The API server has answered it, with success or not, or it was never sent.

        A member that is bound by now stays bound. Any other leaves the stage SENDING for an earlier one: AT_BIND if its
        bind call is open, else FILTERED or WAITING. Raise IllegalTransition if no Binding of the member was being sent.
        """
        member = self.member(uid)
        if not member.bound:
            if member.stage is not MemberStage.SENDING:
                raise IllegalTransition(f"{uid} was not being sent")
            self._step_back(uid, member)
        self.changed.set()  # the member may have a newer call by now

    def note_failure(self, uid: str, failure: str) -> None:
        """Note that a Binding of a member has failed and is repeated. ``failure`` is a sentence for the verdict."""
        self.member(uid).failure = failure
        self._failing[uid] = None

    def mark_bound(self, uid: str, now: float) -> None:
        """Note that a member is bound to its node, and answer its open bind call with success.

        Called for the API server's response and for the watch event, in either order.
        """
        self._set_bound(uid, "")
        self.member(uid).failure = ""
        self._failing.pop(uid, None)
        self._advance(now)

    def mark_bound_elsewhere(self, uid: str, error: str) -> None:
        """Note that another component has bound a member to another node.

        Its open bind call fails with ``error``. This is no progress of the gang: its idle deadline does not start anew.
        """
        self._set_bound(uid, error)

    # --- members to check --------------------------------------------------------------------------------------

    def mark_changed(self, uid: str) -> None:
        """Have `CycleUpdates.update` check a member, because something about it has changed.

        "" as ``uid`` stands for the PodGroup.
        """
        if self._changed is not None:
            self._changed[uid] = None

    def take_changed(self) -> Collection[str] | None:
        """Remove and return the UIDs that `mark_changed` has collected; None if all members have to be checked."""
        taken, self._changed = self._changed, {}
        return taken

    def note_planned(self, late: Iterable[Pod], state: tuple[object, ...]) -> None:
        """Initialize a new cycle: no member has to be checked, because the plan has just checked all of them.

        ``late`` are the members that got no slot. ``state`` is the gang's state (`describe_gang_state`): as long as it
        is the same, features (such as repair) are not asked for replacements of deleted members.
        """
        self._changed = {}
        for pod in late:
            self.note_late(pod.uid, pod.shape)
        self.note_checked(state)

    def check_all_members(self) -> None:
        """Have the next `CycleUpdates.update` check all members, instead of only those that have changed."""
        self._changed = None

    def note_late(self, uid: str, shape: Shape) -> None:
        """Note that a member waits without a slot, and its ``shape`` (requests and constraints)."""
        if self._late.get(uid) != shape:
            self._late[uid] = shape
            self.late_version += 1

    def drop_late(self, uid: str) -> None:
        """Note that a member has a slot, or does not wait any more. Ignored if it was not noted as late."""
        if self._late.pop(uid, None) is not None:
            self.late_version += 1

    def note_checked(self, state: tuple[object, ...]) -> None:
        """Note the gang's state (`describe_gang_state`) at which features looked for replacements of deleted members.

        Features such as repair look again when the state differs. With () they look at the next update in any case.
        """
        self.checked_state = state

    # --- changes of the cycle ----------------------------------------------------------------------------------

    def enter(self, stage: CycleStage) -> None:
        """Enter the next stage. Raise IllegalTransition for a step that the drawing at the top does not have."""
        if stage not in _LEGAL[self.stage]:
            raise IllegalTransition(f"a cycle that is {self.stage} cannot be {stage}")
        self.stage = stage

    def note_victims_gone(self, now: float) -> None:
        """Note that all victims have ended. The gang's deadlines start anew."""
        self.started = now
        if self.first_reached_at is not None:
            self.first_reached_at = now  # a member whose node was free all the time may be at bind already
        self._advance(now)
        self.idle_counted_until = now

    def close_calls(self, error: str) -> None:
        """Answer all open bind calls with the text ``error``, so that kube-scheduler requeues their members.

        The total deadline starts anew with the next member that filter answers.
        """
        for uid in list(self._at_bind):
            self.close_call(uid, error)
        self.first_reached_at = None

    def restore_bound(self, bound: Iterable[str]) -> None:
        """Note the members (UIDs) that an earlier leader has bound, when its cycle is continued.

        They are no progress of this cycle: its idle deadline does not start anew.
        """
        for uid in bound:
            self._set_bound(uid, "")

    def note_eviction_sent(self, foreign: Iterable[Pod]) -> None:
        """Note that the first eviction is being sent, or was sent by an earlier leader.

        If the cycle is given up from now on, pods were evicted for nothing. ``foreign`` are the pods of other
        schedulers that run on the nodes of the slots now: one that is found there later has taken freed resources.
        """
        self.eviction_sent = True
        self.evicted_for |= self.reservation.slots
        self.foreign_pods = frozenset(pod.uid for pod in foreign)

    def keep_freed_slot(self, slot: Slot, now: float) -> None:
        """Keep the ``slot`` of a member that was deleted while victims ended, for the member's replacement.

        The ledger does not hold it meanwhile.
        """
        self.freed_slots.append(slot)
        self.freed_at = now

    def fill_freed(self, slot: Slot, by: Slot) -> None:
        """Note that a replacement has taken over a freed slot.

        ``slot`` is the slot of the deleted member, ``by`` is the replacement's slot on the same node.
        """
        self.freed_slots.remove(slot)
        self.evicted_for.pop(slot.uid, None)
        self.evicted_for[by.uid] = by

    def note_binding_sent(self) -> None:
        """Note that a Binding of the commit is being sent or exists: the commit is rolled forward from now on."""
        self.binding_sent = True

    def close_nodes(self, nodes: Iterable[str]) -> None:
        """Add to the nodes that no slot of the cycle may move to."""
        self.closed = self.closed.union(nodes)

    def note_refill(self, tried: tuple[object, ...]) -> None:
        """Note that slots were planned for the late members, which have none.

        ``tried`` is the state of cluster and gang at that time. As long as the state is equal to it, this is not
        planned again. () lets the next update plan again.
        """
        self.refill_tried = tried

    def count_idle(self, now: float, seconds: float, *, assumed: bool) -> None:
        """Add ``seconds`` in which kube-scheduler was idle, and note that the time is counted up to ``now``.

        The gang has an idle deadline (``--barrier-idle``, a number of idle seconds) and a total one
        (``--barrier-deadline``). If ``assumed`` is False, ``seconds`` count towards the idle deadline. If it is True,
        because kube-scheduler has assumed a member, they do not, and the total deadline is postponed by the time since
        the last count.
        """
        if not assumed:
            self.late_seconds += seconds
        elif self.first_reached_at is not None:
            self.assumed_seconds += now - max(self.idle_counted_until, self.first_reached_at)
        self.idle_counted_until = now
        self.idle_seconds += seconds

    def end(self, error: str) -> None:
        """End the cycle, and answer all open bind calls with the text ``error``.

        It may be called again for a cycle that has ended. The caller releases the slots.
        """
        self.stage = CycleStage.ENDED
        for uid in list(self._at_bind):
            self.close_call(uid, error)
        self.changed.set()

    # --- shared by the methods above ----------------------------------------------------------------------------

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
    """Return a value to be compared later: if it differs, features look for replacements of deleted members again.

    It holds whether the gang is committed, whether its quorum has nodes, which PodGroups of its tree lack members with
    nodes, and in which states (`MemberState`) members are. O(PodGroups of the tree).
    """
    placed = members.count_placed(group.key)
    short = frozenset(leaf.name for leaf in list_leaves(group.tree) if count_missing(leaf, placed))
    kinds = [each for each in MemberState if any(True for _ in members.iterate_in_state(group.key, each))]
    return bool(reservation.committed), count_missing(group.tree, placed) == 0, short, *kinds
