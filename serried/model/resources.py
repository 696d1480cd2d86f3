"""Amounts of resources as integers, and how often one amount goes into another.

Units: ``cpu`` in millicores, every other resource in its base unit (bytes, pieces). ``pods`` is a resource like
any other, so the kubelet's pod limit needs no code of its own.
"""

from collections.abc import Iterable, Mapping

Resources = Mapping[str, int]
"""Resource name to amount; an absent name is 0. Never mutated once shared."""

PODS = "pods"


def add(left: Resources, right: Resources) -> dict[str, int]:
    """The sum, name by name."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def total(parts: Iterable[Resources]) -> dict[str, int]:
    """The sum of any number of amounts; empty for none."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def count_slots(allocatable: Resources, used: Resources, request: Resources) -> int:
    """How many times ``request`` fits into ``allocatable - used``; 0 if over-committed.

    Resources that are not requested do not matter, as in NodeResourcesFit. A request always names ``pods``,
    so the result is finite.
    """
    slots: int | None = None
    for name, amount in request.items():
        if amount <= 0:
            continue
        fit = (allocatable.get(name, 0) - used.get(name, 0)) // amount
        if fit <= 0:
            return 0
        if slots is None or fit < slots:
            slots = fit
    return slots or 0
