"""The keys under which pods wait until their PodGroup exists: they name the owner instead."""

from serried.model.group import GroupKey, GroupKind
from serried.model.parent import JOB, WHOLE, OwnerKey, ParentKind

_OWNER_KINDS = frozenset(GroupKind(kind) for kind in (JOB, *ParentKind))


def provisional(owner_key: OwnerKey, stage: str = WHOLE, replica: str = "") -> GroupKey:
    """The key for a gang of this owner: the only one of a Job, that of a stage in a replica of a parent."""
    key = GroupKey(*owner_key.key, GroupKind(owner_key.kind))
    return key if owner_key.kind == JOB else key._replace(part=stage, replica=replica)


def owner_of_provisional(group: GroupKey) -> OwnerKey | None:
    """The owner that a provisional key stands for, None for any other key."""
    return OwnerKey(group.kind.value, group.object_key) if group.kind in _OWNER_KINDS else None
