"""What has changed since somebody looked last."""

from collections.abc import Iterable

from serried.model.group import GroupKey


class Touched:
    """Groups and pods that are to be looked at."""

    def __init__(self) -> None:
        self.groups: set[GroupKey] = set()
        """The groups that a change may concern."""

        self.orphans: set[str] = set()
        """The pods (UIDs) that left a group and belong to none now."""

    def add(self, group: GroupKey) -> None:
        """A change may concern this group."""
        self.groups.add(group)

    def update(self, *groups: Iterable[GroupKey]) -> None:
        """A change may concern all of these."""
        self.groups.update(*groups)

    def take_groups(self) -> set[GroupKey]:
        """The groups, and from now on none."""
        taken = self.groups
        self.groups = set()
        return taken

    def take_orphans(self) -> set[str]:
        """The pods, and from now on none."""
        taken = self.orphans
        self.orphans = set()
        return taken
