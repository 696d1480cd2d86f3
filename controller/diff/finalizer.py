"""The protection of PodGroups that are being deleted."""

from dataclasses import dataclass

from serried.model.group import GroupKey, PodGroup

PROTECTION = "scheduling.k8s.io/podgroup-protection"
"""Finalizer that the API server's admission stamps, and that kube-controller-manager removes where its gate is on."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take the protection off a PodGroup."""

    group: GroupKey

    version: str
    """The resourceVersion of the PodGroup as it was seen. One that has changed since keeps its protection."""

    remaining: tuple[str, ...]
    """The other finalizers of the PodGroup, which stay."""

    api: str = ""
    """Where the PodGroup lives, as `PodGroup.api` says."""


def is_leaving(group: PodGroup) -> bool:
    """Whether the PodGroup is being deleted and still has its protection."""
    return group.deleting and PROTECTION in group.finalizers


def free_group(group: PodGroup) -> RemoveFinalizer:
    """The change for a leaving PodGroup that no pod names any more.

    Pods that belong to it through their Job, without naming it, do not count: they join the PodGroup that is made next,
    which may need the same name.
    """
    remaining = tuple(name for name in group.finalizers if name != PROTECTION)
    return RemoveFinalizer(group.key, group.version, remaining, group.api)
