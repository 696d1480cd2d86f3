"""Tracks pods whose owner (a Job, or a JobSet, LeaderWorkerSet or the like) no watch has shown.

Such an owner may exist or not; it is tracked until the API server has shown that it does not.

A watch may be late, denied or silent without an end, so it proves nothing about the owner. Filter keeps such a pod from
starting until the API server has answered that the owner does not exist (`extender.core.binding.effects` sends the
request). `GroupScheduler` calls `AwaitedOwner.ask` whenever it considers a group with such pods.
"""

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

from serried.api.names import JOB, GroupKey
from serried.api.pod import Pod

_PAUSE_SECONDS = 30.0
"""The seconds before the API server is asked again, after an answer that leaves some pods waiting."""


class Waiter(NamedTuple):
    """The pods that wait for one owner: all pods that name the owner's UID, or one pod that names it without a UID."""

    owner: str
    """The UID of the owner; "" if the pod names its owner without a UID."""

    pod: str = ""
    """The UID of the one pod, if ``owner`` is ""; else "".

    Such a pod says only the name of its owner. So it waits until the API server has no object of that name at all.
    """

    def has_lost(self, found: str) -> bool:
        """Return whether the awaited owner does not exist.

        ``found`` is the UID of the object that the API server has under the owner's name, "" if it has none.
        """
        return not found or bool(self.owner and self.owner != found)


def find_waiter(key: GroupKey, pod: Pod) -> Waiter:
    """Return the `Waiter` of which a pod is part: the pods that wait for the same owner object.

    ``key`` is the group under which the pod waits, as long as its owner is unknown. It says whether the owner is a Job
    or a parent, i.e. a JobSet, LeaderWorkerSet or the like.
    """
    if key.kind == JOB:
        uid = pod.owner.uid if pod.owner is not None else ""
    else:
        uid = pod.place.uid if pod.place is not None else ""
    return Waiter(uid) if uid else Waiter("", pod.uid)


class AwaitedOwner:
    """The pods of one group that wait for its owner, and what the API server has answered. Times are loop seconds.

    The group's `GroupState` has it while pods wait. The API server is asked once a pod has waited for ``patience``
    seconds. Pods are tracked by the UID of their owner, because an owner may be deleted and another one created under
    its name.
    """

    def __init__(self, patience: float) -> None:
        self.doubt = ""
        """A phrase that says why pods still wait after the API server was asked; "" before the first answer."""

        self._patience = patience

        self._since: dict[Waiter, float] = {}
        """The time since when each waiter has waited; without those whose owner is known not to exist."""

        self._lost: set[Waiter] = set()
        """The waiters whose owner does not exist according to the API server."""

        self._next = -math.inf
        """The earliest time of the next request; infinite while a request is open, -infinite before the first."""

    def is_due(self, now: float) -> bool:
        """Return whether to ask the API server now whether the owner exists.

        That is so once a pod has waited for ``patience`` seconds, unless a request is open, or was answered in the last
        _PAUSE_SECONDS.
        """
        return now >= self._next and any(now - since > self._patience for since in self._since.values())

    def is_lost(self, key: GroupKey, pod: Pod) -> bool:
        """Return whether the API server has said that the owner of a pod does not exist.

        ``key`` is the group under which the pod waits.
        """
        return bool(self._lost) and find_waiter(key, pod) in self._lost

    def ask(self, key: GroupKey, members: Sequence[Pod], now: float) -> frozenset[Waiter]:
        """Note which ``members`` wait for the owner. Return the waiters about which to ask the API server now.

        Empty if it is not time to ask (`is_due`). Otherwise the caller has to send the request and to report its result
        by `note_found` or `note_unknown`: no other request is due before that.
        """
        self._lost &= {find_waiter(key, pod) for pod in members}
        waiting = {find_waiter(key, pod): None for pod in members if pod.pending}
        self._since = {each: self._since.get(each, now) for each in waiting if each not in self._lost}
        if not self.is_due(now):
            return frozenset()
        self._next = math.inf
        return frozenset(each for each, since in self._since.items() if now - since > self._patience)

    def note_found(self, asked: Set[Waiter], found: str, now: float) -> None:
        """Note the answer of the API server to the request about the waiters ``asked``, pods without their owner.

        ``found`` is the UID of the object that exists under the owner's name, "" if there is none. Waiters for another
        UID have lost their owner.
        """
        lost = {each for each in asked if each.has_lost(found)}
        self._lost |= lost
        self._since = {each: since for each, since in self._since.items() if each not in lost}
        self._note(now, "the API server has the Job, but no watch has shown it yet" if asked - lost else "")

    def note_unknown(self, why: str, now: float) -> None:
        """Note that the request to the API server has failed, and ``why`` (a phrase). It is repeated after a pause."""
        self._note(now, f"Serried cannot find out whether the Job exists: {why}")

    def _note(self, now: float, doubt: str) -> None:
        self.doubt = doubt
        self._next = now + _PAUSE_SECONDS
