"""A Lease, as far as following a leader needs it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """A coordination.k8s.io/v1 Lease."""

    holder: str
    """Empty when no process holds it."""

    renewed: int | None = None
    """The renewTime in seconds since 1970, by the holder's clock; None without one."""

    duration: int = 0
    """How many seconds after ``renewed`` others may take the Lease."""
