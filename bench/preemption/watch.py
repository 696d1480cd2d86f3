"""Record when a watch shows running pods ending, and preemptors bound."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bench.load.objects import GANG, RUN
from serried.kube.reflector import Deleted, Event, Upserted
from serried.kube.wire import JSON


@dataclass(slots=True)
class Life:
    """The history of one pod. A time is None if the event was not seen."""

    gang: str = ""
    """Name of the pod's gang, "" for a plain pod."""

    running: float | None = None
    """The time at which a running pod was first seen in phase Running."""

    bound: float | None = None
    """The time at which a preemptor's pod was first seen bound."""

    ended: float | None = None
    """The time at which the pod was first seen with a deletionTimestamp, or deleted."""


class Watch:
    """The sink of a Reflector of one run's pods. Pods with the label value ``label`` are the preemptors'.

    ``running`` and ``coming`` are the expected numbers of running pods and of preemptors' pods.
    """

    def __init__(self, label: str, running: int, coming: int, clock: Callable[[], float]) -> None:
        self.all_run = asyncio.Event()
        """Set once all running pods run."""
        self.all_bound = asyncio.Event()
        """Set once all preemptors' pods are bound."""
        self.candidates: dict[str, Life] = {}
        """The running pods by UID, including those that have ended."""
        self.preemptors: dict[str, Life] = {}
        """The preemptors' pods by UID."""
        self._label = label
        self._not_running = running
        self._not_bound = coming
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Record a pod that runs, was bound, or ends."""
        if isinstance(event, Upserted):
            self._record(event.obj)
        elif isinstance(event, Deleted):
            uid = event.obj["metadata"]["uid"]
            self._end(self.candidates.get(uid) or self.preemptors.get(uid) or Life())

    def _record(self, pod: JSON) -> None:
        metadata = pod["metadata"]
        run = metadata["labels"][RUN]
        gang = metadata["labels"].get(GANG, "")
        lives = self.preemptors if run == self._label else self.candidates
        life = lives.setdefault(metadata["uid"], Life(gang and f"{run}/{gang}"))
        if lives is self.candidates and life.running is None and pod.get("status", {}).get("phase") == "Running":
            life.running = self._clock()
            self._not_running -= 1
            if not self._not_running:
                self.all_run.set()
        if lives is self.preemptors and life.bound is None and pod["spec"].get("nodeName"):
            life.bound = self._clock()
            self._not_bound -= 1
            if not self._not_bound:
                self.all_bound.set()
        if "deletionTimestamp" in metadata:
            self._end(life)

    def _end(self, life: Life) -> None:
        if life.ended is None:
            life.ended = self._clock()
