"""The writes that come through the proxies while nothing happens and so nobody may write. No I/O."""

import threading
from collections import Counter
from urllib.parse import urlsplit

from tests.chaos.mishaps import Request

_LEASES = "/apis/coordination.k8s.io/"
_REVIEWS = ("/apis/authentication.k8s.io/", "/apis/authorization.k8s.io/")
_READS = frozenset({"GET", "HEAD"})

Write = tuple[str, str, str]
"""The process, the method and the path."""


class Writes:
    """Counts them between `begin` and `end`; ``take`` is called from the threads of all proxies."""

    def __init__(self) -> None:
        self.counted: Counter[Write] = Counter()
        self._resting = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """From now on nobody may write."""
        self._resting = True

    def end(self) -> None:
        """From now on everybody may."""
        self._resting = False

    def take(self, process: str, request: Request) -> None:
        """A process sends this."""
        if not self._resting or is_idle(process, request):
            return
        with self._lock:
            self.counted[process, request.method, urlsplit(request.target).path] += 1

    def describe(self) -> list[dict[str, str]]:
        """Return each write as a violation, in the form that the checker writes."""
        return [
            {"rule": "write at rest", "subject": f"{process} {method} {path}", "text": f"sent {count} times"}
            for (process, method, path), count in sorted(self.counted.items())
        ]


def is_idle(process: str, request: Request) -> bool:
    """Return whether a process may send the request though nothing happens."""
    path = urlsplit(request.target).path
    if request.method in _READS or path.startswith(_REVIEWS):
        return True
    if path.startswith(_LEASES):
        return "leases" in path.split("/")
    # It looks at pods that wait again after five minutes, whatever happens (flushUnschedulableEntitiesLeftover in
    # pkg/scheduler/backend/queue/scheduling_queue.go), and says in an Event that they wait still.
    return process == "scheduler" and "events" in path.split("/")
