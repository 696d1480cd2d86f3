"""A profile of the event loop, as it is asked for over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from extender.debug.profile import profile_routes


@asynccontextmanager
async def reader(profiling: str) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(profile_routes("on" if profiling == "on" else "off"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield http


def work_on_the_loop() -> int:
    return sum(range(20_000))


async def test_what_the_loop_works_on_is_seen_while_it_works() -> None:
    async with reader("on") as http:
        asked = asyncio.create_task(http.get("/debug/profile?seconds=1"))
        while not asked.done():
            work_on_the_loop()
            await asyncio.sleep(0)
    profile = (await asked).json()
    ours = [each for each in profile["stacks"] if "work_on_the_loop" in each["stack"].rpartition(";")[2]]
    assert profile["samples"] == sum(each["samples"] for each in profile["stacks"]) > 0
    assert ours
    assert "BaseEventLoop.run_forever (base_events.py:" in ours[0]["stack"]


async def test_of_two_readers_one_is_asked_to_come_back() -> None:
    async with reader("on") as http:
        answers = await asyncio.gather(*(http.get("/debug/profile?seconds=0.1") for _ in range(2)))
    refused = next(answer for answer in answers if answer.status_code != 200)
    assert sorted(answer.status_code for answer in answers) == [200, 429]
    assert refused.headers["Retry-After"] == "5"


async def test_profiles_are_off_unless_they_are_asked_for() -> None:
    async with reader("off") as http:
        answer = await http.get("/debug/profile")
    assert answer.status_code == 403
    assert answer.json()["detail"] == "profiles are off; start the extender with --profiling on"


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "soon"])
async def test_a_time_that_is_none_or_above_a_minute_is_refused(seconds: str) -> None:
    async with reader("on") as http:
        assert (await http.get(f"/debug/profile?seconds={seconds}")).status_code == 422
