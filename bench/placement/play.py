"""One scenario, played to its end by one placer: what became of every gang, and what is left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.cluster.nodes import RACK
from bench.placement.ground import Ground, members_of
from bench.placement.optimum import fewest_nodes, fewest_nodes_in_a_rack, fewest_racks
from bench.placement.rules import Rule
from bench.placement.scenario import Gang, Scenario
from serried.plan.request import PlanRequest

PROBES = (1, 8)
"""CPUs of a member of the gangs whose largest possible size is asked after each wave."""


class Placer(Protocol):
    """Whoever decides."""

    async def place(self, gang: Gang, ground: Ground) -> Mapping[str, str]:
        """Node by pod name for all members; empty if it is refused."""

    async def remove(self, pods: Sequence[str]) -> None:
        """These pods end now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one gang. ``possible``: anybody could have placed it at that moment.

    ``fewest_racks`` and ``fewest_nodes`` are the least that any placement would have needed then; 0 if not placed.
    """

    gang: Gang
    possible: bool
    racks: int = 0
    fewest_racks: int = 0
    nodes: int = 0
    fewest_nodes: int = 0

    @property
    def placed(self) -> bool:
        """Whether it runs."""
        return self.racks > 0


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave: its gangs' outcomes, and how many members the largest gang has that still fits one rack, by CPUs."""

    outcomes: tuple[Outcome, ...]
    largest: Mapping[int, int]


class Offline:
    """A rule as a placer."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    async def place(self, gang: Gang, ground: Ground) -> Mapping[str, str]:
        """Ask as the gang wishes."""
        key = RACK if gang.wish == "required" else None
        levels = (RACK,) if gang.wish == "preferred" else ()
        ask = PlanRequest(members_of(gang), gang.size, key, levels=levels)
        return self._rule(ground.snapshot(ask), ask) or {}

    async def remove(self, pods: Sequence[str]) -> None:
        """Nothing to do: the ground is all there is."""


async def play(scenario: Scenario, placer: Placer) -> list[Wave]:
    """Play all waves. Raises BrokenPromiseError."""
    ground, waves = Ground(scenario), []
    for number, gangs in enumerate(scenario.waves):
        if number:
            await placer.remove(ground.leave([name for name in ground.running if scenario.leaves(name, number)]))
        outcomes = tuple([await _play_gang(gang, ground, placer) for gang in gangs])
        largest = {cpu: max(sum(free) for free in ground.slots(cpu).values()) for cpu in PROBES}
        waves.append(Wave(outcomes, largest))
    return waves


async def _play_gang(gang: Gang, ground: Ground, placer: Placer) -> Outcome:
    slots = ground.slots(gang.cpu)
    racks = fewest_racks(slots, gang.size)
    if racks is None or (gang.wish == "required" and racks > 1):
        return Outcome(gang, possible=False)
    nodes = await placer.place(gang, ground)
    if not nodes:
        return Outcome(gang, possible=True)
    least = (fewest_nodes_in_a_rack if gang.wish == "required" else fewest_nodes)(slots, gang.size)
    ground.bind(gang, nodes)
    hosts = set(nodes.values())
    return Outcome(gang, True, len(ground.racks_of(hosts)), racks, len(hosts), least or 0)  # noqa: FBT003
