"""What owners have heard by events, so that none hears a thing twice."""

from controller.diff.complaints import Complaint
from controller.writes import Writes
from serried.kube.errors import AlreadyExists, ApiError
from serried.model.parent import Owner, OwnerKey, owner_key_of

_ALREADY_EXISTS_BEFORE_EVENT = 4
"""AlreadyExists in a row before an event: the first ones only say that our caches lag behind another's create."""


class Reported:
    """The memory of events. An owner that is made anew under its name hears everything again."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._messages: dict[OwnerKey, tuple[str, frozenset[str]]] = {}
        """With the UID of the owner that has heard them."""
        self._failing: set[OwnerKey] = set()

    def report_once(self, owner: Owner, complaint: Complaint) -> None:
        """Write a Warning event, if the owner has not heard it yet."""
        owner_key = owner_key_of(owner)
        reason, message = complaint
        uid, heard = self._messages.get(owner_key, ("", frozenset[str]()))
        if uid != owner.uid:
            heard = frozenset()
        if message not in heard:
            self._messages[owner_key] = owner.uid, heard | {message}
            self._writes.emit(owner, "Warning", reason, message)

    def report_failure(self, owner: Owner, what: tuple[str, str], error: ApiError, failures: int) -> None:
        """Write an event of the first failure in a row of looks.

        ``what`` is the kind of the object and the verb, ``failures`` is how many looks have failed before this one.
        """
        owner_key = owner_key_of(owner)
        enough = _ALREADY_EXISTS_BEFORE_EVENT if isinstance(error, AlreadyExists) else 1
        if failures + 1 >= enough and owner_key not in self._failing:
            self._failing.add(owner_key)
            self._writes.emit_failure(owner, what, error)

    def succeed(self, owner_key: OwnerKey) -> None:
        """A look has ended well: its next failure is news."""
        self._failing.discard(owner_key)

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._messages.pop(owner_key, None)
