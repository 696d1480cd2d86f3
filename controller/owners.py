"""Whom the controller makes objects for: Jobs, JobSets and LeaderWorkerSets."""

from typing import TypeAlias

from serried.model.group import Job, PodGroup, Workload
from serried.model.parent import JOB, PARENT_APIS, Parent

Owner: TypeAlias = Job | Parent

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "serried"
JOB_UID = "scheduling.serried.dev/job-uid"
PARENT_UID = "scheduling.serried.dev/parent-uid"
"""These labels are what tells our objects from others'."""


def kind_of(owner: Owner) -> str:
    """The kind of an owner, as the API calls it."""
    return owner.kind.value if isinstance(owner, Parent) else JOB


def group_of(owner: Owner) -> str:
    """The API group of an owner."""
    return PARENT_APIS[owner.kind].group if isinstance(owner, Parent) else "batch"


def version_of(owner: Owner) -> str:
    """The apiVersion of an owner."""
    return PARENT_APIS[owner.kind].api_version if isinstance(owner, Parent) else "batch/v1"


def labels_for(owner: Owner) -> dict[str, str]:
    """The labels of everything that is made for an owner."""
    return {MANAGED_BY: MANAGER, PARENT_UID if isinstance(owner, Parent) else JOB_UID: owner.uid}


def is_ours(item: Workload | PodGroup, owner: Owner) -> bool:
    """Whether we made it for this very owner; owner references alone are no proof, others write them too."""
    return all(item.labels.get(name) == value for name, value in labels_for(owner).items())
