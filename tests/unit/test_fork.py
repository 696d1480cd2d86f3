"""An answer that a forked child works out: what it sees, what it leaves to its parent, and how it may end without."""

import asyncio
import errno
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from serried.ops import fork as module
from serried.ops.fork import ChildError, ForkedChild, NoAnswerError, WorkError, answer_in_child, fork


def start(work: Callable[[], Any], cpu_seconds: float = 10.0) -> ForkedChild:
    child = fork(work, cpu_seconds)
    assert isinstance(child, ForkedChild)
    return child


def state_of(pid: int) -> str:
    """Return a process's state from /proc: R, S, T for stopped, Z for a zombie; "" without a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def until(pid: int, state: str, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while state_of(pid) != state:  # noqa: ASYNC110 - what other processes do is no event of ours
            await asyncio.sleep(0.005)


def hang() -> None:
    while True:
        time.sleep(60)


def spin() -> None:
    while True:
        pass


def refuse() -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


async def test_a_child_answers_for_the_moment_when_it_was_asked() -> None:
    seen = {"n1": 1}
    child = start(lambda: dict(seen))
    seen["n2"] = 2
    assert await child.answer == {"n1": 1}
    assert seen == {"n1": 1, "n2": 2}


async def test_a_large_answer_is_heard_whole() -> None:
    assert len(await start(lambda: "x" * 5_000_000).answer) == 5_000_000


async def test_the_loop_goes_on_meanwhile() -> None:
    child = start(lambda: time.sleep(0.3))
    turns = 0
    while not child.answer.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 5


async def test_what_the_work_raises_is_told_with_its_traceback() -> None:
    def fail() -> None:
        raise LookupError("of all things")

    with pytest.raises(WorkError, match=r"(?s)in fail.*of all things"):
        await start(fail).answer


def swell() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("work", "said"),
    [
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL", id="killed"),
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGTERM), "was ended by SIGTERM", id="told to end"),
        pytest.param(lambda: os._exit(3), "ended with exit code 3", id="ended"),
        pytest.param(lambda: lambda: None, "ended with exit code 1", id="an answer that cannot be told"),
        pytest.param(swell, "ran out of memory", id="no memory"),
    ],
)
async def test_a_child_that_ends_without_an_answer_is_known_at_once(work: Callable[[], Any], said: str) -> None:
    child = start(work)
    with pytest.raises(ChildError, match=said):
        await child.answer
    assert state_of(child.pid) == ""


async def test_one_that_has_told_half_of_its_answer_has_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pickle.dumps((True, "y" * 100))
    monkeypatch.setattr(pickle, "dumps", lambda *_, **__: whole[:50])
    with pytest.raises(ChildError, match="ended with exit code 0"):
        await start(lambda: None).answer


async def test_one_that_computes_for_ever_is_ended_by_the_kernel() -> None:
    with pytest.raises(ChildError, match=r"was ended by SIG(XCPU|KILL)"):
        await start(spin, cpu_seconds=0.5).answer


async def test_one_that_is_killed_is_gone_and_its_answer_is_not_believed() -> None:
    child = start(hang)
    child.kill()
    assert child.answer.cancelled()
    await until(child.pid, "")


async def test_one_that_was_stopped_is_killed_all_the_same() -> None:
    child = start(hang)
    child.pause()
    await until(child.pid, "T")
    child.kill()
    await until(child.pid, "")


def rest() -> int:
    time.sleep(0.05)
    return 7


async def test_one_that_is_stopped_goes_on_where_it_was() -> None:
    child = start(rest)
    child.pause()
    await until(child.pid, "T")
    await asyncio.sleep(0.2)
    assert not child.answer.done()
    child.resume()
    assert await child.answer == 7


async def test_to_kill_one_that_has_answered_harms_nobody() -> None:
    child = start(lambda: 7)
    assert await child.answer == 7
    child.pause()
    child.kill()
    assert state_of(child.pid) == ""


async def test_it_has_no_file_of_its_parent() -> None:
    """Else a connection that the parent closes would stay open as long as it works."""
    one, other = socket.socketpair()
    child = start(hang)
    try:
        one.close()
        other.settimeout(5)
        assert await asyncio.to_thread(other.recv, 1) == b""
    finally:
        child.kill()
        other.close()


async def test_no_signal_to_it_is_heard_by_the_parent() -> None:
    heard: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, heard.append, 1)
    try:
        child = start(hang)
        os.kill(child.pid, signal.SIGUSR1)
        with pytest.raises(ChildError, match="SIGUSR1"):
            await child.answer
        await asyncio.sleep(0.05)
        assert heard == []
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


async def test_it_gives_way_and_is_the_first_to_go_where_memory_is_short() -> None:
    def look() -> tuple[int, str]:
        return os.nice(0), Path("/proc/self/oom_score_adj").read_text().strip()

    assert await start(look).answer == (min(19, os.nice(0) + 5), "1000")


async def test_where_no_process_can_be_had_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the names alone
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        start(hang)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - the names alone


def test_it_ends_soon_after_its_parent_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PARENT_CHECK_SECONDS", 0.05)
    read, write = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            asyncio.run(_begin_and_stay(write))
        finally:
            os._exit(0)
    os.close(write)
    pid = int(os.read(read, 16))
    os.close(read)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    end = time.monotonic() + 5
    while state_of(pid) not in ("", "Z") and time.monotonic() < end:
        time.sleep(0.01)
    try:
        assert state_of(pid) in ("", "Z")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _begin_and_stay(write: int) -> None:
    os.write(write, str(start(spin).pid).encode())
    await asyncio.sleep(60)


class TestAPagesQuestion:
    async def test_is_answered_with_the_work_that_it_was(self) -> None:
        worked = await answer_in_child(lambda: sum(range(1_000_000)), 5.0)
        assert worked.found == sum(range(1_000_000))
        assert worked.spent > 0.001

    async def test_has_no_answer_where_no_process_can_be_had(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fork", refuse)
        with pytest.raises(NoAnswerError, match="Serried could not start the planning process: Resource temporarily"):
            await answer_in_child(hang, 5.0)

    async def test_has_none_if_the_child_dies(self) -> None:
        with pytest.raises(NoAnswerError, match="the planning process was ended by SIGKILL"):
            await answer_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), 5.0)

    async def test_waits_for_no_child_that_hangs(self) -> None:
        with pytest.raises(NoAnswerError, match="no answer after 0 s"):
            await answer_in_child(hang, 0.05)

    async def test_is_forgotten_with_its_caller(self) -> None:
        begun: list[ForkedChild] = []

        def note(work: Callable[[], Any], seconds: float) -> ForkedChild:
            begun.append(start(work, seconds))
            return begun[-1]

        asking = asyncio.create_task(answer_in_child(hang, 5.0, note))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(begun[0].pid, "")
