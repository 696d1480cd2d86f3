"""What the verbs are asked and what they answer, as values: neither bytes nor decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

from serried.model.group import Key

MAX_COMPLETE_LIST = 100
"""Up to this many nodes kube-scheduler does not sample (minFeasibleNodesToFind in upstream's schedule_one.go)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Every offered node is fine with us."""


@dataclass(frozen=True, slots=True)
class Steer:
    """This node and no other."""

    node: str


@dataclass(frozen=True, slots=True)
class Hold:
    """No node for now."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """These nodes of the offered ones: the others are kept for the head of the queue. None of them may be left."""

    nodes: Sequence[str]


Answer = Pass | Steer | Hold | Narrow


@dataclass(frozen=True, slots=True)
class Candidate:
    """MetaVictims, with their node: whom kube-scheduler would evict there for the pod that it cannot place."""

    node: str
    victims: tuple[str, ...]
    """UIDs."""

    violations: int = 0
    """How many PodDisruptionBudgets this violates (NumPDBViolations)."""


@dataclass(frozen=True, slots=True)
class BindRequest:
    """ExtenderBindingArgs."""

    pod: Key

    uid: str
    """The pod's."""

    node: str
