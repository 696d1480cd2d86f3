"""The ways in which whoever leads is struck, and how it is made whole again."""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs

Step = Callable[[Pairs, Kubelet], None]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to fail."""

    title: str
    strike: Step
    heal: Step


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
        pod.send(container, signal.SIGKILL)  # the kubelet would in a minute
        _mend(pairs, pod)

    return heal


def _spoil(_: Pairs, pod: Kubelet) -> None:
    pod.spoil("extender")
    pod.send("extender", signal.SIGKILL)


def _vanish(pairs: Pairs, pod: Kubelet) -> None:
    del pairs.pods[pod.pod]
    pod.vanish()


def _delete(pairs: Pairs, pod: Kubelet) -> None:
    del pairs.pods[pod.pod]
    threading.Thread(target=pod.delete, daemon=True).start()  # it takes its time, and life goes on meanwhile


def _replace(pairs: Pairs, _: Kubelet) -> None:
    pairs.run_another()


def _mend(_: Pairs, pod: Kubelet) -> None:
    pod.mend()


WAYS = {
    "extender": Way("the extender alone, by SIGKILL", _kill("extender"), _mend),
    "loop": Way("the extender in a crash loop", _spoil, _mend),
    "frozen": Way("the extender, by SIGSTOP", _freeze("extender"), _thaw("extender")),
    "scheduler": Way("the scheduler alone, by SIGKILL", _kill("scheduler"), _mend),
    "stopped": Way("the scheduler, by SIGSTOP", _freeze("scheduler"), _thaw("scheduler")),
    "both": Way("both, by SIGKILL", _kill("extender", "scheduler"), _mend),
    "node": Way("the whole node", _vanish, _replace),
    "update": Way("the Pod, deleted by an update or a drain", _delete, _replace),
}
