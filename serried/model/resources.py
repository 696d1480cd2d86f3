"""Amounts of resources as integers, and how often one amount goes into another.

Units: ``cpu`` in millicores, every other resource in its base unit (bytes, pieces). ``pods`` is a resource like
any other, so the kubelet's pod limit needs no code of its own.
"""

from collections.abc import Iterable, Mapping

Resources = Mapping[str, int]
"""Resource name to amount; an absent name is 0. Never mutated once shared."""

PODS = "pods"

SHARES = 1 << 16
"""How much every node has of a thing whose name has a colon, which no resource's name can have.

These are no resources: two pods that together ask for more of one than this are in each other's way.
"""

PROVIDED = "provided:"
"""Before the name of what a node may have without showing it: an extended resource, or the devices of a claim."""

DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""With a DeviceClass's name behind it, the resource that this class provides whatever else it says."""

UNLIMITED = 1 << 62
"""How much of that a node counts as having that shows none: what there is, only kube-scheduler knows."""


def capacity(allocatable: Resources, name: str) -> int:
    """How much a node has of a resource, of a thing that keeps pods apart, or of what it need not show."""
    amount = allocatable.get(name)
    if amount is not None:
        return amount
    if ":" not in name:
        return 0
    return allocatable.get(name[len(PROVIDED) :]) or UNLIMITED if name.startswith(PROVIDED) else SHARES


def is_extended(name: str) -> bool:
    """Whether a resource is one that only a device plugin or a DeviceClass can bring to a node.

    As kube-scheduler's IsDRAExtendedResourceName: a domain other than kubernetes.io, or the prefix of device classes.
    """
    if "/" not in name or ":" in name:
        return False
    return "kubernetes.io/" not in name or name.startswith(DEVICE_CLASS_PREFIX)


def add(left: Resources, right: Resources) -> dict[str, int]:
    """The sum, name by name."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(amounts: Resources, less: Resources) -> dict[str, int]:
    """What is left of ``amounts``, name by name; names that only ``less`` has are left out."""
    return {name: amount - less.get(name, 0) for name, amount in amounts.items()}


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
    # This is the planner's innermost loop: ``capacity`` is called for the few names only that a node does not have.
    slots: int | None = None
    for name, amount in request.items():
        if amount <= 0:
            continue
        there = allocatable.get(name)
        if there is None:
            there = capacity(allocatable, name)
        fit = (there - used.get(name, 0)) // amount
        if fit <= 0:
            return 0
        if slots is None or fit < slots:
            slots = fit
    return slots or 0
