"""The objects that exist for an owner, and the changes that the diff yields."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serried.api.group import PodGroup, Template, Workload
from serried.api.parent import Owner


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects of an owner, found by reference. Objects that we have created and the watch lacks are among them."""

    workloads: Sequence[Workload] = ()
    """The Workloads that refer to the owner and are not replaced."""

    groups: Sequence[PodGroup] = ()
    """The PodGroups of the Workload; empty unless there is exactly one Workload."""

    outdated: Sequence[Workload | PodGroup] = ()
    """First the PodGroups of Workloads that are replaced, then these Workloads."""

    replicas: Collection[str] = ()
    """The indexes of the replicas that have a leader, in the order of arrival; empty for an owner without replicas."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the owner's Workload; its PodGroups come in the next step."""

    owner: Owner

    name: str

    templates: tuple[Template, ...]

    replaces: str = ""
    """The UID of the Workload that this one replaces, "" without one."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create one PodGroup of the owner's Workload."""

    owner: Owner

    workload: Workload

    template: Template

    name: str

    replica: str = ""
    """The index of the replica that the PodGroup is for, "" where the owner has no replicas."""


@dataclass(frozen=True, slots=True)
class SetMinCount:
    """Change minCount in an object of ours, because the owner's size has changed."""

    owner: Owner

    item: Workload | PodGroup

    count: int
    """The new minCount."""

    template: int = 0
    """The index of the template to change, if the object is a Workload."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of ours; one that has been made anew under its name is kept."""

    owner: Owner
    item: Workload | PodGroup


@dataclass(frozen=True, slots=True)
class ClearReplicas:
    """Delete PodGroups of ours for replicas that the owner has no more."""

    owner: Owner

    groups: Sequence[PodGroup]
    """Each goes once no pod of its replica is left."""


@dataclass(frozen=True, slots=True)
class ReportAmbiguous:
    """Tell the owner that its pods are scheduled one by one, because it is not clear which groups they form."""

    owner: Owner

    problem: str
    """What is not clear, as a phrase."""


Create = CreateWorkload | CreatePodGroup

Write = Create | SetMinCount | Delete
"""A change that is one request to the API server."""

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
