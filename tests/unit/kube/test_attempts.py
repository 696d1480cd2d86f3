import asyncio
from itertools import pairwise

import pytest

from serried.kube.retry import Attempts, Backoff, full_jitter


async def test_only_the_first_attempt_is_made_at_once() -> None:
    times = []
    async for failures in Attempts(Backoff(first=0.01, cap=0.02)):
        times.append(asyncio.get_running_loop().time())
        if failures == 3:
            break
    waits = [after - before for before, after in pairwise(times)]
    assert len(waits) == 3
    assert all(wait >= least - 0.002 for wait, least in zip(waits, (0.01, 0.02, 0.02), strict=True))


@pytest.mark.parametrize(
    ("asked", "least"),
    [
        pytest.param(0.0, 0.0, id="nothing is asked for"),
        pytest.param(2.0, 2.0, id="what the server asks for is waited out"),
        pytest.param(60.0, 5.0, id="but no longer than the cap"),
    ],
)
async def test_waits_have_jitter_and_keep_to_the_cap(
    monkeypatch: pytest.MonkeyPatch, asked: float, least: float
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(20):
        attempts = Attempts(Backoff(first=0.1, cap=5.0), spread=full_jitter)
        for _ in range(20):
            await attempts.rest(asked)
    assert all(least <= wait <= 5.0 for wait in waits)
    assert (len(set(waits)) > 1) == (least < 5.0)
