"""Compute the figures of a run from the times at which each pod was created and bound. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.load.objects import Gang


@dataclass(frozen=True, slots=True)
class Life:
    """The history of one pod. Times are seconds of the monotonic clock."""

    gang: str
    """Name of the pod's gang, "" for a plain pod."""

    created: float
    bound: float | None = None
    """The time at which the watch showed the pod bound; None if it never did."""

    node: str = ""
    seen: float | None = None
    """The time at which the watch first showed the pod; None if it never did."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. Times are seconds; a figure is None if there is nothing to compute it from."""

    pods: int
    bound: int

    seconds: float
    """Time from the first create to the last Binding."""

    create_seconds: float
    """Time from the first create to the answer to the last one."""

    pods_per_second: float

    partial_gang_seconds: float
    """Sum over all gangs of the time in which some, but not all, members were bound."""

    longest_burst: float
    """The longest time from the first to the last Binding of one gang."""

    split_gangs: int
    """Number of gangs with a topology key that run in more than one domain."""

    p50: float | None
    """Median time of a pod from its create to its Binding; p95 and p99 likewise."""

    p95: float | None
    p99: float | None
    last_create_to_last_bind: float | None = None

    plain_p50: float | None = None
    """Median time of a plain pod from its create to its Binding."""

    plain_p99: float | None = None

    quorum_p50: float | None = None
    """Median time of a gang from the watch's event of its last member to the event of its last Binding."""

    quorum_p99: float | None = None

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON, rounded to milliseconds."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Span:
    """The times of one run, in seconds of the monotonic clock."""

    start: float
    """The first create."""

    created: float
    """The answer to the last create."""

    end: float
    """The end of the watch."""


def compute_figures(lives: Sequence[Life], gangs: Iterable[Gang], domains: Mapping[str, str], span: Span) -> Figures:
    """Return the figures of one run. ``domains`` is the value of the topology key by node name."""
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
    """Return the seconds from the last member's first event to the last Binding; None unless all members are bound."""
    bound = [life.bound for life in members if life.bound is not None]
    if not members or len(bound) < len(members):
        return None
    return max(bound) - max(life.created if life.seen is None else life.seen for life in members)


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return a percentile of sorted values by the nearest-rank method; None if there are no values."""
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
