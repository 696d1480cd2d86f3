"""Taking part in the extenders' own election, where no scheduler beside them decides who leads.

A Lease is renewed whether its holder plans or not. So one that does not plan for long (`extender.idleness`) gives the
Lease up, and keeps out of the election for a while: the other one takes over. If there is no other, it takes it again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from extender.leader import Leadership
from serried.kube.election import Election, LeaseLostError, Unopposed

log = logging.getLogger(__name__)

REST_SECONDS = 15.0
"""How long it keeps out, at least. Whoever waits for the Lease looks for it several times in that.

It is longer than the part of the Lease's duration for which its own last renewal would count.
"""

_LOOK_SECONDS = 1.0
"""How often it looks whether it plans: as often as the probe of a scheduler beside it would."""


class Candidacy:
    """One extender's part in the election. ``clock`` is monotonic.

    ``may_go_on`` is asked while the Lease is held, and at least once after each turn. ``settle`` returns when nothing
    that was begun in this turn is on its way any more.
    """

    def __init__(
        self,
        election: Election | Unopposed,
        leadership: Leadership,
        may_go_on: Callable[[], bool],
        settle: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._election = election
        self._leadership = leadership
        self._may_go_on = may_go_on
        self._settle = settle
        self._clock = clock
        self._look_seconds = look_seconds

    async def run(self) -> NoReturn:
        """Take part until cancelled. To be called once all caches are listed."""
        while True:
            await self._election.acquire()
            try:
                await self._keep()
            except LeaseLostError:
                self._may_go_on()  # so that the next turn's time counts from its own begin
            else:
                await self._step_back()

    async def _keep(self) -> None:
        """Renew the Lease until there have been no plans for too long. Raises LeaseLostError."""
        keeping = asyncio.create_task(self._election.keep())
        try:
            while self._may_go_on():
                lost, _ = await asyncio.wait([keeping], timeout=self._look_seconds)
                if lost:
                    await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _step_back(self) -> None:
        log.warning("has not planned for too long, so it gives the Lease up for a while")
        # In this order: whoever leads next must find nothing of ours still on its way.
        self._leadership.lay_down()
        await self._settle()
        await self._election.release()
        until = self._clock() + REST_SECONDS
        while self._clock() < until:
            self._may_go_on()
            await asyncio.sleep(self._look_seconds)
        self._leadership.take_up()
