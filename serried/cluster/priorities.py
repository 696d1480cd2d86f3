"""Which priority a group has, whatever its pods say, and whether others may be evicted for it."""

from collections import Counter
from collections.abc import Collection, Mapping

from serried.cluster.members import Members
from serried.model.group import BARE_KINDS, GroupKey, PodGroup
from serried.model.level import FALLBACK, ApiLevel
from serried.model.pod import Pod
from serried.model.priority import (
    PreemptionPolicy,
    PriorityClass,
    PriorityMismatch,
    find_class,
    resolve_priority,
)

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
        if group is None or group.key.kind in BARE_KINDS:
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
        group = self._groups.get(key)
        said = {pod.preemption for pod in self._members.iterate(key)}
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
