"""What a watch shows of those that run and those that come."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bench.load.objects import GANG, RUN
from serried.kube.reflector import Deleted, Event, Upserted
from serried.kube.wire import JSON


@dataclass(slots=True)
class Life:
    """One pod: its gang ("" for none), and when it was first seen running, bound, and ending or gone (None: never)."""

    gang: str = ""
    running: float | None = None
    bound: float | None = None
    ended: float | None = None


class Watch:
    """The sink of a Reflector of pods; those that come have ``label``.

    ``running`` and ``coming`` are how many of each are waited for.
    """

    def __init__(self, label: str, running: int, coming: int, clock: Callable[[], float]) -> None:
        self.all_run = asyncio.Event()
        self.all_bound = asyncio.Event()
        self.runners: dict[str, Life] = {}
        """By UID, also those that have ended."""
        self.comers: dict[str, Life] = {}
        """By UID."""
        self._label = label
        self._not_running = running
        self._not_bound = coming
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Note what is new about one pod."""
        if isinstance(event, Upserted):
            self._see(event.obj)
        elif isinstance(event, Deleted):
            uid = event.obj["metadata"]["uid"]
            self._end(self.runners.get(uid) or self.comers.get(uid) or Life())

    def _see(self, pod: JSON) -> None:
        metadata = pod["metadata"]
        run = metadata["labels"][RUN]
        gang = metadata["labels"].get(GANG, "")
        lives = self.comers if run == self._label else self.runners
        life = lives.setdefault(metadata["uid"], Life(gang and f"{run}/{gang}"))
        if lives is self.runners and life.running is None and pod.get("status", {}).get("phase") == "Running":
            life.running = self._clock()
            self._not_running -= 1
            if not self._not_running:
                self.all_run.set()
        if lives is self.comers and life.bound is None and pod["spec"].get("nodeName"):
            life.bound = self._clock()
            self._not_bound -= 1
            if not self._not_bound:
                self.all_bound.set()
        if "deletionTimestamp" in metadata:
            self._end(life)

    def _end(self, life: Life) -> None:
        if life.ended is None:
            life.ended = self._clock()
