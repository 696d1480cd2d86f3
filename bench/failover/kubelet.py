"""A simulated kubelet: runs the containers of one Pod as processes, probes them, and restarts them.

As in the kubelet (pkg/kubelet/prober/worker.go, pkg/kubelet/kuberuntime), sidecars start first, liveness probes wait
for the startup probe, thresholds count, a container gets SIGTERM and after the grace period SIGKILL, restarts are
delayed (back-off), and the end of a process is noticed at the next relist only.
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
"""Seconds between two checks of which containers run."""

_FIRST_BACKOFF_SECONDS = 10.0
_MAX_BACKOFF_SECONDS = 300.0
"""The first restart is made at once. The second waits for the first back-off, which then doubles each time."""

_TICK_SECONDS = 0.05

_UNVERIFIED = ssl.create_default_context()
"""The kubelet does not verify certificates either."""

_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE


Launch = Callable[[], Process]
"""Starts the process of a container and returns it. If the process runs already, returns that one."""


class Kubelet:
    """Runs one Pod, from `start` until `delete` or `power_off`.

    ``launches`` start the containers, by name. ``ports`` map the ports of the manifest to those of this machine.
    """

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
        """Start the Pod, and return without waiting."""
        for runner in self._runners:
            runner.begin()

    def send(self, container: str, number: int) -> None:
        """Send a signal to a container's process, as any other process could. The kubelet notices the effect later."""
        self._runner(container).process.send(number)

    def pid(self, container: str) -> int:
        """Return the pid of a container."""
        return self._runner(container).process.pid

    def restarts(self, container: str) -> int:
        """Return the number of restarts of a container."""
        return max(0, self._runner(container).starts - 1)

    def break_starts(self, container: str) -> None:
        """Let every further start of a container fail, as with a command that does not exist (a crash loop)."""
        self._runner(container).broken = True

    def repair(self) -> None:
        """Let containers start again, and reset their back-off."""
        for runner in self._runners:
            runner.broken = False
            runner.reset_backoff()

    def is_ready(self) -> bool:
        """Return whether all containers are ready."""
        return all(runner.is_ready() for runner in self._runners)

    def stop_supervising(self) -> None:
        """End the kubelet only: containers keep running, but are not probed and not restarted any more."""
        for runner in self._runners:
            runner.stop_supervising()

    def delete(self) -> None:
        """Delete the Pod: end its containers by SIGTERM, sidecars last. Return when all have ended."""
        for runner in reversed(self._runners):
            runner.end(signal.SIGTERM)

    def power_off(self) -> None:
        """Kill all containers at once, as if the node lost its power. None is restarted."""
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
    """Runs one container in a thread of its own. ``before`` are the sidecars that have to start first."""

    def __init__(
        self, container: Container, launch: Launch, ports: Mapping[int, int], before: tuple["_Runner", ...]
    ) -> None:
        self.container = container
        self.starts = 0
        self.broken = False
        """True while every start fails."""
        self.started = threading.Event()
        """Set from the success of the startup probe until the container ends."""
        self.process: Process
        self._launch = launch
        self._ports = ports
        self._before = before
        self._over = threading.Event()
        """Set when the container must not be supervised any more."""
        self._backoff = 0.0
        """Seconds from the container's end to its next start."""
        self._restart_now = threading.Event()
        """Set to end the back-off early."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def is_ready(self) -> bool:
        running = self.started.is_set() and self.process.alive
        return running and (self.container.readiness is None or self._passes(self.container.readiness))

    def reset_backoff(self) -> None:
        self._backoff = 0.0
        self._restart_now.set()

    def abandon(self) -> None:
        """Tell the thread to end, without waiting."""
        self._over.set()
        self._restart_now.set()

    def stop_supervising(self) -> None:
        """Tell the thread to end, and wait for it. The container keeps running."""
        self.abandon()
        self._thread.join()

    def end(self, number: int) -> None:
        """End the container by a signal, and by SIGKILL after the grace period. It is not restarted."""
        self.stop_supervising()
        if self.starts:
            processes.stop([self.process], number, GRACE_SECONDS)

    def _run(self) -> None:
        for runner in self._before:
            while not runner.started.wait(_TICK_SECONDS):
                if self._over.is_set():
                    return
        while not self._over.is_set():
            self._start()
            self._supervise()
            self.started.clear()
            if not self._over.is_set():
                self._back_off()

    def _start(self) -> None:
        self.process = _launch_failing() if self.broken else self._launch()
        self.starts += 1

    def _supervise(self) -> None:
        """Probe the container until it has ended by itself, or was ended because its probe failed."""
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
        # The command line does not tell: on a busy machine the process is still the shell that execs the command.
        return processes.start_time(self.process.pid) != self.process.started

    def _back_off(self) -> None:
        self._restart_now.clear()
        seconds = self._backoff
        self._backoff = min(_MAX_BACKOFF_SECONDS, max(_FIRST_BACKOFF_SECONDS, 2 * seconds))
        if seconds and not self._over.is_set():
            self._restart_now.wait(seconds)

    def _passes(self, probe: Probe) -> bool:
        url = f"{probe.scheme}://{LOOPBACK}:{self._ports[probe.port]}{probe.path}"
        try:
            with urllib.request.urlopen(url, timeout=probe.timeout, context=_UNVERIFIED) as answer:
                return bool(200 <= answer.status < 400)
        except (OSError, http.client.HTTPException):
            return False


def launch_in_pod(pod: str, command: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> Process:
    """Start a container's process, with the Pod's name as its host name, and with more environment variables."""
    # kube-scheduler's identity in the Lease starts with its host name, and the extender compares it with POD_NAME.
    namespaces = ("--uts",) if os.geteuid() == 0 else ("--uts", "--user", "--map-root-user")
    through = ("unshare", *namespaces, "/bin/sh", "-c", 'hostname "$0" && exec "$@"', pod)
    return processes.spawn(command, log, REPOSITORY, {**os.environ, **environment, "POD_NAME": pod}, through)


def _launch_failing() -> Process:
    return processes.spawn(("/bin/false",), Path(os.devnull), REPOSITORY)
