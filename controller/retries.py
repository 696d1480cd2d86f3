"""Tasks that the API server refuses: who is tried when, so that the end of an outage is noticed soon and cheaply.

Each task has its exponential backoff (`queue`). Beside that, one refused task after the other is tried every few
seconds; when one of them succeeds, all are tried at once.
"""

import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from controller.queue import WorkQueue
from serried.kube.errors import Invalid

K = TypeVar("K", bound=Hashable)

PROBE_SECONDS = 5.0
"""The time between two tries out of turn. Objects are wanted within 10 s of the API's return."""


class Retries(Generic[K]):
    """The refused tasks of a queue, oldest try first. ``clock`` is monotonic."""

    def __init__(self, queue: WorkQueue[K], clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._refused: dict[K, float] = {}
        """With the time of the last try."""
        self._last_success = -math.inf
        self._last_fan_out = -math.inf

    def __len__(self) -> int:
        return len(self._refused)

    def refuse(self, task: K, error: Exception) -> int | None:
        """The task failed: it comes again after its backoff. Returns how often it has failed in a row.

        None if it comes again only when it changes: others succeed while the API server finds this one wrong, so what
        is wrong is in its objects.
        """
        before = self._refused.pop(task, None)
        if isinstance(error, Invalid) and before is not None and before < self._last_success:
            self._queue.forget(task)
            return None
        self._refused[task] = self._clock()
        return self._queue.retry(task)

    def accept(self, task: K, *, wrote: bool) -> None:
        """The task succeeded; one that was refused before, and has written now, tells that the API is back.

        It is believed once in PROBE_SECONDS: refusals of single tasks come and go.
        """
        self._queue.forget(task)
        if wrote:
            self._last_success = self._clock()
        if self._refused.pop(task, None) is not None and wrote and self._clock() >= self._last_fan_out + PROBE_SECONDS:
            self._last_fan_out = self._clock()
            for other in self._refused:
                self._queue.add(other)

    def probe(self) -> None:
        """Try the task that has waited longest, out of turn. To be called every PROBE_SECONDS."""
        task = next(iter(self._refused), None)
        if task is not None:
            self._refused[task] = self._refused.pop(task)
            self._queue.add(task)
