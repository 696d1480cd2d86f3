"""Which PodGroups and CompositePodGroups are one tree, and the group that stands for a whole tree.

A tree is scheduled as one: it has one key (kind ``COMPOSITE``), under which all its members are kept, and one PodGroup
value, built anew whenever something in it changes. A group whose parent is not there (yet) waits under that parent's
key.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from serried.api.group import Branch, Composite, Leaf, PodGroup, Policy, Tree
from serried.api.names import Disruption, GroupKey, GroupKind, Key
from serried.api.priority import PreemptionPolicy
from serried.cluster.index import reindex

_MAX_DEPTH = 8
"""How many CompositePodGroups above each other are followed; the API takes trees of four levels."""

_MAX_LEVELS_IN_1_38 = 4
"""How many levels of groups kube-scheduler 1.38 takes, PodGroups among them."""

_MAX_STEPS = 256
"""How far up a root is looked for. What is deeper is no tree, and a user may write thousands."""

_MAX_GROUPS = 1024
"""How many groups a tree may have: it is built anew with each change of one of them."""


class Forest:
    """The trees over the Store's PodGroups. The Store tells of every change and asks for the trees then."""

    def __init__(self, groups: Mapping[GroupKey, PodGroup]) -> None:
        self.composites: dict[Key, Composite] = {}
        self.groups = groups
        self._groups_below: dict[Key, tuple[GroupKey, ...]] = {}
        self._composites_below: dict[Key, tuple[Key, ...]] = {}

    def lift(self, group: GroupKey) -> GroupKey:
        """The key under which the members of a PodGroup are scheduled: its tree's, or its own."""
        found = self.groups.get(group)
        parent = _parent(found)
        return group if parent is None else self.lift_composite(parent)

    def lift_composite(self, composite: Key) -> GroupKey:
        """The tree of a CompositePodGroup, whether it exists or not."""
        return GroupKey(*self._find_root(composite), GroupKind.COMPOSITE)

    def index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[GroupKey]:
        """Follow one change of a PodGroup, before or after the Store has it; the trees that it touches."""
        item = new or old
        if item is None or (_parent(old) is None and _parent(new) is None):
            return set()
        places = reindex(self._groups_below, _parent(old), _parent(new), item.key)
        return {self.lift_composite(place) for place in places}

    def put_composite(self, composite: Composite) -> set[GroupKey]:
        """A CompositePodGroup came or changed; the trees that this touches, as they were before, too."""
        return self._follow(composite.key, composite)

    def drop_composite(self, key: Key) -> set[GroupKey]:
        """A CompositePodGroup went; as `put_composite`."""
        return self._follow(key, None)

    def _follow(self, key: Key, new: Composite | None) -> set[GroupKey]:
        old = self.composites.get(key)
        touched = {self.lift_composite(key)}
        reindex(self._composites_below, _parent(old), _parent(new), key)
        if new is None:
            self.composites.pop(key, None)
        else:
            self.composites[key] = new
        return touched | {self.lift_composite(key)}

    def _find_root(self, composite: Key) -> Key:
        seen = {composite: 0}
        place = composite
        while (parent := _parent(self.composites.get(place))) is not None and len(seen) <= _MAX_STEPS:
            if parent in seen:
                return min(list(seen)[seen[parent] :])  # a circle: one of it, the same whoever asks
            seen[parent] = len(seen)
            place = parent
        return place

    def find_gap(self, tree: GroupKey) -> str:
        """Why there is no such tree, a phrase; "" if there is one or the key is not a tree's."""
        if tree.kind is not GroupKind.COMPOSITE:
            return ""
        found = self.composites.get(tree.object_key)
        if found is None:
            return f"CompositePodGroup {tree.name} does not exist"
        if found.parent is not None and self._find_root(found.key) == found.key:
            return f"CompositePodGroup {tree.name} is above itself"
        if self.build(tree) is not None:
            return ""
        if self._is_large(found):
            return f"the tree of CompositePodGroup {tree.name} has more than {_MAX_GROUPS} groups"
        return f"the tree of CompositePodGroup {tree.name} is too deep"

    def build(self, tree: GroupKey) -> PodGroup | None:
        """The group that stands for a tree; None if its root does not exist, or if it is no tree."""
        root = self.composites.get(tree.object_key) if tree.kind is GroupKind.COMPOSITE else None
        if root is None or root.parent is not None:
            return None
        branch = None if self._is_large(root) else self._grow(root, _MAX_DEPTH)
        if branch is None:
            return None
        return PodGroup(
            key=tree,
            uid=root.uid,
            policy=Policy(count_least(branch)),
            topology_key=root.topology_key,
            priority_class=root.priority_class,
            priority=root.priority,
            preemption=self._find_preemption(root),
            owners=root.owners,
            generation=root.generation,
            version=root.version,
            scheduled=root.scheduled,
            condition=root.condition,
            branch=branch,
            api=root.api,
        )

    def _find_preemption(self, root: Composite) -> PreemptionPolicy | None:
        """What the root says, unless a group below it says Never: its members would profit as well."""
        says_never = any(item.preemption is PreemptionPolicy.NEVER for item in self._iterate_groups(root.key))
        return PreemptionPolicy.NEVER if says_never else root.preemption

    def _is_large(self, root: Composite) -> bool:
        return sum(1 for _ in islice(self._iterate_groups(root.key), _MAX_GROUPS + 1)) > _MAX_GROUPS

    def _iterate_groups(self, root: Key) -> Iterator[Composite | PodGroup]:
        """All groups of a tree, its root among them."""
        groups: list[Composite | PodGroup] = [self.composites[root]]
        while groups:
            group = groups.pop()
            yield group
            if isinstance(group, Composite):
                groups.extend(self._list_below(group.key))

    def _list_below(self, composite: Key) -> list[Composite | PodGroup]:
        branches = [self.composites[key] for key in self._composites_below.get(composite, ())]
        keys = self._groups_below.get(composite, ())
        return [*branches, *(self.groups[key] for key in keys if key in self.groups)]

    def _grow(self, composite: Composite, depth: int) -> Branch | None:
        if not depth:
            return None
        below: list[Tree] = []
        for group in self._list_below(composite.key):
            tree = self._grow(group, depth - 1) if isinstance(group, Composite) else group.leaf(group.key.name)
            if tree is None:
                return None
            below.append(tree)
        need = composite.min_group_count or 1
        return Branch(composite.key.name, need, composite.topology_key, tuple(below), composite.disruption)

    def find_invalid(self, tree: GroupKey) -> str:
        """Return why kube-scheduler 1.38 schedules no pod of a tree, a phrase; "" if it does, or there is no such tree.

        Upstream validates trees when it schedules them (KEP-6012, "Runtime validation in Beta").
        """
        root = self.composites.get(tree.object_key) if tree.kind is GroupKind.COMPOSITE else None
        level, groups = 1, [root] if root is not None else []
        while groups:
            pairs = [(above, group) for above in groups for group in self._list_below(above.key)]
            if pairs and level == _MAX_LEVELS_IN_1_38:
                return f"it has more than {_MAX_LEVELS_IN_1_38} levels of groups"
            for above, group in pairs:
                names = above.key.name, group.key.name
                if above.min_group_count is not None and not _is_gang(group):
                    return "{} is a gang, and {} below it is basic".format(*names)
                if above.disruption is Disruption.ALL and group.disruption is not Disruption.ALL:
                    return "{} has disruption mode all, and {} below it has single".format(*names)
            level, groups = level + 1, [group for _, group in pairs if isinstance(group, Composite)]
        return ""


def _is_gang(group: Composite | PodGroup) -> bool:
    return group.policy.is_gang if isinstance(group, PodGroup) else group.min_group_count is not None


def count_least(tree: Tree) -> int:
    """The fewest members with which a tree stands; of a branch with too few groups, what those take that it has."""
    if isinstance(tree, Leaf):
        return tree.need
    return max(1, sum(sorted(count_least(each) for each in tree.below)[: tree.need]))


def _parent(item: PodGroup | Composite | None) -> Key | None:
    return Key(item.key.namespace, item.parent) if item is not None and item.parent else None
