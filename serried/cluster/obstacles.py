"""What keeps us from seeing the objects of gangs."""

from serried.model.group import GroupKey, GroupKind


class Obstacles:
    """Why there may be Workloads and PodGroups that are not here: phrases, "" for no reason."""

    def __init__(self, unread: str = "") -> None:
        self.native = ""
        """Of Workloads and PodGroups at the API level in use."""

        self.unread = unread
        """Of the PodGroups of the cluster's own API, where it is not the level in use although it is served."""

        self.compatible = ""
        """Of the PodGroups of scheduler-plugins."""

        self.needed = ""
        """Of a kind without which nothing is planned, such as Jobs: what it has shown before has left the Store."""

    def to(self, group: GroupKey) -> str:
        """What keeps us from seeing the object of a group."""
        return self.compatible if group.kind is GroupKind.COMPATIBLE else self.native or self.unread
