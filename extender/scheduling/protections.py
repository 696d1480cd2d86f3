"""Whom a search for victims leaves alone, whatever their priority: budgets, and pods that have just started.

All in steps: a large cluster has a unit for each of its pods.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from extender.scheduling.units import Running
from serried.model.group import Key
from serried.model.victim import Unit
from serried.plan.steps import Work

_UNITS_PER_STEP = 200

_TOO_MANY = "their PodDisruptionBudgets do not allow it"
_YOUNG = "they have just started"


def keep_budgets(running: Running) -> Work[Running]:
    """As if units could not go that the API server would not evict, whatever else goes (Eviction of policy/v1).

    Those are the ones with more pods under a budget than it allows, and with a pod under two of them.
    """
    allowed = running.allowances.budgets
    if not allowed:
        return running
    return (yield from _protect(running, _TOO_MANY, lambda unit: _violates(unit, allowed)))


def keep_rest(running: Running, victims: Collection[Unit]) -> Work[Running | None]:
    """As if, of those under a budget that these victims violate, only so many could go as it allows.

    None if they violate none.
    """
    left = dict(running.allowances.budgets)
    going: set[str] = set()
    short: set[Key] = set()
    for unit in victims:
        taken = Counter(unit.budgets)
        if all(left.get(budget, 0) >= count for budget, count in taken.items()):
            going.add(_identify(unit))
            left.update({budget: left[budget] - count for budget, count in taken.items()})
        else:
            short.update(taken)
    if not short:
        return None
    return (
        yield from _protect(
            running, _TOO_MANY, lambda unit: not short.isdisjoint(unit.budgets) and _identify(unit) not in going
        )
    )


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


def _violates(unit: Unit, allowed: Mapping[Key, int]) -> bool:
    if unit.doubly_guarded or not unit.budgets:
        return unit.doubly_guarded
    return any(count > allowed.get(budget, 0) for budget, count in Counter(unit.budgets).items())


def _identify(unit: Unit) -> str:
    """By its first pod: no pod is in two units."""
    return unit.pods[0].uid


def _find_start(unit: Unit) -> float:
    return max((pod.started for pod in unit.pods if pod.started is not None), default=-math.inf)
