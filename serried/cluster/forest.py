"""The trees of PodGroups and CompositePodGroups (`Forest`), and the PodGroup value that stands for a whole tree.

A tree is scheduled as one gang. It has one key (kind ``COMPOSITE``) for all its members, and one PodGroup value, which
is rebuilt when something in the tree changes. The parent of a group is the CompositePodGroup right above it. A group
whose parent does not exist (yet) waits under the parent's key.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from serried.api.group import Branch, Composite, Leaf, PodGroup, Policy, Tree
from serried.api.names import Disruption, GroupKey, GroupKind, Key
from serried.api.priority import PreemptionPolicy
from serried.cluster.index import reindex

_MAX_DEPTH = 8
"""The maximum number of CompositePodGroups below each other. (The API allows trees of four levels.)"""

_MAX_LEVELS_IN_1_38 = 4
"""The maximum number of levels for kube-scheduler 1.38, including that of the PodGroups."""

_MAX_STEPS = 256
"""The maximum number of parents that are followed to find the root. A user may create a chain of thousands."""

_MAX_GROUPS = 1024
"""The maximum number of groups in a tree, because each change of one rebuilds the tree."""


class Forest:
    """The trees of the Store's PodGroups and CompositePodGroups.

    The Store reports each change of a group, and gets the keys of the trees that it has to build again.
    """

    def __init__(self, groups: Mapping[GroupKey, PodGroup]) -> None:
        self.composites: dict[Key, Composite] = {}
        self.groups = groups
        self._groups_below: dict[Key, tuple[GroupKey, ...]] = {}
        self._composites_below: dict[Key, tuple[Key, ...]] = {}

    def find_tree_key(self, group: GroupKey) -> GroupKey:
        """Return the key under which the members of a PodGroup are scheduled: its tree's, or its own if it is in none.

        If the CompositePodGroup above the PodGroup does not exist yet, the key is made from its name, as for a tree.
        """
        found = self.groups.get(group)
        parent = _parent(found)
        return group if parent is None else self.tree_key_of_composite(parent)

    def tree_key_of_composite(self, composite: Key) -> GroupKey:
        """Return the key of the tree in which a CompositePodGroup is. Neither tree nor CompositePodGroup need exist."""
        return GroupKey(*self._find_root(composite), GroupKind.COMPOSITE)

    def index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[GroupKey]:
        """Update the index of PodGroups by the CompositePodGroup above them, as a PodGroup has changed.

        It was ``old`` before, and is ``new`` now; None: no PodGroup. Return the keys of the trees in which it is, or
        was before.
        """
        item = new or old
        if item is None or (_parent(old) is None and _parent(new) is None):
            return set()
        places = reindex(self._groups_below, _parent(old), _parent(new), item.key)
        return {self.tree_key_of_composite(place) for place in places}

    def put_composite(self, composite: Composite) -> set[GroupKey]:
        """Add or replace a CompositePodGroup. Return the keys of the affected trees, before and after the change."""
        return self._replace_composite(composite.key, composite)

    def drop_composite(self, key: Key) -> set[GroupKey]:
        """Remove a CompositePodGroup. Return the keys of the affected trees, before and after the change."""
        return self._replace_composite(key, None)

    def _replace_composite(self, key: Key, new: Composite | None) -> set[GroupKey]:
        old = self.composites.get(key)
        touched = {self.tree_key_of_composite(key)}
        reindex(self._composites_below, _parent(old), _parent(new), key)
        if new is None:
            self.composites.pop(key, None)
        else:
            self.composites[key] = new
        return touched | {self.tree_key_of_composite(key)}

    def _find_root(self, composite: Key) -> Key:
        seen = {composite: 0}
        place = composite
        while (parent := _parent(self.composites.get(place))) is not None and len(seen) <= _MAX_STEPS:
            if parent in seen:
                return min(list(seen)[seen[parent] :])  # a cycle: choose a fixed one of its groups as the root
            seen[parent] = len(seen)
            place = parent
        return place

    def find_gap(self, tree: GroupKey) -> str:
        """Return a phrase why there is no valid tree with the key ``tree``.

        "" if there is one, or if the key is not of a tree but of a single group.
        """
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
        """Return the PodGroup value that stands for a whole tree.

        None if its root does not exist, or if the tree is not valid: too deep, too large, or a cycle.
        """
        root = self.composites.get(tree.object_key) if tree.kind is GroupKind.COMPOSITE else None
        if root is None or root.parent is not None:
            return None
        branch = None if self._is_large(root) else self._build_branch(root, _MAX_DEPTH)
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
            first_quorum=root.first_quorum,
            branch=branch,
            api=root.api,
        )

    def _find_preemption(self, root: Composite) -> PreemptionPolicy | None:
        """Return the preemptionPolicy of a tree: Never if at least one of its groups has it, else that of the root."""
        says_never = any(item.preemption is PreemptionPolicy.NEVER for item in self._iterate_groups(root.key))
        return PreemptionPolicy.NEVER if says_never else root.preemption

    def _is_large(self, root: Composite) -> bool:
        return sum(1 for _ in islice(self._iterate_groups(root.key), _MAX_GROUPS + 1)) > _MAX_GROUPS

    def _iterate_groups(self, root: Key) -> Iterator[Composite | PodGroup]:
        """Yield all groups of a tree, including its root."""
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

    def _build_branch(self, composite: Composite, depth: int) -> Branch | None:
        if not depth:
            return None
        below: list[Tree] = []
        for group in self._list_below(composite.key):
            tree = self._build_branch(group, depth - 1) if isinstance(group, Composite) else group.leaf(group.key.name)
            if tree is None:
                return None
            below.append(tree)
        need = composite.min_group_count or 1
        return Branch(composite.key.name, need, composite.topology_key, tuple(below), composite.disruption)

    def find_invalid(self, tree: GroupKey) -> str:
        """Return a phrase why kube-scheduler 1.38 rejects a tree; "" if it accepts the tree, or there is no tree.

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
    """Return the smallest number of members with which a tree reaches its quorum.

    Of the groups below a CompositePodGroup only minGroupCount ones count, those that need the fewest members. If there
    are fewer groups, all of them count.
    """
    if isinstance(tree, Leaf):
        return tree.need
    return max(1, sum(sorted(count_least(each) for each in tree.below)[: tree.need]))


def _parent(item: PodGroup | Composite | None) -> Key | None:
    return Key(item.key.namespace, item.parent) if item is not None and item.parent else None
