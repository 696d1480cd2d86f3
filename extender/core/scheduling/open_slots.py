"""The slots of one plan that filter has not answered yet: which members may take them, and in which order. No I/O.

kube-scheduler tries members in any order, each with any sample of nodes. So a slot does not belong to one member until
filter has answered its node: before that, `extender.core.scheduling.slot_assigner` exchanges the slots of members of
one class. A class is the members with an equal `Shape`, i.e. equal requests and constraints, in one PodGroup. A slot is
named by the UID of the member that has it now. Each binding cycle owns one `OpenSlots`.

    CLOSED -- filter has answered all slots of earlier waves --> OPEN -- filter answers the slot's node --> TAKEN
                                                                  ^                                           |
                                                                  +---- the slot moves, the bind call fails, -+
                                                                        or kube-scheduler hangs up

Only gangs whose members have rules about each other, such as affinity, have waves (`serried.plan.coupled`). The slots
of later waves are closed, because a member that is placed too early could leave earlier members no feasible node.
Successive waves of one class are merged: a member then takes any open slot of the merged wave whose node kube-scheduler
offers. If members share a PersistentVolumeClaim that has no volume yet, one of them is a wave of its own, before the
others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from serried.api.pod import Pod
from serried.api.reservation import Slot


@dataclass(slots=True)
class Wave:
    """A part of a gang's members that filter lets kube-scheduler place before the next part, in the plan's order.

    Gangs have waves only if their members have rules about each other, such as affinity.
    """

    uids: list[str]

    any_order: bool = False
    """True if kube-scheduler may try the members in any order: each takes the first open slot that it is offered.

    The members then have equal requests and constraints. They are not nominated, but activated together.
    """


@dataclass(slots=True)
class OpenSlots:
    """The slots of one binding cycle that filter has not answered yet, i.e. that any member of the class may take.

    A class is the members of a PodGroup with an equal `Shape`. `BindingCycle` and `SlotAssigner` change this
    object.
    """

    waves: list[Wave] = field(default_factory=list)
    """The wave whose slots are open, then those whose slots are closed; empty if all slots of the gang are open."""

    equivalence_keys: tuple[str, ...] | None = None
    """The label keys that decide which nodes may replace a planned node: those with equal values of these labels.

    () if any node of the domain may. None if members get planned nodes only, for instance because the domain has little
    free capacity beyond the plan.
    """

    chosen_missed: str = ""
    """The UID of the member of ``missed`` that Serried has nominated last; "" for none."""

    missed: dict[str, None] = field(default_factory=dict)
    """The UIDs of members of the open wave to which kube-scheduler has offered no node with an open slot.

    Only members of a `Wave.any_order` wave are noted here. Serried nominates them one at a time, in this order:
    kube-scheduler treats a nominated pod as if it ran on its node, so the rules of several nominated members would
    make each other's nodes infeasible.
    """

    refused_nodes: int = 0
    """The number of nodes on which kube-scheduler has rejected the member ``chosen_missed``.

    0 again once another member is chosen, or filter answers the node of a slot to any member.
    """

    _closed: set[str] = field(init=False)
    _any_order: frozenset[str] = field(init=False)
    _coupled: bool = field(init=False)

    def __post_init__(self) -> None:
        self._closed = set(chain.from_iterable(wave.uids for wave in self.waves[1:]))
        self._any_order = self._list_any_order()
        self._coupled = bool(self.waves)

    # --- readings ----------------------------------------------------------------------------------------------

    @property
    def any_node(self) -> bool:
        """True if members take any node of the gang's domain that kube-scheduler offers, so they need no nomination."""
        return self.equivalence_keys is not None and not self._coupled

    @property
    def has_waves(self) -> bool:
        """True while the gang's members are placed in waves; False once filter has answered for the whole last wave."""
        return bool(self.waves)

    @property
    def open_wave(self) -> Sequence[str]:
        """The UIDs of the members whose wave is open now; empty without waves.

        In a `Wave.any_order` wave, the members whose slots are not taken come first, in the plan's order.
        """
        return self.waves[0].uids if self.waves else ()

    @property
    def next_wave(self) -> Sequence[str]:
        """The UIDs of the wave that opens next; empty if there is none."""
        return self.waves[1].uids if len(self.waves) > 1 else ()

    def is_closed(self, uid: str) -> bool:
        """Return whether filter must hold a member, because members of an earlier wave have to be placed first."""
        return uid in self._closed

    def in_any_order(self, uid: str) -> bool:
        """Return whether a member's wave is open, and kube-scheduler may try the members of that wave in any order."""
        return uid in self._any_order

    def waits_for_mates(self, uid: str) -> bool:
        """Return whether a member must wait until other members of its gang are placed.

        Its wave is closed, or another member of ``missed`` is nominated first. If kube-scheduler rejects the
        member then, that does not count as a refusal of its node.
        """
        return uid in self._closed or (uid in self.missed and uid != self.chosen_missed)

    def is_first_on_node(self, uid: str, slots: Mapping[str, Slot]) -> bool:
        """Return whether no member that precedes ``uid`` in the waves has a slot on the same node.

        ``slots`` are the slots of the cycle by UID.
        """
        before = takewhile(lambda mate: mate != uid, chain.from_iterable(wave.uids for wave in self.waves))
        return not any(mate in slots and slots[mate].node == slots[uid].node for mate in before)

    # --- changes -----------------------------------------------------------------------------------------------

    def require_planned_nodes(self) -> None:
        """Give members planned nodes only from now on, because the domain has less free capacity than expected."""
        self.equivalence_keys = None

    def note_taken(self, uid: str) -> None:
        """Note that filter has answered a member's node, so that its slot is taken."""
        self.missed.pop(uid, None)
        self.refused_nodes = 0
        if self.in_any_order(uid):
            self.waves[0].uids.remove(uid)
            self.waves[0].uids.append(uid)  # keeps members whose slots are not taken first

    def exchange(self, uid: str, mate: str) -> None:
        """Exchange the places of two members (UIDs) in the order of the open wave. Ignored if one is not in it."""
        wave = self.open_wave
        if uid in wave and mate in wave:
            here, there = wave.index(uid), wave.index(mate)
            self.waves[0].uids[here], self.waves[0].uids[there] = mate, uid

    def add_missed(self, uid: str) -> None:
        """Note that kube-scheduler has offered a member of the open wave no node with an open slot."""
        self.missed[uid] = None

    def choose_missed(self, slots: Collection[str]) -> str:
        """Choose the next one of ``missed`` to nominate, and return its UID.

        Return "" if there is none, or if the last chosen one has a slot but filter has not answered its node yet.
        ``slots`` are the UIDs of all members that have a slot.
        """
        if self.chosen_missed in self.missed and self.chosen_missed in slots:
            return ""
        self.chosen_missed = next((uid for uid in self.missed if uid in slots), "")
        self.refused_nodes = 0
        return self.chosen_missed

    def open_next(self, is_taken: Callable[[str], bool]) -> Sequence[str]:
        """Open the next wave if ``is_taken`` returns True for the UIDs of all members of the open one.

        Return the UIDs of the wave that was opened; empty if none was.
        """
        if not self.waves or not all(map(is_taken, self.waves[0].uids)):
            return ()
        del self.waves[0]
        self._closed.difference_update(self.open_wave)
        self._any_order = self._list_any_order()
        return self.open_wave

    def _list_any_order(self) -> frozenset[str]:
        return frozenset(self.waves[0].uids if self.waves and self.waves[0].any_order else ())


def merge_waves(waves: Iterable[Sequence[str]], pods: Mapping[str, Pod], leaf_of: Callable[[str], str]) -> list[Wave]:
    """Return the waves of a plan, with successive waves merged if all their members are equal.

    Equal members have the same `Shape` and PodGroup. ``waves`` are the plan's, as UIDs; ``pods`` are the members by
    UID; ``leaf_of`` returns the name of a member's PodGroup in its tree. Members that share a volume claim without
    a volume are not merged.
    """

    def describe(uid: str) -> object:
        shape = pods[uid].shape
        return None if any(choice.claim for choice in shape.volumes) else (shape, leaf_of(uid))

    found: list[Wave] = []
    last: object = None
    for wave in waves:
        kinds = set(map(describe, wave))
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None or kind != last:
            found.append(Wave(list(wave)))
        else:
            found[-1].uids += wave
            found[-1].any_order = True
        last = kind
    return found
