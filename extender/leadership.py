"""Whether this instance is the active one: it is, while the scheduler beside it holds the scheduler's Lease.

One election, not two: kube-scheduler's holderIdentity is its hostname (in a Pod, the Pod's name), "_" and a UUID.
"""

from collections.abc import Callable

from serried.decode.lease import decode_lease
from serried.decode.malformed import Malformed
from serried.kube.changes import Deleted, Event, Upserted


class Leadership:
    """Follows one Lease. ``changed`` is called with the new state whenever it turns; it must not block."""

    def __init__(self, holder_prefix: str, changed: Callable[[bool], None]) -> None:
        self.holder = ""
        self.active = False
        self._prefix, self._changed = holder_prefix, changed

    def follow(self, event: Event) -> None:
        """The sink of the Lease's watch."""
        if isinstance(event, Upserted):
            lease = decode_lease(event.obj)
            if not isinstance(lease, Malformed):
                self.take(lease.holder)
        elif isinstance(event, Deleted):
            self.take("")

    def take(self, holder: str) -> None:
        """The Lease has this holder now, "" for none."""
        self.holder = holder
        active = holder == self._prefix or holder.startswith(self._prefix + "_")
        if active != self.active:
            self.active = active
            self._changed(active)


class AlwaysActive(Leadership):
    """Leadership without a Lease: one instance, always active."""

    def begin(self) -> None:
        """Become active."""
        self.active = True
        self._changed(True)  # noqa: FBT003 - the callback's one argument
