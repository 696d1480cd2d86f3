"""The seats of one plan: the slots that members may take now, and their order. State only, no I/O.

A seat is a slot of the cycle's reservation before kube-scheduler has reached its member. Until then members of the same
class may exchange seats (`extender.core.scheduling.seating` decides that). A seat is named by the UID of the member
that has it now. Each binding cycle owns one `Seats`.

    CLOSED -- every seat of the waves before it is taken --> OPEN -- filter answers its node --> TAKEN
                                                               ^                                   |
                                                               +--- the slot moves, the bind call -+
                                                                    fails, or kube-scheduler hangs up

Seats are closed only in gangs with rules between members (`serried.plan.coupled`): a member of a later wave, placed too
early, could leave the members before it no feasible node. Waves of the same class that follow each other are merged: a
member then takes any open seat of the merged wave that kube-scheduler offers. Of members that share a claim without a
volume, one goes before the others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from serried.api.pod import Pod
from serried.api.reservation import Slot


@dataclass(slots=True)
class Wave:
    """The seats that are open at the same time, in the order in which the plan fills them."""

    uids: list[str]

    in_turn: bool = False
    """True if any member takes any open seat of the wave: its members are of one class and activated together."""


@dataclass(slots=True)
class Seats:
    """The seats of one binding cycle, changed by the cycle's methods and by `Seating`."""

    waves: list[Wave] = field(default_factory=list)
    """The open wave, then the closed ones; empty if all seats are open from the beginning."""

    spare_keys: tuple[str, ...] | None = None
    """The label keys in which another node must equal the planned one to do as well, if room is left over.

    () if every node of the domain does. None if room is scarce: then only planned nodes do.
    """

    called: str = ""
    """The member of an ``in_turn`` wave (UID) that is nominated because no open seat was offered to it; "" for none."""

    missed: dict[str, None] = field(default_factory=dict)
    """The members of an ``in_turn`` wave (UIDs) to which no open seat was offered, in the order of nomination.

    They are nominated one at a time: kube-scheduler treats a nominated pod as present, so several nominated members
    would keep each other off by their rules.
    """

    refused_calls: int = 0
    """The number of nodes refused for the ``called`` member; 0 after each call and each taken seat."""

    _closed: set[str] = field(init=False)
    _in_turn: frozenset[str] = field(init=False)
    _coupled: bool = field(init=False)

    def __post_init__(self) -> None:
        self._closed = set(chain.from_iterable(wave.uids for wave in self.waves[1:]))
        self._in_turn = self._list_in_turn()
        self._coupled = bool(self.waves)

    # --- readings ----------------------------------------------------------------------------------------------

    @property
    def any_node(self) -> bool:
        """True if members need no nomination, because they take any node of the domain that is offered."""
        return self.spare_keys is not None and not self._coupled

    @property
    def in_order(self) -> bool:
        """True while the gang has waves that are not all taken."""
        return bool(self.waves)

    @property
    def open_wave(self) -> Sequence[str]:
        """The UIDs of the open wave: members without a taken seat first, in the plan's order."""
        return self.waves[0].uids if self.waves else ()

    @property
    def next_wave(self) -> Sequence[str]:
        """The UIDs of the wave that opens next."""
        return self.waves[1].uids if len(self.waves) > 1 else ()

    def is_closed(self, uid: str) -> bool:
        """Return whether a member's seat is in a later wave."""
        return uid in self._closed

    def is_in_turn(self, uid: str) -> bool:
        """Return whether a member takes the first open seat of its wave that it is offered."""
        return uid in self._in_turn

    def waits(self, uid: str) -> bool:
        """Return whether kube-scheduler may refuse a member only because earlier members are not placed yet."""
        return uid in self._closed or (uid in self.missed and uid != self.called)

    def comes_first(self, uid: str, slots: Mapping[str, Slot]) -> bool:
        """Return whether no member before this one is planned on the same node."""
        before = takewhile(lambda mate: mate != uid, chain.from_iterable(wave.uids for wave in self.waves))
        return not any(mate in slots and slots[mate].node == slots[uid].node for mate in before)

    # --- changes -----------------------------------------------------------------------------------------------

    def keep_to_slots(self) -> None:
        """Accept only planned nodes from now on, because room is scarce after all."""
        self.spare_keys = None

    def note_taken(self, uid: str) -> None:
        """Note that filter has answered a member's node."""
        self.missed.pop(uid, None)
        self.refused_calls = 0
        if self.is_in_turn(uid):
            self.waves[0].uids.remove(uid)
            self.waves[0].uids.append(uid)  # keeps members without a taken seat first

    def exchange(self, uid: str, mate: str) -> None:
        """Exchange two members in the order of the open wave."""
        wave = self.open_wave
        if uid in wave and mate in wave:
            here, there = wave.index(uid), wave.index(mate)
            self.waves[0].uids[here], self.waves[0].uids[there] = mate, uid

    def miss(self, uid: str) -> None:
        """Note that a member of the open wave was offered no node with an open seat."""
        self.missed[uid] = None

    def call(self, slots: Collection[str]) -> str:
        """Choose the next missed member to nominate. Return its UID; "" for none, or while the last one is not placed.

        ``slots`` are the UIDs of members that have a slot.
        """
        if self.called in self.missed and self.called in slots:
            return ""
        self.called = next((uid for uid in self.missed if uid in slots), "")
        self.refused_calls = 0
        return self.called

    def open_next(self, is_taken: Callable[[str], bool]) -> Sequence[str]:
        """Open the next wave if every seat of the open one ``is_taken`` or dropped.

        Return the UIDs of the next wave.
        """
        if not self.waves or not all(map(is_taken, self.waves[0].uids)):
            return ()
        del self.waves[0]
        self._closed.difference_update(self.open_wave)
        self._in_turn = self._list_in_turn()
        return self.open_wave

    def _list_in_turn(self) -> frozenset[str]:
        return frozenset(self.waves[0].uids if self.waves and self.waves[0].in_turn else ())


def arrange(waves: Iterable[Sequence[str]], pods: Mapping[str, Pod], leaf_of: Callable[[str], str]) -> list[Wave]:
    """Return the waves of a plan, with waves of the same class that follow each other merged.

    ``waves`` are the plan's, as UIDs of ``pods``; ``leaf_of`` returns the PodGroup of a member.
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
            found[-1].in_turn = True
        last = kind
    return found
