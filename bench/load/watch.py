"""The lives of one run's pods, as a watch sees them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bench.load.figures import Life
from bench.load.objects import GANG
from serried.kube.reflector import Event, Upserted
from serried.kube.wire import JSON


class Watch:
    """The sink of a Reflector of pods; ``expected`` pods make the run complete."""

    def __init__(self, expected: int, clock: Callable[[], float]) -> None:
        self.complete = asyncio.Event()
        self._expected = expected
        self._clock = clock
        self._lives: dict[str, Life] = {}
        self._bound = 0

    @property
    def bound(self) -> int:
        """How many pods were seen bound."""
        return self._bound

    @property
    def lives(self) -> list[Life]:
        """Every pod that was created or seen."""
        return list(self._lives.values())

    def created(self, name: str, gang: str) -> None:
        """A pod is about to be created."""
        self._lives[name] = Life(gang, self._clock())

    def restart(self) -> None:
        """Count every pod as created and seen now."""
        now = self._clock()
        self._lives = {name: replace(life, created=now, seen=now) for name, life in self._lives.items()}

    def __call__(self, event: Event) -> None:
        """Note a pod that is new, or newly bound."""
        if isinstance(event, Upserted):
            self._see(event.obj)

    def _see(self, pod: JSON) -> None:
        metadata, node, now = pod["metadata"], pod["spec"].get("nodeName", ""), self._clock()
        # Pods of a Job are first heard of here.
        life = self._lives.get(metadata["name"]) or Life(metadata.get("labels", {}).get(GANG, ""), now)
        if life.seen is None:
            life = replace(life, seen=now)
        if node and life.bound is None:
            life = replace(life, bound=now, node=node)
            self._bound += 1
        self._lives[metadata["name"]] = life
        if self._bound >= self._expected:
            self.complete.set()
