"""Hide objects of some kinds from a process's lists and watches, from a mishap until the next answer."""

import time
from collections.abc import Callable

from tests.chaos.excuses import SIGHT
from tests.chaos.mishaps import Request

BLIND_SECONDS = 1.0
"""From when on the checker is told: a watch that was cut is there again at once."""


class Sight:
    """Of one process. A thread of a proxy tells what happens, and the harness looks now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost: dict[str, float] = {}
        """The time since which objects are hidden, by the path of the list."""
        self._told = False

    def lose(self, request: Request) -> None:
        """A list or a watch was refused, lost or ended."""
        if _shows(request):
            self._lost.setdefault(request.path, self._clock())

    def gain(self, request: Request) -> None:
        """Show the objects again: the request was answered."""
        self._lost.pop(request.path, None)

    def look(self, note: Callable[[str, str], None]) -> None:
        """Tell the checker if something is not shown for a while now, or all is shown again."""
        now = self._clock()
        blind = any(now - since > BLIND_SECONDS for since in list(self._lost.values()))
        if blind is not self._told:
            self._told = blind
            note("fall" if blind else "rise", SIGHT)


def _shows(request: Request) -> bool:
    return request.method == "GET" and not request.subject
