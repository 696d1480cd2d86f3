"""Compute the longest possible time without a Binding, from the shipped probes and election settings. Pure.

A scheduler that is ended by its liveness probe releases the Lease, and its kubelet starts it again at once. So two
schedulers race for the Lease: the standby, with its next attempt, and the restarted one. If the restarted one wins, it
leads until its probe has failed again. Then its kubelet waits before the second restart (back-off), so the standby
acquires the Lease. The bounds include this lost race.
"""

from dataclasses import dataclass

import yaml

from bench.cluster.installation import MANIFESTS
from bench.failover.pods import Probe, read_pod

CONFIG = MANIFESTS / "kustomize" / "scheduler" / "scheduler-config.yaml"

_JITTER = 2.2
"""The longest pause between two attempts of a standby, in retry periods (client-go: JitterFactor is 1.2)."""

_START_SECONDS = 2.0
"""Seconds from the end of a scheduler until it has restarted and tries to acquire the Lease."""

_FIRST_SECONDS = 1.5
"""Seconds from the Lease to the first Binding. The first attempt may fail, because the extender does not know the new
leader yet; the next one is 1 s later."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The shipped settings on which the time of a failover depends. Times are seconds."""

    lease: float
    """leaseDuration of the scheduler's election."""

    retry: float
    """retryPeriod of the scheduler's election."""

    startup: Probe
    """The scheduler's startup probe."""

    liveness: Probe
    """The scheduler's liveness probe, which also checks the extender."""

    @property
    def attempt(self) -> float:
        """The longest time until the next attempt of a standby to acquire the Lease."""
        return _JITTER * self.retry

    @property
    def ended(self) -> float:
        """The longest time until the kubelet ends a scheduler whose liveness probe fails at once."""
        return self.liveness.period * self.liveness.failures

    @property
    def lost_race(self) -> float:
        """The additional time if the restarted scheduler acquires the Lease before the standby."""
        return _START_SECONDS + self.startup.period


def read_pace() -> Pace:
    """Read the settings of the shipped pair from the manifests. Raise ValueError if the scheduler has no probes."""
    election = yaml.safe_load(CONFIG.read_text())["leaderElection"]
    lease, retry = (float(election[name].removesuffix("s")) for name in ("leaseDuration", "retryPeriod"))
    (scheduler,) = [each for each in read_pod("serried.yaml", "serried") if each.name == "scheduler"]
    if scheduler.startup is None or scheduler.liveness is None:
        raise ValueError("the scheduler has no probes")
    return Pace(lease, retry, scheduler.startup, scheduler.liveness)


def bounds(pace: Pace) -> dict[str, float]:
    """Return the longest time from a strike to the next Binding for each way, in seconds."""
    probe_fails = 2 * pace.ended + pace.lost_race + pace.attempt + _FIRST_SECONDS
    # The standby observes the last renewal up to one attempt late, and the expiry up to another one.
    lease_expires = pace.lease + 2 * pace.attempt + _FIRST_SECONDS
    return {
        "extender": probe_fails,
        "loop": probe_fails,
        "frozen": probe_fails + 2 * pace.liveness.timeout,
        "scheduler": lease_expires,
        "stopped": lease_expires,
        "both": lease_expires,
        "node": lease_expires,
        "update": pace.attempt + _FIRST_SECONDS,
    }
