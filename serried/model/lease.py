"""A Lease, as far as following a leader needs it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """A coordination.k8s.io/v1 Lease: ``holder`` is "" when nobody holds it.

    ``renewed`` is the renewTime in seconds since 1970 by the holder's clock, None without one; ``duration`` how many
    seconds later others may take the Lease.
    """

    holder: str
    renewed: int | None = None
    duration: int = 0
