"""The input and the output of the diff: an owner's existing Workload and PodGroups, and the changes that it needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serried.api.group import PodGroup, Template, Workload
from serried.api.parent import Owner


@dataclass(frozen=True, slots=True)
class Observed:
    """The existing Workloads and PodGroups that refer to one owner, at the time of one diff.

    Also those that the API server has created and the watch does not show yet.
    """

    workloads: Sequence[Workload] = ()
    """The Workloads that refer to the owner, usually one.

    A Workload is replaced by a second one when the Job's size changes and minCount cannot be changed in place. Replaced
    ones are in `outdated` instead.
    """

    groups: Sequence[PodGroup] = ()
    """The PodGroups of the owner's only Workload; empty if it has no Workload or several."""

    outdated: Sequence[Workload | PodGroup] = ()
    """The objects to delete after the Job's size has changed: Workloads that a newer one replaces, and their PodGroups.

    The PodGroups come first.
    """

    replicas: Collection[str] = ()
    """The indexes of the owner's replicas that have a leader pod, in the order in which they were seen.

    Empty for an owner without replicas, such as a Job.
    """


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """The owner needs a Workload.

    The PodGroups are not created with it: the next diff, which finds the Workload, yields a `CreatePodGroup` for each.
    """

    owner: Owner

    name: str

    templates: tuple[Template, ...]

    replaces: str = ""
    """UID of the Workload that the new one replaces after a change of the Job's size, "" if it is the first."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """The owner needs a PodGroup, made from ``template`` of ``workload``."""

    owner: Owner

    workload: Workload

    template: Template

    name: str

    replica: str = ""
    """Index of the replica that the PodGroup is for, "" if the owner has no replicas."""


@dataclass(frozen=True, slots=True)
class SetMinCount:
    """A Workload or PodGroup made by Serried needs another minCount, because the owner's size has changed."""

    owner: Owner

    item: Workload | PodGroup

    count: int
    """The new minCount."""

    template: int = 0
    """Index of the template to change if ``item`` is a Workload; unused for a PodGroup."""


@dataclass(frozen=True, slots=True)
class Delete:
    """An object made by Serried is to be deleted. It is left alone if it has been replaced by one with another UID."""

    owner: Owner
    item: Workload | PodGroup


@dataclass(frozen=True, slots=True)
class DeleteEmptyReplicas:
    """PodGroups made by Serried are to be deleted, because the owner no longer has the replicas that they are for.

    For instance, a LeaderWorkerSet was scaled down from 4 replicas to 3.
    """

    owner: Owner

    groups: Sequence[PodGroup]
    """The PodGroups of the removed replicas. Each is deleted only when no pod of its replica exists any more."""


@dataclass(frozen=True, slots=True)
class ReportAmbiguous:
    """An event is to say that the owner's pods are no gang, because it is unclear which PodGroup is theirs."""

    owner: Owner

    problem: str
    """The reason why it is unclear, as a phrase for the event."""


Create = CreateWorkload | CreatePodGroup

Write = Create | SetMinCount | Delete
"""A change that is carried out by one request to the API server."""

Change = Write | DeleteEmptyReplicas | ReportAmbiguous


def kind_and_verb(write: Write) -> tuple[str, str]:
    """Return the kind of the object that the change writes, and the verb: Create, Update or Delete."""
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
    """Return the API kind of the object: Workload or PodGroup."""
    return "Workload" if isinstance(item, Workload) else "PodGroup"
