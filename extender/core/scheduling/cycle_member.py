r"""The state of one member of a binding cycle, from its slot to its Binding. No I/O.

    WAITING ----------+-- filter --> FILTERED --+-- bind call --> AT_BIND -- sent alone --> SENDING
       |              |                 |       |                    ^                         |
     rejected         |             rejected    |                    +-- fails, called anew ---+
       v              |                 |       |
    UNSCHEDULABLE ----+ <---------------+       |
       |                                        |
       +----------------------------------------+          any stage -- Binding exists --> BOUND

    FILTERED -- slot moved, or node not offered --> WAITING
    AT_BIND, SENDING -- call ended --> FILTERED; WAITING if kube-scheduler closed the call, or filter had not answered

A bound member stays bound. Two facts about a member are no stages. One is its nomination, which is only a hint:
kube-scheduler may not have seen it yet, or may clear it. The other is that it is committed (`Reservation.committed`): a
commit binds its members together, each from the stage in which it is.

Only the methods of `BindingCycle` change a member.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from serried.api.names import IllegalTransition


class MemberStage(StrEnum):
    """The progress of a member with a slot: kube-scheduler tries it, filter answers its node, then comes bind.

    kube-scheduler will try the member (WAITING) or has rejected it (UNSCHEDULABLE), filter has answered its node
    (FILTERED), its bind call is open (AT_BIND), its Binding is being sent alone (SENDING) or exists (BOUND). The
    possible changes are drawn at the top of this module.
    """

    WAITING = "Waiting"
    """kube-scheduler will try the member by itself: the pod is in its active queue, or was just activated."""

    UNSCHEDULABLE = "Unschedulable"
    """kube-scheduler has rejected the member. To have it tried again, Serried has to write to the pod (activate it)."""

    FILTERED = "Filtered"
    """Filter has answered the node of the member's slot, so kube-scheduler assumes the member there."""

    AT_BIND = "AtBind"
    """kube-scheduler's bind call for the member is open: the extender has not answered it yet."""

    SENDING = "Sending"
    """The extender is sending the member's Binding outside of the commit, as the member does not wait for a quorum.

    kube-scheduler may have closed its bind call meanwhile.
    """

    BOUND = "Bound"
    """The member is bound."""


_BEFORE_BIND = (MemberStage.WAITING, MemberStage.UNSCHEDULABLE, MemberStage.FILTERED)
_LEGAL_MEMBER = {
    MemberStage.WAITING: (MemberStage.UNSCHEDULABLE, MemberStage.FILTERED, MemberStage.AT_BIND, MemberStage.BOUND),
    MemberStage.UNSCHEDULABLE: (MemberStage.FILTERED, MemberStage.AT_BIND, MemberStage.BOUND),
    MemberStage.FILTERED: (MemberStage.WAITING, MemberStage.UNSCHEDULABLE, MemberStage.AT_BIND, MemberStage.BOUND),
    MemberStage.AT_BIND: (MemberStage.WAITING, MemberStage.FILTERED, MemberStage.SENDING, MemberStage.BOUND),
    MemberStage.SENDING: (MemberStage.WAITING, MemberStage.FILTERED, MemberStage.AT_BIND, MemberStage.BOUND),
    MemberStage.BOUND: (),
}


@dataclass(slots=True)
class Member:
    """The state of one member in one binding cycle.

    It is kept when the member loses its slot, because the member may get another slot in this cycle.
    """

    stage: MemberStage = MemberStage.WAITING

    filtered_at: float | None = None
    """The loop time of the last filter call that answered the node of the member's slot.

    None if there was none, or if since then the slot was moved, the node was not offered, or kube-scheduler closed the
    bind call. An UNSCHEDULABLE member may have a time, too: filter answered its node, and no node in a later call.
    """

    nominated: bool = False
    """True once Serried has written the member's nomination.

    It stays True if kube-scheduler clears or replaces the nomination later.
    """

    nominating: bool = False
    """True while Serried's request that nominates the member is open.

    The nomination may exist before the response arrives.
    """

    not_offered: bool = False
    """True if a filter call did not offer the node of the member's slot, after which Serried nominates the member.

    If the next call does not offer the node either, this counts as a rejection of the node.
    """

    last_message: str = ""
    """The message of the pod's condition PodScheduled when the member got its slot, or at its last filter answer.

    "" if there was none. If the message differs later, kube-scheduler has rejected the member since.
    """

    nominated_at_filter: bool = False
    """True if the pod was nominated to the node of its slot when filter answered that node.

    If the nomination is gone later, kube-scheduler has tried the member there and failed.
    """

    call: asyncio.Future[str] | None = None
    """The future of the open bind call; None without an open call.

    Its result is the error text for kube-scheduler, "" for success.
    """

    failure: str = ""
    """A sentence about the last Binding of the member, if it failed and is being repeated; else ""."""

    @property
    def bound(self) -> bool:
        """True if the member is bound to its node or, by another component, to another one."""
        return self.stage is MemberStage.BOUND

    @property
    def before_bind(self) -> bool:
        """True in the stages WAITING, UNSCHEDULABLE and FILTERED: the member has no open bind call, and no Binding."""
        return self.stage in _BEFORE_BIND

    @property
    def reached(self) -> bool:
        """True once filter has answered the node of the member's slot, or the member is at bind or beyond.

        False again if that answer no longer counts: the slot was moved, the node was not offered later, or
        kube-scheduler has closed the bind call.
        """
        return self.filtered_at is not None or not self.before_bind

    def enter(self, stage: MemberStage) -> None:
        """Enter a stage. Raise IllegalTransition if the drawing at the top of this module has no such change."""
        if stage not in _LEGAL_MEMBER[self.stage]:
            raise IllegalTransition(f"a member that is {self.stage} cannot be {stage}")
        self.stage = stage

    def step_back(self) -> None:
        """Return to an earlier stage, because the bind call was closed or the Binding failed.

        If another bind call is open, the stage is AT_BIND. Otherwise it is FILTERED if filter's answer for the member
        still counts, and WAITING if it does not (``filtered_at`` is None).
        """
        if self.call is not None:
            self.enter(MemberStage.AT_BIND)
        else:
            self.enter(MemberStage.WAITING if self.filtered_at is None else MemberStage.FILTERED)

    def answer(self, error: str) -> None:
        """Answer the open bind call with the text ``error`` ("" for success), if there is one."""
        call, self.call = self.call, None
        if call is not None and not call.done():
            call.set_result(error)
