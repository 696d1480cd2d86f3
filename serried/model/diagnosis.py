"""Why a gang does not fit, domain by domain, and what would make it fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from serried.model.plan import Plan
from serried.model.pod import Pod


class HurdleKind(StrEnum):
    """What can keep a member off a node."""

    RESOURCE = "resource"
    """Too little of a resource is free."""

    TAINT = "taint"
    CORDON = "cordon"
    SELECTOR = "selector"
    """The node selector, or the required node affinity."""

    KEPT = "kept"
    """The node is kept for the head of the queue, or kube-scheduler does not offer it."""


@dataclass(frozen=True, slots=True, order=True)
class Hurdle:
    """What keeps a member off a node."""

    kind: HurdleKind

    name: str = ""
    """The resource, the taint's key, or the label key; "" where the kind says it all."""

    def __str__(self) -> str:
        if self.kind is HurdleKind.RESOURCE:
            return self.name
        return f"{self.kind} {self.name}" if self.name else self.kind.value


@dataclass(frozen=True, slots=True)
class HurdleCount:
    """How many nodes one hurdle keeps from taking any member."""

    hurdle: Hurdle
    nodes: int

    def __str__(self) -> str:
        return f"{self.hurdle} {count_things(self.nodes, 'node')}"


@dataclass(frozen=True, slots=True)
class DomainDiagnosis:
    """How far one domain is from holding a gang."""

    domain: str

    slots: int
    """How many members it has room for; at most, where they are of several shapes."""

    nodes: int
    hurdles: tuple[HurdleCount, ...]
    """Those of its nodes that take no member, the most frequent hurdle first."""

    taken: bool = False
    """Whether another gang has it for itself."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a gang does not fit."""

    key: str
    """The topology key; "" for the cluster as one domain."""

    need: int

    domains: tuple[DomainDiagnosis, ...]
    """The nearest to holding the gang first."""

    domain_count: int
    """How many there are in all."""

    hurdles: tuple[HurdleCount, ...]
    """Those of all nodes of all domains, the dominant one first."""


def count_things(count: int, word: str) -> str:
    """So many of them, in English: ``1 node``, ``4 nodes``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def describe_domain(found: DomainDiagnosis, need: int) -> str:
    """One line for people: ``rack-7: 3 of 8; cpu 4 nodes, taint gpu 1 node``."""
    name = found.domain or "the cluster"
    why = ", ".join(map(str, found.hurdles))
    taken = "exclusively another gang's" if found.taken else ""
    rest = "; ".join(part for part in (taken, why) if part)
    return f"{name}: {found.slots} of {need}{f'; {rest}' if rest else ''}"


class Change(StrEnum):
    """What could be changed so that a gang fits; the cheapest first."""

    UNCORDON = "uncordon"
    SMALLER = "smallerRequest"
    WIDER = "widerLevel"
    PREFERRED = "preferred"
    """Preferred instead of required."""

    FEWER = "fewerMembers"
    MOVE = "moveGang"
    RELEASE = "releaseKept"
    """Nothing is kept for the head of the queue."""

    END = "endGang"


@dataclass(frozen=True, slots=True)
class Advice:
    """A change with which a gang fits: the planner has found the plan."""

    change: Change
    plan: Plan

    nodes: tuple[str, ...] = ()
    """For UNCORDON, those nodes; for MOVE, where the other gang goes."""

    name: str = ""
    """The resource, the topology key, or the other gang."""

    before: int = 0
    """How much each member asks for at the most, or how many members are needed."""

    after: int = 0
    """How much, or how many, it may be."""

    domain: str = ""
    """For MOVE, the domain to which the other gang goes."""

    pods: int = 0
    """How many pods of the other gang it concerns."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A gang that runs, and that could be ended or moved."""

    name: str
    pods: Sequence[Pod]
    topology_key: str | None = None

    movable: bool = True
    """Whether its constraint is known to the full: a tree's is not."""


_UNITS = {"cpu": (1000, ""), "memory": (1 << 30, "Gi"), "ephemeral-storage": (1 << 30, "Gi")}


def describe_amount(resource: str, amount: int) -> str:
    """An amount with its resource, as Kubernetes writes quantities."""
    unit, suffix = _UNITS.get(resource, (1, ""))
    if amount % unit == 0:
        return f"{amount // unit}{suffix} {resource}"
    return f"{amount}m {resource}" if resource == "cpu" else f"{amount / unit:.2f}{suffix} {resource}"


_MAX_NODES_NAMED = 5


def describe_advice(advice: Advice) -> str:
    """The sentence for people: what to change."""
    where = f"; it would go to {advice.plan.domain}" if advice.plan.domain else ""
    match advice.change:
        case Change.UNCORDON:
            text = f"uncordon {_name_some(advice.nodes)}"
        case Change.SMALLER:
            before = describe_amount(advice.name, advice.before).removesuffix(f" {advice.name}")
            text = f"ask for {describe_amount(advice.name, advice.after)} instead of {before}"
        case Change.WIDER:
            text = f"require one domain of {advice.name}, the next wider level"
        case Change.PREFERRED:
            text = f"prefer {advice.name} instead of requiring it"
        case Change.FEWER:
            text = f"let {count_things(advice.after, 'member')} be enough instead of {advice.before}"
        case Change.MOVE:
            target = advice.domain or _name_some(advice.nodes)
            text = f"move gang {advice.name} ({count_things(advice.pods, 'pod')}) to {target}"
        case Change.RELEASE:
            text = "let it pass the head of the queue, for which nodes are kept"
        case Change.END:
            text = f"end gang {advice.name} ({count_things(advice.pods, 'pod')}), or wait for its end"
    return text + where


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NODES_NAMED
    return ", ".join(names[:_MAX_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")
