"""What has changed since somebody looked last."""

from collections.abc import Iterable
from itertools import chain

from serried.model.group import GroupKey


class Touched:
    """Groups and pods that are to be looked at."""

    def __init__(self) -> None:
        self.groups: set[GroupKey] = set()
        """The groups that a change may concern."""

        self.members: dict[tuple[GroupKey, str], None] = {}
        """The members (UIDs) that have changed, each with the group that it is or was in; "" is the group itself."""

        self.orphans: set[str] = set()
        """The pods (UIDs) that left a group and belong to none now."""

    def add(self, group: GroupKey, uid: str = "") -> None:
        """A change may concern this group: one of its members alone, if there is a ``uid``."""
        self.groups.add(group)
        self.members[group, uid] = None

    def update(self, *groups: Iterable[GroupKey]) -> None:
        """A change may concern all of these."""
        for group in chain(*groups):
            self.add(group)

    def clear_groups(self) -> None:
        """Nobody looks at groups for now."""
        self.groups.clear()
        self.members.clear()

    def take_groups(self) -> set[GroupKey]:
        """The groups, and from now on none."""
        taken = self.groups
        self.groups = set()
        return taken

    def take_members(self) -> Iterable[tuple[GroupKey, str]]:
        """The members, and from now on none."""
        taken = self.members
        self.members = {}
        return taken

    def take_orphans(self) -> set[str]:
        """The pods, and from now on none."""
        taken = self.orphans
        self.orphans = set()
        return taken
