"""One request for each of many pods, a few at a time."""

import asyncio

import pytest

from serried.kube.many import do_each


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def test_the_answers_come_in_the_order_of_the_pods() -> None:
    assert await do_each(range(100), double) == [2 * number for number in range(100)]


async def test_when_one_raises_nobody_goes_on_with_the_others() -> None:
    """The caller asks again: else each of its tries would still be at work beside the next ones."""
    begun: list[int] = []
    answered = asyncio.Event()

    async def ask(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise TimeoutError
        await answered.wait()

    with pytest.raises(TimeoutError):
        await do_each(range(100), ask)
    answered.set()
    await asyncio.sleep(0.01)
    assert len(begun) < 100
