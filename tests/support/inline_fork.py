"""A child that is none: its work is done at once, on what there is then, and heard at the next turn of the loop.

So time stands still while it works, and nothing has to be waited for. What it says is pickled, as from a true child.
"""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any


class InlineChild:
    """It has answered already."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def pause(self) -> None:
        """It does nothing any more."""

    def resume(self) -> None:
        """It does nothing any more."""

    def hear(self, said: Any) -> None:
        """The answer is there."""
        if not self.answer.done():
            self.answer.set_result(said)

    def kill(self) -> None:
        """Nobody hears it."""
        self.answer.cancel()


def fork_inline(work: Callable[[], Any], cpu_seconds: float) -> InlineChild:
    """As `serried.ops.fork.fork`."""
    child = InlineChild()
    said = pickle.loads(pickle.dumps(work()))  # noqa: S301 - our own
    asyncio.get_running_loop().call_soon(child.hear, said)
    return child
