"""Scenarios: a cluster with random filler pods, and random gangs in waves. Pure: a seed determines everything."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.cluster.nodes import RACK, node_name
from serried.api.node import Node

Wish = Literal["required", "preferred", "none"]
"""The topology constraint of a gang: one rack is required, preferred, or there is none."""

FILLED = 0.6
"""The share of all CPUs that filler pods use before the first gang."""

_FILLER_CPUS = (1, 2, 4, 8, 16)
_NODE = {"cpu": 32_000, "pods": 110}


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of ``size`` members of ``cpu`` CPUs. All members must run, or none."""

    name: str
    size: int
    cpu: int
    wish: Wish


@dataclass(frozen=True, slots=True)
class Filler:
    """A plain pod that runs from the start."""

    name: str
    cpu: int
    node: str


@dataclass(frozen=True, slots=True)
class Mix:
    """The random distribution of gangs."""

    demand: float
    """The share of all CPUs that the gangs of one wave request together."""

    sizes: tuple[int, int] = (4, 400)
    """The smallest and the largest size; small ones are more frequent."""

    cpus: tuple[int, ...] = (1, 2, 4, 8)
    """CPUs of a member, one of these with equal probability."""

    wishes: tuple[Wish, ...] = ("required", "required", "preferred", "none")
    """The topology constraint, one of these with equal probability."""

    most_cpus: int = 1000
    """The most CPUs that one gang requests."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A filled cluster and the gangs in waves. Before each wave but the first, about half of all pods are removed."""

    name: str
    seed: int
    nodes: tuple[Node, ...]
    filler: tuple[Filler, ...]
    waves: tuple[tuple[Gang, ...], ...]

    def leaves(self, name: str, wave: int) -> bool:
        """Return whether a gang or filler pod is removed before a wave. The answer does not depend on the placer."""
        return random.Random(f"{self.seed}/{wave}/{name}").random() < 0.5


def make_nodes(count: int, racks: int, seed: int) -> tuple[Node, ...]:
    """Return equal nodes in racks of equal size. Names and order of the nodes do not depend on the racks."""
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return tuple(
        Node(node_name(index), _NODE, {RACK: f"rack-{place * racks // count:03d}"})
        for index, place in enumerate(places)
    )


def make_scenario(name: str, seed: int, nodes: Sequence[Node], mix: Mix, waves: int) -> Scenario:
    """Return a scenario with random filler pods on the nodes, and with random gangs."""
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
