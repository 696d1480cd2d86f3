"""The slots of members that have ended: each stays claimed for a while, for the member that comes in its place.

A slot passes from the dead member to its vacancy, and from there to its replacement, within one transition of the
Store: no plan can ever see its room as free in between (docs/decisions/0013-repair-in-place.md). Times are the caller's
loop seconds.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from serried.cluster.occupancy import ClaimKind, Occupancy
from serried.model.group import GroupKey
from serried.model.pod import Pod


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

        self._occupancy = occupancy
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
            self._occupancy.hand_over(pod.uid, ClaimKind.BOUND, vacancy.claimant)
        self._note_free(vacancy)

    def assign(self, vacancy: Vacancy, replacement: str) -> None:
        """A member that waits gets this slot, which has no replacement yet. It still has to be planned and bound."""
        self._occupancy.hand_over(vacancy.claimant, ClaimKind.VACANT, replacement)
        self._note_taken(vacancy)
        vacancy.replacement = replacement
        self._by_replacement[replacement] = vacancy

    def forget_replacement(self, uid: str) -> None:
        """A member is gone; the slot that it was to get waits for another one. Nothing happens if it had none."""
        vacancy = self._by_replacement.pop(uid, None)
        if vacancy is not None:
            vacancy.replacement = ""
            self._occupancy.hand_over(uid, ClaimKind.VACANT, vacancy.claimant)
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
        self._occupancy.release(vacancy.claimant, ClaimKind.VACANT)

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
