"""Placements: the sets of nodes that may hold a whole gang (GeneratePlacements of the native TopologyPlacement)."""

from collections.abc import Collection
from dataclasses import dataclass

from serried.model.plan import PlanRequest
from serried.plan.capacity import Domain, LevelKey
from serried.plan.classes import Census


@dataclass(frozen=True, slots=True)
class Placement:
    """A domain and its nodes."""

    key: LevelKey
    """() for the whole cluster."""

    domain: Domain

    names: Collection[str] | None
    """The names of the nodes; None for the whole cluster."""

    @property
    def name(self) -> str:
        """For people: the values of the labels; "" for the whole cluster."""
        return "/".join(self.domain)


CLUSTER = Placement((), (), None)


@dataclass(frozen=True, slots=True)
class Step:
    """A level at which one domain is looked for."""

    key: LevelKey

    below: tuple[str, ...]
    """The narrower levels, the widest first."""


def list_steps(ask: PlanRequest) -> list[Step]:
    """The levels to try, the narrowest first; the last is the one that the gang must not leave.

    A domain of a preferred level is looked for inside the required one, and that inside those of the groups above:
    two racks of one name in two blocks are two.
    """
    required = (*(key for key, _ in ask.within), *(() if ask.topology_key is None else (ask.topology_key,)))
    levels = tuple(level for level in ask.levels if level != ask.topology_key)
    steps = [Step((*required, level), levels[:place][::-1]) for place, level in enumerate(levels)]
    return [*steps, Step(required, levels[::-1])] if ask.spills or not steps else steps


def generate_placements(census: Census, step: Step, ask: PlanRequest) -> list[Placement]:
    """One placement per domain; nodes without the label are in none. The whole cluster without a key.

    If the gang is pinned, only those domains of the required key, also if no node is left in one.
    """
    if not step.key:
        return [CLUSTER]
    domains = census.domains(step.key)
    around = tuple(value for _, value in ask.within)
    depth = len(around)
    if ask.topology_key is None and len(step.key) == depth:
        return [Placement(step.key, around, domains.get(around, ()))]
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if pinned and len(step.key) == depth + 1:
        homes = [(*around, domain) for domain in sorted(pinned)]
        return [Placement(step.key, home, domains.get(home, ())) for home in homes]
    return [
        Placement(step.key, domain, names)
        for domain, names in domains.items()
        if domain[:depth] == around and _is_allowed(domain, depth, pinned, ask)
    ]


def _is_allowed(domain: Domain, depth: int, pinned: frozenset[str], ask: PlanRequest) -> bool:
    if ask.topology_key is None:
        return True
    return domain[depth] in pinned if pinned else domain[depth] not in ask.taken
