"""Start processes that outlive this one, and signal them later.

A pid can be reused by another process. So a signal is sent only while start time and command line are the same.
"""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Process:
    """A started process. Pid, start time and command line together identify it."""

    pid: int
    started: int
    """The start time by the kernel, in clock ticks since boot."""

    argv: tuple[str, ...]
    log: str
    """The path of the file with its output."""

    @property
    def alive(self) -> bool:
        """True while the process runs. A process that was given the same pid later does not count."""
        return start_time(self.pid) == self.started and command_line(self.pid) == self.argv

    @property
    def started_at(self) -> float:
        """The start time in seconds since 1970, to a hundredth."""
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / os.sysconf("SC_CLK_TCK")
        return time.time() - age

    def send(self, number: int) -> bool:
        """Send a signal. Return False if the process has ended."""
        reap(self.pid)
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def spawn(
    argv: Iterable[str], log: Path, cwd: Path, env: Mapping[str, str] | None = None, through: Iterable[str] = ()
) -> Process:
    """Start a process in a session of its own, with its output appended to ``log``.

    ``through`` is a prefix of the command, like ``env NAME=VALUE``, that replaces itself by the rest (exec).
    """
    command = tuple(argv)
    log.parent.mkdir(parents=True, exist_ok=True)
    # posix_spawn cannot set a working directory, but a shell can. The shell execs the command, which keeps its pid.
    shell = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *through, *command)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(shell[0], shell, dict(env or os.environ), file_actions=actions, setsid=True)
    process = Process(pid, start_time(pid) or 0, command, str(log))
    _await_exec(process)
    return process


def adopt(pid: int, log: Path) -> Process | None:
    """Return the running process of a pid that another program started; None if it does not run."""
    started, argv = start_time(pid), command_line(pid)
    return Process(pid, started, argv, str(log)) if started is not None and argv else None


def stop(processes: Iterable[Process], first: int = signal.SIGTERM, grace: float = _GRACE) -> None:
    """End all processes: send ``first`` to each, then SIGKILL to those that still run after ``grace`` seconds."""
    waiting = [process for process in processes if process.send(first)]
    waiting = _await_gone(waiting, grace)
    waiting = [process for process in waiting if process.send(signal.SIGKILL)]
    _await_gone(waiting, grace)


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it does not run or is a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command name may contain spaces and brackets, so fields are counted from the last bracket.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def command_line(pid: int) -> tuple[str, ...]:
    """Return the arguments of a process; empty if it does not run."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0")[:-1])


def reap(pid: int) -> None:
    """Collect the exit status of a pid that is a child of this process, so that it is no zombie. Ignore other pids."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def exit_code(pid: int) -> int | None:
    """Return the exit code of a child of this process, once.

    None while the child runs, after the first call that returned a code, and for a pid that is no child.
    """
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def tail(log: str | Path, lines: int = 15) -> str:
    """Return the last lines of a log, indented, or a sentence if the log is missing or empty."""
    try:
        text = Path(log).read_text(errors="replace")
    except OSError:
        return f"  (no log at {log})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or f"  ({log} is empty)"


def _await_exec(process: Process) -> None:
    for _ in range(200):
        if start_time(process.pid) is None or command_line(process.pid) == process.argv:
            return
        time.sleep(0.005)


def _await_gone(processes: list[Process], seconds: float) -> list[Process]:
    deadline = time.monotonic() + seconds
    while processes and time.monotonic() < deadline:
        for process in processes:
            reap(process.pid)
        # The command line does not tell: the kernel clears it while the process still has its files and its port.
        processes = [process for process in processes if start_time(process.pid) == process.started]
        if processes:
            time.sleep(0.02)
    return processes
