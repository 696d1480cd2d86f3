"""What owners have been told, so that nobody is told a thing twice."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from controller.owners import Owner
from controller.writes import Writes
from serried.kube.errors import AlreadyExists, ApiError

K = TypeVar("K", bound=Hashable)

_TRIES_BEFORE_SAID = 4
"""AlreadyExists in a row before an event: the first ones only say that our caches lag behind another's create."""


class Told(Generic[K]):
    """The memory of events, by the owners' keys. One that is made anew under its name hears everything again."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._said: dict[K, tuple[str, frozenset[str]]] = {}
        self._failing: set[K] = set()

    def tell_once(self, key: K, owner: Owner, reason: str, message: str) -> None:
        """Write a Warning event, if the owner has not heard it yet."""
        uid, said = self._said.get(key, ("", frozenset[str]()))
        if uid != owner.uid:
            said = frozenset()
        if message not in said:
            self._said[key] = owner.uid, said | {message}
            self._writes.tell(owner, "Warning", reason, message)

    def tell_failure(self, key: K, owner: Owner, what: tuple[str, str], error: ApiError, failures: int) -> None:
        """Tell the first failure in a row of looks; ``what`` is kind and verb, ``failures`` were before this one."""
        patience = _TRIES_BEFORE_SAID if isinstance(error, AlreadyExists) else 1
        if failures + 1 >= patience and key not in self._failing:
            self._failing.add(key)
            self._writes.tell_failure(owner, what, error)

    def succeed(self, key: K) -> None:
        """A look has ended well: its next failure is news."""
        self._failing.discard(key)

    def forget(self, key: K) -> None:
        """The owner has gone."""
        self._said.pop(key, None)
