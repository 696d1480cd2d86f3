"""What counts for a whole group: priority, whether others may be evicted for it, disruption mode, exclusiveness."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from serried.api.group import PodGroup
from serried.api.level import FALLBACK, ApiLevel
from serried.api.names import BARE_KINDS, GroupKey
from serried.api.pod import Pod
from serried.api.priority import PreemptionPolicy, PriorityClass, PriorityMismatch, find_class, resolve_priority
from serried.cluster.index import discard
from serried.cluster.members import Members


class DisruptionGroup(NamedTuple):
    """The group of members that go together; of a tree, the PodGroups in it."""

    group: GroupKey
    parts: frozenset[str]


class DisruptionGroups:
    """Looks companies up. The maps are the Store's and live."""

    def __init__(self, pods: Mapping[str, Pod], groups: Mapping[GroupKey, PodGroup], members: Members) -> None:
        self._pods = pods
        self._groups = groups
        self._members = members

    def of_pod(self, uid: str) -> DisruptionGroup | None:
        """That of a bound member; None for one that goes by itself, and for any other pod."""
        key, pod = self._members.group_of(uid), self._pods.get(uid)
        group = self._groups.get(key) if key is not None else None
        if group is None or pod is None or not pod.bound:
            return None
        parts = group.find_disrupted(self._members.leaf_of(uid))
        return DisruptionGroup(group.key, parts) if parts else None

    def list_running(self, disruption_group: DisruptionGroup) -> list[Pod]:
        """The members that are bound, and that nobody has begun to delete."""
        running = [pod for pod in self._members.iterate(disruption_group.group) if pod.bound and not pod.deleting]
        return [pod for pod in running if self._members.leaf_of(pod.uid) in disruption_group.parts]

    def list_whole(self, uids: Collection[str]) -> list[GroupKey]:
        """The groups of which no member would run any more without these pods; of a tree, all such groups in it."""
        whole: list[GroupKey] = []
        for key in sorted({key for uid in uids if (key := self._members.group_of(uid)) is not None}):
            group = self._groups.get(key)
            if group is not None:
                running = [pod.uid for pod in self._members.iterate(key) if pod.bound and not pod.deleting]
                staying = self._list_groups(group, (uid for uid in running if uid not in uids))
                going = self._list_groups(group, (uid for uid in running if uid in uids))
                whole += [each for each in going if each not in staying]
        return whole

    def _list_groups(self, group: PodGroup, uids: Iterable[str]) -> dict[GroupKey, None]:
        """The groups of a tree that have these members below them."""
        parts = {self._members.leaf_of(uid): None for uid in uids}
        return {key: None for part in sorted(parts) for key in group.list_path(part)}


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


_MAX_CHANGED = 1000
"""How many changed groups are remembered before they are looked at, whether or not somebody asks."""


class GroupPriorities:
    """Answers for one group at a time, from the Store's live maps.

    At the native level ``spec.priority`` is the API server's word: its admission has resolved the class. At the
    fallback level it is what somebody wrote into an object, so it counts no further than the PriorityClasses say the
    same; where nobody has written it yet, they alone count. A group that has no priority of its own, because its API
    has none (scheduler-plugins, v1alpha1, v1alpha2 without the gate WorkloadAwarePreemption), has the least of its
    members'.
    """

    def __init__(
        self,
        groups: Mapping[GroupKey, PodGroup],
        members: Members,
        classes: Mapping[str, PriorityClass],
        level: ApiLevel,
    ) -> None:
        self._groups = groups
        self._members = members
        self._classes = classes
        self._level = level

        self._levels: Counter[int] = Counter()
        """How many groups have each priority, as of when they were looked at last."""

        self._level_of: dict[GroupKey, int] = {}
        """The priority under which each group is counted there."""

        self._changed: set[GroupKey] = set()
        """The groups that have to be looked at again."""

    def of_group(self, key: GroupKey) -> int:
        """The priority of a group, which is that of each of its members."""
        own = self.find_own(key)
        return min((pod.priority for pod in self._members.iterate(key)), default=0) if own is None else own

    def list_levels(self) -> Collection[int]:
        """The priorities that groups have. O(groups that changed): it is asked for each gang that does not fit."""
        self._count_changed()
        return self._levels.keys()

    def note(self, key: GroupKey) -> None:
        """A group has changed, or its members, or what gives it its priority."""
        self._changed.add(key)
        if len(self._changed) > _MAX_CHANGED:
            self._count_changed()

    def _count_changed(self) -> None:
        for key in self._changed:
            old = self._level_of.pop(key, None)
            if old is not None:
                self._levels[old] -= 1
                if not self._levels[old]:
                    del self._levels[old]
            if key in self._groups:
                self._level_of[key] = self.of_group(key)
                self._levels[self._level_of[key]] += 1
        self._changed.clear()

    def of_pod(self, pod: Pod) -> int:
        """The priority of a known pod: that of its group, or else its own."""
        key = self._members.group_of(pod.uid)
        own = self.find_own(key) if key is not None else None
        return pod.priority if own is None else own

    def find_own(self, key: GroupKey) -> int | None:
        """The priority that a group has of its own; None if its members alone have one."""
        group = self._groups.get(key)
        return None if group is None else self.find_own_of(group)

    def find_own_of(self, group: PodGroup) -> int | None:
        """The same of a group that need not exist."""
        if group.key.kind in BARE_KINDS:
            return None
        if not self._is_fallback(group):
            return resolve_priority(group.priority_class, self._classes) if _names_class(group) else group.priority
        granted = self._grant(group)
        return granted if group.priority is None else min(group.priority, granted)

    def _is_fallback(self, group: PodGroup) -> bool:
        """Whether no admission plugin has seen to the group's priority."""
        return FALLBACK.api_version in {group.api, self._level.api_version}

    def _grant(self, group: PodGroup) -> int:
        """What the classes give a group; one whose class is gone has what those have that name none."""
        granted = resolve_priority(group.priority_class, self._classes)
        return (resolve_priority("", self._classes) or 0) if granted is None else granted

    def may_preempt(self, key: GroupKey) -> bool:
        """Whether others may be evicted for a group: not if its class, a member or the group itself says Never.

        PreemptLowerPriority overrules nothing: the API server writes it into every group that says nothing
        (upstream's pkg/apis/scheduling/v1beta1/defaults.go), with the gate PodGroupPreemptionPolicy.
        """
        return self.may_preempt_with(self._groups.get(key), self._members.iterate(key))

    def may_preempt_with(self, group: PodGroup | None, members: Iterable[Pod]) -> bool:
        """The same of a group that need not exist, with these members."""
        said = {pod.preemption for pod in members}
        if group is not None:
            found = self._class_of(group)
            said |= {group.preemption, found.preemption if found is not None else None}
        return PreemptionPolicy.NEVER not in said

    def _class_of(self, group: PodGroup) -> PriorityClass | None:
        if group.key.kind in BARE_KINDS or (not self._is_fallback(group) and not group.priority_class):
            return None  # it has none, and admission has given it none
        return find_class(group.priority_class, self._classes)

    def lacks_class(self, group: PodGroup) -> bool:
        """Whether nobody knows the priority of a group: its class does not exist, or no group may have it."""
        return _names_class(group) and find_class(group.priority_class, self._classes) is None

    def list_naming(self, found: PriorityClass) -> list[GroupKey]:
        """The groups whose priority this class decides, those that name none among them if it is a default."""
        names = {found.name, ""} if found.is_default else {found.name}
        return [group.key for group in self._groups.values() if group.priority_class in names]

    def find_mismatch(self, key: GroupKey) -> PriorityMismatch | None:
        """What is written in the group or its members beside the priority that counts; None if all say the same."""
        group = self._groups.get(key)
        counts = self.find_own(key)
        if group is None or counts is None or self.lacks_class(group):
            return None
        members = self._members.of_group(key)
        strays = [pod for pod in members if pod.priority != counts]
        written = group.priority if group.priority not in {None, counts} else None
        if written is None and not strays:
            return None
        example = (strays[0].name, strays[0].priority) if strays else ("", 0)
        return PriorityMismatch(counts, group.priority_class, written, len(strays), len(members), *example)


def _names_class(group: PodGroup) -> bool:
    """Whether a group names a class of which it has no value yet."""
    return bool(group.priority_class) and group.priority is None
