"""A cluster that is filled at random, and the gangs that come to it. Pure: a seed says it all."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.cluster.nodes import RACK, node_name
from serried.api.node import Node

Wish = Literal["required", "preferred", "none"]
"""What a gang says about racks: it must be in one, it had better be, or nothing."""

FILLED = 0.6
"""The share of all CPUs that other pods use before the first gang comes."""

_FILLER_CPUS = (1, 2, 4, 8, 16)
_NODE = {"cpu": 32_000, "pods": 110}


@dataclass(frozen=True, slots=True)
class Gang:
    """``size`` members of ``cpu`` CPUs each, all or nothing."""

    name: str
    size: int
    cpu: int
    wish: Wish


@dataclass(frozen=True, slots=True)
class Filler:
    """A pod of no gang that runs from the start."""

    name: str
    cpu: int
    node: str


@dataclass(frozen=True, slots=True)
class Mix:
    """What gangs are like: sizes between two bounds (small ones more often), CPUs of a member, wishes.

    Those of one wave ask for a share ``demand`` of all CPUs together, and none for more than ``most_cpus``.
    """

    demand: float
    sizes: tuple[int, int] = (4, 400)
    cpus: tuple[int, ...] = (1, 2, 4, 8)
    wishes: tuple[Wish, ...] = ("required", "required", "preferred", "none")
    most_cpus: int = 1000


@dataclass(frozen=True, slots=True)
class Scenario:
    """A filled cluster and the gangs, wave by wave. Before each wave but the first, some of all pods leave."""

    name: str
    seed: int
    nodes: tuple[Node, ...]
    filler: tuple[Filler, ...]
    waves: tuple[tuple[Gang, ...], ...]

    def leaves(self, name: str, wave: int) -> bool:
        """Whether this gang or pod leaves before a wave: each one does with the same chance, whoever placed it."""
        return random.Random(f"{self.seed}/{wave}/{name}").random() < 0.5


def make_nodes(count: int, racks: int, seed: int) -> tuple[Node, ...]:
    """Equal nodes in racks of one size, in no order: neither a name nor a place in the list says which rack it is."""
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return tuple(
        Node(node_name(index), _NODE, {RACK: f"rack-{place * racks // count:03d}"})
        for index, place in enumerate(places)
    )


def make_scenario(name: str, seed: int, nodes: Sequence[Node], mix: Mix, waves: int) -> Scenario:
    """Fill the nodes and draw the gangs."""
    source = random.Random(f"{name}/{seed}")
    total = sum(node.allocatable["cpu"] for node in nodes) // 1000
    filler = tuple(_fill(source, nodes, round(FILLED * total)))
    drawn = tuple(tuple(_draw_gangs(source, f"w{wave}", mix, mix.demand * total)) for wave in range(waves))
    return Scenario(name, seed, tuple(nodes), filler, drawn)


def _fill(source: random.Random, nodes: Sequence[Node], cpus: int) -> Iterator[Filler]:
    free = {node.name: node.allocatable["cpu"] // 1000 for node in nodes}
    names, used, count = list(free), 0, 0
    while used < cpus:
        node, cpu = source.choice(names), source.choice(_FILLER_CPUS)
        if free[node] >= cpu:
            free[node] -= cpu
            used += cpu
            yield Filler(f"filler-{count:05d}", cpu, node)
            count += 1


def _draw_gangs(source: random.Random, prefix: str, mix: Mix, cpus: float) -> Iterator[Gang]:
    asked, count = 0, 0
    while asked < cpus:
        size, cpu = _draw_size(source, *mix.sizes), source.choice(mix.cpus)
        wish = source.choice(mix.wishes)
        if size * cpu <= mix.most_cpus:
            asked += size * cpu
            yield Gang(f"{prefix}-{count:03d}", size, cpu, wish)
            count += 1


def _draw_size(source: random.Random, least: int, most: int) -> int:
    size: float = least * (most / least) ** source.random()
    return round(size)
