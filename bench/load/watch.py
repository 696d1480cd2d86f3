"""Record when a watch shows the pods of one run, and their Bindings."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bench.load.figures import Life
from bench.load.objects import GANG
from serried.kube.reflector import Event, Upserted
from serried.kube.wire import JSON


class Watch:
    """The sink of a Reflector of one run's pods."""

    def __init__(self, expected: int, clock: Callable[[], float]) -> None:
        self.complete = asyncio.Event()
        """Set once ``expected`` pods are bound."""

        self._expected = expected
        self._clock = clock
        self._lives: dict[str, Life] = {}
        self._bound = 0

    @property
    def bound(self) -> int:
        """Number of pods that were seen bound."""
        return self._bound

    @property
    def lives(self) -> list[Life]:
        """The histories of all pods that were created or seen."""
        return list(self._lives.values())

    def created(self, name: str, gang: str) -> None:
        """Record that a pod is created now. Call this before sending the create."""
        self._lives[name] = Life(gang, self._clock())

    def restart(self) -> None:
        """Count every pod as created and seen now."""
        now = self._clock()
        self._lives = {name: replace(life, created=now, seen=now) for name, life in self._lives.items()}

    def __call__(self, event: Event) -> None:
        """Record a pod that is new, or newly bound."""
        if isinstance(event, Upserted):
            self._record(event.obj)

    def _record(self, pod: JSON) -> None:
        metadata, node, now = pod["metadata"], pod["spec"].get("nodeName", ""), self._clock()
        # Pods of a Job were not created here, so their first event counts as their creation.
        life = self._lives.get(metadata["name"]) or Life(metadata.get("labels", {}).get(GANG, ""), now)
        if life.seen is None:
            life = replace(life, seen=now)
        if node and life.bound is None:
            life = replace(life, bound=now, node=node)
            self._bound += 1
        self._lives[metadata["name"]] = life
        if self._bound >= self._expected:
            self.complete.set()
