"""What a check says."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """A promise of Serried does not hold, or gangs do not start."""

    WARNING = "warning"
    """It works, but costs something, or fails in a case that has not come yet."""

    UNKNOWN = "unknown"
    """It could not be looked at."""


class Area(StrEnum):
    """What is checked together, and is chosen by ``--only``."""

    SCHEDULER = "scheduler"
    EXTENDER = "extender"
    RIGHTS = "rights"
    NODES = "nodes"
    POLICIES = "policies"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake."""

    severity: Severity
    area: Area

    where: str
    """The object, the field or the file."""

    what: str
    """The mistake, and what follows from it."""

    fix: str
    """What to do."""
