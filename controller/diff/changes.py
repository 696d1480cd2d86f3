"""What is there for an owner, and the changes that a diff yields."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serried.model.group import PodGroup, Template, Workload
from serried.model.parent import Owner


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects of an owner, as references lead to them, with those that the watch has yet to show."""

    workloads: Sequence[Workload] = ()
    groups: Sequence[PodGroup] = ()
    """The PodGroups of the Workload, if there is one only."""
    outdated: Sequence[Workload | PodGroup] = ()
    """Workloads that have a successor, with their PodGroups, which come first."""
    replicas: Collection[str] = ()
    """The replicas that have a leader, in the order of their arrival; none where the owner has no replicas."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the owner's Workload; its PodGroups come in the next step."""

    owner: Owner
    name: str
    templates: tuple[Template, ...]
    replaces: str = ""
    """The UID of its predecessor, "" without one."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create one PodGroup of the owner's Workload."""

    owner: Owner
    workload: Workload
    template: Template
    name: str
    replica: str = ""
    """The index of the replica that it is for, "" where the owner has no replicas."""


@dataclass(frozen=True, slots=True)
class SetMinCount:
    """Change minCount in an object of ours to that of the owner as it is now."""

    owner: Owner
    item: Workload | PodGroup
    count: int
    template: int = 0
    """The index of the template to change, if the object is a Workload."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of ours, if it still is the one that was seen."""

    owner: Owner
    item: Workload | PodGroup


@dataclass(frozen=True, slots=True)
class ClearReplicas:
    """Delete PodGroups of ours whose replicas the owner has no more, each once no pod of the replica is left."""

    owner: Owner
    groups: Sequence[PodGroup]


@dataclass(frozen=True, slots=True)
class ReportAmbiguous:
    """Report that ordinary scheduling applies, because it is not clear which groups the owner's pods form."""

    owner: Owner
    message: str


Create = CreateWorkload | CreatePodGroup
Write = Create | SetMinCount | Delete
Change = Write | ClearReplicas | ReportAmbiguous


def describe(write: Write) -> tuple[str, str]:
    """The kind of the object that is written, and the verb."""
    match write:
        case CreateWorkload():
            return "Workload", "Create"
        case CreatePodGroup():
            return "PodGroup", "Create"
        case SetMinCount():
            return kind_of_item(write.item), "Update"
        case Delete():
            return kind_of_item(write.item), "Delete"


def kind_of_item(item: Workload | PodGroup) -> str:
    """The kind of an object, as the API calls it."""
    return "Workload" if isinstance(item, Workload) else "PodGroup"
