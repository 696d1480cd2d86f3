"""Tracks pods whose Job or parent no watch has shown, until the API server says whether the owner exists.

A watch may be late, rejected or silent without an end, so it proves nothing about the owner. The pod is held until the
API server has answered that its owner does not exist (`extender.core.binding.effects`). `GroupScheduler` calls
`AwaitedOwner.ask` at each look at such a group.
"""

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

from serried.api.names import JOB, GroupKey
from serried.api.pod import Pod

_PAUSE_SECONDS = 30.0
"""The pause before the API server is asked again, after an answer with which some pods keep waiting."""


class Waiter(NamedTuple):
    """The pods that wait for one owner: all pods with its UID, or one pod that names its owner without a UID."""

    owner: str
    """The UID of the owner; "" if only the pod is known."""

    pod: str = ""
    """The UID of that pod. It is younger than its owner, so any existing owner of the name may be its own."""

    def has_lost(self, found: str) -> bool:
        """Return whether the awaited owner does not exist.

        ``found`` is the UID of the existing owner of that name, "" for none.
        """
        return not found or bool(self.owner and self.owner != found)


def find_waiter(key: GroupKey, pod: Pod) -> Waiter:
    """Return the waiter to which a pod belongs, under this key of its owner."""
    if key.kind == JOB:
        uid = pod.owner.uid if pod.owner is not None else ""
    else:
        uid = pod.place.uid if pod.place is not None else ""
    return Waiter(uid) if uid else Waiter("", pod.uid)


class AwaitedOwner:
    """The state of one awaited owner. `GroupState` has it while pods wait. Times are loop seconds.

    The API server is asked once a pod has waited for ``patience`` seconds. Another owner of the same name may have been
    deleted before or be made later, so the pods are tracked by the UID of their owner.
    """

    def __init__(self, patience: float) -> None:
        self.doubt = ""
        """The reason why pods keep waiting after the API server was asked, a phrase; "" before the first answer."""

        self._patience = patience

        self._since: dict[Waiter, float] = {}
        """The time since when each waiter has waited."""

        self._lost: set[Waiter] = set()
        """The waiters whose owner does not exist according to the API server."""

        self._next = -math.inf
        """The earliest time of the next request; infinite while a request is open."""

    def is_due(self, now: float) -> bool:
        """Return whether a pod has waited long enough for the API server to be asked."""
        return now >= self._next and any(now - since > self._patience for since in self._since.values())

    def is_lost(self, key: GroupKey, pod: Pod) -> bool:
        """Return whether the owner of a pod, which waits under this key, is known not to exist."""
        return bool(self._lost) and find_waiter(key, pod) in self._lost

    def ask(self, key: GroupKey, members: Sequence[Pod], now: float) -> frozenset[Waiter]:
        """Update the waiting pods. Return the waiters for which to ask the API server now; none if it is not time."""
        self._lost &= {find_waiter(key, pod) for pod in members}
        waiting = {find_waiter(key, pod): None for pod in members if pod.pending}
        self._since = {each: self._since.get(each, now) for each in waiting if each not in self._lost}
        if not self.is_due(now):
            return frozenset()
        self._next = math.inf
        return frozenset(each for each, since in self._since.items() if now - since > self._patience)

    def note_found(self, asked: Set[Waiter], found: str, now: float) -> None:
        """Note that the API server has an owner of this name with the UID ``found``, "" if it has none."""
        lost = {each for each in asked if each.has_lost(found)}
        self._lost |= lost
        self._since = {each: since for each, since in self._since.items() if each not in lost}
        self._note(now, "it exists, and no watch has shown it yet" if asked - lost else "")

    def note_unknown(self, why: str, now: float) -> None:
        """Note that the API server has not answered whether the owner exists, and ``why``."""
        self._note(now, f"cannot tell whether it exists: {why}")

    def _note(self, now: float, doubt: str) -> None:
        self.doubt = doubt
        self._next = now + _PAUSE_SECONDS
