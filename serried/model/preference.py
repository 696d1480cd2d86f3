"""What a gang would like, beyond what it requires: levels of the topology, and how it is laid out in them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Style(StrEnum):
    """Which nodes of a domain a gang gets, and which domain of several that fit."""

    PACK = "pack"
    """As few nodes as possible, in the tightest domain: large gangs find room afterwards."""
    SPREAD = "spread"
    """As many nodes as possible, in the roomiest domain: a lost node costs few members."""


class Level(NamedTuple):
    """A preferred level of the topology."""

    key: str
    """The label key."""

    wait: float = 0.0
    """How many seconds the gang waits for one domain of the level before it takes a wider one."""


@dataclass(frozen=True, slots=True)
class Preference:
    """What a gang would like."""

    levels: tuple[Level, ...] = ()
    """Preferred levels, the narrowest first."""

    style: Style = Style.PACK

    exclusive: bool = False
    """Whether no domain of the required key is shared with another exclusive gang."""


NO_PREFERENCE = Preference()
