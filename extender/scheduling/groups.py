"""The groups that are looked at: what is remembered of each, and which is to be looked at again."""

import asyncio

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.group_state import GroupState
from extender.scheduling.status_sink import StatusSink
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import GroupKey
from serried.model.verdict import Verdict


class Groups:
    """``states`` has the memory of each group. ``changed`` is set when there is something to look at."""

    def __init__(self, store: Store, ledger: Ledger, status: StatusSink) -> None:
        self.states: dict[GroupKey, GroupState] = {}
        self.changed = asyncio.Event()
        self._store = store
        self._ledger = ledger
        self._status = status

    def wake(self) -> None:
        """Something changed: look again."""
        self.changed.set()

    def look_again(self, key: GroupKey) -> None:
        """This group is to be looked at."""
        self._store.touched.add(key)
        self.wake()

    def note_study(self, key: GroupKey) -> None:
        """The answer to a study of this group is there: it asks again."""
        gang = self.states.get(key)
        if gang is not None and gang.cycle is not None:
            gang.cycle.refilled = ()
        self.look_again(key)

    def say(self, key: GroupKey, verdict: Verdict) -> None:
        """Record and publish how a group stands."""
        gang = self.states.get(key)
        if gang is not None and gang.verdict != verdict:
            gang.verdict = verdict
            self._status.say(key, verdict)

    def cycle_of(self, uid: str) -> BindingCycle | None:
        """The cycle in which a pod has a slot."""
        reservation = self._ledger.of_pod(uid)
        gang = self.states.get(reservation.group) if reservation is not None else None
        return gang.cycle if gang is not None else None
