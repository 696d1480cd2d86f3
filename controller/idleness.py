"""Whether a controller works that holds the Lease. If it does not for long, another one is to hold it.

It renews the Lease also when nothing reaches it, or none of its workers gets on: then no Job gets its objects, and the
other controller waits. A look that the API server refuses is work all the same: the other one would be refused, too.
"""

from collections.abc import Callable

BLIND_SECONDS = 60.0
"""How long a kind may not be followed: a new list of a large cluster takes some tens of seconds."""

STUCK_SECONDS = 180.0
"""How long nothing may be finished while there is work. It is longer than any one write takes with all its attempts."""


class IdleError(Exception):
    """This controller holds the Lease and does no work."""


class Idleness:
    """Looked at every now and then while the Lease is held. All times are seconds of ``clock``.

    ``blind_since`` is since when changes do not reach us, infinity while they do. ``has_work`` says whether there is
    something that workers could do at this moment, or are at.

    Unlike the extender's it needs no patience that grows. Whoever is idle ends, begins anew and asks for the Lease only
    when its caches are filled, and its kubelet lets it wait longer each time.
    """

    def __init__(
        self, blind_since: Callable[[], float], has_work: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._blind_since = blind_since
        self._has_work = has_work
        self._clock = clock
        self._finished = clock()
        """When something was last finished, or there was nothing to be done."""

    def note_finished(self) -> None:
        """A look has ended, or a write of one was answered, well or not: one look may have thousands of them."""
        self._finished = self._clock()

    def check(self) -> None:
        """Raises IdleError if the Lease is to be given up."""
        now = self._clock()
        if not self._has_work():
            self._finished = now
        if now - self._blind_since() >= BLIND_SECONDS:
            raise IdleError(f"the API server has shown no changes of what is watched for {BLIND_SECONDS:g} s")
        if now - self._finished >= STUCK_SECONDS:
            raise IdleError(f"there is work, and nothing was finished for {STUCK_SECONDS:g} s")
