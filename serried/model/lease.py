"""A Lease, as far as following a leader needs it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """A coordination.k8s.io/v1 Lease: ``holder`` is "" when nobody holds it.

    ``renewed`` is the renewTime as written: another machine's clock, to be compared for change only.
    """

    holder: str
    renewed: str = ""
    transitions: int = 0
