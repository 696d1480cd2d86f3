"""What a run shows, computed from when each pod was created and seen bound. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.load.objects import Gang


@dataclass(frozen=True, slots=True)
class Life:
    """One pod: its gang ("" for a plain pod), when it was created and bound (None: never), and where.

    ``seen`` is when the watch showed it first.
    """

    gang: str
    created: float
    bound: float | None = None
    node: str = ""
    seen: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's results; times in seconds.

    ``seconds`` is first create to last bind, ``create_seconds`` first create to the answer of the last one.
    ``partial_gang_seconds`` is the sum over gangs of the time with 0 < bound < size; ``longest_burst`` the longest time
    from first to last bind of one gang. ``split_gangs`` is the number of gangs with a key that run in more than one
    domain. ``p50`` to ``p99`` are of create to bind of one pod, ``plain_`` those of pods of no gang. ``quorum_`` are of
    one gang, from when the watch shows its last member to when it shows the last one bound. None is said of nothing.
    """

    pods: int
    bound: int
    seconds: float
    create_seconds: float
    pods_per_second: float
    partial_gang_seconds: float
    longest_burst: float
    split_gangs: int
    p50: float | None
    p95: float | None
    p99: float | None
    last_create_to_last_bind: float | None = None
    plain_p50: float | None = None
    plain_p99: float | None = None
    quorum_p50: float | None = None
    quorum_p99: float | None = None

    def describe(self) -> dict[str, Any]:
        """The figures as JSON, to the millisecond."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Span:
    """A run on the clock: first create, answer of the last create, end of the watch."""

    start: float
    created: float
    end: float


def compute_figures(lives: Sequence[Life], gangs: Iterable[Gang], domains: Mapping[str, str], span: Span) -> Figures:
    """The figures of one run; ``domains`` is the value of the topology key by node name."""
    bound = [life.bound for life in lives if life.bound is not None]
    seconds = max(bound) - span.start if bound else 0.0
    waits, plain_waits = _waits(lives), _waits([life for life in lives if not life.gang])
    members = {gang: [life for life in lives if life.gang == gang.name] for gang in gangs}
    quorums = sorted(found for lives in members.values() if (found := _quorum_seconds(lives)) is not None)
    return Figures(
        pods=len(lives),
        bound=len(bound),
        seconds=seconds,
        create_seconds=span.created - span.start,
        pods_per_second=len(bound) / seconds if seconds > 0 else 0.0,
        partial_gang_seconds=sum(_partial_seconds(gang, found, span.end) for gang, found in members.items()),
        longest_burst=max((_burst(found) for found in members.values()), default=0.0),
        split_gangs=sum(_is_split(gang, found, domains) for gang, found in members.items()),
        p50=percentile(waits, 50),
        p95=percentile(waits, 95),
        p99=percentile(waits, 99),
        last_create_to_last_bind=max(bound) - span.created if bound else None,
        plain_p50=percentile(plain_waits, 50),
        plain_p99=percentile(plain_waits, 99),
        quorum_p50=percentile(quorums, 50),
        quorum_p99=percentile(quorums, 99),
    )


def _waits(lives: Iterable[Life]) -> list[float]:
    return sorted(life.bound - life.created for life in lives if life.bound is not None)


def _quorum_seconds(members: Sequence[Life]) -> float | None:
    """From when the last member was seen until the last one was bound; None for a gang that is not bound whole."""
    bound = [life.bound for life in members if life.bound is not None]
    if not members or len(bound) < len(members):
        return None
    return max(bound) - max(life.created if life.seen is None else life.seen for life in members)


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least ``percent`` of the values do not exceed (nearest rank); None of none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def _partial_seconds(gang: Gang, members: Sequence[Life], end: float) -> float:
    bound = sorted(life.bound for life in members if life.bound is not None)
    if not bound:
        return 0.0
    return (bound[gang.size - 1] if len(bound) >= gang.size else end) - bound[0]


def _burst(members: Sequence[Life]) -> float:
    bound = [life.bound for life in members if life.bound is not None]
    return max(bound) - min(bound) if bound else 0.0


def _is_split(gang: Gang, members: Sequence[Life], domains: Mapping[str, str]) -> bool:
    return bool(gang.key) and len({domains.get(life.node, "") for life in members if life.bound is not None}) > 1
