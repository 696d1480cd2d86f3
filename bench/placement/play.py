"""Play one scenario with one placer: place gang after gang, and record each outcome. The entry is `play`."""

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
"""CPUs of a member. After each wave, the largest gang of such members that fits one rack is computed."""


class Placer(Protocol):
    """Decides where the members of a gang run."""

    async def place(self, gang: Gang, ground: Ground) -> Mapping[str, str]:
        """Return the node of each member, by pod name; empty if the gang is not placed."""

    async def remove(self, pods: Sequence[str]) -> None:
        """Remove running pods."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one gang. The counts are 0 if it was not placed."""

    gang: Gang
    possible: bool
    """True if the gang fitted when its turn came."""

    racks: int = 0
    fewest_racks: int = 0
    """The fewest racks that any placement would have used."""

    nodes: int = 0
    fewest_nodes: int = 0
    """The fewest nodes that any placement would have used."""

    @property
    def placed(self) -> bool:
        """True if the gang runs."""
        return self.racks > 0


@dataclass(frozen=True, slots=True)
class Wave:
    """The outcomes of one wave."""

    outcomes: tuple[Outcome, ...]
    largest: Mapping[int, int]
    """By CPUs of a member: the size of the largest gang that still fits one rack after the wave."""


class Offline:
    """A placer that applies a rule in this process."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    async def place(self, gang: Gang, ground: Ground) -> Mapping[str, str]:
        """Apply the rule to the gang's request."""
        key = RACK if gang.wish == "required" else None
        levels = (RACK,) if gang.wish == "preferred" else ()
        request = PlanRequest(members_of(gang), gang.size, key, levels=levels)
        return self._rule(ground.snapshot(request), request) or {}

    async def remove(self, pods: Sequence[str]) -> None:
        """Do nothing: `Ground` has removed the pods, and there is no other state."""


async def play(scenario: Scenario, placer: Placer) -> list[Wave]:
    """Play all waves and return their outcomes. Raise BrokenPromiseError for a wrong placement."""
    ground, waves = Ground(scenario), []
    for number, gangs in enumerate(scenario.waves):
        if number:
            await placer.remove(ground.remove([name for name in ground.running if scenario.leaves(name, number)]))
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
