"""Who uses which node, with each pod counted exactly once, and the cluster as one plan sees it.

Several say where a pod on its way is: our ledger reserves a slot for it, its bind call is seen (assumed), the watch
shows it bound. These overlap, in any order. Each lays a claim of its own kind, and only the strongest claim of a pod
counts. The slot of a member that ended passes to its vacancy, and from there to its replacement, within one transition
of the Store: no plan can ever see its room as free in between (docs/decisions/0013-repair-in-place.md). The room of a
victim is the gang's from before its eviction until it is gone. Times are the caller's loop seconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from serried.api.names import GroupKey
from serried.api.neighbours import count_absent, find_reached
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, add, subtract
from serried.cluster.members import Dirty
from serried.plan.request import Overlay, Snapshot
from serried.plan.rule import PlanRuleType

_MAX_FREED_NODES = 256
"""On how many nodes room may be freed between two looks; more are as good as everywhere."""


class ClaimKind(IntEnum):
    """Who says that a pod uses a node; the highest is believed."""

    VACANT = 0
    """The slot of a member that has ended (`vacancies`), under the vacancy's name or that of the pod in its place."""

    RESERVED = 1
    """The ledger has a slot for the pod."""

    ASSUMED = 2
    """The pod's bind call was seen."""

    BOUND = 3
    """The watch shows the pod on the node."""


Claim = tuple[str, tuple[tuple[str, int], ...]]
"""Node name and the pod's requests."""


Freed = Mapping[str, Resources | None]
"""Node names, each with what was used there before; None where that says nothing (the node itself is another)."""


class FreedNodes:
    """The nodes on which room was freed since the last ``take``."""

    def __init__(self) -> None:
        self._before: dict[str, Resources | None] | None = {}
        self._neighbours: set[str] = set()

    def add(self, node: str, before: Resources | None = None) -> None:
        """Room was freed here; ``before`` is what was used until then, and is copied."""
        if self._before is None:
            return
        if before is None:
            self._before[node] = None
        elif node not in self._before:
            self._before[node] = dict(before)
        if len(self._before) > _MAX_FREED_NODES:
            self._before = None

    def add_neighbours(self, names: Iterable[str]) -> None:
        """It may be free on any node for those whom this concerns (`serried.api.neighbours.list_concerns`)."""
        self._neighbours.update(names)

    def take_neighbours(self) -> Collection[str]:
        """Whom the pods concerned that came or left since the last call."""
        taken, self._neighbours = self._neighbours, set()
        return taken

    def add_all(self) -> None:
        """Room was freed on nodes that nobody counts."""
        self._before = None

    def take(self) -> Freed | None:
        """The nodes, and from now on none; None if they were too many to remember."""
        freed = self._before
        self._before = {}
        return freed


class Occupancy:
    """Claims by pod UID and their sum by node. ``note_used`` is told the name of each node whose sum has changed."""

    def __init__(self, note_used: Callable[[str], None] = lambda _: None) -> None:
        self.freed = 0
        """How many times room became free, on whatever node."""

        self.freed_nodes = FreedNodes()
        """Where it did: a gang that did not fit is planned again when one of these nodes could help it."""

        self._note_used = note_used
        self._used: dict[str, Resources] = {}
        self._claims: dict[str, dict[ClaimKind, Claim]] = {}

    @property
    def used(self) -> Mapping[str, Resources]:
        """Used amounts by node name; a node without entry is empty. Live, not a copy."""
        return self._used

    def claim(self, uid: str, kind: ClaimKind, node: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Lay or move a pod's claim of one kind."""
        claims = self._claims.setdefault(uid, {})
        before = _strongest(claims)
        claims[kind] = (node, requests)
        self._settle(before, _strongest(claims))

    def resize(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """A pod asks for these amounts by now: what is kept for it, and where it is assumed, follows.

        The slot of a member that has ended does not: it is as large as that one was.
        """
        claims = self._claims.get(uid, {})
        before = _strongest(claims)
        for kind in claims.keys() - {ClaimKind.VACANT, ClaimKind.BOUND}:
            claims[kind] = (claims[kind][0], requests)
        self._settle(before, _strongest(claims))

    def recount(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """A pod counts for other rules than before, and asks for the same resources: no room is freed by that."""
        claims = self._claims.get(uid, {})
        before = _strongest(claims)
        for kind in claims.keys() - {ClaimKind.VACANT}:
            claims[kind] = (claims[kind][0], requests)
        self._swap(before, _strongest(claims))

    def release(self, uid: str, kind: ClaimKind) -> None:
        """Drop a pod's claim of one kind; nothing happens if it has none."""
        claims = self._claims.get(uid)
        if claims is None or kind not in claims:
            return
        before = _strongest(claims)
        del claims[kind]
        self._settle(before, _strongest(claims))
        if not claims:
            del self._claims[uid]

    def hand_over(self, uid: str, kind: ClaimKind, claimant: str) -> None:
        """The claim of one kind on ``uid`` becomes the VACANT one of ``claimant``; others on ``uid`` are dropped.

        Nothing happens if there is no such claim. ``freed`` does not change if the claim only gets another name: the
        room was never free.
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
            self._swap(before, received[ClaimKind.VACANT])
            return
        self._settle(already, _strongest(received))
        self._settle(before, None)

    def forget(self, uid: str) -> None:
        """Drop every claim on a pod: it is gone or done."""
        claims = self._claims.pop(uid, None)
        if claims:
            self._settle(_strongest(claims), None)

    def node_of(self, uid: str) -> str | None:
        """The node that the pod counts on, None if it counts nowhere."""
        claim = self.claim_of(uid)
        return claim[0] if claim else None

    def claim_of(self, uid: str) -> Claim | None:
        """The node that the pod counts on, and what it uses there; None if it counts nowhere."""
        return _strongest(self._claims.get(uid, {}))

    def note_room(self, node: str) -> None:
        """Room appeared by other means: a node came, grew or changed."""
        self.freed += 1
        self.freed_nodes.add(node)

    def note_neighbours(self, names: Iterable[str]) -> None:
        """A pod came or left that decides about other nodes than its own, too (`find_reached`)."""
        reached = frozenset(names)
        if reached:
            self.freed += 1
            self.freed_nodes.add_neighbours(reached)

    def note_room_anywhere(self) -> None:
        """What kept some from nodes has gone, and nothing of the nodes has changed."""
        self.freed += 1
        self.freed_nodes.add_all()

    def _swap(self, before: Claim | None, after: Claim | None) -> None:
        """A claim for the same resources takes the place of another one: no room is freed."""
        if before is not None and after is not None and before != after:
            self._count(before, -1)
            self._count(after, +1)

    def _settle(self, before: Claim | None, after: Claim | None) -> None:
        if before == after:
            return
        if before:
            self.freed += 1
            self.freed_nodes.add(before[0], self._used.get(before[0], {}))
            self._count(before, -1)
            # A planned gang that is given up leaves, too, and no pod shows it.
            if reached := find_reached(before[1]):
                stays = find_reached(after[1]) if after and after[0] == before[0] else ()
                self.note_neighbours(reached.difference(stays))
        if after:
            self._count(after, +1)

    def _count(self, claim: Claim, sign: int) -> None:
        node, requests = claim
        used = dict(self._used.get(node, {}))  # another one: who has the old one reads what was
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
    """The nominated pods. Their requests count as used for every plan of no higher priority (`Snapshots`)."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.withdrawn = 0
        """How many nominations have ended without the pod having gone to the node."""

        self.withdrawn_nodes = FreedNodes()
        """The nodes that these named: room for others, like ``Occupancy.freed_nodes``.

        It is no news to a gang that has just given its own nominations up.
        """

        self._occupancy = occupancy
        self._pods: dict[str, Pod] = {}

    @property
    def uids(self) -> frozenset[str]:
        """The nominated pods."""
        return frozenset(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def of_others(self, priority: int, own: Iterable[str]) -> Iterable[Pod]:
        """The nominated pods of at least this priority that count nowhere yet, except those with the UIDs ``own``."""
        uids = frozenset(own)
        return [
            pod
            for pod in self._pods.values()
            if pod.priority >= priority and pod.uid not in uids and self._occupancy.node_of(pod.uid) is None
        ]

    def follow(self, uid: str, pod: Pod | None) -> None:
        """A pod is nominated, or (None) is not any more. Its claims are up to date already."""
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
    """The slot of a member that ended without success."""

    group: GroupKey

    pod: Pod
    """The member as it was last seen alive."""

    leaf: str = ""
    """The name of its PodGroup in the group's tree."""

    refusal: str = ""
    """Why the kubelet would not run the member: then its node is not kept. "" for any other end."""

    since: float | None = None
    """When the vacancy was first looked at, in loop seconds; None before that."""

    replacement: str = ""
    """The UID of the member in its place, "" while there is none."""

    @property
    def claimant(self) -> str:
        """The name under which the slot is claimed; no UID of a pod contains a colon."""
        return self.replacement or f"vacancy:{self.pod.uid}"


class Vacancies:
    """Vacancies by group, in the order in which they came."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.filled: list[tuple[Vacancy, str]] = []
        """Those whose replacement was bound, with the node that it got; the reader empties the list."""

        self.occupancy = occupancy
        self._by_group: dict[GroupKey, dict[str, Vacancy]] = {}
        self._by_replacement: dict[str, Vacancy] = {}

        self._free: dict[str, Counter[str]] = {}
        """By namespace and node: how many slots are claimed for members that are not there yet."""

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def __iter__(self) -> Iterator[Vacancy]:
        return iter([vacancy for those in self._by_group.values() for vacancy in those.values()])

    def __contains__(self, group: object) -> bool:
        return group in self._by_group

    def groups(self) -> list[GroupKey]:
        """The groups that have a vacancy."""
        return list(self._by_group)

    def has(self, group: GroupKey) -> bool:
        """Whether a group has a vacancy."""
        return group in self._by_group

    def of_group(self, group: GroupKey) -> list[Vacancy]:
        """The vacancies of a group, the oldest first."""
        return list(self._by_group.get(group, {}).values())

    def find(self, uid: str) -> Vacancy | None:
        """The vacancy that this member has left."""
        return next((those[uid] for those in self._by_group.values() if uid in those), None)

    def of_replacement(self, uid: str) -> Vacancy | None:
        """The vacancy that this member is the replacement of."""
        return self._by_replacement.get(uid)

    def count_nodes(self, namespace: str) -> int:
        """On how many nodes slots of a namespace are claimed for members that are not there yet."""
        return len(self._free.get(namespace, ()))

    def open(self, group: GroupKey, pod: Pod, refusal: str = "", leaf: str = "", *, since: float | None = None) -> None:
        """A bound member has ended: its BOUND claim becomes the vacancy's, unless the kubelet had refused it."""
        vacancy = Vacancy(group, pod, leaf, refusal, since)
        self._by_group.setdefault(group, {})[pod.uid] = vacancy
        if not refusal:
            self.occupancy.hand_over(pod.uid, ClaimKind.BOUND, vacancy.claimant)
        self._note_free(vacancy)

    def assign(self, vacancy: Vacancy, replacement: str) -> None:
        """A member that waits gets this slot, which has no replacement yet. It still has to be planned and bound."""
        self.occupancy.hand_over(vacancy.claimant, ClaimKind.VACANT, replacement)
        self._note_taken(vacancy)
        vacancy.replacement = replacement
        self._by_replacement[replacement] = vacancy

    def forget_replacement(self, uid: str) -> None:
        """A member is gone; the slot that it was to get waits for another one. Nothing happens if it had none."""
        vacancy = self._by_replacement.pop(uid, None)
        if vacancy is not None:
            vacancy.replacement = ""
            self.occupancy.hand_over(uid, ClaimKind.VACANT, vacancy.claimant)
            self._note_free(vacancy)

    def fill(self, uid: str, node: str) -> None:
        """A member is bound to ``node``; nothing happens if it is the replacement of no vacancy."""
        vacancy = self._by_replacement.get(uid)
        if vacancy is not None:
            self.close(vacancy)
            self.filled.append((vacancy, node))

    def move(self, vacancy: Vacancy, group: GroupKey, leaf: str) -> None:
        """The slot is kept for another group of the same namespace: the member's group has this key now."""
        self._take_out(vacancy)
        vacancy.group, vacancy.leaf = group, leaf
        self._by_group.setdefault(group, {})[vacancy.pod.uid] = vacancy

    def close(self, vacancy: Vacancy) -> None:
        """The slot is kept no longer. What its replacement got by a plan stays the replacement's."""
        self._take_out(vacancy)
        self._by_replacement.pop(vacancy.replacement, None)
        if not vacancy.replacement:
            self._note_taken(vacancy)
        self.occupancy.release(vacancy.claimant, ClaimKind.VACANT)

    def _take_out(self, vacancy: Vacancy) -> None:
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
            self._free[namespace] -= Counter((vacancy.pod.node,))  # drops those that are at none
            if not self._free[namespace]:
                del self._free[namespace]

    def close_group(self, group: GroupKey) -> None:
        """No slot of this group is kept any longer."""
        for vacancy in self.of_group(group):
            self.close(vacancy)


def match_replacements(vacancies: Iterable[Vacancy], waiting: Iterable[Pod]) -> list[tuple[Vacancy, Pod]]:
    """Which pod takes which vacancy: by name, else by index under the same owner, else by shape under the same owner.

    A pod with an index takes the slot of that index or none. Each vacancy and each pod is in one pair at most; earlier
    ones are served first.
    """
    pairs: list[tuple[Vacancy, Pod]] = []
    open_slots = list(vacancies)
    replacements = list(waiting)
    for tell in (_name, _index, _kind):
        found = _pair(tell, open_slots, replacements)
        slots = {id(vacancy) for vacancy, _ in found}
        pods = {pod.uid for _, pod in found}
        open_slots = [vacancy for vacancy in open_slots if id(vacancy) not in slots]
        replacements = [pod for pod in replacements if pod.uid not in pods]
        pairs += found
    return pairs


def find_taken(vacancies: Iterable[Vacancy], placed: Iterable[Pod]) -> set[int]:
    """The vacancies (by ``id``) whose place another member has already, by name or by index: it came early."""
    members = list(placed)
    marks = {(tell, tell(pod)) for pod in members for tell in (_name, _index)}
    return {
        id(vacancy)
        for vacancy in vacancies
        for tell in (_name, _index)
        if tell(vacancy.pod) is not None and (tell, tell(vacancy.pod)) in marks
    }


def _pair(
    tell: Callable[[Pod], Hashable], vacancies: Iterable[Vacancy], waiting: Iterable[Pod]
) -> list[tuple[Vacancy, Pod]]:
    alike: dict[Hashable, list[Vacancy]] = {}
    for vacancy in vacancies:
        alike.setdefault(tell(vacancy.pod), []).append(vacancy)
    pairs = []
    for pod in waiting:
        mark = tell(pod)
        if mark is not None and alike.get(mark):
            pairs.append((alike[mark].pop(0), pod))
    return pairs


def _name(pod: Pod) -> Hashable:
    return pod.name


def _index(pod: Pod) -> Hashable:
    return None if pod.index is None else (_owner(pod), pod.index)


def _kind(pod: Pod) -> Hashable:
    return None if pod.index is not None else (_owner(pod), pod.shape)


def _owner(pod: Pod) -> tuple[str, str]:
    # By name: a Job that is made anew under it takes the old one's slots, if its group is still the same.
    return (pod.owner.kind, pod.owner.name) if pod.owner is not None else ("", "")


class Snapshots:
    """Takes snapshots. A snapshot costs what the nominated pods and kept slots cost, whatever the cluster's size."""

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
        """The cluster for one plan of ``members``, which have this priority.

        Nominations of others count as used if their priority is equal or higher. So do slots that are kept, except for
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
        """How often room has become free so far, and how often a nomination has ended: if neither grows, none has."""
        return self._occupancy.freed, self._nominations.withdrawn


class PendingVictims:
    """Victims by UID. The gang that waits for them is looked at when the last one has ended, and before with the tick.

    A thousand victims change thousands of times, and each look is as long as the gang is large.
    """

    def __init__(self, dirty: Dirty, pods: Mapping[str, Pod]) -> None:
        self._dirty = dirty
        self._pods = pods
        self._by_uid: dict[str, GroupKey] = {}

        self._left: dict[GroupKey, dict[str, str]] = {}
        """The victims of each gang that have not ended, as far as the watch has shown it, with their nodes."""

        self._by_node: dict[str, set[str]] = {}
        """Those that are on each node."""

        self._changed: set[GroupKey] = set()
        """The gangs of which a victim has changed since they were taken last."""

        self._let_off: set[str] = set()
        """Known pods that were victims and are none any more."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_uid)

    def __len__(self) -> int:
        return len(self._by_uid)

    @property
    def uids(self) -> KeysView[str]:
        """The victims of all gangs, live."""
        return self._by_uid.keys()

    def of_pod(self, uid: str) -> GroupKey | None:
        """The gang that a pod ends for; None if it is no victim."""
        return self._by_uid.get(uid)

    def add(self, uids: Iterable[str], group: GroupKey) -> None:
        """These pods end for this gang."""
        fresh = dict.fromkeys(uids, group)
        running = [uid for uid in fresh if self._runs(uid)]
        self._by_uid.update(fresh)
        for uid in running:
            node = self._pods[uid].node
            self._left.setdefault(group, {})[uid] = node
            self._by_node.setdefault(node, set()).add(uid)
        self._let_off.difference_update(fresh)

    def remove(self, uids: Iterable[str]) -> None:
        """These pods are nobody's victims (any more)."""
        for uid in uids:
            group = self._by_uid.pop(uid, None)
            if group is not None and group in self._left:
                self._end(group, uid)
            if uid in self._pods:
                self._let_off.add(uid)

    def was_let_off(self, uid: str) -> bool:
        """Whether a pod that is there was a victim once: that it is preempted may not have been taken back yet."""
        return uid in self._let_off

    def note(self, uid: str) -> None:
        """A pod has changed, or is gone."""
        if uid not in self._pods:
            self._let_off.discard(uid)
        group = self._by_uid.get(uid)
        if group is None:
            return
        self._changed.add(group)
        if group in self._left and not self._runs(uid):
            self._end(group, uid)
            if group not in self._left:
                self._dirty.add(group)

    def are_on(self, node: str) -> bool:
        """Whether a node has victims, of whomever, that have not ended."""
        return node in self._by_node

    def list_on(self, node: str) -> Collection[str]:
        """The victims of a node, of whomever, that have not ended."""
        return self._by_node.get(node, ())

    def count_left(self, group: GroupKey) -> int:
        """How many victims of a gang have not ended."""
        return len(self._left.get(group, ()))

    def take_changed(self) -> set[GroupKey]:
        """The gangs of which a victim has changed since the last call."""
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
