"""Readers of the page's events, and what each one costs the others."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from extender.look.page import MAX_READERS, Broadcast
from extender.look.sketch import Message, Sketch
from tests.support.extender_harness import Harness, gang, members, small_nodes
from tests.support.page_stage import DecisionRecorder, make_world


class BroadcastHarness:
    """A broadcast over a small cluster, whose looks are counted and come when they are told to."""

    def __init__(self) -> None:
        self.world: Harness = make_world()
        self.world.add(*small_nodes(2), gang(2), *members(1))
        self.looks = 0
        self.rests: list[float] = []
        self.now = 0.0
        self._go = asyncio.Event()
        self.broadcast = Broadcast(self._make, {"version": "1"}, lambda: 7.0, lambda: self.now, self._rest)

    def _make(self) -> Sketch:
        assert isinstance(self.world.heard, DecisionRecorder)
        return CountedSketch(self, self.world)

    async def _rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        if seconds < 0.5:
            await asyncio.sleep(0)
        else:
            await self._go.wait()
            self._go.clear()

    async def pass_second(self) -> None:
        """The next look."""
        self._go.set()
        for _ in range(10):
            await asyncio.sleep(0)
        self._go.clear()


class CountedSketch(Sketch):
    """Counts the looks."""

    def __init__(self, harness: BroadcastHarness, world: Harness) -> None:
        assert isinstance(world.heard, DecisionRecorder)
        super().__init__(world.core, world.heard.decisions)
        self._harness = harness

    def refresh(self) -> Iterator[None]:
        self._harness.looks += 1
        return super().refresh()


class Reader:
    """A reader with the page open."""

    def __init__(self, broadcast: Broadcast, seconds: float = math.inf) -> None:
        self._stream = broadcast.follow(seconds)

    async def next(self) -> Message:
        """The next event."""
        event = await anext(self._stream)
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        found: Message = orjson.loads(event[6:])
        return found

    async def whole(self) -> list[Message]:
        """Read events until the state is complete. Return them."""
        found = [await self.next()]
        while "complete" not in found[-1]:
            found.append(await self.next())
        return found

    async def asked_to_renew(self) -> bool:
        """Return whether the next event asks for a new request, and is the last one."""
        return await anext(self._stream) == b"event: renew\ndata: {}\n\n" and await self.ended()

    async def close(self) -> None:
        """The page is closed."""
        await self._stream.aclose()  # type: ignore[attr-defined]

    async def ended(self) -> bool:
        """Return whether the stream is over."""
        return await anext(self._stream, None) is None


@pytest.fixture
async def harness() -> AsyncIterator[BroadcastHarness]:
    made = BroadcastHarness()
    yield made
    await made.broadcast.close()
    await made.world.close()


async def test_a_reader_gets_the_whole_state_and_then_only_what_changed(harness: BroadcastHarness) -> None:
    reader = Reader(harness.broadcast)
    first, *_, last = await reader.whole()
    assert (first["reset"], first["version"], first["now"], last["extender"]["plans"]) == (True, "1", 7.0, True)
    await harness.world.run_until_idle()
    await harness.pass_second()
    change: dict[str, Any] = await reader.next()
    assert "nodes" not in change
    assert [row[3] for row in change["decisions"]] == ["QuorumMissing"]


async def test_one_look_serves_all_readers(harness: BroadcastHarness) -> None:
    readers = [Reader(harness.broadcast) for _ in range(3)]
    for reader in readers:
        await reader.whole()
    assert harness.looks == 1
    await harness.world.run_until_idle()
    await harness.pass_second()
    assert [bool((await reader.next())["gangs"]) for reader in readers] == [True] * 3
    assert harness.looks == 2


async def test_nothing_is_looked_at_while_nobody_reads(harness: BroadcastHarness) -> None:
    await harness.pass_second()
    assert harness.looks == 0
    reader = Reader(harness.broadcast)
    await reader.whole()
    await reader.close()
    await harness.pass_second()
    await harness.pass_second()
    assert (harness.looks, harness.broadcast.readers) == (1, 0)


async def test_who_comes_back_gets_what_is_there_by_then(harness: BroadcastHarness) -> None:
    reader = Reader(harness.broadcast)
    await reader.whole()
    await reader.close()
    await harness.world.run_until_idle()
    *_, last = await Reader(harness.broadcast).whole()
    assert [row[3] for row in last["decisions"]] == ["QuorumMissing"]


async def test_who_joins_between_two_looks_misses_nothing(harness: BroadcastHarness) -> None:
    first = Reader(harness.broadcast)
    await first.whole()
    await harness.world.run_until_idle()
    second = Reader(harness.broadcast)
    await second.whole()
    await harness.pass_second()
    assert await second.next() == await first.next()


async def test_no_more_readers_than_there_may_be(harness: BroadcastHarness) -> None:
    readers = [Reader(harness.broadcast) for _ in range(MAX_READERS)]
    for reader in readers:
        await reader.whole()
    assert harness.broadcast.readers == MAX_READERS
    assert await Reader(harness.broadcast).ended()
    await readers[0].close()
    assert not await Reader(harness.broadcast).ended()


async def test_a_reader_that_is_far_behind_is_sent_away_and_the_others_go_on(harness: BroadcastHarness) -> None:
    slow, quick = Reader(harness.broadcast), Reader(harness.broadcast)
    await slow.whole()
    await quick.whole()
    for turn in range(40):
        harness.world.add(*small_nodes(turn + 3))
        await harness.pass_second()
        await quick.next()
    for _ in range(30):
        await slow.next()
    assert harness.broadcast.readers == 2
    assert await slow.ended()
    assert harness.broadcast.readers == 1


async def test_a_reader_whose_time_is_over_has_to_come_again_and_the_others_go_on(harness: BroadcastHarness) -> None:
    passing, staying = Reader(harness.broadcast, 30.0), Reader(harness.broadcast)
    await passing.whole()
    await staying.whole()
    harness.now = 29.0
    await harness.world.run_until_idle()
    await harness.pass_second()
    assert "gangs" in await passing.next()
    harness.now = 30.0
    await harness.pass_second()
    assert await passing.asked_to_renew()
    assert harness.broadcast.readers == 1
    assert "gangs" in await staying.next()
    assert await Reader(harness.broadcast, 30.0).whole()


async def test_who_does_not_read_is_asked_once(harness: BroadcastHarness) -> None:
    reader = Reader(harness.broadcast, 1.0)
    await reader.whole()
    harness.now = 1.0
    for _ in range(3):
        await harness.pass_second()
    harness.world.add(*small_nodes(3))
    await harness.pass_second()
    assert await reader.asked_to_renew()


async def test_the_end_of_the_process_ends_every_reader(harness: BroadcastHarness) -> None:
    reader = Reader(harness.broadcast)
    await reader.whole()
    await harness.broadcast.close()
    assert await reader.ended()


async def test_looks_are_a_second_apart(harness: BroadcastHarness) -> None:
    await Reader(harness.broadcast).whole()
    assert max(harness.rests) == 1.0


async def test_a_look_that_fails_sends_everybody_away_instead_of_standing_still(
    harness: BroadcastHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(harness.broadcast)
    await reader.whole()
    monkeypatch.setattr(CountedSketch, "refresh", lambda _: iter([1 / 0]))
    await harness.pass_second()
    assert await reader.ended()
    monkeypatch.undo()
    assert await Reader(harness.broadcast).whole()
