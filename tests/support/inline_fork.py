"""A stand-in for a forked child process: the work is done at once, and the answer arrives in the loop's next turn.

So the test's clock does not advance meanwhile, and tests need not wait. The answer is pickled, as that of a real child.
"""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any


class InlineChild:
    """A child process whose work is done already. It has the methods of the real `serried.ops.fork.Child`."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def pause(self) -> None:
        """Do nothing: the work is done."""

    def resume(self) -> None:
        """Do nothing: the work is done."""

    def hear(self, said: Any) -> None:
        """Deliver the answer."""
        if not self.answer.done():
            self.answer.set_result(said)

    def kill(self) -> None:
        """Discard the answer."""
        self.answer.cancel()


def fork_inline(work: Callable[[], Any], cpu_seconds: float) -> InlineChild:
    """Do the work in this process at once, in place of `serried.ops.fork.fork`."""
    child = InlineChild()
    said = pickle.loads(pickle.dumps(work()))  # noqa: S301 - our own
    asyncio.get_running_loop().call_soon(child.hear, said)
    return child
