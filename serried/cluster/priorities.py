"""Properties of whole groups for preemption and priority order, each in a class that the Store owns.

Priority and preemption policy are in `GroupPriorities`, the disruption mode is in `DisruptionGroups`, and exclusive
domains are in `Exclusives`.
"""

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
    """Members that are evicted only all together (disruptionMode all).

    They are the members of the PodGroups ``parts`` (names) in the tree of ``group``; ``parts`` is {""} without a tree.
    """

    group: GroupKey
    parts: frozenset[str]


class DisruptionGroups:
    """Finds which members are evicted only all together. The maps passed in are live maps of the Store."""

    def __init__(self, pods: Mapping[str, Pod], groups: Mapping[GroupKey, PodGroup], members: Members) -> None:
        self._pods = pods
        self._groups = groups
        self._members = members

    def of_pod(self, uid: str) -> DisruptionGroup | None:
        """Return the members with which a bound member is evicted; None if it may be evicted alone.

        None as well for a pod that is no member, or not bound.
        """
        key, pod = self._members.group_of(uid), self._pods.get(uid)
        group = self._groups.get(key) if key is not None else None
        if group is None or pod is None or not pod.bound:
            return None
        parts = group.find_disrupted(self._members.leaf_of(uid))
        return DisruptionGroup(group.key, parts) if parts else None

    def list_running(self, disruption_group: DisruptionGroup) -> list[Pod]:
        """Return the members of a disruption group that are bound and not being deleted."""
        running = [pod for pod in self._members.iterate(disruption_group.group) if pod.bound and not pod.deleting]
        return [pod for pod in running if self._members.leaf_of(pod.uid) in disruption_group.parts]

    def list_whole(self, uids: Collection[str]) -> list[GroupKey]:
        """Return the groups of which no member would run any more if these pods were evicted.

        Groups inside of trees count as well.
        """
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
        """Return the keys of the groups in a tree that contain these members, each after the groups above it."""
        parts = {self._members.leaf_of(uid): None for uid in uids}
        return {key: None for part in sorted(parts) for key in group.list_path_keys(part)}


class Exclusives:
    """The exclusive gangs (which share their domain with no other gang) that have bound members, by topology key.

    It is an index, because a user may create thousands of exclusive PodGroups that never run. A gang is added with its
    first bound member. `iterate` removes gangs whose members have all ended, so that the end of a pod costs nothing.
    ``notify`` is called when a gang stops being exclusive, because other gangs may use its domain then.
    """

    def __init__(self, groups: Mapping[GroupKey, PodGroup], members: Members, notify: Callable[[], None]) -> None:
        self._groups = groups
        self._members = members
        self._notify = notify
        self._by_key: dict[str, dict[GroupKey, None]] = {}

    def iterate(self, key: str) -> Iterator[tuple[PodGroup, list[Pod]]]:
        """Yield the gangs that are exclusive in domains of this topology key, each with its bound members.

        Gangs without bound members are left out.
        """
        for group in list(self._by_key.get(key, ())):
            bound = [pod for pod in self._members.iterate(group) if pod.bound]
            if bound:
                yield self._groups[group], bound
            else:
                self._leave(key, group)

    def note_pod(self, pod: Pod, group: GroupKey) -> None:
        """Add the gang of a bound member that was added or changed, if the gang is exclusive."""
        key = find_exclusive_key(self._groups.get(group))
        if key is not None and pod.bound:
            self._by_key.setdefault(key, {})[group] = None

    def note_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Update the index for a PodGroup that has changed from ``old`` to ``new``; None: it does not exist."""
        before = find_exclusive_key(old)
        after = find_exclusive_key(new)
        if before == after:
            return
        if before is not None and old is not None:
            self._leave(before, old.key)
            if old.key in self._members:
                self._notify()
        if after is not None and new is not None and any(pod.bound for pod in self._members.iterate(new.key)):
            self._by_key.setdefault(after, {})[new.key] = None

    def _leave(self, key: str, group: GroupKey) -> None:
        discard(self._by_key, key, group)


def find_exclusive_key(group: PodGroup | None) -> str | None:
    """Return the topology key whose domains a group shares with no other gang; None if the group is not exclusive."""
    return group.topology_key if group is not None and group.preference.exclusive else None


_MAX_CHANGED = 1000
"""The number of changed groups after which priorities are counted at once, even if `list_values` is not called."""


class GroupPriorities:
    """The priorities of groups, computed from live maps of the Store.

    The API of a group decides which value counts:

    - Kubernetes' own PodGroups: ``spec.priority``, which admission in the API server has resolved from the class.
    - Serried's own CRD (the fallback level): no admission checks ``spec.priority``, so the value of the PriorityClass
      is its upper limit, and counts alone if ``spec.priority`` is not set.
    - Groups whose API has no priority (scheduler-plugins, v1alpha1, v1alpha2 without the gate WorkloadAwarePreemption):
      the lowest priority of their members.
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
        """The number of groups by priority, as of the last `_count_changed`."""

        self._level_of: dict[GroupKey, int] = {}
        """The priority with which each group is counted in ``_levels``, the number of groups by priority."""

        self._changed: set[GroupKey] = set()
        """The groups that have to be counted again."""

    def of_group(self, key: GroupKey) -> int:
        """Return the priority of a group, with which all its members are scheduled."""
        own = self.find_object_priority(key)
        return min((pod.priority for pod in self._members.iterate(key)), default=0) if own is None else own

    def list_values(self) -> Collection[int]:
        """Return all different priorities that groups have.

        O(groups changed since the last call), because it is called for every plan that finds no nodes.
        """
        self._count_changed()
        return self._levels.keys()

    def mark_changed(self, key: GroupKey) -> None:
        """Record that the priority of a group may have changed, because its object, members or class have changed."""
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
        """Return the priority of a pod: that of its group's object if the object decides one, else the pod's own."""
        key = self._members.group_of(pod.uid)
        own = self.find_object_priority(key) if key is not None else None
        return pod.priority if own is None else own

    def find_object_priority(self, key: GroupKey) -> int | None:
        """Return the priority by the group's object; None if the object does not exist, or its API has no priority."""
        group = self._groups.get(key)
        return None if group is None else self.read_object_priority(group)

    def read_object_priority(self, group: PodGroup) -> int | None:
        """Return the priority by the object of a group, which need not be in the Store.

        None if its API has no priority, if the object has none yet, or if its PriorityClass does not
        exist or is a system class (`lacks_class`).
        """
        if group.key.kind in BARE_KINDS:
            return None
        if not self._is_fallback(group):
            return resolve_priority(group.priority_class, self._classes) if _names_class(group) else group.priority
        granted = self._find_class_value(group)
        return granted if group.priority is None else min(group.priority, granted)

    def _is_fallback(self, group: PodGroup) -> bool:
        """Return whether the group is of Serried's own CRD, for which no admission resolves the priority."""
        return FALLBACK.api_version in {group.api, self._level.api_version}

    def _find_class_value(self, group: PodGroup) -> int:
        """Return the value of the group's PriorityClass; that of the default class if the group's does not exist."""
        granted = resolve_priority(group.priority_class, self._classes)
        return (resolve_priority("", self._classes) or 0) if granted is None else granted

    def may_preempt(self, key: GroupKey) -> bool:
        """Return whether pods may be evicted for a group.

        False if the preemptionPolicy of the group, of its PriorityClass or of a member is Never. PreemptLowerPriority
        in the group overrules none of them, because it is the default that the API server sets with the gate
        PodGroupPreemptionPolicy (upstream's pkg/apis/scheduling/v1beta1/defaults.go).
        """
        return self.may_preempt_with(self._groups.get(key), self._members.iterate(key))

    def may_preempt_with(self, group: PodGroup | None, members: Iterable[Pod]) -> bool:
        """Return whether pods may be evicted for a group with these members, as `may_preempt` does.

        The group need not be in the Store. If ``group`` is None, the group has no object, and only the members decide.
        """
        said = {pod.preemption for pod in members}
        if group is not None:
            found = self._class_of(group)
            said |= {group.preemption, found.preemption if found is not None else None}
        return PreemptionPolicy.NEVER not in said

    def _class_of(self, group: PodGroup) -> PriorityClass | None:
        if group.key.kind in BARE_KINDS or (not self._is_fallback(group) and not group.priority_class):
            return None  # the group names no class, and admission has set none
        return find_class(group.priority_class, self._classes)

    def lacks_class(self, group: PodGroup) -> bool:
        """Return whether a group's priority is unknown: it has no ``spec.priority``, and its class does not count.

        A class does not count if it does not exist, or if it is a system class.
        """
        return _names_class(group) and find_class(group.priority_class, self._classes) is None

    def list_naming(self, found: PriorityClass) -> list[GroupKey]:
        """Return the groups that name this PriorityClass. If it is the default class, also those that name none."""
        names = {found.name, ""} if found.is_default else {found.name}
        return [group.key for group in self._groups.values() if group.priority_class in names]

    def find_mismatch(self, key: GroupKey) -> PriorityMismatch | None:
        """Return how the priorities in a group's spec and of its members differ from the group's priority.

        None if they do not, if the object decides no priority, or if its PriorityClass does not count (`lacks_class`).
        """
        group = self._groups.get(key)
        counts = self.find_object_priority(key)
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
    """Return whether a group names a PriorityClass but has no resolved ``spec.priority`` yet."""
    return bool(group.priority_class) and group.priority is None
