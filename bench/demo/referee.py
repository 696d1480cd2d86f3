"""Check the demo's pods for broken promises: a gang that is bound in part for too long, or in two domains. No I/O."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bench.load.objects import GANG, Gang
from serried.kube.reflector import Deleted, Event, Upserted
from serried.kube.wire import JSON


@dataclass(slots=True)
class _Score:
    """The state of one gang."""

    gang: Gang

    nodes: dict[str, str] = field(default_factory=dict)
    """By name of a bound pod: its node."""

    first: float | None = None
    """The time of the first Binding; None before."""

    whole: float | None = None
    """The time of the last Binding; None before."""

    domains: set[str] = field(default_factory=set)
    """All domains in which members were bound, including deleted ones."""

    leaving: bool = False
    """True once the gang may be deleted."""


class Referee:
    """The sink of a Reflector of pods. ``domains`` is the value of the topology key by node name.

    A gang may be bound in part for 10 s plus 1 s per 200 members. That is generous, because the demo may run on a
    laptop with other work; `bench.throughput` measures how fast gangs really start.
    """

    def __init__(self, gangs: Iterable[Gang], domains: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._scores = {gang.name: _Score(gang) for gang in gangs}
        self._domains = domains
        self._clock = clock
        self._plain: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Record a pod that was bound or deleted."""
        if isinstance(event, Upserted):
            self._add(event.obj)
        elif isinstance(event, Deleted):
            self._remove(event.obj)

    def expect_deletion(self, gang: Gang) -> None:
        """Ignore from now on that a gang is bound in part: it will be deleted pod by pod."""
        self._scores[gang.name].leaving = True

    @property
    def plain(self) -> int:
        """Number of bound plain pods."""
        return len(self._plain)

    def bound(self, gang: Gang) -> int:
        """Return the number of bound members."""
        return len(self._scores[gang.name].nodes)

    def whole(self, gang: Gang) -> bool:
        """Return whether all members are bound."""
        return self.bound(gang) >= gang.size

    def burst(self, gang: Gang) -> float | None:
        """Return the seconds from the first to the last Binding of a gang; None until all members are bound."""
        score = self._scores[gang.name]
        return None if score.first is None or score.whole is None else score.whole - score.first

    def find_breaches(self) -> list[str]:
        """Return one sentence for each promise that is broken now."""
        return [sentence for score in self._scores.values() for sentence in self._check(score)]

    def _check(self, score: _Score) -> list[str]:
        gang, breaches = score.gang, []
        if gang.key and len(score.domains) > 1:
            breaches.append(f"{gang.name} ran in more than one domain: {', '.join(sorted(score.domains))}")
        allowed = 10.0 + gang.size / 200
        took = (score.whole if score.whole is not None else self._clock()) - (score.first or 0.0)
        if score.first is not None and not score.leaving and took > allowed:
            breaches.append(f"{gang.name} was half-started for {took:.1f} s, allowed are {allowed:.1f} s")
        return breaches

    def _add(self, pod: JSON) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        if not node:
            return
        score = self._scores.get(metadata.get("labels", {}).get(GANG, ""))
        if score is None:
            self._plain.add(metadata["name"])
        elif metadata["name"] not in score.nodes:
            self._add_member(score, metadata["name"], node)

    def _add_member(self, score: _Score, name: str, node: str) -> None:
        score.nodes[name] = node
        score.domains.add(self._domains.get(node, ""))
        score.first = self._clock() if score.first is None else score.first
        if len(score.nodes) >= score.gang.size and score.whole is None:
            score.whole = self._clock()

    def _remove(self, pod: JSON) -> None:
        name = pod["metadata"]["name"]
        self._plain.discard(name)
        for score in self._scores.values():
            score.nodes.pop(name, None)
