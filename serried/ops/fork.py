"""Computes a long answer in a forked child, which sees the state of the moment of the fork (`fork`, `answer_in_child`).

    child = fork(lambda: plan_group(snapshot, ask), cpu_seconds=10)
    found = await child.answer                  raises ChildError if the child ends without an answer

The child closes all files of the parent, computes, writes one pickle to a pipe and ends. It does not use the loop,
write logs or run exit handlers. It has a lower priority than the loop (`nice`), and the kernel kills it first when
memory is short. It ends by itself after the parent has ended.
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
"""The niceness of the child, so that the parent's loop has precedence."""

_LOOK_SECONDS = 1.0
"""The interval at which a child checks whether its parent is still there."""

_MOST_FILES = 1 << 20
"""The maximum number of files to close, if their number is unlimited."""

_BYTES_PER_READ = 1 << 18
"""The number of bytes of an answer read in one turn of the loop."""

_REAP_SECONDS = 0.005
"""The interval of checks whether a child has exited after its answer."""

_PATIENCE = 4.0
"""The wait for a page's answer, as a multiple of its work limit, because other processes need CPU as well."""

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


class ChildError(Exception):
    """Raised when a child has ended without an answer; the message is a phrase about its end."""


class WorkError(Exception):
    """Raised when the work in the child has raised an exception; the message is its traceback."""


class Child(Protocol):
    """A running child, as seen by the parent."""

    answer: "asyncio.Future[Any]"
    """The result of the work. Raises ChildError or WorkError."""

    def pause(self) -> None:
        """Stop the child (SIGSTOP)."""

    def resume(self) -> None:
        """Continue a stopped child."""

    def kill(self) -> None:
        """Kill the child, and cancel the answer."""


Fork = Callable[[Callable[[], Any], float], Child]
"""The type of `fork`."""


def fork(work: Callable[[], Any], cpu_seconds: float = math.inf) -> Child:
    """Run the work in a child. The kernel kills it after ``cpu_seconds`` of CPU. Raises OSError if forking fails.

    Call it in the thread of the running loop, when no state is half changed. The result of the work must be picklable.
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
    """The parent's side of a child process."""

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
        """Stop the child (SIGSTOP)."""
        if not self._is_paused:
            self._is_paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a stopped child."""
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the child, and cancel the answer."""
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
    """Mark the exception as retrieved, because the answer may have no reader any more."""
    if not answer.cancelled():
        answer.exception()


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "ran out of memory" if code == errno.ENOMEM else f"ended with exit code {code}"


def _run_child(work: Callable[[], Any], write: int, cpu_seconds: float, parent: int) -> None:
    """Run the work, write the answer and exit. Never returns."""
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
    """Release what belongs to the parent: signals, files, and its share of CPU and memory.

    Exit when the parent does.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == parent else os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # An inherited connection would stay open after the parent has closed it.
    os.closerange(0, write)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(write + 1, most if 0 <= most < _MOST_FILES else _MOST_FILES)
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
    """Raised when a page's question has no answer; the message is a phrase why."""


@dataclass(frozen=True, slots=True)
class ChildAnswer(Generic[T]):
    """The answer of a child to a page's question."""

    found: T

    spent: float
    """The seconds of work in the child."""

    held: float
    """The seconds for which forking blocked the loop."""


async def answer_in_child(
    work: Callable[[], T],
    seconds: float,
    start: Fork | None = None,
    stopwatch: Callable[[], float] = time.thread_time,
) -> ChildAnswer[T]:
    """Compute a page's answer in a child.

    Raises NoAnswerError if that fails, or after a multiple of ``seconds``. ``work`` itself has to stay below
    ``seconds``. ``stopwatch`` measures the CPU time of a thread.
    """

    def measure() -> tuple[T, float]:
        begun = stopwatch()
        return work(), stopwatch() - begun

    begun = stopwatch()
    try:
        child = (start or fork)(measure, 2 * seconds + 1)
    except OSError as error:
        raise NoAnswerError(f"no process could be started for it: {error.strerror}") from error
    held = stopwatch() - begun
    try:
        async with asyncio.timeout(_PATIENCE * seconds):
            found, spent = await child.answer
    except TimeoutError:
        raise NoAnswerError(f"no answer after {_PATIENCE * seconds:.0f} s") from None
    except ChildError as error:
        raise NoAnswerError(f"the process that worked on it {error}") from error
    finally:
        child.kill()
    return ChildAnswer(found, spent, held)
