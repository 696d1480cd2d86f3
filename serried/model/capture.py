"""The planner's whole input at one instant, as a value: what a decision can be made from again, elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serried.model.budget import DisruptionBudget
from serried.model.composite import Composite
from serried.model.group import GroupKey, Job, PodGroup, Workload
from serried.model.level import ApiLevel
from serried.model.node import Node
from serried.model.parent import Parent
from serried.model.pod import Pod, Shape
from serried.model.priority import PriorityClass
from serried.model.reservation import Slot, Victim
from serried.model.resources import Resources
from serried.model.tree import Tree
from serried.model.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation, with the fields of `Reservation`."""

    group: GroupKey
    group_uid: str
    domain: str
    need: int
    slots: tuple[Slot, ...]
    committed: frozenset[str] = frozenset()
    parts: Mapping[str, int] = field(default_factory=dict)
    victims: tuple[Victim, ...] = ()

    since: float | None = None
    """When its binding cycle began, on the loop's clock; None without one."""


@dataclass(frozen=True, slots=True)
class VacantSlot:
    """The slot of a member that has ended, with the fields of `Vacancy`."""

    group: GroupKey
    pod: Pod
    leaf: str = ""
    refusal: str = ""
    since: float | None = None
    replacement: str = ""


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node that members of one shape were refused, until a time on the loop's clock."""

    shape: Shape
    node: str
    until: float


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The nodes that the scheduler has offered to members of one shape, until a time on the loop's clock."""

    shape: Shape
    nodes: frozenset[str]
    until: float


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """What is remembered of a group, as far as it decides. Times are on the loop's clock."""

    group: GroupKey
    first_seen: float = 0.0
    quorum_since: float | None = None
    broken_since: float | None = None
    started: bool = False
    stood: Tree | None = None
    home: str = ""
    refusals: tuple[NodeRefusal, ...] = ()
    offers: tuple[NodeOffer, ...] = ()

    verdict: Verdict | None = None
    """What was said of it last."""

    preempted: bool = False
    """Whether others were to go for its binding cycle."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """The room that is kept for the head of the queue. Times are on the loop's clock."""

    group: GroupKey
    priority: int
    since: float
    domain: str
    nodes: frozenset[str]
    at: float | None
    made: float
    until: float
    text: str
    exclusive_in: str | None = None
    broken: bool = False
    late: bool = False
    missed: float | None = None
    passed: Mapping[GroupKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    """The input. Of pods it has those that run, and the members of groups, each with the group that it is in."""

    level: ApiLevel
    schedulers: frozenset[str]

    wall: float
    """When it was taken, in seconds since 1970."""

    clock: float
    """The same on the clock of the loop."""

    settings: Mapping[str, Any]
    """The options of the core, as JSON."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    used: Mapping[str, Resources]
    """What is used on each node, by whomever."""

    groups: tuple[PodGroup, ...] = ()
    composites: tuple[Composite, ...] = ()
    workloads: tuple[Workload, ...] = ()
    jobs: tuple[Job, ...] = ()
    parents: tuple[Parent, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    reservations: tuple[Reserved, ...] = ()
    vacancies: tuple[VacantSlot, ...] = ()

    on_their_way: frozenset[str] = frozenset()
    """The UIDs of nominated pods that are no longer counted as such, because their room is used already."""

    memories: tuple[GroupMemory, ...] = ()
    kept: KeptNodes | None = None

    profiles: frozenset[str] = frozenset()
    """The schedulerNames of the same kube-scheduler, with those of ours."""

    group: GroupKey | None = None
    """The group whose decision is asked about; None if no one was chosen."""
