"""What the planner takes and gives."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from serried.model.node import Node
from serried.model.pod import Pod
from serried.model.preference import Style
from serried.model.resources import Resources


class Overlay(Mapping[str, Resources]):
    """A few nodes' amounts over those of all the others, without a copy."""

    def __init__(self, over: Mapping[str, Resources], base: Mapping[str, Resources]) -> None:
        self._over, self._base = over, base

    def __getitem__(self, node: str) -> Resources:
        return self._over[node] if node in self._over else self._base[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._over.keys() | self._base.keys())

    def __len__(self) -> int:
        return len(self._over.keys() | self._base.keys())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as one plan sees it: nodes in a fixed order and what is used on each, by node name.

    ``used`` counts bound pods, reservations, assumed pods and nominated pods of equal or higher priority; a node
    without entry is empty. Neither is copied: a plan must be finished before the state changes, which holds
    because plans run without await. ``over`` are the nodes on which more is used than bound pods and reservations.
    """

    nodes: Mapping[str, Node]
    used: Mapping[str, Resources]
    over: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be placed.

    ``members`` are the pending members in the order in which they get room (lowest index first); at least ``need``
    of them must be placed or none is. ``topology_key`` confines all of them to one domain; ``pinned`` are the
    domains that existing members occupy (more than one is an error, none means free choice). ``excluded`` holds
    (member uid, node name) pairs that the scheduler has refused, ``closed`` the names of nodes that no member may use,
    ``taken`` the domains of the key that are others' alone.

    ``levels`` are label keys, the narrowest first: the quorum goes into one domain of the first key that has one with
    room, else over as few domains as possible; with ``spills`` False it waits then. ``homes`` are the nodes of
    existing members: others join them at the narrowest level that has room. With ``own_slots`` each member takes the
    slot that is kept for it, or none.

    For a tree of groups ``parts`` are the asks of the groups below, and ``members`` those of all of them. A part with
    ``need`` 0 stands already; of the others ``wanted`` must be placed, each whole. ``name`` is the group's own in its
    tree, ``within`` the (key, domain) pairs in which the groups above it are, the widest first.
    """

    members: Sequence[Pod]
    need: int
    topology_key: str | None = None
    pinned: frozenset[str] = frozenset()
    excluded: frozenset[tuple[str, str]] = frozenset()
    closed: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    levels: tuple[str, ...] = ()
    spills: bool = True
    homes: frozenset[str] = frozenset()
    style: Style = Style.PACK
    own_slots: bool = False
    name: str = ""
    within: tuple[tuple[str, str], ...] = ()
    parts: tuple["PlanRequest", ...] = ()
    wanted: int = 0

    @property
    def priority(self) -> int:
        """The least of its members' priorities; 0 without members."""
        return min((member.priority for member in self.members), default=0)

    def asks_the_same(self, other: "PlanRequest") -> bool:
        """Whether the answer to one question is that to the other: its members may be newer versions of theirs."""
        return (
            len(self.members) == len(other.members)
            and len(self.parts) == len(other.parts)
            and all(map(_is_alike, self.members, other.members))
            and replace(self, members=(), parts=()) == replace(other, members=(), parts=())
            and all(mine.asks_the_same(others) for mine, others in zip(self.parts, other.parts, strict=True))
        )

    def avoiding(self, nodes: Collection[str]) -> "PlanRequest":
        """The same question, where no member of any group may use these nodes either."""
        parts = tuple(part.avoiding(nodes) for part in self.parts)
        return replace(self, closed=self.closed | frozenset(nodes), parts=parts)


def _is_alike(one: Pod, other: Pod) -> bool:
    return one is other or (one.uid, one.priority, one.shape) == (other.uid, other.priority, other.shape)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each member goes: ``nodes`` maps member uid to node name. ``domain`` is "" without a required key.

    ``spare`` more members of their kind would find room in the same domain (an estimate where classes are mixed).
    """

    domain: str
    nodes: Mapping[str, str]
    spare: int = 0
