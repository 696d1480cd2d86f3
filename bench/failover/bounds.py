"""How long nothing is bound at most, on paper: by the probes and the pace of the election that are shipped. Pure.

A scheduler that is ended by its probe gives the Lease up, and its kubelet starts it again at once. So two race for the
Lease: the standby, at its next look, and the struck one, once it has started. If the struck one wins, it leads until
its probe has failed as often again. Then its kubelet waits before it starts it once more, so the standby has the Lease.
The bounds count that lost race.
"""

from dataclasses import dataclass

import yaml

from bench.cluster.installation import MANIFESTS
from bench.failover.pods import Probe, read_pod

CONFIG = MANIFESTS / "kustomize" / "scheduler" / "scheduler-config.yaml"

_JITTER = 2.2
"""The longest pause of a standby between two looks, in retry periods (client-go: JitterFactor is 1.2)."""

_START_SECONDS = 2.0
"""From the end of a scheduler until it has started again and asks for the Lease."""

_FIRST_SECONDS = 1.5
"""From the Lease to the first Binding: the first attempt may come before the extender knows; the next is 1 s later."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What is shipped; times in seconds."""

    lease: float
    retry: float
    startup: Probe
    """Of the scheduler."""

    liveness: Probe
    """Of the scheduler: the one that asks after the pair."""

    @property
    def look(self) -> float:
        """The longest time until a standby looks."""
        return _JITTER * self.retry

    @property
    def ended(self) -> float:
        """The longest time until a scheduler is ended whose probe is refused."""
        return self.liveness.period * self.liveness.failures

    @property
    def lost_race(self) -> float:
        """By how much it takes longer where the struck scheduler is faster than the standby."""
        return _START_SECONDS + self.startup.period


def read_pace() -> Pace:
    """The pace of the shipped pair."""
    election = yaml.safe_load(CONFIG.read_text())["leaderElection"]
    lease, retry = (float(election[name].removesuffix("s")) for name in ("leaseDuration", "retryPeriod"))
    (scheduler,) = [each for each in read_pod("serried.yaml", "serried") if each.name == "scheduler"]
    if scheduler.startup is None or scheduler.liveness is None:
        raise ValueError("the scheduler has no probes")
    return Pace(lease, retry, scheduler.startup, scheduler.liveness)


def bounds(pace: Pace) -> dict[str, float]:
    """The longest time of each way, in seconds."""
    refused = 2 * pace.ended + pace.lost_race + pace.look + _FIRST_SECONDS
    # The standby sees the last renewal one look late, and the end of the Lease another one.
    run_out = pace.lease + 2 * pace.look + _FIRST_SECONDS
    return {
        "extender": refused,
        "loop": refused,
        "frozen": refused + 2 * pace.liveness.timeout,
        "scheduler": run_out,
        "stopped": run_out,
        "both": run_out,
        "node": run_out,
        "update": pace.look + _FIRST_SECONDS,
    }
