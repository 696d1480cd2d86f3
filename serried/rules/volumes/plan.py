"""The planner's part of the volume rules (`VolumeChoices`): which PersistentVolumes are left for the next member.

`serried.plan.rule` creates a `VolumeChoices` for each plan that the rules concern. Each volume is bound to one claim; a
claim that several pods share gets one volume. The rules are those of VolumeBinding in kube-scheduler 1.37 (binder.go:
findMatchingVolumes): for one pod after another the smallest claim first, and for each claim the smallest fitting volume
that the node reaches. Among equal volumes kube-scheduler chooses any. The planner chooses the one that the fewest nodes
reach, so kube-scheduler may choose another one. Then the member is planned again.

A pool is the volumes that fit claims with the same requirements (`serried.api.volume.VolumePool`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from serried.api.interpod import HOSTNAME
from serried.api.node import Node
from serried.api.resources import ATTACHED, CHOSEN, capacity
from serried.api.selectors import Terms
from serried.api.volume import SHARED, Volume, VolumeChoice, VolumePool
from serried.plan.capacity import MemberClass
from serried.plan.fit import Hurdle, HurdleKind, matches_terms
from serried.plan.limit import Limit
from serried.plan.request import Snapshot
from serried.plan.rule import PlanRule, PlanRuleType

_ChosenVolumes = list[tuple[VolumeChoice, Volume | None]]
"""The volume chosen for each claim of a member; None for a volume that will be provisioned."""


class _VolumeIndex:
    """The volumes of a pool (which fit claims with equal requirements), indexed by labels in their node affinity."""

    def __init__(self, pool: VolumePool) -> None:
        self.keys: dict[str, None] = {}
        """The label keys in the node affinity of the volumes, which decide which nodes reach them."""

        self._volumes = pool.volumes
        self._by_label: dict[tuple[str, str | None], list[int]] = {}
        self._others: list[int] = []
        self._plain: set[int] = set()
        """The indexes of volumes whose node affinity is one label only: nothing else is checked on nodes with it."""

        self._reached: dict[tuple[str | None, ...], list[Volume]] = {}
        """The reachable volumes, by the values of ``keys``. Nodes with the same values reach the same volumes."""

        self._passed: dict[tuple[str | None, ...], int] = {}
        """For each list in ``_reached``: the number of volumes at its start that are all chosen already."""

    def build(self, limit: Limit) -> None:
        """Build the index. Call it before `find`.

        ``limit`` counts the steps, and raises an exception if the time for the plan is used up.
        """
        for place, volume in enumerate(self._volumes):
            limit.spend()
            self._add(place, volume.terms)

    def _add(self, place: int, terms: Terms | None) -> None:
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

    def find(self, node: Node, taken: Collection[str], own: Collection[str]) -> Volume | None:
        """Return the first volume, in the order of the pool, that a node reaches and that is not chosen yet.

        The smallest volumes of a pool are first (`VolumePool.rank`). Return None if no such volume is left.

        ``taken`` are the names of volumes chosen for other members, ``own`` those for other claims of the same member.
        """
        values = tuple([node.labels.get(key) for key in self.keys])
        reached = self._reached.get(values)
        if reached is None:
            reached = self._reached[values] = self._list_reached(values, node)
        place = self._passed.get(values, 0)
        while place < len(reached) and reached[place].name in taken:
            place += 1
        self._passed[values] = place
        left = (reached[at] for at in range(place, len(reached)))
        return next((each for each in left if each.name not in taken and each.name not in own), None)

    def reset(self) -> None:
        """Let `find` look at all volumes again, because some that were chosen are free now."""
        self._passed.clear()

    def _list_reached(self, values: Iterable[str | None], node: Node) -> list[Volume]:
        found = [places for label in zip(self.keys, values, strict=True) if (places := self._by_label.get(label))]
        places = found[0] if len(found) == 1 and not self._others else sorted({*self._others, *chain(*found)})
        volumes = ((self._volumes[place], place in self._plain) for place in places)
        return [each for each, plain in volumes if plain or each.terms is None or matches_terms(each.terms, node)]


class _Attachments:
    """Checks the volume limits of nodes for volumes that several pods share (NodeVolumeLimits).

    The planner counts a volume of one pod like a resource. A shared volume counts once on a node, for the first pod on
    the node that uses it. So this check knows which members were placed on each node.
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
        """True if the result of `find_full` for a member may depend on which other members are on the node."""

        self._here: dict[str, list[MemberClass]] = {}

    def find_full(self, kind: MemberClass, name: str) -> str | None:
        """Return the volume limit that one more of the equal members ``kind`` would exceed on a node; None for none.

        A driver's limit is only checked if members there use shared volumes of it that are not on the node yet.
        The result is the name under which the node's allocatable has the limit, so that it counts like a resource.
        """
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
        """Record that ``pods`` of the equal members ``kind`` are placed on a node. A negative number removes them."""
        here = self._here.setdefault(name, [])
        here += [kind] * pods
        for _ in range(-pods):
            here.remove(kind)


class VolumeChoices(PlanRule):
    """The rule about volumes in one plan: chooses PersistentVolumes for the claims of members as they are placed.

    It also checks the volume limits of nodes for volumes that several pods share. ``classes`` are the members of the
    gang, by equal shape.
    """

    def __init__(self, snapshot: Snapshot, classes: Sequence[MemberClass]) -> None:
        self._snapshot = snapshot
        self._classes = classes
        self._pools: dict[str, VolumePool] = {}
        self._indexes: dict[str, _VolumeIndex] = {}
        self._choices: dict[MemberClass, list[VolumeChoice]] = {}
        for kind in classes:
            self._choices[kind] = sorted(kind.shape.volumes, key=_find_size)
            for choice in self._choices[kind]:
                if choice.pool is not None and choice.pool.amount not in self._indexes:
                    self._pools[choice.pool.amount] = choice.pool
                    self._indexes[choice.pool.amount] = _VolumeIndex(choice.pool)
        self._used_names: set[str] = set()
        """The names of the volumes that are chosen for placed members, or for members of other gangs."""

        self._volume_of: dict[str, Volume | None] = {}
        """The volumes chosen for claims that several pods share; None for a volume that will be provisioned."""

        self._before: frozenset[str] = frozenset()
        """The shared claims for which a volume was chosen before the current wave began."""

        self.closed: dict[MemberClass, frozenset[str]] = {}
        """The nodes on which members of a class (equal members) lack a volume, wherever other members are placed."""

        self._placed: dict[tuple[MemberClass, str], list[_ChosenVolumes]] = {}
        """The volumes chosen for the placed members, by class (equal members) and node."""
        self._attachments = _Attachments(snapshot, classes)
        self.couples = any(choices for choices in self._choices.values()) or self._attachments.couple

    def count(self) -> None:
        """Index the volumes, mark those as used that members of other gangs with a slot will use, and set ``closed``.

        ``closed`` are the nodes on which members lack a volume, or would exceed a volume limit, wherever other members
        are placed.
        """
        limit = self._snapshot.limit
        for index in self._indexes.values():
            index.build(limit)
        for name, used in self._snapshot.used.items():
            limit.spend()
            for amount in [each for each in used if each.startswith(CHOSEN)]:
                self._reserve(name, amount, used[amount])
        for kind in self._classes:
            closed: list[str] = []
            asked = self._attachments.matter or any(each.pool for each in self._choices[kind])
            for name in self._snapshot.nodes if asked else ():
                limit.spend()
                if not self.admits(kind, name):
                    closed.append(name)
            self.closed[kind] = frozenset(closed)

    def _reserve(self, name: str, amount: str, count: int) -> None:
        pool, _, claim = amount.partition(SHARED)
        if pool not in self._indexes or (claim and claim in self._volume_of) or name not in self._snapshot.nodes:
            return
        for _ in range(1 if claim else count):
            volume = self._find(pool, name, ())
            if volume is None:
                return
            self._used_names.add(volume.name)
            if claim:
                self._volume_of[claim] = volume

    def _find(self, pool: str, name: str, own: Collection[str]) -> Volume | None:
        """Return the volume that kube-scheduler would choose on a node for a claim; None if no free one fits.

        ``pool`` names the volumes that fit the claim: it is the ``amount`` of their `VolumePool`. ``own`` are the names
        of volumes chosen for other claims of the same member.
        """
        return self._indexes[pool].find(self._snapshot.nodes[name], self._used_names, own)

    def _choose(self, kind: MemberClass, name: str) -> _ChosenVolumes | None:
        """Return the volumes that the next of the equal members ``kind`` gets on a node; None if a claim gets none."""
        taken: _ChosenVolumes = []
        for choice in self._choices[kind]:
            if choice.claim and choice.claim in self._volume_of:
                there = self._volume_of[choice.claim]
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
        """Return a phrase for messages that says of which StorageClass there are too few volumes for all members.

        "" if there are enough.
        """
        wanted: Counter[str] = Counter()
        claims: set[str] = set()
        for kind in self._classes:
            for choice in self._choices[kind]:
                if choice.pool is not None and choice.claim not in claims:
                    wanted[choice.pool.amount] += 1 if choice.claim else len(kind.members)
                    claims.update(filter(None, [choice.claim]))
        said = []
        for amount, count in wanted.items():
            left = [each.name for each in self._pools[amount].volumes if each.name not in self._used_names]
            if len(left) < count:
                of_class = f"StorageClass {self._pools[amount].wish.storage_class}"
                said.append(f"{len(left)} PersistentVolumes of {of_class} are left for {count} volume claims")
        return ", ".join(said)

    # --- members that are placed ----------------------------------------------------------------------------------

    def list_keys(self) -> list[str]:
        """Return the label keys that decide which volumes a node reaches.

        Nodes with equal values for all of them reach the same volumes.

        The host name is added if the volume limit of a node depends on which members are on it.
        """
        keys = dict.fromkeys(key for index in self._indexes.values() for key in index.keys)
        return [*keys, *([HOSTNAME] if self._attachments.couple and HOSTNAME not in keys else [])]

    def admits(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more of the equal members ``kind`` gets its volumes on a node within its limits."""
        return self._choose(kind, name) is not None and self._attachments.find_full(kind, name) is None

    def find_hurdle(self, kind: MemberClass, name: str) -> Hurdle | None:
        """Return the volume limit of a node that one more of the equal members ``kind`` would exceed; None for none."""
        full = self._attachments.find_full(kind, name)
        return Hurdle(HurdleKind.RESOURCE, full) if full is not None else None

    def place(self, kind: MemberClass, name: str, pods: int = 1) -> None:
        """Record that ``pods`` of the equal members ``kind`` are placed on a node, and choose their volumes.

        A negative number removes the members placed there last, and frees their volumes.
        """
        self._attachments.place(kind, name, pods)
        for _ in range(pods):
            taken = self._choose(kind, name) or []
            self._used_names.update(volume.name for _, volume in taken if volume is not None)
            self._volume_of.update((choice.claim, volume) for choice, volume in taken if choice.claim)
            self._placed.setdefault((kind, name), []).append(taken)
        for _ in range(-pods):
            taken = self._placed[kind, name].pop()
            self._used_names.difference_update(volume.name for _, volume in taken if volume is not None)
            for choice, _volume in taken:
                self._volume_of.pop(choice.claim, None)
        if pods < 0:
            for index in self._indexes.values():
                index.reset()

    def begin_wave(self) -> None:
        """Begin a wave: the next members to be placed, which kube-scheduler may try in any order.

        It tries them after all members placed so far are assumed.
        """
        self._before = frozenset(self._volume_of)

    def fits_wave(self, kind: MemberClass, name: str) -> bool:
        """Return whether one more of the equal members ``kind`` can join the wave. The member is not placed.

        A wave has members that kube-scheduler may try in any order. A member cannot join if it mounts a shared claim
        whose volume was chosen for another member of the same wave. The first member with a shared claim decides where
        its volume is, and until the volume is bound kube-scheduler rejects the other members of the claim on all other
        nodes. So they have to be in a later wave.
        """
        shared = (choice.claim for choice in self._choices[kind] if choice.claim in self._volume_of)
        return all(claim in self._before for claim in shared) and name in self._snapshot.nodes


def _find_size(choice: VolumeChoice) -> int:
    return choice.pool.wish.request if choice.pool is not None else 0


def concerns(classes: Iterable[MemberClass]) -> bool:
    """Return whether a plan needs the rule about volumes for any of these members, which are grouped by shape.

    It does if volumes have to be chosen for members, or if they share a volume of a driver with volume limits.
    """
    return any(kind.shape.volumes or any(map(_is_shared, kind.request)) for kind in classes)


def _is_shared(amount: str) -> bool:
    return amount.startswith(ATTACHED) and SHARED in amount


VOLUMES = PlanRuleType("volumes", (ATTACHED,), concerns, VolumeChoices)
