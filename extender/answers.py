"""What the verbs are asked and what they answer, as values: neither bytes nor decisions."""

from dataclasses import dataclass

from serried.model.group import Key


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


Answer = Pass | Steer | Hold


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
