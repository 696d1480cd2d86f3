"""The figures of a phase, computed from times and from metrics before and after it. Pure."""

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
    """The syncs of a controller, from its own histogram. Times are seconds."""

    count: int
    mean: float
    p99_at_most: float
    """Upper bound of the bucket with the 99th percentile."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The figures of one batch of Jobs, from its first create until no more objects are written.

    Times of objects count from just before the Job's create is sent, until a watch shows the first object of the Job.
    A figure is None if there were no such objects.
    """

    name: str
    kind: Kind
    state: State
    jobs: int

    rate: float
    """The real rate of the creates, in Jobs per second."""

    creates: Marks | None
    """The times of the creates of Jobs."""

    workloads: Marks | None
    pod_groups: Marks | None
    pods: Marks | None

    last: float | None
    """Seconds from the first create to the last PodGroup."""

    manager_syncs: Syncs | None
    """Job syncs of kube-controller-manager."""

    controller_syncs: Syncs | None
    """Syncs of Serried's controller; None while it is stopped."""

    writes: Mapping[str, int]
    """The API server's count of writes, by verb and resource, without Leases."""

    controller_writes: Mapping[str, int] | None
    """The controller's own count of its writes; None while it is stopped."""

    wanted_rate: float | None = None
    """The rate that was asked for; None for creates without pauses."""

    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds until the last object existed, by process."""

    others_share: float = 0.0
    """The share of all cores that other work took in that time, from 0 to 1."""

    @property
    def creates_per_job(self) -> float:
        """Creates of Workloads and PodGroups per Job, including rejected ones."""
        return (self.writes.get("POST workloads", 0) + self.writes.get("POST podgroups", 0)) / self.jobs

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return asdict(self) | {"creates_per_job": self.creates_per_job}


@dataclass(frozen=True, slots=True)
class Rest:
    """The writes in ``seconds`` in which no client created or changed anything, without Leases."""

    seconds: float
    controller_writes: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def controller_rate(self) -> float:
        """The controller's writes per second."""
        return sum(self.controller_writes.values()) / self.seconds


@dataclass(frozen=True, slots=True)
class Restart:
    """The figures of a restart of the controller."""

    seconds: float
    """Seconds from the start to readiness."""

    writes: Mapping[str, int]
    """The controller's writes since the start."""

    rss: float
    """Resident memory in bytes."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The controller's resident memory in bytes: before the Jobs, and after all of their objects were written."""

    before: float
    after: float

    @property
    def more(self) -> float:
        """The growth in MB (10^6 bytes)."""
        return (self.after - self.before) / 1e6


def mark(seconds: Sequence[float]) -> Marks | None:
    """Return the percentiles of these times; None without times."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p90, p99 = (percentile(ordered, percent) or 0.0 for percent in (50, 90, 99))
    return Marks(len(ordered), p50, p90, p99, ordered[-1])


def mark_since(sent: Mapping[str, float], seen: Mapping[str, float]) -> Marks | None:
    """Return the percentiles of the times from ``sent`` to ``seen``, for the names that both have."""
    return mark([seen[name] - begun for name, begun in sent.items() if name in seen])


def describe_syncs(spent: Histogram) -> Syncs | None:
    """Return count, mean and 99th percentile of a histogram; None if it is empty."""
    mean, bound = spent.mean, spent.bound(99)
    return None if mean is None or bound is None else Syncs(int(spent.count), mean, bound)


def without_leases(writes: Mapping[str, int]) -> Counter[str]:
    """Return the writes without those of Leases, which schedulers and API servers renew all the time."""
    return Counter({what: count for what, count in writes.items() if count and not what.endswith(" leases")})
