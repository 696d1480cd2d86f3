"""Reservations of gangs with thousands of members, with names of various lengths, to measure their size."""

import random
from collections.abc import Callable
from enum import Enum
from uuid import UUID

from serried.api.names import GroupKey
from serried.api.reservation import Reservation, Slot

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of the random suffixes that the API server generates."""


class Names(Enum):
    """The length of the names of pods and nodes."""

    SHORT = 20
    LABEL = 63
    """The longest pod name of a Job."""
    LONGEST = 253
    RANDOM = 0
    """Names of 253 random characters, which do not compress. No controller creates such names."""


def large_reservation(group: GroupKey, uid: str, members: int, names: Names) -> Reservation:
    """Return a Reservation with each member on another node. The same arguments give the same Reservation."""
    draw = random.Random(members)
    name = _draw_random(draw) if names is Names.RANDOM else _draw_name(draw, names.value)
    slots = {}
    for at in range(members):
        pod = str(UUID(int=draw.getrandbits(128), version=4))
        slots[pod] = Slot(pod, name("train", at), name("node", at))
    return Reservation(group, uid, "rack-1", members, slots)


def _draw_name(draw: random.Random, length: int) -> Callable[[str, int], str]:
    def name(stem: str, at: int) -> str:
        end = f"-{at}-{''.join(draw.choices(_SUFFIX, k=5))}"
        return stem.ljust(length - len(end), "x") + end

    return name


def _draw_random(draw: random.Random) -> Callable[[str, int], str]:
    return lambda _stem, _at: "".join(draw.choices(_SUFFIX, k=253))
