"""The events that owners have got, so that no owner gets the same one twice."""

from controller.diff.sentences import Sentence
from controller.writes import Writes
from serried.kube.errors import AlreadyExists, ApiError
from serried.model.parent import Owner, OwnerKey, owner_key_of

_ALREADY_EXISTS_BEFORE_EVENT = 4
"""How many looks in a row have to end with AlreadyExists before an event says so.

The first ones only mean that our caches do not show yet what another client has created.
"""


_MOST_REMEMBERED = 16
"""How many messages are remembered of an owner: its author may bring out any number of them, one after the other."""


class Reported:
    """The memory of events. An owner that is made anew under its name gets all of them again."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._messages: dict[OwnerKey, tuple[str, tuple[str, ...]]] = {}
        """The UID of the owner that has got the events, and the latest of their messages, the newest last."""
        self._failing: set[OwnerKey] = set()
        """The owners whose last look failed and who have got an event about it."""

    def report_once(self, owner: Owner, warning: Sentence) -> None:
        """Write a Warning event, unless the same has been written for this owner before."""
        owner_key = owner_key_of(owner)
        uid, heard = self._messages.get(owner_key, ("", ()))
        if uid != owner.uid:
            heard = ()
        if warning.message not in heard:
            self._messages[owner_key] = owner.uid, (*heard[1 - _MOST_REMEMBERED :], warning.message)
            self._writes.emit(owner, "Warning", warning)

    def report_failure(self, owner: Owner, what: tuple[str, str], error: ApiError, failures: int) -> None:
        """Write an event of the first failure in a row of failed looks.

        ``what`` is the kind of the object and the verb, ``failures`` is how many looks have failed before this one.
        """
        owner_key = owner_key_of(owner)
        enough = _ALREADY_EXISTS_BEFORE_EVENT if isinstance(error, AlreadyExists) else 1
        if failures + 1 >= enough and owner_key not in self._failing:
            self._failing.add(owner_key)
            self._writes.emit_failure(owner, what, error)

    def succeed(self, owner_key: OwnerKey) -> None:
        """A look at the owner has succeeded: the next failure gets an event again."""
        self._failing.discard(owner_key)

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._messages.pop(owner_key, None)
