"""Set the wall clocks of extender and controller for a while, back or ahead, while all others are right."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.chaos.excuses import CLOCK
from tests.support import clock_offset
from tests.support.preload import import_first


class ClockFaults:
    """Sets them. ``directory`` is for what the processes read, ``note`` hears of each fall and each rise."""

    def __init__(self, directory: Path, note: Callable[[str, str], None]) -> None:
        self.jumps = 0
        """The number of times the clocks were set."""

        self._directory = directory
        self._file = directory / "clock"
        self._note = note
        self._off = False
        self._timer: threading.Timer
        """The timer that sets the clocks right again."""

        self._lock = threading.Lock()
        clock_offset.write_offset(self._file, 0.0)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Processes that start while the body runs have clocks that can be set."""
        wanted = {**import_first(clock_offset.__name__, self._directory / "first"), clock_offset.FILE: str(self._file)}
        with patch.dict(os.environ, wanted):
            yield

    def jump(self, seconds: float, lasting: float) -> None:
        """Set the clocks off by ``seconds``, and right again after a while. Clocks that are off already stay so."""
        with self._lock:
            if self._off:
                return
            self._off = True
            self.jumps += 1
            self._note("fall", CLOCK)
            clock_offset.write_offset(self._file, seconds)
            self._timer = threading.Timer(lasting, self.set_right)
            self._timer.daemon = True
            self._timer.start()

    def set_right(self) -> None:
        """Set the clocks right again."""
        with self._lock:
            if self._off:
                self._off = False
                self._timer.cancel()
                clock_offset.write_offset(self._file, 0.0)
                self._note("rise", CLOCK)
