"""The ways to make the leader fail (strike), and to repair it (heal)."""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs

Step = Callable[[Pairs, Kubelet], None]
"""Changes a pair, here the leader at the time of the strike."""


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of failure."""

    title: str
    strike: Step
    heal: Step
    """Brings back two healthy pairs."""


def _kill(*containers: str) -> Step:
    def strike(_: Pairs, pod: Kubelet) -> None:
        for container in containers:
            pod.send(container, signal.SIGKILL)

    return strike


def _freeze(container: str) -> Step:
    def strike(_: Pairs, pod: Kubelet) -> None:
        pod.send(container, signal.SIGSTOP)

    return strike


def _thaw(container: str) -> Step:
    def heal(pairs: Pairs, pod: Kubelet) -> None:
        pod.send(container, signal.SIGKILL)  # the kubelet itself would end the frozen container a minute later
        _repair(pairs, pod)

    return heal


def _crash_loop(_: Pairs, pod: Kubelet) -> None:
    pod.break_starts("extender")
    pod.send("extender", signal.SIGKILL)


def _power_off(pairs: Pairs, pod: Kubelet) -> None:
    del pairs.pods[pod.pod]
    pod.power_off()


def _delete(pairs: Pairs, pod: Kubelet) -> None:
    del pairs.pods[pod.pod]
    # A deletion takes up to the grace period, and the measurement must not wait for it.
    threading.Thread(target=pod.delete, daemon=True).start()


def _replace(pairs: Pairs, _: Kubelet) -> None:
    pairs.run_another()


def _repair(_: Pairs, pod: Kubelet) -> None:
    pod.repair()


WAYS = {
    "extender": Way("the extender alone, by SIGKILL", _kill("extender"), _repair),
    "loop": Way("the extender in a crash loop", _crash_loop, _repair),
    "frozen": Way("the extender, by SIGSTOP", _freeze("extender"), _thaw("extender")),
    "scheduler": Way("the scheduler alone, by SIGKILL", _kill("scheduler"), _repair),
    "stopped": Way("the scheduler, by SIGSTOP", _freeze("scheduler"), _thaw("scheduler")),
    "both": Way("both, by SIGKILL", _kill("extender", "scheduler"), _repair),
    "node": Way("the whole node", _power_off, _replace),
    "update": Way("the Pod, deleted by an update or a drain", _delete, _replace),
}
