"""The loop that has groups considered: woken by changes, in queue order, the effects of each decision right after it.

The watches change the Store, and set ``Groups.changed``. Between two groups the loop serves filter.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from extender.binding.run import CycleRunner
from extender.scheduling.effects import Context
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.planning import Planning
from serried.api.names import GroupKey
from serried.ops.log import name_group
from serried.plan.steps import Work

Result = TypeVar("Result")

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
"""How often what waits for a time is looked at."""

_REST_FACTOR = 10.0
"""Freed room wakes groups after this many times the work that refusals took: filter is served by the loop, too."""


_MOST_OF_A_NAMESPACE = 100
"""How many groups of one namespace are looked at in a row while others of it, and those of others, wait."""


class Rounds:
    """Deals out the groups that are due, in rounds with so many of each namespace at most.

    A namespace with thousands of groups then waits for itself. Within a round the queue's order holds. A round is made
    in steps: of thousands of groups the order alone would keep filter waiting.
    """

    def __init__(self, in_turn: Callable[[set[GroupKey]], Work[list[GroupKey]]]) -> None:
        self._in_turn = in_turn
        self._left: dict[str, dict[GroupKey, None]] = {}
        """The groups of each namespace that have not had their turn, in their order."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def clear(self) -> None:
        """Nobody is due any more."""
        self._left.clear()

    def next(self, due: set[GroupKey]) -> Work[list[GroupKey]]:
        """The next round: of what is due now, and of what was left."""
        counts: Counter[str] = Counter()
        chosen: set[GroupKey] = set()
        for key in (yield from self._in_turn(due)):
            left = self._left.setdefault(key.namespace, {})
            if counts[key.namespace] < _MOST_OF_A_NAMESPACE:
                left.pop(key, None)
                chosen.add(key)
                counts[key.namespace] += 1
            else:
                left[key] = None
        for namespace, left in list(self._left.items()):
            for key in list(islice(left, _MOST_OF_A_NAMESPACE - counts[namespace])):
                del left[key]
                chosen.add(key)
            if not left:
                del self._left[namespace]
        return (yield from self._in_turn(chosen))


class SchedulingLoop:
    """Looks, has decided, and has carried out."""

    def __init__(
        self, context: Context, planning: Planning, group_scheduler: GroupScheduler, *, runner: CycleRunner
    ) -> None:
        self._groups = context.groups
        self._term = context.term
        self._planning = planning
        self._group_scheduler = group_scheduler
        self._runner = runner
        self._rounds = Rounds(group_scheduler.in_turn)

        self.planned = -math.inf
        """When this instance last looked whether groups are due, or considered one, in its term; in loop seconds."""

    async def run(self) -> None:
        """Have groups considered until cancelled."""
        loop = asyncio.get_running_loop()
        tick = loop.time()
        rest_until = 0.0
        while True:
            await self._wait()
            if not self._term.active:
                self._group_scheduler.stand_by()
                self._rounds.clear()
                self._runner.carry_out()
                continue
            now = loop.time()
            self.planned = now
            self._planning.vain_seconds = 0.0
            due = self._group_scheduler.take_touched()
            if now >= rest_until:
                due |= self._group_scheduler.take_woken()
            if now - tick >= _TICK_SECONDS:
                tick = now
                due |= await self._take_steps(self._group_scheduler.tick()) or set()
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
        for key in await self._take_steps(self._rounds.next(due)) or ():
            if not self._term.active:
                return  # the term has ended between two groups
            self.planned = asyncio.get_running_loop().time()
            try:
                self._group_scheduler.consider(key)
            except Exception:
                log.exception("considering a group failed", extra=name_group(key))
                self._group_scheduler.put_off(key)
            self._runner.carry_out()
            await asyncio.sleep(0)
        if self._rounds:
            self._groups.wake()

    async def _take_steps(self, work: Work[Result]) -> Result | None:
        """The result of work between whose steps others have their turn; None if the term ends before it is done."""
        while self._term.active:
            try:
                next(work)
            except StopIteration as done:
                result: Result = done.value
                return result
            self._runner.carry_out()
            await asyncio.sleep(0)
        work.close()
        return None
