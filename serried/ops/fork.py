"""An answer that takes long, worked out by a forked child while the loop goes on: it sees everything as it was then.

    child = fork(lambda: plan_group(snapshot, ask), cpu_seconds=10)
    found = await child.answer                  raises ChildError if the child ends without an answer

The child closes every file of the parent, computes, writes one pickle to a pipe and ends. It never touches the loop,
writes no log and runs no exit handler. It takes no core from the loop (`nice`) and is the first that the kernel ends
where memory is short. It ends by itself if the parent has.
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
"""How much the child gives way to the parent."""

_LOOK_SECONDS = 1.0
"""How often a child looks whether its parent is still there."""

_MOST_FILES = 1 << 20
"""How many files are closed at the most, where their number has no limit."""

_BYTES_PER_READ = 1 << 18
"""How much of the answer is read between two turns of the loop."""

_REAP_SECONDS = 0.005
"""How often it is looked whether a child that has said all it has to say is gone."""

_PATIENCE = 4.0
"""A page waits this many times the work that its question may be: other processes want to go on, too."""

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


class ChildError(Exception):
    """A child has ended without an answer: how, a phrase."""


class WorkError(Exception):
    """The work has raised an exception: its traceback."""


class Child(Protocol):
    """A child at work."""

    answer: "asyncio.Future[Any]"
    """What the work has returned. Raises ChildError or WorkError."""

    def pause(self) -> None:
        """Stop the child where it is."""

    def resume(self) -> None:
        """Let a child that was stopped go on."""

    def kill(self) -> None:
        """End the child: nobody waits for its answer."""


Fork = Callable[[Callable[[], Any], float], Child]
"""As `fork`."""


def fork(work: Callable[[], Any], cpu_seconds: float = math.inf) -> Child:
    """Begin with the work in a child, which the kernel ends after so many seconds of CPU. Raise OSError without one.

    To be called in the thread of the running loop, at a moment when nothing is half changed. What the work returns has
    to be picklable.
    """
    loop = asyncio.get_running_loop()
    read, write = os.pipe()
    parent = os.getpid()
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = _fork()
            if pid == 0:
                _be_child(work, write, cpu_seconds, parent)
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
        # Threads wait for names and files; none of their locks is needed by a child that computes. One that is stuck
        # all the same is ended after its time.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class ForkedChild:
    """The parent's side of a child."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, read: int) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.answer.add_done_callback(_retrieve)
        self.pid = pid
        self._loop = loop
        self._read = read
        self._said = bytearray()
        self._is_paused = False
        self._is_gone = False
        os.set_blocking(read, False)
        loop.add_reader(read, self._hear)

    def pause(self) -> None:
        """Stop the child where it is."""
        if not self._is_paused:
            self._is_paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a child that was stopped go on."""
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the child: nobody waits for its answer."""
        self.answer.cancel()
        self._signal(signal.SIGKILL)
        if self._read >= 0:
            self._hang_up()
            self._reap()

    def _hear(self) -> None:
        try:
            heard = os.read(self._read, _BYTES_PER_READ)
        except BlockingIOError:
            return
        if heard:
            self._said += heard
            return
        self._hang_up()
        self._reap()

    def _hang_up(self) -> None:
        self._loop.remove_reader(self._read)
        os.close(self._read)
        self._read = -1

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has reaped it
            pid, status = self.pid, 0
        if not pid:
            # It is ending: what it has mapped is given back first.
            self._loop.call_later(_REAP_SECONDS, self._reap)
            return
        self._is_gone = True
        if not self.answer.done():
            self._settle(os.waitstatus_to_exitcode(status))

    def _settle(self, code: int) -> None:
        try:
            fine, said = pickle.loads(bytes(self._said))  # noqa: S301 - written by our own child
        except Exception:  # noqa: BLE001 - whatever a part of an answer looks like
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
    """Whoever has stopped waiting need not hear of a failure either."""
    if not answer.cancelled():
        answer.exception()


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "ran out of memory" if code == errno.ENOMEM else f"ended with exit code {code}"


def _be_child(work: Callable[[], Any], write: int, cpu_seconds: float, parent: int) -> None:
    """Work, answer and end. Never returns."""
    code = 1
    try:
        gc.disable()
        _let_go(write, cpu_seconds, parent)
        said = pickle.dumps(_do(work), protocol=pickle.HIGHEST_PROTOCOL)
        rest = memoryview(said)
        while rest:
            rest = rest[os.write(write, rest) :]
        code = 0
    except MemoryError:
        code = errno.ENOMEM
    finally:
        os._exit(code)


def _do(work: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, work()
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - the parent hears of it, whatever it is
        return False, traceback.format_exc()


def _let_go(write: int, cpu_seconds: float, parent: int) -> None:
    """Leave everything to the parent that is its own: signals, files, and its share of the machine. End with it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == parent else os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # A connection that the parent closes has to be closed.
    os.closerange(0, write)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(write + 1, most if 0 <= most < _MOST_FILES else _MOST_FILES)
    sys.stdout = sys.stderr = None
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one that is ended for its time is no crash
    if cpu_seconds < math.inf:
        seconds = math.ceil(cpu_seconds)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - no more than this
        score.write("1000")


T = TypeVar("T")


class NoAnswerError(Exception):
    """A page's question has no answer: why, a phrase."""


@dataclass(frozen=True, slots=True)
class Worked(Generic[T]):
    """What a child has found for a page."""

    found: T

    spent: float
    """Seconds of its work."""

    held: float
    """For how many seconds the loop was held."""


async def work_out(
    work: Callable[[], T],
    seconds: float,
    start: Fork | None = None,
    stopwatch: Callable[[], float] = time.thread_time,
) -> Worked[T]:
    """Have a page's question answered by a child. Raise NoAnswerError after a few times ``seconds``, or without one.

    ``work`` has to see to it that it takes no longer than that. ``stopwatch`` measures the work of a thread.
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
    return Worked(found, spent, held)
