"""The slots that are kept for one gang between its plan and its last Binding."""

from dataclasses import dataclass, field

from serried.model.group import Key


@dataclass(slots=True)
class Slot:
    """The place of one member."""

    uid: str
    name: str
    node: str


@dataclass(slots=True)
class Reservation:
    """The slots of one group. ``need`` of them must be at bind before any is bound (0: each binds as it comes).

    ``committed`` are the UIDs whose Bindings may have been sent: from then on they are only ever rolled forward.
    """

    group: Key
    group_uid: str
    domain: str
    need: int
    slots: dict[str, Slot] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()

    @property
    def phase(self) -> str:
        """Planned or Committed, as the Reservation object says it."""
        return "Committed" if self.committed else "Planned"
