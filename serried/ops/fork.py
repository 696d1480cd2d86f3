"""Runs a long computation in a forked child process, so that the event loop is not blocked (`fork`, `answer_in_child`).

    child = fork(lambda: plan_group(snapshot, ask), cpu_seconds=10)
    found = await child.answer                  raises ChildError if the child ends without an answer

The child has a copy of the parent's memory as of the fork. It closes all files of the parent, computes, writes the
pickled result to a pipe and exits. It does not use the event loop, write logs or run exit handlers. It has a lower
priority than the parent (`nice`), and the kernel kills it first when memory is short. It exits by itself
when the parent has ended.
"""

import asyncio
import errno
import gc
import math
import os
import pickle
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

_NICE = 5
"""The amount added to the child's niceness, so that the parent's event loop has precedence."""

_PARENT_CHECK_SECONDS = 1.0
"""The interval at which a child checks whether its parent still runs."""

_MAX_FILES = 1 << 20
"""The number of file descriptors that a child closes if their number is not limited (RLIMIT_NOFILE)."""

_BYTES_PER_READ = 1 << 18
"""The maximum number of bytes of an answer that the parent reads in one iteration of the event loop."""

_REAP_SECONDS = 0.005
"""The interval at which the parent checks whether a child that has answered has exited (waitpid)."""

_TIMEOUT_FACTOR = 4.0
"""The timeout of `answer_in_child` as a multiple of its ``seconds`` of CPU: other processes need the CPU as well."""

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


class ChildError(Exception):
    """Raised when a child has ended without an answer. The message is a predicate, such as "ran out of memory"."""


class WorkError(Exception):
    """Raised in the parent when the work in the child has raised an exception. The message is the traceback."""


class Child(Protocol):
    """The parent's handle of a child process. `ForkedChild` implements it; tests have a stand-in."""

    answer: "asyncio.Future[Any]"
    """The future result of the work. Raises ChildError if the child dies, WorkError if the work fails."""

    def pause(self) -> None:
        """Suspend the child (SIGSTOP) until `resume`."""

    def resume(self) -> None:
        """Continue a child that `pause` has suspended (SIGCONT)."""

    def kill(self) -> None:
        """Kill the child and cancel ``answer``. Harmless if the child has ended."""


Fork = Callable[[Callable[[], Any], float], Child]
"""The type of the function `fork`, for callers that get it as a parameter, such as tests."""


def fork(work: Callable[[], Any], cpu_seconds: float = math.inf) -> Child:
    """Start ``work`` in a forked child process. Return a handle, whose ``answer`` is the future result.

    The kernel kills the child after ``cpu_seconds`` of CPU time. Call it in the thread of the running event loop, and
    not in the middle of a change of the state that the work reads. The result must be picklable. Raises OSError if
    forking fails.
    """
    loop = asyncio.get_running_loop()
    read, write = os.pipe()
    parent = os.getpid()
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = _fork()
            if pid == 0:
                _run_child(work, write, cpu_seconds, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    return ForkedChild(loop, pid, read)


def _fork() -> int:
    with warnings.catch_warnings():
        # Other threads resolve names and read files. A child that only computes needs none of their locks. If one is
        # stuck all the same, the CPU limit or the caller ends it.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class ForkedChild:
    """The parent's handle of a forked child: reads the answer from the pipe ``read``, and reaps the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, read: int) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.answer.add_done_callback(_retrieve)
        self.pid = pid
        self._loop = loop
        self._read = read
        self._received = bytearray()
        self._is_paused = False
        self._is_gone = False
        os.set_blocking(read, False)
        loop.add_reader(read, self._read_answer)

    def pause(self) -> None:
        """Suspend the child (SIGSTOP) until `resume`."""
        if not self._is_paused:
            self._is_paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a child that `pause` has suspended (SIGCONT)."""
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the child and cancel ``answer``. Harmless if the child has ended."""
        self.answer.cancel()
        self._signal(signal.SIGKILL)
        if self._read >= 0:
            self._close_pipe()
            self._reap()

    def _read_answer(self) -> None:
        try:
            heard = os.read(self._read, _BYTES_PER_READ)
        except BlockingIOError:
            return
        if heard:
            self._received += heard
            return
        self._close_pipe()
        self._reap()

    def _close_pipe(self) -> None:
        self._loop.remove_reader(self._read)
        os.close(self._read)
        self._read = -1

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # it was reaped elsewhere
            pid, status = self.pid, 0
        if not pid:
            # It is still exiting, which takes time because its memory is unmapped first.
            self._loop.call_later(_REAP_SECONDS, self._reap)
            return
        self._is_gone = True
        if not self.answer.done():
            self._set_answer(os.waitstatus_to_exitcode(status))

    def _set_answer(self, code: int) -> None:
        try:
            fine, said = pickle.loads(bytes(self._received))  # noqa: S301 - written by our own child
        except Exception:  # noqa: BLE001 - a truncated pickle can raise anything
            self.answer.set_exception(ChildError(_describe_end(code)))
            return
        if fine:
            self.answer.set_result(said)
        else:
            self.answer.set_exception(WorkError(said))

    def _signal(self, number: signal.Signals) -> None:
        if not self._is_gone:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _retrieve(answer: "asyncio.Future[Any]") -> None:
    """Mark the answer's exception as retrieved, so that asyncio logs nothing if nobody awaits the answer any more."""
    if not answer.cancelled():
        answer.exception()


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "ran out of memory" if code == errno.ENOMEM else f"ended with exit code {code}"


def _run_child(work: Callable[[], Any], write: int, cpu_seconds: float, parent: int) -> None:
    """In the child: run the work, write the pickled answer to the file descriptor ``write``, and exit.

    ``parent`` is the parent's process ID. Never returns.
    """
    code = 1
    try:
        gc.disable()
        _detach(write, cpu_seconds, parent)
        said = pickle.dumps(_call(work), protocol=pickle.HIGHEST_PROTOCOL)
        rest = memoryview(said)
        while rest:
            rest = rest[os.write(write, rest) :]
        code = 0
    except MemoryError:
        code = errno.ENOMEM
    finally:
        os._exit(code)


def _call(work: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, work()
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - the parent gets the traceback
        return False, traceback.format_exc()


def _detach(write: int, cpu_seconds: float, parent: int) -> None:
    """In the child: drop the parent's signal handlers and open files except ``write``, and set limits.

    A timer makes the child exit when the process ``parent`` has ended. The limits are the niceness, ``cpu_seconds`` of
    CPU time, no core dump, and the highest OOM score.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == parent else os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK_SECONDS, _PARENT_CHECK_SECONDS)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # An inherited connection would stay open after the parent has closed it.
    os.closerange(0, write)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(write + 1, most if 0 <= most < _MAX_FILES else _MAX_FILES)
    sys.stdout = sys.stderr = None
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a child killed by its CPU limit is not a crash
    if cpu_seconds < math.inf:
        seconds = math.ceil(cpu_seconds)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - a single write
        score.write("1000")


T = TypeVar("T")


class NoAnswerError(Exception):
    """Raised when `answer_in_child` gets no answer. The message is a phrase that says why."""


@dataclass(frozen=True, slots=True)
class ChildAnswer(Generic[T]):
    """The answer of `answer_in_child`: the result of the work, and the CPU time that work and fork have taken."""

    found: T
    """The result of the work."""

    spent: float
    """The CPU time of the work in the child, in seconds."""

    held: float
    """The CPU time of the fork itself in the parent, in seconds; the event loop was blocked meanwhile."""


async def answer_in_child(
    work: Callable[[], T],
    seconds: float,
    start: Fork | None = None,
    stopwatch: Callable[[], float] = time.thread_time,
) -> ChildAnswer[T]:
    """Run ``work`` in a forked child for a debug page. Return its result, and the CPU time spent.

    ``work`` must limit itself to ``seconds`` of CPU time. As a safeguard the kernel kills the child after about twice
    that CPU time, and after four times ``seconds`` on the wall clock the child is killed. Then, or if the fork fails or
    the child dies, it raises NoAnswerError. ``start`` replaces `fork` in tests. ``stopwatch`` returns the CPU time of
    the current thread in seconds.
    """

    def measure() -> tuple[T, float]:
        begun = stopwatch()
        return work(), stopwatch() - begun

    begun = stopwatch()
    try:
        child = (start or fork)(measure, 2 * seconds + 1)
    except OSError as error:
        raise NoAnswerError(f"Serried could not start the planning process: {error.strerror}") from error
    held = stopwatch() - begun
    try:
        async with asyncio.timeout(_TIMEOUT_FACTOR * seconds):
            found, spent = await child.answer
    except TimeoutError:
        raise NoAnswerError(f"no answer after {_TIMEOUT_FACTOR * seconds:.0f} s") from None
    except ChildError as error:
        raise NoAnswerError(f"the planning process {error}") from error
    finally:
        child.kill()
    return ChildAnswer(found, spent, held)
