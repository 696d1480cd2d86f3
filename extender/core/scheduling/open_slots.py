"""The slots of one plan that filter has not answered yet: which members may take them, and in which order. No I/O.

kube-scheduler tries members in any order, each with any sample of nodes. So a slot does not belong to one member until
filter has answered its node: before that, `extender.core.scheduling.slot_assigner` exchanges the slots of members of
one class. A class is the members with an equal `Shape`, i.e. equal requests and constraints, in one PodGroup. A slot is
named by the UID of the member that has it now. Each binding cycle owns one `OpenSlots`.

    CLOSED -- filter has answered all slots of earlier waves --> OPEN -- filter answers the slot's node --> TAKEN
                                                                  ^                                           |
                                                                  +---- the slot moves, the bind call fails, -+
                                                                        or kube-scheduler hangs up

A wave is a part of the gang's members that has to be placed before the next part. Only gangs whose members have rules
about each other, such as affinity, have waves (`serried.plan.coupled`). The slots of later waves are closed, because a
member that is placed too early could leave earlier members no feasible node. Successive waves of one class are merged:
a member then takes any open slot of the merged wave whose node kube-scheduler offers. If members share a
PersistentVolumeClaim that has no volume yet, one of them is a wave of its own, before the others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from serried.api.pod import Pod
from serried.api.reservation import Slot


@dataclass(slots=True)
class Wave:
    """A part of a gang's members that filter lets kube-scheduler place before the next part, in the plan's order.

    While a wave is open, filter holds the members of later waves. Gangs have waves only if their members have rules
    about each other, such as affinity.
    """

    uids: list[str]

    any_order: bool = False
    """True if kube-scheduler may try the members in any order.

    Each takes the first slot of the wave, in the plan's order, that is not taken yet and whose node it is offered. The
    members have equal requests and constraints. They are not nominated, but activated together.
    """


@dataclass(slots=True)
class OpenSlots:
    """Decides which members of one binding cycle may take slots now, and in which order. Each `BindingCycle` owns one.

    Until filter has answered the node of a slot, any member of the same class (a PodGroup's members with equal
    requests and constraints) may take it. If the gang has waves, i.e. parts that are placed one after another, only
    the slots of the present wave are open. `BindingCycle` and `SlotAssigner` change this object.
    """

    waves: list[Wave] = field(default_factory=list)
    """The parts of the gang that are placed one after another: first the one that may take its slots now.

    Empty if all members may take their slots at once, and once filter has answered for all of the last wave.
    """

    equivalence_keys: tuple[str, ...] | None = None
    """The label keys that decide which nodes may replace a planned node: those with equal values of these labels.

    () if any node of the domain may. None if members get planned nodes only, for instance because the domain has little
    free capacity beyond the plan.
    """

    chosen_missed: str = ""
    """The UID of the member that Serried has nominated last of those in ``missed``; "" for none.

    They are the members to which kube-scheduler has offered no node with an open slot.
    """

    missed: dict[str, None] = field(default_factory=dict)
    """The UIDs of members that may take slots now, but to which kube-scheduler has offered no node with an open slot.

    Only members of a `Wave.any_order` wave are noted here. Serried nominates them one at a time, in this order:
    kube-scheduler treats a nominated pod as if it ran on its node, so the rules of several nominated members would
    make each other's nodes infeasible.
    """

    refused_nodes: int = 0
    """The number of nodes on which kube-scheduler has rejected the member ``chosen_missed``, which was nominated there.

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
        """True if members may also take nodes of the gang's domain that are not planned, so they need no nomination."""
        return self.equivalence_keys is not None and not self._coupled

    @property
    def has_waves(self) -> bool:
        """True while members are placed in waves, i.e. some may not be placed before others, such as for affinity.

        False for other gangs, and once filter has answered for all members of the last wave.
        """
        return bool(self.waves)

    @property
    def open_wave(self) -> Sequence[str]:
        """The UIDs of the members that may be placed now, before those of later waves; empty without waves.

        If they may be placed in any order (`Wave.any_order`), those whose slots are not taken come first, in the
        plan's order.
        """
        return self.waves[0].uids if self.waves else ()

    @property
    def next_wave(self) -> Sequence[str]:
        """The UIDs of the members that may be placed after all those of the present wave; empty if there are none."""
        return self.waves[1].uids if len(self.waves) > 1 else ()

    def is_closed(self, uid: str) -> bool:
        """Return whether filter must hold a member, because members of an earlier wave have to be placed first."""
        return uid in self._closed

    def in_any_order(self, uid: str) -> bool:
        """Return whether a member may be placed now, together with others among which the order does not matter.

        False if the gang's members are not placed in waves.
        """
        return uid in self._any_order

    def waits_for_mates(self, uid: str) -> bool:
        """Return whether a member must wait until other members of its gang are placed.

        Either it is in a later wave, i.e. a part of the gang that is placed later. Or kube-scheduler has offered it no
        node with an open slot. Such members are nominated one at a time (`choose_missed`), and another one is first.
        If kube-scheduler rejects the member meanwhile, that does not count as a refusal of its node.
        """
        return uid in self._closed or (uid in self.missed and uid != self.chosen_missed)

    def is_first_on_node(self, uid: str, slots: Mapping[str, Slot]) -> bool:
        """Return whether member ``uid`` is placed before all other members that have a slot on its node.

        A wave is a part of the gang that is placed before the next part. Only members of the present and later waves
        are compared; if the gang has no waves, the result is True. ``slots`` are the slots of the cycle by UID.
        """
        before = takewhile(lambda mate: mate != uid, chain.from_iterable(wave.uids for wave in self.waves))
        return not any(mate in slots and slots[mate].node == slots[uid].node for mate in before)

    # --- changes -----------------------------------------------------------------------------------------------

    def require_planned_nodes(self) -> None:
        """From now on, let members take only nodes that are planned, and no other nodes of the domain instead.

        Called because the domain has less free capacity than expected.
        """
        self.equivalence_keys = None

    def note_taken(self, uid: str) -> None:
        """Note that filter has answered a member's node, so that its slot is taken."""
        self.missed.pop(uid, None)
        self.refused_nodes = 0
        if self.in_any_order(uid):
            self.waves[0].uids.remove(uid)
            self.waves[0].uids.append(uid)  # keeps members whose slots are not taken first

    def exchange(self, uid: str, mate: str) -> None:
        """Exchange the places of two members (UIDs) in the order in which the present wave takes its slots.

        Ignored if one of them is not in the wave, i.e. among the members that may be placed now.
        """
        wave = self.open_wave
        if uid in wave and mate in wave:
            here, there = wave.index(uid), wave.index(mate)
            self.waves[0].uids[here], self.waves[0].uids[there] = mate, uid

    def add_missed(self, uid: str) -> None:
        """Note that kube-scheduler has offered no node with an open slot to a member that may be placed now.

        `choose_missed` then returns it for nomination, when its turn comes.
        """
        self.missed[uid] = None

    def choose_missed(self, slots: Collection[str]) -> str:
        """Choose the next member to nominate, of those that were offered no node with an open slot; return its UID.

        These members are in ``missed``. Return "" if none of them has a slot, or if the last chosen one still has its
        slot but filter has not answered its node yet. ``slots`` are the UIDs of all members that have a slot.
        """
        if self.chosen_missed in self.missed and self.chosen_missed in slots:
            return ""
        self.chosen_missed = next((uid for uid in self.missed if uid in slots), "")
        self.refused_nodes = 0
        return self.chosen_missed

    def open_next(self, is_taken: Callable[[str], bool]) -> Sequence[str]:
        """Let the next wave, i.e. part of the gang, be placed if the slots of the whole present one are taken.

        ``is_taken`` returns that for the UID of a member. Return the UIDs of the members that may be placed now;
        empty if nothing has changed, or if the present wave was the last one.
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
    """Return the waves of a plan, i.e. the parts of a gang that are placed one after another, as few as possible.

    Successive waves are merged if all their members are equal, i.e. have the same requests, constraints and PodGroup.
    For instance 4 equal members, planned as 4 waves, become one wave with `Wave.any_order`. Members that share a volume
    claim without a volume are not merged. ``waves`` are the plan's, as UIDs; ``pods`` are the members by UID;
    ``leaf_of`` returns the name of a member's PodGroup in its tree by the member's UID.
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
