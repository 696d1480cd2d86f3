"""The loop that has groups considered: woken by changes, in queue order, the effects of each decision right after it.

The watches change the Store, and set ``Groups.changed``. Between two groups the loop serves filter.
"""

import asyncio
import logging

from extender.binding.run import CycleRunner
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.groups import Groups
from extender.scheduling.planning import Planning
from extender.scheduling.term import Term
from serried.model.group import GroupKey
from serried.observe.log import name_group

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
"""How often what waits for a time is looked at."""

_REST_FACTOR = 10.0
"""Freed room wakes groups after this many times the work that refusals took: filter is served by the loop, too."""


class SchedulingLoop:
    """Looks, has decided, and has carried out."""

    def __init__(
        self, groups: Groups, term: Term, planning: Planning, group_scheduler: GroupScheduler, *, runner: CycleRunner
    ) -> None:
        self._groups = groups
        self._term = term
        self._planning = planning
        self._group_scheduler = group_scheduler
        self._runner = runner

    async def run(self) -> None:
        """Have groups considered until cancelled."""
        loop = asyncio.get_running_loop()
        tick = loop.time()
        rest_until = 0.0
        while True:
            await self._wait()
            if not self._term.active:
                self._group_scheduler.stand_by()
                self._runner.carry_out()
                continue
            now = loop.time()
            self._planning.vain_seconds = 0.0
            due = self._group_scheduler.take_touched()
            if now >= rest_until:
                due |= self._group_scheduler.take_woken()
            if now - tick >= _TICK_SECONDS:
                tick = now
                due |= self._group_scheduler.tick()
            self._runner.carry_out()
            await self.consider(due)
            rest_until = max(rest_until, loop.time() + _REST_FACTOR * self._planning.vain_seconds)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_TICK_SECONDS):
                await self._groups.changed.wait()
        except TimeoutError:
            pass
        self._groups.changed.clear()

    async def consider(self, due: set[GroupKey]) -> None:
        """Have these groups considered, one after the other. Whatever goes wrong with one stops no other."""
        for key in self._group_scheduler.in_turn(due):
            if not self._term.active:
                return  # the term has ended between two groups
            try:
                self._group_scheduler.consider(key)
            except Exception:
                log.exception("considering a group failed", extra=name_group(key))
                self._group_scheduler.put_off(key)
            self._runner.carry_out()
            await asyncio.sleep(0)
