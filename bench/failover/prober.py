"""When a probe is due, and whether it has failed too often, as in the kubelet (pkg/kubelet/prober/worker.go). Pure."""

from bench.failover.pods import Probe


class Worker:
    """Counts for one probe of one container, from its start on."""

    def __init__(self, probe: Probe | None) -> None:
        self.probe = probe
        """None where the container has none: that is never due."""

        self._next = 0.0
        self._failures = 0

    def is_due(self, now: float) -> bool:
        """Whether it is due; then it counts as made."""
        if self.probe is None or now < self._next:
            return False
        # A ticker keeps one tick for a reader that is late, and drops the others.
        begun = self._next or now
        self._next = begun + self.probe.period * ((now - begun) // self.probe.period + 1)
        return True

    def has_failed(self, *, passed: bool) -> bool:
        """Whether with this result it has failed as often in a row as it may."""
        self._failures = 0 if passed else self._failures + 1
        return self.probe is not None and self._failures >= self.probe.failures
