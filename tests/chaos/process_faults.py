"""Faults of processes: SIGKILL and SIGSTOP. A kubelet restarts a process that has ended."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from signal import SIGCONT, SIGKILL, SIGSTOP

from bench.cluster import Cluster, ClusterError
from bench.cluster.api import ApiError
from bench.cluster.cluster import AnyName
from bench.cluster.processes import Process
from bench.cluster.waiting import wait_for
from bench.failover.kubelet import Kubelet
from bench.failover.pods import Container

_LOOK_SECONDS = 0.2
_BEGIN_SECONDS = 30.0
Note = Callable[[str, str], None]


class ProcessFaults:
    """Strikes processes of a cluster, each of which has a kubelet. ``note`` hears of each fall and each rise."""

    def __init__(self, cluster: Cluster, names: Sequence[AnyName], note: Note) -> None:
        self._cluster = cluster
        self._note = note
        self._kubelets = {name: self._make_kubelet(name) for name in names}
        self._down: dict[AnyName, float] = {}
        self._asleep: set[AnyName] = set()
        self._restarts: Counter[AnyName] = Counter()
        """The number of restarts of each process at the last look."""

        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kills: Counter[str] = Counter()
        self.freezes: Counter[str] = Counter()

    def _make_kubelet(self, name: AnyName) -> Kubelet:
        # Nobody probes it, for one that stands still is to go on by itself.
        container = Container(name, (), sidecar=False, startup=None, liveness=None, readiness=None)
        return Kubelet(name, [container], {name: partial(self._launch, name)}, {})

    def _launch(self, name: AnyName) -> Process:
        with self._lock:
            return self._cluster.start(name)

    def start(self) -> None:
        """Begin; returns when every process has its kubelet, so that no end of one is taken for its first start."""
        for kubelet in self._kubelets.values():
            kubelet.start()
        for name, kubelet in self._kubelets.items():
            wait_for(f"the kubelet of {name}", kubelet.is_ready, {}, _BEGIN_SECONDS)
        self._thread.start()

    def stop(self) -> None:
        """End; what is down stays so."""
        for kubelet in self._kubelets.values():
            kubelet.stop_supervising()
        self._ended.set()
        self._thread.join()

    @property
    def own_ends(self) -> dict[str, int]:
        """Count how often each process has ended itself, such as a scheduler that has lost its Lease."""
        counted = {name: kubelet.restarts(name) - self.kills[name] for name, kubelet in self._kubelets.items()}
        return {name: count for name, count in counted.items() if count > 0}

    def kill(self, name: AnyName) -> bool:
        """End a process without a warning; False if it is dead."""
        with self._lock:
            if not self._cluster.alive[name]:
                return False
            self._fall(name)
            self.kills[name] += 1
            self._wake(name)
            # It has done nothing wrong, so it is started again at once.
            self._kubelets[name].repair()
            self._cluster.kill(name, SIGKILL)
            return True

    def freeze(self, name: AnyName, seconds: float) -> bool:
        """Let a process stand still for so long; False if it does, or is dead."""
        with self._lock:
            if name in self._asleep or not self._cluster.alive[name]:
                return False
            self._fall(name)
            self.freezes[name] += 1
            self._asleep.add(name)
            self._cluster.kill(name, SIGSTOP)
        threading.Timer(seconds, self._wake, (name,)).start()
        return True

    def forgive(self) -> None:
        """No process waits longer for its next start because it has ended often."""
        for kubelet in self._kubelets.values():
            kubelet.repair()

    def is_well(self) -> bool:
        """Return whether all processes are ready."""
        with self._lock:
            return not self._down and not self._asleep

    def await_well(self, seconds: float) -> bool:
        """Wait until all of them are ready, at most for so long."""
        deadline = time.monotonic() + seconds
        while not self.is_well() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return self.is_well()

    def _wake(self, name: AnyName) -> None:
        with self._lock:
            if name in self._asleep:
                self._asleep.discard(name)
                self._cluster.kill(name, SIGCONT)

    def _fall(self, name: AnyName) -> None:
        if name not in self._down:
            self._down[name] = time.monotonic()
            self._note("fall", name)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            for name, kubelet in self._kubelets.items():
                with self._lock:
                    self._look(name, kubelet)
                    down = name in self._down and name not in self._asleep
                # A frozen API server answers late, and nobody else must wait for that.
                if down and self._is_ready(name):
                    with self._lock:
                        self._rise(name, kubelet)

    def _look(self, name: AnyName, kubelet: Kubelet) -> None:
        if not self._cluster.alive[name]:
            self._asleep.discard(name)
            self._fall(name)
        if (restarts := kubelet.restarts(name)) != self._restarts[name]:
            self._restarts[name] = restarts
            self._fall(name)

    def _rise(self, name: AnyName, kubelet: Kubelet) -> None:
        """The process that was looked at last was ready a moment ago."""
        is_same = self._cluster.alive[name] and kubelet.restarts(name) == self._restarts[name]
        if is_same and name in self._down and name not in self._asleep:
            del self._down[name]
            self._note("rise", name)

    def _is_ready(self, name: AnyName) -> bool:
        try:
            return self._cluster.is_ready(name)
        except (OSError, HTTPException, ApiError, ClusterError, ValueError):
            return False
