"""Tasks that the API server has refused: when each is tried again, so that the end of an outage is noticed soon.

Each task has an exponential backoff of its own (`queue`). Besides, the task that has waited longest is tried every few
seconds, out of turn; when it succeeds, all others are tried at once.
"""

import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from controller.queue import WorkQueue
from serried.kube.errors import Invalid

K = TypeVar("K", bound=Hashable)

PROBE_SECONDS = 5.0
"""The time between two tries out of turn. Objects are to be created within 10 s of the API server's return."""

BLAMED_SECONDS = 300.0
"""The time until a task is tried again whose own objects are to blame: what refuses them may be an admission policy."""


class Retries(Generic[K]):
    """The refused tasks of a queue, oldest try first."""

    def __init__(self, queue: WorkQueue[K], clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        """The monotonic time in seconds."""
        self._refused: dict[K, float] = {}
        """With the time of the last try."""
        self._last_success = -math.inf
        """When a write has last succeeded."""
        self._last_fan_out = -math.inf
        """When all refused tasks were last queued together."""

    def __len__(self) -> int:
        return len(self._refused)

    def refuse(self, task: K, error: Exception) -> int | None:
        """The task failed: it comes again after its backoff. Returns how often it has failed in a row.

        Returns None if the task comes again when its objects change, or after BLAMED_SECONDS: the API server calls it
        invalid while others succeed, so its objects are to blame.
        """
        before = self._refused.pop(task, None)
        if isinstance(error, Invalid) and before is not None and before < self._last_success:
            self._queue.forget(task)
            self._queue.add_after(task, BLAMED_SECONDS)
            return None
        self._refused[task] = self._clock()
        return self._queue.retry(task)

    def accept(self, task: K, *, wrote: bool) -> None:
        """The task succeeded. If it was refused before and has ``wrote`` something now, the API server is back.

        Then all refused tasks are queued, at most once in PROBE_SECONDS: refusals of single tasks come and go.
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
