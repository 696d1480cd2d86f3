"""Processes that outlive the one that starts them, and that are signalled only while they are surely the same."""

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
    """One started process: its identity is the pid, the kernel's start time of it and its command line."""

    pid: int
    started: int
    argv: tuple[str, ...]
    log: str

    @property
    def alive(self) -> bool:
        """Whether this very process runs; a pid that was given to another process counts as dead."""
        return start_time(self.pid) == self.started and command_line(self.pid) == self.argv

    @property
    def started_at(self) -> float:
        """The start in seconds since 1970, to a hundredth."""
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / os.sysconf("SC_CLK_TCK")
        return time.time() - age

    def send(self, number: int) -> bool:
        """Send a signal if the process is still this one; False if it is gone."""
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
    """Start a process in a session of its own, with its output appended to `log`.

    `through` is a command that prepares something and then replaces itself by the command behind it.
    """
    command = tuple(argv)
    log.parent.mkdir(parents=True, exist_ok=True)
    # posix_spawn knows no working directory; the shell replaces itself, so the pid stays.
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
    """The running process of this pid, started by another program; None if there is none."""
    started, argv = start_time(pid), command_line(pid)
    return Process(pid, started, argv, str(log)) if started is not None and argv else None


def stop(processes: Iterable[Process], first: int = signal.SIGTERM, grace: float = _GRACE) -> None:
    """End the processes, in one go: `first`, then SIGKILL for those that do not go in time."""
    waiting = [process for process in processes if process.send(first)]
    waiting = _await_gone(waiting, grace)
    waiting = [process for process in waiting if process.send(signal.SIGKILL)]
    _await_gone(waiting, grace)


def start_time(pid: int) -> int | None:
    """The kernel's start time in clock ticks since boot; None for no process, and for a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command name may contain spaces and brackets: fields count from the last bracket.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments of a process; empty for none."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0")[:-1])


def reap(pid: int) -> None:
    """Read the end of a child of ours, so that it does not stay as a zombie; others' children are left alone."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def exit_code(pid: int) -> int | None:
    """The exit code of a child of ours, once: None while it runs, and for a process that is not our child."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def tail(log: str | Path, lines: int = 15) -> str:
    """The last lines of a log, indented; a sentence if there is none."""
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
        # Not by the command line: the kernel takes it away while the process still holds its files and its port.
        processes = [process for process in processes if start_time(process.pid) == process.started]
        if processes:
            time.sleep(0.02)
    return processes
