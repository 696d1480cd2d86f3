import asyncio
from itertools import pairwise

from serried.kube.attempts import Attempts
from serried.model.backoff import Backoff


async def test_only_the_first_attempt_is_made_at_once() -> None:
    times = []
    async for failures in Attempts(Backoff(first=0.01, cap=0.02)):
        times.append(asyncio.get_running_loop().time())
        if failures == 3:
            break
    waits = [after - before for before, after in pairwise(times)]
    assert len(waits) == 3
    assert all(wait >= least - 0.002 for wait, least in zip(waits, (0.01, 0.02, 0.02), strict=True))
