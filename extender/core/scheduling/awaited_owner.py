"""Pods whose Job or parent no watch has shown: whether the API server has it.

A watch may be late, refused, or silent without an end, so that says nothing of the owner: the pod is held until the API
server itself has answered that its owner is not there (`extender.core.binding.effects`).
"""

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

from serried.api.names import JOB, GroupKey
from serried.api.pod import Pod

_PAUSE_SECONDS = 30.0
"""The pause before the API server is asked again, after an answer that lets somebody wait on."""


class Waiter(NamedTuple):
    """Who waits: all pods of one owner, or one pod whose labels do not say which owner of the name is its own."""

    owner: str
    """The UID of the owner, "" where only the pod is known."""

    pod: str = ""
    """The UID of that pod. It was made after its owner, so whatever owner of the name exists may be the one."""

    def has_lost(self, found: str) -> bool:
        """Whether its owner does not exist, where the owner of this name has the UID ``found``, "" for none."""
        return not found or bool(self.owner and self.owner != found)


def find_waiter(key: GroupKey, pod: Pod) -> Waiter:
    """As what a pod waits under this key of its owner."""
    if key.kind == JOB:
        uid = pod.owner.uid if pod.owner is not None else ""
    else:
        uid = pod.place.uid if pod.place is not None else ""
    return Waiter(uid) if uid else Waiter("", pod.uid)


class AwaitedOwner:
    """What is known of one such owner. Times are loop seconds; ``patience`` is how long it may be late.

    An owner of the same name that was deleted before, or is made later, is another one: each pod waits for its own.
    """

    def __init__(self, patience: float) -> None:
        self.doubt = ""
        """Why those who have waited long enough wait on, a phrase; "" before the API server was asked."""

        self._patience = patience

        self._since: dict[Waiter, float] = {}
        """Since when each was seen that waits."""

        self._lost: set[Waiter] = set()
        """The waiters whose owner does not exist, as the API server has said."""

        self._next = -math.inf
        """When the API server may be asked again: not before the last question is over, however long it takes."""

    def is_due(self, now: float) -> bool:
        """Whether somebody has waited long enough, so that the API server may be asked."""
        return now >= self._next and any(now - since > self._patience for since in self._since.values())

    def is_lost(self, key: GroupKey, pod: Pod) -> bool:
        """Whether the owner of a pod, which waits under this key, does not exist."""
        return bool(self._lost) and find_waiter(key, pod) in self._lost

    def ask(self, key: GroupKey, members: Sequence[Pod], now: float) -> frozenset[Waiter]:
        """Follow the pods that there are; for whom the API server is to be asked now, nobody if it is not."""
        self._lost &= {find_waiter(key, pod) for pod in members}
        waiting = {find_waiter(key, pod): None for pod in members if pod.pending}
        self._since = {each: self._since.get(each, now) for each in waiting if each not in self._lost}
        if not self.is_due(now):
            return frozenset()
        self._next = math.inf
        return frozenset(each for each, since in self._since.items() if now - since > self._patience)

    def note_found(self, asked: Set[Waiter], found: str, now: float) -> None:
        """The API server has an owner of this name with the UID ``found``, "" if it has none."""
        lost = {each for each in asked if each.has_lost(found)}
        self._lost |= lost
        self._since = {each: since for each, since in self._since.items() if each not in lost}
        self._note(now, "it exists, and no watch has shown it yet" if asked - lost else "")

    def note_unknown(self, why: str, now: float) -> None:
        """The API server has not said whether the owner exists."""
        self._note(now, f"cannot tell whether it exists: {why}")

    def _note(self, now: float, doubt: str) -> None:
        self.doubt = doubt
        self._next = now + _PAUSE_SECONDS
