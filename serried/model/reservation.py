"""The slots that are kept for one gang between its plan and its last Binding."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from serried.model.group import GroupKey


@dataclass(slots=True)
class Slot:
    """The place of one member; ``part`` is its PodGroup within a tree."""

    uid: str
    name: str
    node: str
    part: str = ""


@dataclass(slots=True)
class Reservation:
    """The slots of one group. ``need`` of them must be at bind before any is bound (0: each binds as it comes).

    Of a tree, ``parts`` says how many of each PodGroup; ``need`` is their sum.
    ``committed`` are the UIDs whose Bindings may have been sent: from then on they are only ever rolled forward.
    """

    group: GroupKey
    group_uid: str
    domain: str
    need: int
    slots: dict[str, Slot] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """Planned or Committed, as the Reservation object says it."""
        return "Committed" if self.committed else "Planned"

    def lacks(self, uids: Collection[str]) -> bool:
        """Whether these members are too few for the quorum."""
        return bool(self.find_short(uids)) if self.parts else len(uids) < self.need

    def find_short(self, uids: Iterable[str]) -> frozenset[str]:
        """The parts of a tree of which these members are too few."""
        here = Counter(self.slots[uid].part for uid in uids if uid in self.slots)
        return frozenset(part for part, need in self.parts.items() if here[part] < need)
