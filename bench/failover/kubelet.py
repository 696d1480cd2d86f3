"""A stand-in for the kubelet: it runs the containers of one Pod as processes, probes them, and restarts them.

What it does as the kubelet does (pkg/kubelet/prober/worker.go, pkg/kubelet/kuberuntime): the order of sidecars, the
startup before the liveness probe, thresholds, SIGTERM and after the grace period SIGKILL, the pauses between restarts,
and that a death is seen at the next look only.
"""

import http.client
import os
import random
import signal
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.cluster import processes
from bench.cluster.installation import REPOSITORY
from bench.cluster.ports import LOOPBACK
from bench.cluster.processes import Process
from bench.failover.pods import Container, Probe
from bench.failover.prober import Worker

GRACE_SECONDS = 30.0
"""terminationGracePeriodSeconds of the shipped Pods."""

_RELIST_SECONDS = 1.0
"""How often the kubelet looks which containers run."""

_FIRST_PAUSE_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 300.0
"""The pause before the second restart in a row, which doubles with each further one; before the first there is none."""

_TICK_SECONDS = 0.05

_UNVERIFIED = ssl.create_default_context()
"""The kubelet does not verify certificates either."""

_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE


Launch = Callable[[], Process]
"""Starts the process of a container; of one that runs it is that process."""


class Kubelet:
    """Runs one Pod until it is stopped. ``launches`` and ``ports`` say what stands for which container and port."""

    def __init__(
        self, pod: str, containers: Sequence[Container], launches: Mapping[str, Launch], ports: Mapping[int, int]
    ) -> None:
        self.pod = pod
        self.ports = ports
        self._runners: list[_Runner] = []
        before: list[_Runner] = []
        for container in containers:
            runner = _Runner(container, launches[container.name], ports, tuple(before))
            self._runners.append(runner)
            if container.sidecar:
                before.append(runner)

    def start(self) -> None:
        """Start the Pod. Does not wait until it is ready."""
        for runner in self._runners:
            runner.begin()

    def send(self, container: str, number: int) -> None:
        """Somebody else sends a signal to a container."""
        self._runner(container).process.send(number)

    def pid(self, container: str) -> int:
        """The process of a container."""
        return self._runner(container).process.pid

    def restarts(self, container: str) -> int:
        """How often a container was started again."""
        return max(0, self._runner(container).starts - 1)

    def spoil(self, container: str) -> None:
        """From its next start on a container ends at once, as with a command that it does not have."""
        self._runner(container).spoiled = True

    def mend(self) -> None:
        """Containers start as they should again, and have run well for so long that no pause is left."""
        for runner in self._runners:
            runner.spoiled = False
            runner.forgive()

    def is_ready(self) -> bool:
        """Whether all containers are ready."""
        return all(runner.is_ready() for runner in self._runners)

    def leave(self) -> None:
        """The kubelet itself ends: what runs goes on, and nobody looks after it."""
        for runner in self._runners:
            runner.leave()

    def delete(self) -> None:
        """The Pod is deleted: its containers end in their order, sidecars last."""
        for runner in reversed(self._runners):
            runner.end(signal.SIGTERM)

    def vanish(self) -> None:
        """The node loses its power."""
        for runner in self._runners:
            runner.abandon()
            if runner.starts:
                runner.process.send(signal.SIGKILL)
        for runner in self._runners:
            runner.end(signal.SIGKILL)

    def _runner(self, container: str) -> "_Runner":
        (found,) = [each for each in self._runners if each.container.name == container]
        return found


class _Runner:
    """One container."""

    def __init__(
        self, container: Container, launch: Launch, ports: Mapping[int, int], before: tuple["_Runner", ...]
    ) -> None:
        self.container = container
        self.starts = 0
        self.spoiled = False
        self.started = threading.Event()
        """Set while its startup probe has succeeded."""
        self.process: Process
        self._launch = launch
        self._ports = ports
        self._before = before
        self._over = threading.Event()
        self._pause = 0.0
        """Seconds from an end to the next start."""
        self._again = threading.Event()
        """Set when the pause is waived."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def is_ready(self) -> bool:
        running = self.started.is_set() and self.process.alive
        return running and (self.container.readiness is None or self._passes(self.container.readiness))

    def forgive(self) -> None:
        self._pause = 0.0
        self._again.set()

    def abandon(self) -> None:
        self._over.set()
        self._again.set()

    def leave(self) -> None:
        self.abandon()
        self._thread.join()

    def end(self, number: int) -> None:
        """End it for good; nobody restarts it."""
        self.leave()
        if self.starts:
            processes.stop([self.process], number, GRACE_SECONDS)

    def _run(self) -> None:
        for runner in self._before:
            while not runner.started.wait(_TICK_SECONDS):
                if self._over.is_set():
                    return
        while not self._over.is_set():
            self._start()
            self._look_after()
            self.started.clear()
            if not self._over.is_set():
                self._rest()

    def _start(self) -> None:
        self.process = _launch_in_vain() if self.spoiled else self._launch()
        self.starts += 1

    def _look_after(self) -> None:
        """Probe it until it has ended, by itself or by us."""
        container = self.container
        startup, liveness = (Worker(probe) for probe in (container.startup, container.liveness))
        relist = time.monotonic() + random.uniform(0.0, _RELIST_SECONDS)
        if container.startup is None:
            self.started.set()
        while not self._over.is_set():
            now = time.monotonic()
            if now >= relist:
                relist = now + _RELIST_SECONDS
                if self._has_ended():
                    return
            worker = liveness if self.started.is_set() else startup
            if worker.probe is not None and worker.is_due(now):
                passed = self._passes(worker.probe)
                if worker.has_failed(passed=passed):
                    processes.stop([self.process], signal.SIGTERM, GRACE_SECONDS)
                    return
                if passed:
                    self.started.set()
            time.sleep(_TICK_SECONDS)

    def _has_ended(self) -> bool:
        processes.reap(self.process.pid)
        # Not by the command line: on a busy machine it is that of the shell for a while.
        return processes.start_time(self.process.pid) != self.process.started

    def _rest(self) -> None:
        self._again.clear()
        pause = self._pause
        self._pause = min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * pause))
        if pause and not self._over.is_set():
            self._again.wait(pause)

    def _passes(self, probe: Probe) -> bool:
        url = f"{probe.scheme}://{LOOPBACK}:{self._ports[probe.port]}{probe.path}"
        try:
            with urllib.request.urlopen(url, timeout=probe.timeout, context=_UNVERIFIED) as answer:
                return bool(200 <= answer.status < 400)
        except (OSError, http.client.HTTPException):
            return False


def launch_in_pod(pod: str, command: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> Process:
    """Start the process of a container of a Pod of this name; ``environment`` is what it finds there besides."""
    # Of its Pod's name kube-scheduler makes its identity, and the extender knows it by that.
    namespaces = ("--uts",) if os.geteuid() == 0 else ("--uts", "--user", "--map-root-user")
    through = ("unshare", *namespaces, "/bin/sh", "-c", 'hostname "$0" && exec "$@"', pod)
    return processes.spawn(command, log, REPOSITORY, {**os.environ, **environment, "POD_NAME": pod}, through)


def _launch_in_vain() -> Process:
    return processes.spawn(("/bin/false",), Path(os.devnull), REPOSITORY)
