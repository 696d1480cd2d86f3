"""Placements: the sets of nodes that may hold a whole gang (GeneratePlacements of the native TopologyPlacement)."""

from collections.abc import Iterable
from dataclasses import dataclass

from serried.model.plan import Ask
from serried.plan.capacity import Domain, LevelKey
from serried.plan.classes import Census


@dataclass(frozen=True, slots=True)
class Placement:
    """A domain and its nodes. ``key`` is () and ``names`` None for the whole cluster."""

    key: LevelKey
    domain: Domain
    names: Iterable[str] | None


CLUSTER = Placement((), (), None)


@dataclass(frozen=True, slots=True)
class Step:
    """A level at which one domain is looked for: ``key`` names it, ``below`` the narrower ones, the widest first."""

    key: LevelKey
    below: tuple[str, ...]


def list_steps(ask: Ask) -> list[Step]:
    """The levels to try, the narrowest first; the last is the one that the gang must not leave.

    A domain of a preferred level is looked for inside the required one: two racks of one name in two blocks are two.
    """
    required = () if ask.topology_key is None else (ask.topology_key,)
    levels = tuple(level for level in ask.levels if level != ask.topology_key)
    steps = [Step((*required, level), levels[:place][::-1]) for place, level in enumerate(levels)]
    return [*steps, Step(required, levels[::-1])] if ask.spills or not steps else steps


def generate_placements(census: Census, step: Step, pinned: frozenset[str]) -> list[Placement]:
    """One placement per domain; nodes without the label are in none. The whole cluster without a key.

    With ``pinned``, only those domains of the required key, also if no node is left in one.
    """
    if not step.key:
        return [CLUSTER]
    domains = census.domains(step.key)
    if not pinned:
        return [Placement(step.key, domain, names) for domain, names in domains.items()]
    if len(step.key) == 1:
        return [Placement(step.key, (domain,), domains.get((domain,), ())) for domain in sorted(pinned)]
    return [Placement(step.key, domain, names) for domain, names in domains.items() if domain[0] in pinned]
