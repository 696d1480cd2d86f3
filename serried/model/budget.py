"""PodDisruptionBudgets, as far as evictions need them."""

from dataclasses import dataclass

from serried.model.group import Key
from serried.model.selectors import Requirement


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A policy/v1 PodDisruptionBudget."""

    key: Key

    selector: tuple[Requirement, ...] | None
    """Which pods of its namespace it counts: () for all of them, None for none."""

    allowed: int
    """How many more evictions the API server lets pass. 0 while the status is older than the spec: it refuses then."""

    disrupted: frozenset[str] = frozenset()
    """The names of pods whose evictions it has let pass, and which it does not count any more."""

    version: str = ""

    frees_unready: bool = False
    """Whether pods that are not Ready may go without it, and are not counted: by its policy, or as enough are Ready."""
