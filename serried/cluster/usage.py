"""The usage of nodes (`Occupancy`), with each pod counted exactly once, and snapshots of it for plans (`Snapshots`).

There are several sources for the node of a pod: the ledger reserves a slot, the bind call is seen (assumed), the watch
shows the pod bound. They overlap, in any order. Each source makes a claim of its own kind, and only the strongest claim
of a pod counts:

    VACANT < RESERVED < ASSUMED < BOUND

The slot of a member that ended is passed to its vacancy, and then to its replacement, within one change of the Store:
no plan can see it as free in between (docs/decisions/0013-repair-in-place.md). The resources of a victim belong to the
preemptor's gang from before the eviction until the victim has ended. Times are in loop seconds, passed by callers.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from serried.api.interpod import count_absent, find_reached
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, add, subtract
from serried.cluster.members import Dirty
from serried.plan.request import Overlay, Snapshot
from serried.plan.rule import PlanRuleType

_MAX_FREED_NODES = 256
"""The maximum number of freed nodes that are remembered one by one; more count as all nodes."""


class ClaimKind(IntEnum):
    """The source of a claim that a pod uses a node. The highest kind counts."""

    VACANT = 0
    """The slot of a member that has ended (`Vacancy`), in the name of the vacancy or of the replacement pod."""

    RESERVED = 1
    """The ledger has a slot for the pod."""

    ASSUMED = 2
    """The pod's bind call was seen."""

    BOUND = 3
    """The watch shows the pod on the node."""


Claim = tuple[str, tuple[tuple[str, int], ...]]
"""Node name and the pod's requests."""


Freed = Mapping[str, Resources | None]
"""Nodes with freed resources, each with the usage before; None if the node itself has changed."""


class FreedNodes:
    """Collects the nodes on which resources were freed since the last ``take``."""

    def __init__(self) -> None:
        self._before: dict[str, Resources | None] | None = {}
        self._reached: set[str] = set()

    def add(self, node: str, before: Resources | None = None) -> None:
        """Add a node on which resources were freed. ``before`` is the usage until then; it is copied."""
        if self._before is None:
            return
        if before is None:
            self._before[node] = None
        elif node not in self._before:
            self._before[node] = dict(before)
        if len(self._before) > _MAX_FREED_NODES:
            self._before = None

    def add_reached(self, names: Iterable[str]) -> None:
        """Add names (`serried.api.interpod.list_concerns`): any node may be suitable now for pods they concern."""
        self._reached.update(names)

    def take_reached(self) -> Collection[str]:
        """Return the names added by `add_reached` since the last call, and clear them."""
        taken, self._reached = self._reached, set()
        return taken

    def add_all(self) -> None:
        """Record that resources may have been freed on any node."""
        self._before = None

    def take(self) -> Freed | None:
        """Return the collected nodes, and clear them. Return None if any node may have freed resources."""
        freed = self._before
        self._before = {}
        return freed


class Occupancy:
    """The claims by pod UID, and their sum by node. ``note_used`` is called with each node whose sum has changed."""

    def __init__(self, note_used: Callable[[str], None] = lambda _: None) -> None:
        self.freed = 0
        """A counter of how often resources became free on any node."""

        self.freed_nodes = FreedNodes()
        """The nodes on which resources became free. They wake the gangs that may fit there now."""

        self._note_used = note_used
        self._used: dict[str, Resources] = {}
        self._claims: dict[str, dict[ClaimKind, Claim]] = {}

    @property
    def used(self) -> Mapping[str, Resources]:
        """The used amounts by node name; a node without entry is empty. A live view, no copy."""
        return self._used

    def claim(self, uid: str, kind: ClaimKind, node: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Add a pod's claim of one kind, or replace it."""
        claims = self._claims.setdefault(uid, {})
        before = _strongest(claims)
        claims[kind] = (node, requests)
        self._replace_claim(before, _strongest(claims))

    def resize(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Change the requests of a pod's RESERVED and ASSUMED claims, because the pod was resized.

        A VACANT claim keeps the size of the member that ended.
        """
        claims = self._claims.get(uid, {})
        before = _strongest(claims)
        for kind in claims.keys() - {ClaimKind.VACANT, ClaimKind.BOUND}:
            claims[kind] = (claims[kind][0], requests)
        self._replace_claim(before, _strongest(claims))

    def recount(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Change the pseudo resources of a pod that now counts for other rules. Nothing is recorded as freed."""
        claims = self._claims.get(uid, {})
        before = _strongest(claims)
        for kind in claims.keys() - {ClaimKind.VACANT}:
            claims[kind] = (claims[kind][0], requests)
        self._rename_claim(before, _strongest(claims))

    def release(self, uid: str, kind: ClaimKind) -> None:
        """Remove a pod's claim of one kind. No effect if there is none."""
        claims = self._claims.get(uid)
        if claims is None or kind not in claims:
            return
        before = _strongest(claims)
        del claims[kind]
        self._replace_claim(before, _strongest(claims))
        if not claims:
            del self._claims[uid]

    def hand_over(self, uid: str, kind: ClaimKind, claimant: str) -> None:
        """Turn the claim of one kind of the pod ``uid`` into a VACANT claim of ``claimant``. Remove its other claims.

        No effect if there is no such claim. If the claim only changes its owner, nothing is recorded as freed.
        """
        claims = self._claims.get(uid, {})
        if kind not in claims:
            return
        del self._claims[uid]
        before = _strongest(claims)
        node, requests = kept = claims[kind]
        received = self._claims.setdefault(claimant, {})
        already = _strongest(received)
        received[ClaimKind.VACANT] = (node, count_absent(requests)) if kind is ClaimKind.BOUND else kept
        if already is None and before == kept:
            self._rename_claim(before, received[ClaimKind.VACANT])
            return
        self._replace_claim(already, _strongest(received))
        self._replace_claim(before, None)

    def forget(self, uid: str) -> None:
        """Remove all claims of a pod, which was deleted or has ended."""
        claims = self._claims.pop(uid, None)
        if claims:
            self._replace_claim(_strongest(claims), None)

    def node_of(self, uid: str) -> str | None:
        """Return the node of the pod's strongest claim; None without a claim."""
        claim = self.claim_of(uid)
        return claim[0] if claim else None

    def claim_of(self, uid: str) -> Claim | None:
        """Return the pod's strongest claim; None without a claim."""
        return _strongest(self._claims.get(uid, {}))

    def note_room(self, node: str) -> None:
        """Record that a node may have more free resources, because it was added or changed."""
        self.freed += 1
        self.freed_nodes.add(node)

    def note_reached(self, names: Iterable[str]) -> None:
        """Record that a pod came or left that also decides about other nodes; ``names`` are those of `find_reached`."""
        reached = frozenset(names)
        if reached:
            self.freed += 1
            self.freed_nodes.add_reached(reached)

    def note_room_anywhere(self) -> None:
        """Record that an obstacle other than usage has gone, so that any node may be suitable now."""
        self.freed += 1
        self.freed_nodes.add_all()

    def _rename_claim(self, before: Claim | None, after: Claim | None) -> None:
        """Replace a claim by one for the same resources. Nothing is recorded as freed."""
        if before is not None and after is not None and before != after:
            self._count(before, -1)
            self._count(after, +1)

    def _replace_claim(self, before: Claim | None, after: Claim | None) -> None:
        if before == after:
            return
        if before:
            self.freed += 1
            self.freed_nodes.add(before[0], self._used.get(before[0], {}))
            self._count(before, -1)
            # This includes reservations of a gang whose plan is dropped, of which no watch event tells.
            if reached := find_reached(before[1]):
                stays = find_reached(after[1]) if after and after[0] == before[0] else ()
                self.note_reached(reached.difference(stays))
        if after:
            self._count(after, +1)

    def _count(self, claim: Claim, sign: int) -> None:
        node, requests = claim
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


def _strongest(claims: Mapping[ClaimKind, Claim]) -> Claim | None:
    return claims[max(claims)] if claims else None


class Nominations:
    """The nominated pods. Their requests count as used for plans with the same or a lower priority (`Snapshots`)."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.withdrawn = 0
        """A counter of nominations that ended although the pod did not go to the node."""

        self.withdrawn_nodes = FreedNodes()
        """The nodes of these nominations, whose resources others may use now. As ``Occupancy.freed_nodes``.

        They are separate, because they must not wake the gang that has withdrawn its own nominations.
        """

        self._occupancy = occupancy
        self._pods: dict[str, Pod] = {}

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs of the nominated pods."""
        return frozenset(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def of_others(self, priority: int, own: Iterable[str]) -> Iterable[Pod]:
        """Return nominated pods of at least this priority that have no claim yet, except those with UIDs ``own``."""
        uids = frozenset(own)
        return [
            pod
            for pod in self._pods.values()
            if pod.priority >= priority and pod.uid not in uids and self._occupancy.node_of(pod.uid) is None
        ]

    def follow(self, uid: str, pod: Pod | None) -> None:
        """Count the resources of a pod on its nominated node; None: it is nominated no more.

        The caller has updated the resources of the pod (`Occupancy`) before.
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
    """The slot of a gang's member that ended without success, kept for a replacement. `Vacancies` owns it."""

    group: GroupKey

    pod: Pod
    """The member in its last state before it ended."""

    leaf: str = ""
    """The name of the member's PodGroup in the group's tree."""

    refusal: str = ""
    """The reason with which the kubelet rejected the member; its node is not kept then. "" for any other end."""

    since: float | None = None
    """The time at which the vacancy was first considered, in loop seconds; None before that."""

    replacement: str = ""
    """The UID of the replacement pod; "" while there is none."""

    @property
    def claimant(self) -> str:
        """The UID under which the slot is claimed: the replacement's, else a made-up one with a colon."""
        return self.replacement or f"vacancy:{self.pod.uid}"


class Vacancies:
    """All vacancies, by group, the oldest first."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.filled: list[tuple[Vacancy, str]] = []
        """The vacancies whose replacement was bound, with its node. The reader has to clear the list."""

        self.occupancy = occupancy
        self._by_group: dict[GroupKey, dict[str, Vacancy]] = {}
        self._by_replacement: dict[str, Vacancy] = {}

        self._free: dict[str, Counter[str]] = {}
        """The number of kept slots without a replacement yet, by namespace and node."""

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
        """Return the vacancy of a member that ended; None if it left none."""
        return next((those[uid] for those in self._by_group.values() if uid in those), None)

    def of_replacement(self, uid: str) -> Vacancy | None:
        """Return the vacancy for which this pod is the replacement; None if it is none."""
        return self._by_replacement.get(uid)

    def count_nodes(self, namespace: str) -> int:
        """Return the number of nodes with kept slots of a namespace that have no replacement yet."""
        return len(self._free.get(namespace, ()))

    def open(self, group: GroupKey, pod: Pod, refusal: str = "", leaf: str = "", *, since: float | None = None) -> None:
        """Open a vacancy for a bound member that has ended.

        The member's BOUND claim becomes the vacancy's, except if the kubelet has rejected the member (``refusal``).
        """
        vacancy = Vacancy(group, pod, leaf, refusal, since)
        self._by_group.setdefault(group, {})[pod.uid] = vacancy
        if not refusal:
            self.occupancy.hand_over(pod.uid, ClaimKind.BOUND, vacancy.claimant)
        self._note_free(vacancy)

    def assign(self, vacancy: Vacancy, replacement: str) -> None:
        """Assign a waiting member to a vacancy without replacement. The member still has to be planned and bound."""
        self.occupancy.hand_over(vacancy.claimant, ClaimKind.VACANT, replacement)
        self._note_taken(vacancy)
        vacancy.replacement = replacement
        self._by_replacement[replacement] = vacancy

    def forget_replacement(self, uid: str) -> None:
        """Remove a replacement that was deleted; its vacancy waits for another one. No effect if it was none."""
        vacancy = self._by_replacement.pop(uid, None)
        if vacancy is not None:
            vacancy.replacement = ""
            self.occupancy.hand_over(uid, ClaimKind.VACANT, vacancy.claimant)
            self._note_free(vacancy)

    def fill(self, uid: str, node: str) -> None:
        """Close the vacancy of a replacement that was bound to ``node``. No effect if the pod is no replacement."""
        vacancy = self._by_replacement.get(uid)
        if vacancy is not None:
            self.close(vacancy)
            self.filled.append((vacancy, node))

    def move(self, vacancy: Vacancy, group: GroupKey, leaf: str) -> None:
        """Move a vacancy to another group of the same namespace, because the member's group has a new key."""
        self._remove(vacancy)
        vacancy.group, vacancy.leaf = group, leaf
        self._by_group.setdefault(group, {})[vacancy.pod.uid] = vacancy

    def close(self, vacancy: Vacancy) -> None:
        """Close a vacancy and release its slot. A slot that a plan reserved for its replacement is kept."""
        self._remove(vacancy)
        self._by_replacement.pop(vacancy.replacement, None)
        if not vacancy.replacement:
            self._note_taken(vacancy)
        self.occupancy.release(vacancy.claimant, ClaimKind.VACANT)

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
    """Pair vacancies with waiting pods: by name, else by index and owner, else by shape and owner.

    A pod with an index only gets a vacancy with that index. Each vacancy and each pod is in one pair at most; earlier
    ones come first.
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


def find_taken(vacancies: Iterable[Vacancy], placed: Iterable[Pod]) -> set[int]:
    """Return the ``id`` of each vacancy whose member was replaced already: a placed pod has its name or index."""
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

        Nominations of other pods count as used if their priority is equal or higher. Vacancies count as used, except
        those in ``leaving``, which the members would give up.
        """
        used: dict[str, Resources] = {}
        for vacancy in leaving:
            claim = self._occupancy.claim_of(vacancy.claimant)
            if claim is not None:
                used[claim[0]] = subtract(used.get(claim[0]) or self._occupancy.used[claim[0]], dict(claim[1]))
        for pod in self._nominations.of_others(priority, (member.uid for member in members)):
            base = used.get(pod.nominated) or self._occupancy.used.get(pod.nominated, {})
            used[pod.nominated] = add(base, dict(pod.shape.requests))
        if not used:
            return Snapshot(self._nodes, self._occupancy.used, rules=self.rules)
        return Snapshot(self._nodes, Overlay(used, self._occupancy.used), used.keys(), rules=self.rules)

    def count_freed(self) -> tuple[int, int]:
        """Return the counters of freed resources and of withdrawn nominations, to be compared with a later call."""
        return self._occupancy.freed, self._nominations.withdrawn


class PendingVictims:
    """The victims of all reservations, and the preemptor's gang of each.

    A gang is marked dirty when its last victim has ended, and not at every change of a victim: a thousand victims
    change thousands of times, and each review of the gang takes O(members).
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
        """The UIDs of existing pods that were victims and are none any more."""

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
        """Remove victims, because they have ended or are spared. Ignores pods that are no victims."""
        for uid in uids:
            group = self._by_uid.pop(uid, None)
            if group is not None and group in self._left:
                self._end(group, uid)
            if uid in self._pods:
                self._spared.add(uid)

    def was_let_off(self, uid: str) -> bool:
        """Return whether an existing pod was a victim. Its condition DisruptionTarget may not be removed yet."""
        return uid in self._spared

    def note(self, uid: str) -> None:
        """Record that a pod has changed or was deleted."""
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
        """Return the gangs with a victim that has changed since the last call."""
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
