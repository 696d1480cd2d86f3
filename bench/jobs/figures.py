"""What a phase shows, computed from times and from metrics before and after it. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.jobs.objects import Kind, State
from bench.jobs.scrape import Histogram
from bench.load.figures import percentile


@dataclass(frozen=True, slots=True)
class Marks:
    """Percentiles of ``count`` times, in seconds."""

    count: int
    p50: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Syncs:
    """A controller's own histogram of its syncs: mean, and the bucket that holds the 99th percentile, in seconds."""

    count: int
    mean: float
    p99_at_most: float


@dataclass(frozen=True, slots=True)
class Phase:
    """One batch of Jobs, from its first create until everything stood still.

    ``wanted_rate`` is None for "as fast as the API server takes them"; ``rate`` is what the creates really had. The
    times of ``workloads``, ``pod_groups`` and ``pods`` begin before the Job's create is sent, which ``creates`` times
    too, and end when a watch shows the first such object of the Job. ``last`` is from the first create to the last
    PodGroup. ``writes`` are the API server's count, ``controller_writes`` the controller's own (None while it is
    stopped). ``cpu_seconds`` and ``others_share``, the part of the machine that other work took, are those until the
    last object was there.
    """

    name: str
    kind: Kind
    state: State
    jobs: int
    rate: float
    creates: Marks | None
    workloads: Marks | None
    pod_groups: Marks | None
    pods: Marks | None
    last: float | None
    manager_syncs: Syncs | None
    controller_syncs: Syncs | None
    writes: Mapping[str, int]
    controller_writes: Mapping[str, int] | None
    wanted_rate: float | None = None
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    others_share: float = 0.0

    @property
    def creates_per_job(self) -> float:
        """Creates of Workloads and PodGroups for each Job, refused ones among them."""
        return (self.writes.get("POST workloads", 0) + self.writes.get("POST podgroups", 0)) / self.jobs

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"creates_per_job": self.creates_per_job}


@dataclass(frozen=True, slots=True)
class Rest:
    """What was written in ``seconds`` in which nobody asked for anything; Leases are not counted."""

    seconds: float
    controller_writes: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def controller_rate(self) -> float:
        """The controller's writes a second."""
        return sum(self.controller_writes.values()) / self.seconds


@dataclass(frozen=True, slots=True)
class Restart:
    """The controller ended and started again: seconds from its start to ready, then its writes; RSS in bytes."""

    seconds: float
    writes: Mapping[str, int]
    rss: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The controller's resident memory in bytes: before the Jobs, and when all of it stood still."""

    before: float
    after: float

    @property
    def more(self) -> float:
        """What the Jobs have cost, in MB (10^6 bytes)."""
        return (self.after - self.before) / 1e6


def mark(seconds: Sequence[float]) -> Marks | None:
    """The marks of these times; None of none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p90, p99 = (percentile(ordered, percent) or 0.0 for percent in (50, 90, 99))
    return Marks(len(ordered), p50, p90, p99, ordered[-1])


def mark_since(sent: Mapping[str, float], seen: Mapping[str, float]) -> Marks | None:
    """The marks of the times from ``sent`` to ``seen``, of the names that both have."""
    return mark([seen[name] - begun for name, begun in sent.items() if name in seen])


def describe_syncs(spent: Histogram) -> Syncs | None:
    """What a histogram says of one phase; None if there was no sync."""
    mean, bound = spent.mean, spent.bound(99)
    return None if mean is None or bound is None else Syncs(int(spent.count), mean, bound)


def without_leases(writes: Mapping[str, int]) -> Counter[str]:
    """The writes but for the Leases, by which schedulers and API servers say that they live."""
    return Counter({what: count for what, count in writes.items() if count and not what.endswith(" leases")})
