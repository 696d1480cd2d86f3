r"""The state of one member of a binding cycle, from its slot to its Binding. No I/O.

    WAITING ----------+-- filter --> FILTERED --+-- bind call --> AT_BIND -- sent alone --> SENDING
       |              |                 |       |                    ^                         |
     put aside        |                held     |                    +-- fails, called anew ---+
       v              |                 |       |
    UNSCHEDULABLE ----+ <---------------+       |
       |                                        |
       +----------------------------------------+          any stage -- Binding exists --> BOUND

    FILTERED -- slot moved, or node not offered --> WAITING
    AT_BIND, SENDING -- call ended --> FILTERED; WAITING if kube-scheduler hung up, or filter had not answered

A bound member stays bound. Two facts are no stages. A nomination is only a hint: kube-scheduler may not have seen it
yet, or may clear it. A commit binds its members together from whatever stage they are in (`Reservation.committed`).

Only the methods of `BindingCycle` change a member.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from serried.api.names import IllegalTransition


class MemberStage(StrEnum):
    """The progress of a member towards its Binding."""

    WAITING = "Waiting"
    """kube-scheduler is expected to try the member without an activation."""

    UNSCHEDULABLE = "Unschedulable"
    """kube-scheduler has rejected the member, and tries it again only after a write of Serried activates it."""

    FILTERED = "Filtered"
    """Filter has answered the member's node, so kube-scheduler assumes the member there."""

    AT_BIND = "AtBind"
    """The member's bind call is open."""

    SENDING = "Sending"
    """The extender sends the member's Binding outside of the commit. kube-scheduler may have hung up meanwhile."""

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
    """The state of one member in one binding cycle. It outlasts the member's slot, because it may get another one."""

    stage: MemberStage = MemberStage.WAITING

    filtered_at: float | None = None
    """The loop time of the last filter call that answered the member's node.

    None if there was none since the slot was moved, the node was not offered, or kube-scheduler hung up. An
    UNSCHEDULABLE member may have a time, too: filter was called again later, and held it.
    """

    nominated: bool = False
    """True once Serried's nomination is written. Since then it may have been replaced or cleared."""

    nominating: bool = False
    """True while a nomination is being written: it may exist before the response arrives."""

    not_offered: bool = False
    """True if kube-scheduler has not offered the member's node, so that the member is nominated (again).

    If the node is missing once more, it counts as refused.
    """

    last_message: str = ""
    """The message of the pod's condition when it got its slot, or when filter answered. Another message is newer."""

    nominated_at_filter: bool = False
    """True if the member was nominated to its node when filter answered.

    A nomination cleared since then means failure.
    """

    call: asyncio.Future[str] | None = None
    """The open bind call; resolves to the error text for kube-scheduler, "" for success. None without a call."""

    failure: str = ""
    """A sentence about the member's last Binding, which failed and is repeated; "" for none."""

    @property
    def bound(self) -> bool:
        """True if the member is bound."""
        return self.stage is MemberStage.BOUND

    @property
    def before_bind(self) -> bool:
        """True before the member's bind call, and while no Binding of its own is being sent."""
        return self.stage in _BEFORE_BIND

    @property
    def reached(self) -> bool:
        """True once filter has answered the member's node, or the member is further than that."""
        return self.filtered_at is not None or not self.before_bind

    def enter(self, stage: MemberStage) -> None:
        """Change the stage. Raise IllegalTransition for a change that the drawing does not have."""
        if stage not in _LEGAL_MEMBER[self.stage]:
            raise IllegalTransition(f"a member that is {self.stage} cannot be {stage}")
        self.stage = stage

    def step_back(self) -> None:
        """Go back to the stage before a bind call that was closed or a Binding that failed."""
        if self.call is not None:
            self.enter(MemberStage.AT_BIND)
        else:
            self.enter(MemberStage.WAITING if self.filtered_at is None else MemberStage.FILTERED)

    def answer(self, error: str) -> None:
        """Answer the open bind call, if there is one."""
        call, self.call = self.call, None
        if call is not None and not call.done():
            call.set_result(error)
