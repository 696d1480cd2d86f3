"""The labels of the objects that the controller makes: they tell its objects from others'."""

from serried.model.group import PodGroup, Workload
from serried.model.parent import Owner, Parent

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "serried"
JOB_UID = "scheduling.serried.dev/job-uid"
PARENT_UID = "scheduling.serried.dev/parent-uid"


def labels_for(owner: Owner) -> dict[str, str]:
    """The labels of everything that is made for an owner."""
    return {MANAGED_BY: MANAGER, PARENT_UID if isinstance(owner, Parent) else JOB_UID: owner.uid}


def is_ours(item: Workload | PodGroup, owner: Owner) -> bool:
    """Whether we made it for this very owner; owner references alone are no proof, others write them too."""
    return all(item.labels.get(name) == value for name, value in labels_for(owner).items())
