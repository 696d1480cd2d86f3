"""The seats of one plan: which may be taken now, and in which order. State only, no I/O.

A seat is a slot of the cycle's reservation. Until kube-scheduler has come to its member it belongs to the class of the
member more than to the member: alike members may change seats (`extender.core.scheduling.seating`). Here the UID of the
member that has a seat now stands for it.

    CLOSED -- every seat of the waves before it is taken --> OPEN -- filter answers its node --> TAKEN
                                                               ^                                   |
                                                               +--- the slot moves, its member ----+
                                                                    fails, or hangs up

Seats are closed only where members decide about each other (`serried.plan.coupled`): those of later waves, as a member
there may leave the members before it no node. Alike members whose waves follow each other share one wave: whichever
comes takes a seat of the wave that it is offered. Of members that share a claim without a volume one goes first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from serried.api.pod import Pod
from serried.api.reservation import Slot


@dataclass(slots=True)
class Wave:
    """Seats that are open at the same time, in the order in which the plan fills them."""

    uids: list[str]

    in_turn: bool = False
    """Whether its members are woken together, and each takes any open seat of the wave that it is offered."""


@dataclass(slots=True)
class Seats:
    """Owned by one binding cycle, and changed by its verbs and by `Seating`."""

    waves: list[Wave] = field(default_factory=list)
    """What is not taken yet, the wave that is open first; empty where every seat is open from the beginning."""

    spare_keys: tuple[str, ...] | None = None
    """Where room is left over: the label keys in which a node must equal a planned one to do as well.

    () if every node of the domain does. None where room is scarce: then only planned nodes do.
    """

    called: str = ""
    """The member in turn (UID) that is nominated, as no node with an open seat was offered to it; "" for none."""

    missed: dict[str, None] = field(default_factory=dict)
    """The members in turn (UIDs) to which no node with an open seat was offered, in the order of their nomination.

    One at a time is nominated: kube-scheduler counts a nominated pod as one that is there, so together they would keep
    each other off.
    """

    refused_calls: int = 0
    """On how many nodes kube-scheduler has refused the called member; 0 after each call and each seat that is taken."""

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
        """Whether members need no nomination: they take any node of the domain that is offered."""
        return self.spare_keys is not None and not self._coupled

    @property
    def in_order(self) -> bool:
        """Whether members decide about each other, and some of their seats are not taken yet."""
        return bool(self.waves)

    @property
    def open_wave(self) -> Sequence[str]:
        """The members (UIDs) of the wave that is open, those that are not taken first and in the plan's order."""
        return self.waves[0].uids if self.waves else ()

    @property
    def next_wave(self) -> Sequence[str]:
        """The members (UIDs) whose seats open next."""
        return self.waves[1].uids if len(self.waves) > 1 else ()

    def is_closed(self, uid: str) -> bool:
        """Whether a member's seat is in a later wave."""
        return uid in self._closed

    def is_in_turn(self, uid: str) -> bool:
        """Whether a member takes the first open seat of its wave that it is offered."""
        return uid in self._in_turn

    def waits(self, uid: str) -> bool:
        """Whether kube-scheduler may refuse a member until it has come to others: nothing is learnt from that."""
        return uid in self._closed or (uid in self.missed and uid != self.called)

    def comes_first(self, uid: str, slots: Mapping[str, Slot]) -> bool:
        """Whether no member of an earlier seat is planned on a member's node."""
        before = takewhile(lambda mate: mate != uid, chain.from_iterable(wave.uids for wave in self.waves))
        return not any(mate in slots and slots[mate].node == slots[uid].node for mate in before)

    # --- changes -----------------------------------------------------------------------------------------------

    def keep_to_slots(self) -> None:
        """Note that room is scarce after all: only planned nodes do."""
        self.spare_keys = None

    def note_taken(self, uid: str) -> None:
        """Note that filter has answered a member's node."""
        self.missed.pop(uid, None)
        self.refused_calls = 0
        if self.is_in_turn(uid):
            self.waves[0].uids.remove(uid)
            self.waves[0].uids.append(uid)  # so that one that is not taken is found at once

    def exchange(self, uid: str, mate: str) -> None:
        """Note that two members have changed seats: each comes when the other one would have."""
        wave = self.open_wave
        if uid in wave and mate in wave:
            here, there = wave.index(uid), wave.index(mate)
            self.waves[0].uids[here], self.waves[0].uids[there] = mate, uid

    def miss(self, uid: str) -> None:
        """Note that a member in turn was offered no node with an open seat."""
        self.missed[uid] = None

    def call(self, slots: Collection[str]) -> str:
        """Return the member in turn (UID) that is to be nominated now; "" for none, or while the last one is to come.

        ``slots`` are the members (UIDs) that have one.
        """
        if self.called in self.missed and self.called in slots:
            return ""
        self.called = next((uid for uid in self.missed if uid in slots), "")
        self.refused_calls = 0
        return self.called

    def open_next(self, is_taken: Callable[[str], bool]) -> Sequence[str]:
        """Open the next wave if every seat of the first one ``is_taken``, or gone. Return its members (UIDs)."""
        if not self.waves or not all(map(is_taken, self.waves[0].uids)):
            return ()
        del self.waves[0]
        self._closed.difference_update(self.open_wave)
        self._in_turn = self._list_in_turn()
        return self.open_wave

    def _list_in_turn(self) -> frozenset[str]:
        return frozenset(self.waves[0].uids if self.waves and self.waves[0].in_turn else ())


def arrange(waves: Iterable[Sequence[str]], pods: Mapping[str, Pod], leaf_of: Callable[[str], str]) -> list[Wave]:
    """Return the waves of a plan, where alike members of waves that follow each other share one.

    ``waves`` are the plan's, of the UIDs of ``pods``; ``leaf_of`` gives a member's PodGroup.
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
