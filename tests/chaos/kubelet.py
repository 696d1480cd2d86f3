"""What a kubelet does for static pods: starts again what has ended, and says when it is ready."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from signal import SIGCONT, SIGKILL, SIGSTOP

from bench.cluster import Cluster, ClusterError
from bench.cluster.api import ApiError
from bench.cluster.cluster import AnyName
from bench.cluster.processes import reap

_LOOK_SECONDS = 0.2
Note = Callable[[str, str], None]


class Kubelet:
    """Looks after processes of a cluster, in a thread of its own. ``note`` hears of each fall and each rise."""

    def __init__(self, cluster: Cluster, names: tuple[AnyName, ...], note: Note) -> None:
        self._cluster = cluster
        self._names = names
        self._note = note
        self._down: dict[AnyName, float] = {}
        self._asleep: set[AnyName] = set()
        self._ordered: set[AnyName] = set()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kills: Counter[str] = Counter()
        self.freezes: Counter[str] = Counter()
        self.own_ends: Counter[str] = Counter()
        """How often a process has ended itself, such as a scheduler that has lost its Lease."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is down stays so."""
        self._ended.set()
        self._thread.join()

    def kill(self, name: AnyName) -> None:
        """End a process without a warning."""
        with self._lock:
            if not self._cluster.alive[name]:
                return
            self._fall(name)
            self._ordered.add(name)
            self.kills[name] += 1
            self._wake(name)
            self._cluster.kill(name, SIGKILL)

    def freeze(self, name: AnyName, seconds: float) -> None:
        """Let a process stand still for so long."""
        with self._lock:
            if name in self._asleep or not self._cluster.alive[name]:
                return
            self._fall(name)
            self.freezes[name] += 1
            self._asleep.add(name)
            self._cluster.kill(name, SIGSTOP)
        threading.Timer(seconds, self._wake, (name,)).start()

    def is_well(self) -> bool:
        """Whether all of them are ready."""
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
            for name in self._names:
                with self._lock:
                    self._revive(name)
                    down = name in self._down and name not in self._asleep
                    pid = self._cluster.pids[name]
                # A frozen API server answers late, and nobody else must wait for that.
                if down and self._is_ready(name):
                    with self._lock:
                        self._rise(name, pid)

    def _revive(self, name: AnyName) -> None:
        reap(self._cluster.pids[name])
        if self._cluster.alive[name]:
            return
        self._fall(name)
        self._asleep.discard(name)
        if name not in self._ordered:
            self.own_ends[name] += 1
        self._ordered.discard(name)
        self._cluster.start(name)

    def _rise(self, name: AnyName, pid: int) -> None:
        """The process of this pid was ready a moment ago."""
        is_same = self._cluster.pids[name] == pid and self._cluster.alive[name]
        if is_same and name in self._down and name not in self._asleep:
            del self._down[name]
            self._note("rise", name)

    def _is_ready(self, name: AnyName) -> bool:
        try:
            return self._cluster.is_ready(name)
        except (OSError, HTTPException, ApiError, ClusterError, ValueError):
            return False
