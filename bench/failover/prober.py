"""Schedule a probe and count its failures, as the kubelet does (pkg/kubelet/prober/worker.go). Pure."""

from bench.failover.pods import Probe


class Worker:
    """Schedules one probe of one container. A new one is made at each start of the container."""

    def __init__(self, probe: Probe | None) -> None:
        self.probe = probe
        """The probe to schedule; None if the container has no such probe, so that it is never due."""

        self._next = 0.0
        self._failures = 0

    def is_due(self, now: float) -> bool:
        """Return whether the probe is due at ``now`` (seconds). If so, the next one is scheduled."""
        if self.probe is None or now < self._next:
            return False
        # Like Go's ticker in the kubelet: a late reader gets one missed tick, and further ones are dropped.
        begun = self._next or now
        self._next = begun + self.probe.period * ((now - begun) // self.probe.period + 1)
        return True

    def has_failed(self, *, passed: bool) -> bool:
        """Count a result. Return whether the probe has now failed as often in a row as its threshold."""
        self._failures = 0 if passed else self._failures + 1
        return self.probe is not None and self._failures >= self.probe.failures
