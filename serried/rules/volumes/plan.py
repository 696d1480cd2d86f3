"""Which volumes members can still get, while a plan is made: each goes to one claim, and a shared claim gets one.

The rules are those of VolumeBinding in kube-scheduler 1.37 (binder.go: findMatchingVolumes), which looks at one pod
after the other: its smallest claim first, and for each claim the smallest volume that fits and that the node reaches.
Of equal ones it takes any; here it is the one that the fewest nodes reach, so a plan may find the one that is left
where kube-scheduler has taken another. Then that one is planned again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from serried.api.neighbours import HOSTNAME
from serried.api.node import Node
from serried.api.resources import ATTACHED, CHOSEN, capacity
from serried.api.selectors import Terms
from serried.api.volume import SHARED, Choice, Pool, Volume
from serried.plan.capacity import MemberClass
from serried.plan.fit import Hurdle, HurdleKind, matches_terms
from serried.plan.limit import Limit
from serried.plan.request import Snapshot
from serried.plan.rule import PlanRule, PlanRuleType

_Taken = list[tuple[Choice, Volume | None]]
"""What a member takes: the volume that is chosen for each claim, None for one that is made."""


class _Shelf:
    """The volumes of a pool, found by the labels of the nodes that reach them."""

    def __init__(self, pool: Pool) -> None:
        self.keys: dict[str, None] = {}
        """The label keys that decide who reaches them."""

        self._volumes = pool.volumes
        self._by_label: dict[tuple[str, str | None], list[int]] = {}
        self._others: list[int] = []
        self._plain: set[int] = set()
        """Those that one value of one label finds, so that no term is to be asked."""

        self._reached: dict[tuple[str | None, ...], list[Volume]] = {}
        """By the values of the keys: nodes that have the same ones reach the same volumes."""

        self._passed: dict[tuple[str | None, ...], int] = {}
        """How many of these are gone before the first that may not be."""

    def sort(self, limit: Limit) -> None:
        """Sort the volumes by label."""
        for place, volume in enumerate(self._volumes):
            limit.spend()
            self._sort(place, volume.terms)

    def _sort(self, place: int, terms: Terms | None) -> None:
        if terms is None:
            self._others.append(place)
            return
        named = []
        for term in terms:
            for each in term.labels:
                self.keys[each.key] = None
            named.append(next((each for each in term.labels if each.operator == "In"), None))
        if None in named:
            self._others.append(place)
            return
        if len(terms) == 1 and len(terms[0].labels) == 1 and not terms[0].fields:
            self._plain.add(place)
        for found in filter(None, named):
            for value in found.values:
                self._by_label.setdefault((found.key, value), []).append(place)

    def find(self, node: Node, gone: Collection[str], beside: Collection[str]) -> Volume | None:
        """The first that a node reaches and that is neither gone nor ``beside``."""
        values = tuple([node.labels.get(key) for key in self.keys])
        reached = self._reached.get(values)
        if reached is None:
            reached = self._reached[values] = self._list_reached(values, node)
        place = self._passed.get(values, 0)
        while place < len(reached) and reached[place].name in gone:
            place += 1
        self._passed[values] = place
        left = (reached[at] for at in range(place, len(reached)))
        return next((each for each in left if each.name not in gone and each.name not in beside), None)

    def note_back(self) -> None:
        """Some that were gone are there again."""
        self._passed.clear()

    def _list_reached(self, values: Iterable[str | None], node: Node) -> list[Volume]:
        found = [places for label in zip(self.keys, values, strict=True) if (places := self._by_label.get(label))]
        places = found[0] if len(found) == 1 and not self._others else sorted({*self._others, *chain(*found)})
        volumes = ((self._volumes[place], place in self._plain) for place in places)
        return [each for each, plain in volumes if plain or each.terms is None or matches_terms(each.terms, node)]


class _Attachments:
    """Whether nodes take the volumes that members bring who share them (NodeVolumeLimits).

    A volume that one pod mounts is an amount. One that pods share costs its node the first of them, and no other.
    """

    def __init__(self, snapshot: Snapshot, classes: Sequence[MemberClass]) -> None:
        self._snapshot = snapshot
        self._own: dict[MemberClass, dict[str, int]] = {}
        self._shared: dict[MemberClass, dict[str, set[str]]] = {}
        for kind in classes:
            for name, amount in kind.request.items():
                driver, shared, _ = name.removeprefix(ATTACHED).partition(SHARED)
                if shared and name.startswith(ATTACHED):
                    self._shared.setdefault(kind, {}).setdefault(driver, set()).add(name)
                elif name.startswith(ATTACHED):
                    self._own.setdefault(kind, {})[driver] = amount
        drivers = {driver for each in self._shared.values() for driver in each}
        self.matter = bool(drivers)
        self.couple = any(drivers.intersection(own) for own in self._own.values()) or any(
            self._shared.get(kind) != self._shared.get(classes[0]) for kind in classes
        )
        """Whether it is not enough that a node would take the first member."""

        self._here: dict[str, list[MemberClass]] = {}

    def find_full(self, kind: MemberClass, name: str) -> str | None:
        """The amount of which a node has too little for one more member; None if there is enough."""
        used, there = self._snapshot.used.get(name, {}), [*self._here.get(name, ()), kind]
        for driver in {driver for each in there for driver in self._shared.get(each, ())}:
            new = {
                claim for each in there for claim in self._shared.get(each, {}).get(driver, ()) if not used.get(claim)
            }
            wanted = len(new) + sum(self._own.get(each, {}).get(driver, 0) for each in there)
            amount = f"{ATTACHED}{driver}"
            if new and wanted > capacity(self._snapshot.nodes[name].allocatable, amount) - used.get(amount, 0):
                return amount
        return None

    def place(self, kind: MemberClass, name: str, pods: int) -> None:
        """Some members of a class are on a node by now; a negative number takes them off again."""
        here = self._here.setdefault(name, [])
        here += [kind] * pods
        for _ in range(-pods):
            here.remove(kind)


class VolumeChoices(PlanRule):
    """The volumes that a gang's classes choose from, and what the members that are placed leave of them.

    Also whether nodes take the volumes that members share.
    """

    def __init__(self, snapshot: Snapshot, classes: Sequence[MemberClass]) -> None:
        self._snapshot = snapshot
        self._classes = classes
        self._pools: dict[str, Pool] = {}
        self._shelves: dict[str, _Shelf] = {}
        self._choices: dict[MemberClass, list[Choice]] = {}
        for kind in classes:
            self._choices[kind] = sorted(kind.shape.volumes, key=_find_size)
            for choice in self._choices[kind]:
                if choice.pool is not None and choice.pool.amount not in self._shelves:
                    self._pools[choice.pool.amount] = choice.pool
                    self._shelves[choice.pool.amount] = _Shelf(choice.pool)
        self._gone: set[str] = set()
        """The names of the volumes that are taken."""

        self._at: dict[str, Volume | None] = {}
        """The volumes of the shared claims that have one by now, None for one that is made."""

        self._before: frozenset[str] = frozenset()
        """Those that had one before the wave."""

        self.closed: dict[MemberClass, frozenset[str]] = {}
        """The nodes where a class is short of a volume whoever else of the gang is placed."""

        self._placed: dict[tuple[MemberClass, str], list[_Taken]] = {}
        self._attachments = _Attachments(snapshot, classes)
        self.couples = any(choices for choices in self._choices.values()) or self._attachments.couple

    def count(self) -> None:
        """Take off what planned members of other gangs will take, and find the nodes that are closed."""
        limit = self._snapshot.limit
        for shelf in self._shelves.values():
            shelf.sort(limit)
        for name, used in self._snapshot.used.items():
            limit.spend()
            for amount in [each for each in used if each.startswith(CHOSEN)]:
                self._take_off(name, amount, used[amount])
        for kind in self._classes:
            closed: list[str] = []
            asked = self._attachments.matter or any(each.pool for each in self._choices[kind])
            for name in self._snapshot.nodes if asked else ():
                limit.spend()
                if not self.admits(kind, name):
                    closed.append(name)
            self.closed[kind] = frozenset(closed)

    def _take_off(self, name: str, amount: str, count: int) -> None:
        pool, _, claim = amount.partition(SHARED)
        if pool not in self._shelves or (claim and claim in self._at) or name not in self._snapshot.nodes:
            return
        for _ in range(1 if claim else count):
            volume = self._find(pool, name, ())
            if volume is None:
                return
            self._gone.add(volume.name)
            if claim:
                self._at[claim] = volume

    def _find(self, pool: str, name: str, beside: Collection[str]) -> Volume | None:
        """The volume of a pool that kube-scheduler would choose on a node, None without one."""
        return self._shelves[pool].find(self._snapshot.nodes[name], self._gone, beside)

    def _choose(self, kind: MemberClass, name: str) -> _Taken | None:
        """What the next member of a class takes on a node, None if it is short of a volume there."""
        taken: _Taken = []
        for choice in self._choices[kind]:
            if choice.claim and choice.claim in self._at:
                there = self._at[choice.claim]
                if there is not None and there.terms is not None and not self._reaches(there, name):
                    return None
                continue
            if choice.pool is None:
                taken.append((choice, None))
                continue
            volume = self._find(choice.pool.amount, name, [each.name for _, each in taken if each is not None])
            if volume is None:
                return None
            taken.append((choice, volume))
        return taken

    def _reaches(self, volume: Volume, name: str) -> bool:
        return volume.terms is None or matches_terms(volume.terms, self._snapshot.nodes[name])

    def describe(self) -> str:
        """Return which volumes are too few for all members, a phrase; "" if there are as many as claims."""
        wanted: Counter[str] = Counter()
        claims: set[str] = set()
        for kind in self._classes:
            for choice in self._choices[kind]:
                if choice.pool is not None and choice.claim not in claims:
                    wanted[choice.pool.amount] += 1 if choice.claim else len(kind.members)
                    claims.update(filter(None, [choice.claim]))
        said = []
        for amount, count in wanted.items():
            left = [each.name for each in self._pools[amount].volumes if each.name not in self._gone]
            if len(left) < count:
                of_class = f"StorageClass {self._pools[amount].wish.storage_class}"
                said.append(f"{len(left)} PersistentVolumes of {of_class} are left for {count} volume claims")
        return ", ".join(said)

    # --- members that are placed ----------------------------------------------------------------------------------

    def list_keys(self) -> list[str]:
        """The label keys by which nodes differ in what they reach."""
        keys = dict.fromkeys(key for shelf in self._shelves.values() for key in shelf.keys)
        return [*keys, *([HOSTNAME] if self._attachments.couple and HOSTNAME not in keys else [])]

    def admits(self, kind: MemberClass, name: str) -> bool:
        """Whether a node has the volumes that the next member of a class still needs."""
        return self._choose(kind, name) is not None and self._attachments.find_full(kind, name) is None

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Of what a node takes too few volumes for the next member of a class; None if it does not."""
        full = self._attachments.find_full(kind, name)
        return Hurdle(HurdleKind.RESOURCE, full) if full is not None else None

    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Some members of a class are on a node by now; a negative number takes them off again."""
        self._attachments.place(kind, name, pods)
        for _ in range(pods):
            taken = self._choose(kind, name) or []
            self._gone.update(volume.name for _, volume in taken if volume is not None)
            self._at.update((choice.claim, volume) for choice, volume in taken if choice.claim)
            self._placed.setdefault((kind, name), []).append(taken)
        for _ in range(-pods):
            taken = self._placed[kind, name].pop()
            self._gone.difference_update(volume.name for _, volume in taken if volume is not None)
            for choice, _volume in taken:
                self._at.pop(choice.claim, None)
        if pods < 0:
            for shelf in self._shelves.values():
                shelf.note_back()

    def begin_wave(self) -> None:
        """From now on members are placed of whom nobody knows who comes first."""
        self._before = frozenset(self._at)

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Whether a node would do for the next member whichever of its wave kube-scheduler has come to before.

        Whoever comes first decides where the volume of a shared claim is. Until that is bound, others are kept off all
        other nodes.
        """
        shared = (choice.claim for choice in self._choices[kind] if choice.claim in self._at)
        return all(claim in self._before for claim in shared) and name in self._snapshot.nodes


def _find_size(choice: Choice) -> int:
    return choice.pool.wish.request if choice.pool is not None else 0


def chooses(classes: Iterable[MemberClass]) -> bool:
    """Whether any of these has volumes to choose, or brings one that others share to a node that takes so many."""
    return any(kind.shape.volumes or any(map(_is_shared, kind.request)) for kind in classes)


def _is_shared(amount: str) -> bool:
    return amount.startswith(ATTACHED) and SHARED in amount


VOLUMES = PlanRuleType("volumes", (ATTACHED,), chooses, VolumeChoices)
