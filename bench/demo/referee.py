"""Watches the demo's pods and keeps the promises' score: no half-started gang, no gang in two domains. No I/O."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bench.load.objects import GANG, Gang
from serried.kube.reflector import Deleted, Event, Upserted
from serried.kube.wire import JSON


@dataclass(slots=True)
class _Score:
    gang: Gang
    nodes: dict[str, str] = field(default_factory=dict)
    first: float | None = None
    whole: float | None = None
    domains: set[str] = field(default_factory=set)
    leaving: bool = False


class Referee:
    """The sink of a Reflector of pods. ``domains`` is the value of the topology key by node name.

    A gang may take 10 s and 1 s per 200 members from its first to its last bind; it is half-started when that is over.
    How fast gangs start is measured elsewhere (`bench.throughput`): a laptop with other work may be slow.
    """

    def __init__(self, gangs: Iterable[Gang], domains: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._scores = {gang.name: _Score(gang) for gang in gangs}
        self._domains = domains
        self._clock = clock
        self._plain: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Note where a pod runs, or that it is gone."""
        if isinstance(event, Upserted):
            self._see(event.obj)
        elif isinstance(event, Deleted):
            self._forget(event.obj)

    def dismiss(self, gang: Gang) -> None:
        """A gang is about to be deleted: it goes pod by pod, and that is no broken promise."""
        self._scores[gang.name].leaving = True

    @property
    def plain(self) -> int:
        """How many plain pods are bound."""
        return len(self._plain)

    def bound(self, gang: Gang) -> int:
        """How many members are bound."""
        return len(self._scores[gang.name].nodes)

    def whole(self, gang: Gang) -> bool:
        """Whether all members are bound."""
        return self.bound(gang) >= gang.size

    def burst(self, gang: Gang) -> float | None:
        """Seconds from the first to the last bind of a gang; None before."""
        score = self._scores[gang.name]
        return None if score.first is None or score.whole is None else score.whole - score.first

    def find_breaches(self) -> list[str]:
        """The promises that are broken at this moment, one sentence each."""
        return [sentence for score in self._scores.values() for sentence in self._judge(score)]

    def _judge(self, score: _Score) -> list[str]:
        gang, breaches = score.gang, []
        if gang.key and len(score.domains) > 1:
            breaches.append(f"{gang.name} ran in more than one domain: {', '.join(sorted(score.domains))}")
        allowed = 10.0 + gang.size / 200
        took = (score.whole if score.whole is not None else self._clock()) - (score.first or 0.0)
        if score.first is not None and not score.leaving and took > allowed:
            breaches.append(f"{gang.name} was half-started for {took:.1f} s, allowed are {allowed:.1f} s")
        return breaches

    def _see(self, pod: JSON) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        if not node:
            return
        score = self._scores.get(metadata.get("labels", {}).get(GANG, ""))
        if score is None:
            self._plain.add(metadata["name"])
        elif metadata["name"] not in score.nodes:
            self._count(score, metadata["name"], node)

    def _count(self, score: _Score, name: str, node: str) -> None:
        score.nodes[name] = node
        score.domains.add(self._domains.get(node, ""))
        score.first = self._clock() if score.first is None else score.first
        if len(score.nodes) >= score.gang.size and score.whole is None:
            score.whole = self._clock()

    def _forget(self, pod: JSON) -> None:
        name = pod["metadata"]["name"]
        self._plain.discard(name)
        for score in self._scores.values():
            score.nodes.pop(name, None)
