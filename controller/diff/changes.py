"""The input and the output of the diff: the objects that exist for an owner, and the changes that the owner needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serried.api.group import PodGroup, Template, Workload
from serried.api.parent import Owner


@dataclass(frozen=True, slots=True)
class Observed:
    """The objects that refer to one owner, at the time of one diff.

    Includes created objects that the watch does not show yet.
    """

    workloads: Sequence[Workload] = ()
    """The Workloads that refer to the owner, except replaced ones."""

    groups: Sequence[PodGroup] = ()
    """The PodGroups of the Workload; empty unless there is exactly one Workload."""

    outdated: Sequence[Workload | PodGroup] = ()
    """The objects to delete: PodGroups of replaced Workloads first, then these Workloads."""

    replicas: Collection[str] = ()
    """The indexes of the replicas that have a leader pod, in order of arrival; empty for an owner without replicas."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the owner's Workload. Its PodGroups follow in the next diff, when the Workload exists."""

    owner: Owner

    name: str

    templates: tuple[Template, ...]

    replaces: str = ""
    """UID of the Workload that the new one replaces, "" if there is none."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create one PodGroup of the owner's Workload."""

    owner: Owner

    workload: Workload

    template: Template

    name: str

    replica: str = ""
    """Index of the replica that the PodGroup is for, "" if the owner has no replicas."""


@dataclass(frozen=True, slots=True)
class SetMinCount:
    """Change minCount in a Workload or PodGroup made by Serried, after a change of the owner's size."""

    owner: Owner

    item: Workload | PodGroup

    count: int
    """The new minCount."""

    template: int = 0
    """Index of the template to change in a Workload; unused for a PodGroup."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object made by Serried. An object of the same name with another UID is kept."""

    owner: Owner
    item: Workload | PodGroup


@dataclass(frozen=True, slots=True)
class DeleteEmptyReplicas:
    """Delete PodGroups made by Serried, for replicas that the owner no longer has."""

    owner: Owner

    groups: Sequence[PodGroup]
    """The candidates. One is deleted once no pod of its replica is left."""


@dataclass(frozen=True, slots=True)
class ReportAmbiguous:
    """Report to the owner that its pods are scheduled one by one, because their PodGroup is ambiguous."""

    owner: Owner

    problem: str
    """The reason, as a phrase for the event."""


Create = CreateWorkload | CreatePodGroup

Write = Create | SetMinCount | Delete
"""A change that is one request to the API server."""

Change = Write | DeleteEmptyReplicas | ReportAmbiguous


def kind_and_verb(write: Write) -> tuple[str, str]:
    """Return the kind of the written object, and the verb: Create, Update or Delete."""
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
    """Return the API kind of an object."""
    return "Workload" if isinstance(item, Workload) else "PodGroup"
