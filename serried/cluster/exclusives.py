"""The exclusive gangs that run, by the topology key of which each has a domain for itself."""

from collections.abc import Callable, Iterator, Mapping

from serried.cluster.indexes import discard
from serried.cluster.members import Members
from serried.model.group import GroupKey, PodGroup
from serried.model.pod import Pod


class Exclusives:
    """An index beside the Store's maps: anybody may write ten thousand exclusive PodGroups of which nobody runs.

    A gang is found here from its first bound member on. One whose members have all ended since is left out when
    somebody looks, so that no end of a pod has to look for the others. ``note_room`` is called when others may go to a
    domain that was a gang's own.
    """

    def __init__(self, groups: Mapping[GroupKey, PodGroup], members: Members, note_room: Callable[[], None]) -> None:
        self._groups = groups
        self._members = members
        self._note_room = note_room
        self._by_key: dict[str, dict[GroupKey, None]] = {}

    def iterate(self, key: str) -> Iterator[tuple[PodGroup, list[Pod]]]:
        """The exclusive gangs of a topology key with their bound members, of which each has at least one."""
        for group in list(self._by_key.get(key, ())):
            bound = [pod for pod in self._members.iterate(group) if pod.bound]
            if bound:
                yield self._groups[group], bound
            else:
                self._leave(key, group)

    def note_pod(self, pod: Pod, group: GroupKey) -> None:
        """A member came or changed."""
        key = find_exclusive_key(self._groups.get(group))
        if key is not None and pod.bound:
            self._by_key.setdefault(key, {})[group] = None

    def note_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """A PodGroup has changed from ``old`` to ``new``."""
        before = find_exclusive_key(old)
        after = find_exclusive_key(new)
        if before == after:
            return
        if before is not None and old is not None:
            self._leave(before, old.key)
            if old.key in self._members:
                self._note_room()
        if after is not None and new is not None and any(pod.bound for pod in self._members.iterate(new.key)):
            self._by_key.setdefault(after, {})[new.key] = None

    def _leave(self, key: str, group: GroupKey) -> None:
        discard(self._by_key, key, group)


def find_exclusive_key(group: PodGroup | None) -> str | None:
    """The key of which a group has a domain for itself, against others that say the same; None for any other group."""
    return group.topology_key if group is not None and group.preference.exclusive else None
