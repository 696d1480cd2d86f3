"""The usage of nodes (`Occupancy`), with each pod counted exactly once, and snapshots of it for plans (`Snapshots`).

There are several sources for the node of a pod: the ledger reserves a slot, the bind call is seen (assumed), the watch
shows the pod bound. They overlap, in any order. Each source is recorded, but a pod's requests count only once, on the
node that the highest of its sources names (`UsageSource`):

    VACANT < RESERVED < ASSUMED < BOUND

The slot of a member that ended is passed to its vacancy, and then to its replacement, within one change of the Store:
no plan can see it as free in between (docs/decisions/0013-slots-of-dead-members.md). The resources of a victim belong
to the preemptor's gang from before the eviction until the victim has ended. Times are in loop seconds, passed by
callers.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from serried.api.interpod import find_affecting_names, to_vacancy_requests
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, add, subtract
from serried.cluster.members import Dirty
from serried.plan.request import Overlay, Snapshot
from serried.plan.rule import PlanRuleType

_MAX_FREED_NODES = 256
"""The maximum number of freed nodes that are remembered one by one; more count as all nodes."""


class UsageSource(IntEnum):
    """The source from which Serried knows that a pod uses a node.

    If a pod has several, the last one in this list counts.
    """

    VACANT = 0
    """The slot of a member that has ended, kept under the UID of its replacement or of its `Vacancy`."""

    RESERVED = 1
    """The ledger has a slot for the pod."""

    ASSUMED = 2
    """The pod's bind call was seen."""

    BOUND = 3
    """The watch shows the pod on the node."""


PodUsage = tuple[str, tuple[tuple[str, int], ...]]
"""The node that a pod uses (its name), and its requests there as (resource, amount) pairs, with pseudo resources."""


Freed = Mapping[str, Resources | None]
"""The nodes on which resources were freed, each with the used resources before the first of these changes.

The value is None if the node itself was added or changed.
"""


class FreedNodes:
    """Collects the nodes on which resources were freed since the last `take`, so that waiting gangs are planned again.

    A pod that starts or ends may also make nodes feasible for waiting pods by their rules about other pods, such as
    affinity terms. The rules for which this may be so are collected as well (`take_reached`).
    """

    def __init__(self) -> None:
        self._before: dict[str, Resources | None] | None = {}
        self._reached: set[str] = set()

    def add(self, node: str, before: Resources | None = None) -> None:
        """Add a node on which resources were freed.

        ``before`` are the used resources until then, which are copied; None if the node itself was added or changed.
        """
        if self._before is None:
            return
        if before is None:
            self._before[node] = None
        elif node not in self._before:
            self._before[node] = dict(before)
        if len(self._before) > _MAX_FREED_NODES:
            self._before = None

    def add_reached(self, names: Iterable[str]) -> None:
        """Record that waiting pods with certain rules about other pods, such as affinity, may fit on any node now.

        ``names`` stand for these rules. Serried adds such names to the requests of pods, so that the rules count like
        resources (`serried.api.interpod.find_affecting_names`). `serried.api.interpod.list_affected_names` says for
        which pods they matter.
        """
        self._reached.update(names)

    def take_reached(self) -> Collection[str]:
        """Return the names added by `add_reached` since the last call, and clear them.

        Each stands for a rule about other pods, such as affinity: waiting pods with this rule may fit on any node now.
        """
        taken, self._reached = self._reached, set()
        return taken

    def add_all(self) -> None:
        """Record that resources may have been freed on any node."""
        self._before = None

    def take(self) -> Freed | None:
        """Return the collected nodes, and clear them. Return None if resources may have been freed on any node."""
        freed = self._before
        self._before = {}
        return freed


class Occupancy:
    """The resources that pods use, by pod UID, and their sum by node. Each pod counts once, on one node.

    A pod may have several records, one for each `UsageSource`: only the highest one counts. ``note_used`` is called
    with the name of each node whose sum has changed.
    """

    def __init__(self, note_used: Callable[[str], None] = lambda _: None) -> None:
        self.freed = 0
        """The number of times that resources became free on any node. It only grows."""

        self.freed_nodes = FreedNodes()
        """The nodes on which resources became free. Gangs that may fit on them now are planned again."""

        self._note_used = note_used
        self._used: dict[str, Resources] = {}
        self._usages: dict[str, dict[UsageSource, PodUsage]] = {}

    @property
    def used(self) -> Mapping[str, Resources]:
        """The used amounts of each resource by node name, a live view. On a node without entry nothing is used."""
        return self._used

    def add_usage(self, uid: str, source: UsageSource, node: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Record that a pod uses a node with these requests, as known from one source, such as the watch.

        This replaces the source's earlier record.
        """
        usages = self._usages.setdefault(uid, {})
        before = _find_counted(usages)
        usages[source] = (node, requests)
        self._replace_usage(before, _find_counted(usages))

    def resize(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Change the requests of a pod that was resized, in the records of its reserved slot and of its bind call.

        A slot kept for a replacement (VACANT) keeps the requests of the member that ended. The record from the watch
        (BOUND) is changed by `add_usage`.
        """
        usages = self._usages.get(uid, {})
        before = _find_counted(usages)
        for source in usages.keys() - {UsageSource.VACANT, UsageSource.BOUND}:
            usages[source] = (usages[source][0], requests)
        self._replace_usage(before, _find_counted(usages))

    def recount(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Change the requests of a pod in which only pseudo resources have changed, so nothing is recorded as freed.

        A pseudo resource is a request that Serried adds to its own copy of a pod, for instance for each affinity term
        of another pod that selects it. It changes when other terms select the pod.
        """
        usages = self._usages.get(uid, {})
        before = _find_counted(usages)
        for source in usages.keys() - {UsageSource.VACANT}:
            usages[source] = (usages[source][0], requests)
        self._move_usage(before, _find_counted(usages))

    def release(self, uid: str, source: UsageSource) -> None:
        """Remove what one source has recorded for a pod, for example its reserved slot.

        No effect if there is nothing.
        """
        usages = self._usages.get(uid)
        if usages is None or source not in usages:
            return
        before = _find_counted(usages)
        del usages[source]
        self._replace_usage(before, _find_counted(usages))
        if not usages:
            del self._usages[uid]

    def hand_over(self, uid: str, source: UsageSource, holder: str) -> None:
        """Pass the slot of the pod ``uid`` on to the UID ``holder``, where it is recorded by source VACANT.

        The slot is the node and requests that ``source`` has recorded for the pod; no effect if there are none. All
        other records of the pod are removed. If only the UID changes, nothing is recorded as freed.
        """
        usages = self._usages.get(uid, {})
        if source not in usages:
            return
        del self._usages[uid]
        before = _find_counted(usages)
        node, requests = kept = usages[source]
        received = self._usages.setdefault(holder, {})
        already = _find_counted(received)
        received[UsageSource.VACANT] = (node, to_vacancy_requests(requests)) if source is UsageSource.BOUND else kept
        if already is None and before == kept:
            self._move_usage(before, received[UsageSource.VACANT])
            return
        self._replace_usage(already, _find_counted(received))
        self._replace_usage(before, None)

    def forget(self, uid: str) -> None:
        """Remove all records of a pod, which was deleted or has ended."""
        usages = self._usages.pop(uid, None)
        if usages:
            self._replace_usage(_find_counted(usages), None)

    def node_of(self, uid: str) -> str | None:
        """Return the name of the node that a pod uses; None if no source names one.

        If sources name several nodes, the highest source counts: BOUND, ASSUMED, RESERVED, VACANT.
        """
        usage = self.usage_of(uid)
        return usage[0] if usage else None

    def usage_of(self, uid: str) -> PodUsage | None:
        """Return the node that a pod uses and its requests there; None if no source names a node.

        If sources name several nodes, the highest source counts: BOUND, ASSUMED, RESERVED, VACANT.
        """
        return _find_counted(self._usages.get(uid, {}))

    def note_freed(self, node: str) -> None:
        """Record that a node was added or changed.

        It may have more free resources, so waiting gangs are planned again.
        """
        self.freed += 1
        self.freed_nodes.add(node)

    def note_reached(self, names: Iterable[str]) -> None:
        """Record that a pod started or ended, so that waiting pods with rules about it may fit on other nodes.

        ``names`` stand for these rules. Serried adds such names to the requests of pods, so that the rules count like
        resources (`serried.api.interpod.find_affecting_names`).
        """
        reached = frozenset(names)
        if reached:
            self.freed += 1
            self.freed_nodes.add_reached(reached)

    def note_freed_anywhere(self) -> None:
        """Record that any node may be feasible now for waiting pods, although no resources were freed."""
        self.freed += 1
        self.freed_nodes.add_all()

    def _move_usage(self, before: PodUsage | None, after: PodUsage | None) -> None:
        """Subtract ``before`` from the sums and add ``after``, without recording resources as freed."""
        if before is not None and after is not None and before != after:
            self._count(before, -1)
            self._count(after, +1)

    def _replace_usage(self, before: PodUsage | None, after: PodUsage | None) -> None:
        if before == after:
            return
        if before:
            self.freed += 1
            self.freed_nodes.add(before[0], self._used.get(before[0], {}))
            self._count(before, -1)
            # This covers the slots of a gang whose plan is dropped, too: no watch event reports these.
            if reached := find_affecting_names(before[1]):
                stays = find_affecting_names(after[1]) if after and after[0] == before[0] else ()
                self.note_reached(reached.difference(stays))
        if after:
            self._count(after, +1)

    def _count(self, usage: PodUsage, sign: int) -> None:
        node, requests = usage
        used = dict(self._used.get(node, {}))  # a copy, because snapshots share the old one
        for name, amount in requests:
            left = used.get(name, 0) + sign * amount
            if left:
                used[name] = left
            else:
                used.pop(name, None)
        if used:
            self._used[node] = used
        else:
            self._used.pop(node, None)
        self._note_used(node)


def _find_counted(usages: Mapping[UsageSource, PodUsage]) -> PodUsage | None:
    return usages[max(usages)] if usages else None


class Nominations:
    """The pending pods that have a nominated node.

    Their requests count as used there in plans for pods of the same or a lower priority (`Snapshots`).
    """

    def __init__(self, occupancy: Occupancy) -> None:
        self.withdrawn = 0
        """The number of nominations that ended without the pod using its nominated node. It only grows."""

        self.withdrawn_nodes = FreedNodes()
        """The nodes of the nominations in ``withdrawn``, whose resources other pods may use now.

        They are separate from ``Occupancy.freed_nodes``, because they must not wake the gang that has withdrawn its own
        nominations.
        """

        self._occupancy = occupancy
        self._pods: dict[str, Pod] = {}

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs of the nominated pods."""
        return frozenset(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def list_competing(self, priority: int, own: Iterable[str]) -> Iterable[Pod]:
        """Return the nominated pods whose resources a plan with this priority must not use.

        They have at least this priority, are not among the planned pods (UIDs ``own``), and do not use a
        node yet (by slot, bind call or Binding), so that their resources are not counted otherwise.
        """
        uids = frozenset(own)
        return [
            pod
            for pod in self._pods.values()
            if pod.priority >= priority and pod.uid not in uids and self._occupancy.node_of(pod.uid) is None
        ]

    def update_pod(self, uid: str, pod: Pod | None) -> None:
        """Update the nomination of the pod ``uid``. ``pod`` is None if it is not nominated any more.

        Call it after the Occupancy was updated for the pod: a nomination counts as withdrawn only if the pod does not
        use the node.
        """
        before = self._pods.pop(uid, None)
        if pod is not None:
            self._pods[uid] = pod
        if before is None or (pod is not None and pod.nominated == before.nominated):
            return
        if self._occupancy.node_of(uid) != before.nominated:
            self.withdrawn += 1
            self.withdrawn_nodes.add(before.nominated)


@dataclass(slots=True, eq=False)
class Vacancy:
    """The slot of a gang's bound member that ended without success, kept for a replacement. `Vacancies` owns it."""

    group: GroupKey

    pod: Pod
    """The member in its last state before it ended."""

    leaf: str = ""
    """The name of the member's PodGroup in the tree of ``group``; "" if the group is no tree."""

    refusal: str = ""
    """The reason with which the kubelet rejected the member; its node is not kept then. "" for any other end."""

    since: float | None = None
    """The time in loop seconds from which it is counted how long the slot is kept for a replacement.

    None until `extender.features.repair` handles the vacancy for the first time.
    """

    replacement: str = ""
    """The UID of the replacement pod; "" while there is none."""

    @property
    def holder(self) -> str:
        """The UID under which the Occupancy counts the slot: the replacement's, else a made-up one with a colon."""
        return self.replacement or f"vacancy:{self.pod.uid}"


class Vacancies:
    """The vacancies of all groups. It also keeps their slots counted as used in the Occupancy."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.filled: list[tuple[Vacancy, str]] = []
        """The vacancies whose replacement was bound, each with the replacement's node. The reader clears the list."""

        self.occupancy = occupancy
        self._by_group: dict[GroupKey, dict[str, Vacancy]] = {}
        self._by_replacement: dict[str, Vacancy] = {}

        self._free: dict[str, Counter[str]] = {}
        """The number of vacancies without a replacement whose slot is kept, by namespace and node."""

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def __iter__(self) -> Iterator[Vacancy]:
        return iter([vacancy for those in self._by_group.values() for vacancy in those.values()])

    def __contains__(self, group: object) -> bool:
        return group in self._by_group

    def groups(self) -> list[GroupKey]:
        """Return the groups that have a vacancy."""
        return list(self._by_group)

    def has(self, group: GroupKey) -> bool:
        """Return whether a group has a vacancy."""
        return group in self._by_group

    def of_group(self, group: GroupKey) -> list[Vacancy]:
        """Return the vacancies of a group, the oldest first."""
        return list(self._by_group.get(group, {}).values())

    def find(self, uid: str) -> Vacancy | None:
        """Return the vacancy of the ended member with this UID; None if there is none."""
        return next((those[uid] for those in self._by_group.values() if uid in those), None)

    def of_replacement(self, uid: str) -> Vacancy | None:
        """Return the vacancy to which this pod (a UID) is assigned as replacement; None if it is no replacement."""
        return self._by_replacement.get(uid)

    def count_nodes(self, namespace: str) -> int:
        """Return the number of nodes with slots kept for members of this namespace without a replacement yet."""
        return len(self._free.get(namespace, ()))

    def open(self, group: GroupKey, pod: Pod, refusal: str = "", leaf: str = "", *, since: float | None = None) -> None:
        """Open a vacancy for a bound member that has ended.

        The slot stays counted as used, now for the vacancy. If the kubelet has rejected the member (``refusal`` is its
        reason), the slot is free instead. ``leaf`` is the member's PodGroup in a tree, "" for a gang that is no tree.
        ``since`` is the time in loop seconds from which the wait for a replacement counts. If it is None,
        `extender.features.repair` sets the time when it first handles the vacancy.
        """
        vacancy = Vacancy(group, pod, leaf, refusal, since)
        self._by_group.setdefault(group, {})[pod.uid] = vacancy
        if not refusal:
            self.occupancy.hand_over(pod.uid, UsageSource.BOUND, vacancy.holder)
        self._note_free(vacancy)

    def assign(self, vacancy: Vacancy, replacement: str) -> None:
        """Assign a waiting member, by UID, as replacement to a vacancy that has none.

        The member is neither planned nor bound yet. The kept slot counts as used by it from now on.
        """
        self.occupancy.hand_over(vacancy.holder, UsageSource.VACANT, replacement)
        self._note_taken(vacancy)
        vacancy.replacement = replacement
        self._by_replacement[replacement] = vacancy

    def forget_replacement(self, uid: str) -> None:
        """Remove a replacement that was deleted; its vacancy waits for another one.

        No effect if it is no replacement.
        """
        vacancy = self._by_replacement.pop(uid, None)
        if vacancy is not None:
            vacancy.replacement = ""
            self.occupancy.hand_over(uid, UsageSource.VACANT, vacancy.holder)
            self._note_free(vacancy)

    def fill(self, uid: str, node: str) -> None:
        """Close the vacancy of the replacement ``uid``, which was bound to ``node``.

        Append the vacancy and ``node`` as a pair to the list ``filled``. No effect if the pod is no replacement.
        """
        vacancy = self._by_replacement.get(uid)
        if vacancy is not None:
            self.close(vacancy)
            self.filled.append((vacancy, node))

    def move(self, vacancy: Vacancy, group: GroupKey, leaf: str) -> None:
        """Move a vacancy to another group of the same namespace, because the member's group has a new key.

        ``leaf`` is the member's PodGroup in the tree of the new group, "" if it is no tree.
        """
        self._remove(vacancy)
        vacancy.group, vacancy.leaf = group, leaf
        self._by_group.setdefault(group, {})[vacancy.pod.uid] = vacancy

    def close(self, vacancy: Vacancy) -> None:
        """Close a vacancy and free its slot. If a plan has reserved a node for its replacement, that is not changed."""
        self._remove(vacancy)
        self._by_replacement.pop(vacancy.replacement, None)
        if not vacancy.replacement:
            self._note_taken(vacancy)
        self.occupancy.release(vacancy.holder, UsageSource.VACANT)

    def _remove(self, vacancy: Vacancy) -> None:
        those = self._by_group[vacancy.group]
        del those[vacancy.pod.uid]
        if not those:
            del self._by_group[vacancy.group]

    def _note_free(self, vacancy: Vacancy) -> None:
        if not vacancy.refusal:
            self._free.setdefault(vacancy.group.namespace, Counter())[vacancy.pod.node] += 1

    def _note_taken(self, vacancy: Vacancy) -> None:
        if not vacancy.refusal:
            namespace = vacancy.group.namespace
            self._free[namespace] -= Counter((vacancy.pod.node,))  # also removes entries that become 0
            if not self._free[namespace]:
                del self._free[namespace]

    def close_group(self, group: GroupKey) -> None:
        """Close all vacancies of a group."""
        for vacancy in self.of_group(group):
            self.close(vacancy)


def match_replacements(vacancies: Iterable[Vacancy], waiting: Iterable[Pod]) -> list[tuple[Vacancy, Pod]]:
    """Return pairs of a vacancy and the waiting pod that may replace its member.

    A pod replaces a member of the same name, else one of the same owner and index (completion index or the like). A pod
    without index replaces one of the same owner and shape. Each vacancy and each pod is in at most one pair. If several
    match, the first of the given order is taken.
    """
    pairs: list[tuple[Vacancy, Pod]] = []
    open_slots = list(vacancies)
    replacements = list(waiting)
    for identify in (_name_key, _index_key, _shape_key):
        found = _match(identify, open_slots, replacements)
        slots = {id(vacancy) for vacancy, _ in found}
        pods = {pod.uid for _, pod in found}
        open_slots = [vacancy for vacancy in open_slots if id(vacancy) not in slots]
        replacements = [pod for pod in replacements if pod.uid not in pods]
        pairs += found
    return pairs


def find_replaced(vacancies: Iterable[Vacancy], placed: Iterable[Pod]) -> set[int]:
    """Return the Python ``id`` of each vacancy whose member was already replaced.

    That is so if one of the ``placed`` members has the name of the ended member, or its owner and index.
    """
    members = list(placed)
    marks = {(identify, identify(pod)) for pod in members for identify in (_name_key, _index_key)}
    return {
        id(vacancy)
        for vacancy in vacancies
        for identify in (_name_key, _index_key)
        if identify(vacancy.pod) is not None and (identify, identify(vacancy.pod)) in marks
    }


def _match(
    identify: Callable[[Pod], Hashable], vacancies: Iterable[Vacancy], waiting: Iterable[Pod]
) -> list[tuple[Vacancy, Pod]]:
    alike: dict[Hashable, list[Vacancy]] = {}
    for vacancy in vacancies:
        alike.setdefault(identify(vacancy.pod), []).append(vacancy)
    pairs = []
    for pod in waiting:
        mark = identify(pod)
        if mark is not None and alike.get(mark):
            pairs.append((alike[mark].pop(0), pod))
    return pairs


def _name_key(pod: Pod) -> Hashable:
    return pod.name


def _index_key(pod: Pod) -> Hashable:
    return None if pod.index is None else (_owner(pod), pod.index)


def _shape_key(pod: Pod) -> Hashable:
    return None if pod.index is not None else (_owner(pod), pod.shape)


def _owner(pod: Pod) -> tuple[str, str]:
    # By name, not UID: a Job that was recreated under its name gets the slots of the old one, if its group is the same.
    return (pod.owner.kind, pod.owner.name) if pod.owner is not None else ("", "")


class Snapshots:
    """Creates the snapshots for plans. Each takes O(nominated pods + given vacancies), not O(nodes)."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        occupancy: Occupancy,
        nominations: Nominations,
        rules: Sequence[PlanRuleType],
    ) -> None:
        self.rules = rules
        self._nodes = nodes
        self._occupancy = occupancy
        self._nominations = nominations

    def take(self, priority: int, members: Iterable[Pod], leaving: Iterable[Vacancy] = ()) -> Snapshot:
        """Return a snapshot of the cluster for a plan of ``members``, which have this priority.

        Resources of other nominated pods count as used if their priority is equal or higher. The slots of vacancies
        count as used, except those in ``leaving``. Those are kept for the planned gang itself, and the plan may use
        their resources in another way.
        """
        used: dict[str, Resources] = {}
        for vacancy in leaving:
            usage = self._occupancy.usage_of(vacancy.holder)
            if usage is not None:
                used[usage[0]] = subtract(used.get(usage[0]) or self._occupancy.used[usage[0]], dict(usage[1]))
        for pod in self._nominations.list_competing(priority, (member.uid for member in members)):
            base = used.get(pod.nominated) or self._occupancy.used.get(pod.nominated, {})
            used[pod.nominated] = add(base, dict(pod.shape.requests))
        if not used:
            return Snapshot(self._nodes, self._occupancy.used, rules=self.rules)
        return Snapshot(self._nodes, Overlay(used, self._occupancy.used), used.keys(), rules=self.rules)

    def count_freed(self) -> tuple[int, int]:
        """Return how often resources were freed, and how often nominations were withdrawn, since the process started.

        A difference to a later call shows that a plan that failed in between may succeed now.
        """
        return self._occupancy.freed, self._nominations.withdrawn


class PendingVictims:
    """The victims of all reservations, and for each the gang for which it is evicted.

    A gang is marked dirty, so that the scheduling loop processes it, when its last victim has ended, and not at every
    change of a victim: a thousand victims change thousands of times, and each review of the gang takes O(members).
    """

    def __init__(self, dirty: Dirty, pods: Mapping[str, Pod]) -> None:
        self._dirty = dirty
        self._pods = pods
        self._by_uid: dict[str, GroupKey] = {}

        self._left: dict[GroupKey, dict[str, str]] = {}
        """The victims that still run, with their nodes, by gang. Updated from the watch."""

        self._by_node: dict[str, set[str]] = {}
        """The UIDs of the victims that still run, by node."""

        self._changed: set[GroupKey] = set()
        """The gangs with a victim that has changed since the last `take_changed`."""

        self._spared: set[str] = set()
        """The UIDs of existing pods that were victims, but need not be evicted any more."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_uid)

    def __len__(self) -> int:
        return len(self._by_uid)

    @property
    def uids(self) -> KeysView[str]:
        """The UIDs of the victims of all gangs, a live view."""
        return self._by_uid.keys()

    def of_pod(self, uid: str) -> GroupKey | None:
        """Return the gang for which a pod is evicted; None if it is no victim."""
        return self._by_uid.get(uid)

    def add(self, uids: Iterable[str], group: GroupKey) -> None:
        """Add victims that are evicted for a gang."""
        fresh = dict.fromkeys(uids, group)
        running = [uid for uid in fresh if self._runs(uid)]
        self._by_uid.update(fresh)
        for uid in running:
            node = self._pods[uid].node
            self._left.setdefault(group, {})[uid] = node
            self._by_node.setdefault(node, set()).add(uid)
        self._spared.difference_update(fresh)

    def remove(self, uids: Iterable[str]) -> None:
        """Remove victims that have ended or need not be evicted any more.

        `was_spared` returns True from now on for those whose pods still exist.
        """
        for uid in uids:
            group = self._by_uid.pop(uid, None)
            if group is not None and group in self._left:
                self._end(group, uid)
            if uid in self._pods:
                self._spared.add(uid)

    def was_spared(self, uid: str) -> bool:
        """Return whether an existing pod was a victim, but need not be evicted any more.

        The condition DisruptionTarget that Serried wrote may still be in its status.
        """
        return uid in self._spared

    def update_pod(self, uid: str) -> None:
        """Update the victims still running, after the Store has changed or removed the pod ``uid``.

        If the last victim of a gang has ended, the gang is marked dirty: the scheduling loop processes it again.
        """
        if uid not in self._pods:
            self._spared.discard(uid)
        group = self._by_uid.get(uid)
        if group is None:
            return
        self._changed.add(group)
        if group in self._left and not self._runs(uid):
            self._end(group, uid)
            if group not in self._left:
                self._dirty.add(group)

    def are_on(self, node: str) -> bool:
        """Return whether victims of any gang still run on a node."""
        return node in self._by_node

    def list_on(self, node: str) -> Collection[str]:
        """Return the UIDs of the victims of any gang that still run on a node."""
        return self._by_node.get(node, ())

    def count_left(self, group: GroupKey) -> int:
        """Return the number of victims of a gang that still run."""
        return len(self._left.get(group, ()))

    def take_changed(self) -> set[GroupKey]:
        """Return the gangs with a victim whose pod has changed, in any field, or was deleted since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _runs(self, uid: str) -> bool:
        pod = self._pods.get(uid)
        return pod is not None and pod.bound

    def _end(self, group: GroupKey, uid: str) -> None:
        left = self._left[group]
        node = left.pop(uid, None)
        if node is not None:
            on_node = self._by_node.get(node, set())
            on_node.discard(uid)
            if not on_node:
                self._by_node.pop(node, None)
        if not left:
            del self._left[group]
