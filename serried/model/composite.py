"""CompositePodGroups in the vocabulary of scheduling.k8s.io/v1alpha3."""

from dataclasses import dataclass

from serried.model.disruption import Disruption
from serried.model.group import Key, OwnerRef
from serried.model.priority import PreemptionPolicy


@dataclass(frozen=True, slots=True)
class Composite:
    """A CompositePodGroup. Fields without a comment are as in PodGroup."""

    key: Key
    uid: str

    min_group_count: int | None
    """How many of the groups below are placed together; None for policy basic."""

    topology_key: str | None = None

    parent: str | None = None
    """The name of the CompositePodGroup above it."""

    priority_class: str = ""
    priority: int | None = None
    preemption: PreemptionPolicy | None = None
    owners: tuple[OwnerRef, ...] = ()
    deleting: bool = False
    generation: int = 0
    version: str = ""
    scheduled: bool = False
    condition: tuple[str, str, str] | None = None
    disruption: Disruption = Disruption.SINGLE
    api: str = ""

    preempted: int | None = None
    """As in `group.PodGroup`."""
