r"""One member of a binding cycle: how far it is from its slot to its Binding. State only, no I/O.

    WAITING ----------+-- filter --> FILTERED --+-- bind call --> AT_BIND -- sent alone --> SENDING
       |              |                 |       |                    ^                         |
     put aside        |                held     |                    +-- fails, called anew ---+
       v              |                 |       |
    UNSCHEDULABLE ----+ <---------------+       |
       |                                        |
       +----------------------------------------+          each of them -- Binding stands --> BOUND

    FILTERED -- slot moved, node missing --> WAITING
    AT_BIND, SENDING -- no call any more --> FILTERED; WAITING if the scheduler hung up, or filter had not answered

A bound member stays bound. A nomination is no stage but a fact beside it: it is a hint that the scheduler may not have
seen yet, or may erase, so it does not tell where a member is. Nor is the commit: its members are bound together from
wherever they are by then (`Reservation.committed`).

Only the verbs of the cycle change a member.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from serried.api.names import IllegalTransition


class MemberStage(StrEnum):
    """How far a member is."""

    WAITING = "Waiting"
    """The scheduler is expected to try it by itself."""

    UNSCHEDULABLE = "Unschedulable"
    """The scheduler has put it aside, and tries it again only when a write of ours wakes it."""

    FILTERED = "Filtered"
    """Filter has answered its node: the scheduler keeps room there."""

    AT_BIND = "AtBind"
    """Its bind call is open."""

    SENDING = "Sending"
    """The extender sends the Binding of a member outside of the commit. kube-scheduler may have hung up meanwhile."""

    BOUND = "Bound"
    """Its Binding stands."""


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
    """The state of one member in one binding cycle. It is kept when the member loses its slot, which may come back."""

    stage: MemberStage = MemberStage.WAITING

    filtered_at: float | None = None
    """When filter has last answered its node, in loop seconds.

    None if it has not since its slot was moved, its node was missing, or the scheduler hung up. An UNSCHEDULABLE member
    may have been filtered, too: filter was asked again, and held it.
    """

    nominated: bool = False
    """Whether our nomination was written on it. It may be another node's by now, or erased."""

    nominating: bool = False
    """Whether a write of our nomination is on its way: it may stand before we hear so."""

    missed: bool = False
    """Whether its node was missing among those that the scheduler offered, so that it is nominated (again).

    If the node is missing once more, it is refused.
    """

    said: str = ""
    """What the scheduler had said of it when it got its slot, or when filter answered: other words are newer."""

    sent: bool = False
    """Whether it was nominated to its node when filter answered: if it is not any more, the scheduler has failed."""

    call: asyncio.Future[str] | None = None
    """Its open bind call; ends with the error text for the scheduler, "" for success."""

    failure: str = ""
    """A sentence about its last Binding, which failed and is repeated; "" for none."""

    @property
    def bound(self) -> bool:
        """Whether its Binding stands."""
        return self.stage is MemberStage.BOUND

    @property
    def before_bind(self) -> bool:
        """Whether it has no bind call, and no Binding of its own on its way."""
        return self.stage in _BEFORE_BIND

    @property
    def reached(self) -> bool:
        """Whether the scheduler has come to it: filter has answered its node, or it is further than that."""
        return self.filtered_at is not None or not self.before_bind

    def turn(self, stage: MemberStage) -> None:
        """It is at another stage from now on."""
        if stage not in _LEGAL_MEMBER[self.stage]:
            raise IllegalTransition(f"a member that is {self.stage} cannot be {stage}")
        self.stage = stage

    def turn_back(self) -> None:
        """Its call is closed, or its Binding has failed: it is where it came from."""
        if self.call is not None:
            self.turn(MemberStage.AT_BIND)
        else:
            self.turn(MemberStage.WAITING if self.filtered_at is None else MemberStage.FILTERED)

    def answer(self, error: str) -> None:
        """Answer its open bind call, if it has one."""
        call, self.call = self.call, None
        if call is not None and not call.done():
            call.set_result(error)
