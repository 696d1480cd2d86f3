"""The keys under which pods wait until their PodGroup exists. No object's name can contain a colon."""

from serried.model.group import Key
from serried.model.parent import JOB, WHOLE, OwnerKey, ParentKind

_KINDS: dict[str, str] = {kind.lower(): kind for kind in (JOB, *ParentKind)}


def provisional(owner_key: OwnerKey, stage: str = WHOLE, replica: str = "") -> Key:
    """The key for a gang of this owner: the only one of a Job, that of a stage in a replica of a parent."""
    place = "" if owner_key.kind == JOB else f":{stage}:{replica}"
    return Key(owner_key.key.namespace, f"{owner_key.kind.lower()}:{owner_key.key.name}{place}")


def owner_of_provisional(group: Key) -> OwnerKey | None:
    """The owner that a provisional key stands for, None for any other key."""
    word, _, rest = group.name.partition(":")
    kind = _KINDS.get(word)
    return OwnerKey(kind, Key(group.namespace, rest.partition(":")[0])) if kind and rest else None
