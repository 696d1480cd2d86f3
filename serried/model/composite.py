"""CompositePodGroups in the vocabulary of scheduling.k8s.io/v1alpha3."""

from dataclasses import dataclass

from serried.model.group import Key, OwnerRef


@dataclass(frozen=True, slots=True)
class Composite:
    """A CompositePodGroup: ``min_group_count`` of the groups below are placed together, None for policy basic.

    ``parent`` is the name of the one above it. The other fields are as those of a PodGroup.
    """

    key: Key
    uid: str
    min_group_count: int | None
    topology_key: str | None = None
    parent: str | None = None
    priority_class: str = ""
    priority: int | None = None
    owners: tuple[OwnerRef, ...] = ()
    deleting: bool = False
    generation: int = 0
    version: str = ""
    scheduled: bool = False
    condition: tuple[str, str, str] | None = None
