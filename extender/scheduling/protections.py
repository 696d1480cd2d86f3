"""Whom a search for victims leaves alone, whatever their priority: budgets, and pods that have just started.

All in steps: a large cluster has a unit for each of its pods.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from extender.scheduling.units import Running
from serried.model.group import GroupKey
from serried.model.victim import BREAKS, TOO_MANY, Budget, Spare, Unit
from serried.plan.steps import Work

_UNITS_PER_STEP = 200

_YOUNG = "they have just started"


def keep_budgets(running: Running) -> Work[Running]:
    """As if the API server would evict no more than budgets allow (Eviction of policy/v1).

    So they bind all victims together. Units do not go at all that have more pods under a budget than it allows, or a
    pod under two of them: the API server would not evict these whatever else goes.
    """
    allowed = running.allowances.budgets
    if not allowed:
        return running
    kept = yield from _protect(running, TOO_MANY, lambda unit: _violates(unit, allowed))
    return Running(kept.units, replace(kept.allowances, limits=allowed))


def keep_gangs(running: Running) -> Work[Running]:
    """As if no gang could lose more members than it has to spare: none goes whole, and none that is planned gives way.

    One that has fewer than it needs is left alone, too: it is being mended.
    """
    gangs = running.allowances.gangs
    kept = yield from _protect(running, BREAKS, lambda unit: unit.gang is not None and not _can_spare(unit, gangs))
    units: list[Unit] = []
    for number, unit in enumerate(kept.units, 1):
        gang = unit.gang
        units.append(unit if gang is None else replace(unit, budgets=(*unit.budgets, *([gang] * len(unit.pods)))))
        if not number % _UNITS_PER_STEP:
            yield
    limits: dict[Budget, int] = dict(running.allowances.limits)
    limits.update((gang, spare.count) for gang, spare in gangs.items())
    return Running(tuple(units), replace(kept.allowances, limits=limits))


def _can_spare(unit: Unit, gangs: Mapping[GroupKey, Spare]) -> bool:
    spare = gangs.get(unit.gang) if unit.gang is not None else None
    return spare is not None and len(unit.pods) <= spare.count


def spare_young(running: Running, priority: int, latest: float) -> Work[Running]:
    """As if units of this priority could not go of which a pod has started after ``latest`` (since 1970)."""
    return (yield from _protect(running, _YOUNG, lambda unit: unit.priority == priority and _find_start(unit) > latest))


def _protect(running: Running, why: str, concerns: Callable[[Unit], bool]) -> Work[Running]:
    units: list[Unit] = []
    for number, unit in enumerate(running.units, 1):
        units.append(replace(unit, protection=why) if not unit.protection and concerns(unit) else unit)
        if not number % _UNITS_PER_STEP:
            yield
    return Running(tuple(units), running.allowances)


def _violates(unit: Unit, allowed: Mapping[Budget, int]) -> bool:
    if not unit.budgets:
        return unit.doubly_guarded
    return unit.doubly_guarded or any(count > allowed.get(budget, 0) for budget, count in Counter(unit.budgets).items())


def _find_start(unit: Unit) -> float:
    return max((pod.started for pod in unit.pods if pod.started is not None), default=-math.inf)
