"""Excuses for a wait: the times at which something was down, and for how long after it had come back. Pure.

A *recovery* is the time from the signal to a process of the control plane, or of ours, until ``SETTLE_SECONDS`` after
it is ready again. Of a gang it is also the time until ``TAMPERED_SECONDS`` after one of its own requests was tampered
with on the way. All times are of one monotonic clock.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

SETTLE_SECONDS = 8.0
"""The time after a restart until everything works as before."""

TAMPERED_SECONDS = 15.0
"""The time for which a gang may feel that one of its requests was refused, lost or delayed."""

SPLIT_BRAIN = "split brain"
"""Two extenders that are active at once, as if a component were down."""

CLOCK = "clock"
"""The wall clocks of ours are wrong, as if a component were down: by one that is ahead nobody leads."""

SILENCE = "silent watches"
"""No watch shows the extender anything, as if a component were down: it sees no Lease that is renewed."""

BINDING = frozenset({"extender", "scheduler", "kube-apiserver", "etcd", SPLIT_BRAIN, CLOCK, SILENCE})
"""The components and faults that prevent a gang from being bound."""

SIGHT = "sight"
"""Of some kind of objects the extender is shown nothing: of a pod that it does not know it can say nothing."""

TELLING = BINDING | {SIGHT}
"""The components and faults that prevent a reason from being reported, or a nomination from being removed."""

ANYTHING = BINDING | {"controller"}
"""The components and faults that also prevent a finalizer from being removed."""

Span = tuple[float, float]


@dataclass(slots=True)
class Excuses:
    """The components that are down, were down, and the requests that were tampered with."""

    down: dict[str, float] = field(default_factory=dict)
    """The components that are down, with the time of their fall."""

    past: list[tuple[str, float, float]] = field(default_factory=list)
    """The components that have come back: name, begin, end."""

    tampered: dict[str, list[float]] = field(default_factory=dict)
    """The times at which requests were tampered with, by the object in their path."""

    last_fault: float = 0.0
    """The time of the last fault of any kind."""

    def fall(self, component: str, now: float) -> None:
        """A component is down, or stands still."""
        self.down.setdefault(component, now)
        self.last_fault = now

    def rise(self, component: str, now: float) -> None:
        """A component is ready again."""
        if component in self.down:
            self.past.append((component, self.down.pop(component), now))
            self.last_fault = now

    def tamper(self, subject: str, now: float) -> None:
        """A request about an object was tampered with."""
        self.tampered.setdefault(subject, []).append(now)
        self.last_fault = now

    def count_clear(
        self, since: float, now: float, subjects: Iterable[str] = (), components: Collection[str] = BINDING
    ) -> float:
        """Return the seconds between two moments outside of recoveries.

        Tampered requests count only if they are about one of the ``subjects``.
        """
        spans = [(begun, ended + SETTLE_SECONDS) for name, begun, ended in self.past if name in components]
        spans += [(begun, now) for name, begun in self.down.items() if name in components]
        for subject in subjects:
            spans += [(at, at + TAMPERED_SECONDS) for at in self.tampered.get(subject, ())]
        return (now - since) - _measure(spans, since, now)

    def was_split(self, since: float) -> bool:
        """Return whether two extenders were active at some moment since then."""
        if SPLIT_BRAIN in self.down:
            return True
        return any(name == SPLIT_BRAIN and since <= ended + SETTLE_SECONDS for name, _, ended in self.past)


def _measure(spans: Iterable[Span], since: float, now: float) -> float:
    """Return how many seconds from ``since`` to ``now`` the spans cover together."""
    covered, reached = 0.0, since
    for begun, ended in sorted(spans):
        begin, end = max(begun, reached), min(ended, now)
        if end > begin:
            covered += end - begin
            reached = end
    return covered
