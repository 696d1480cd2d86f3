"""Small gangs whose claims choose between a few volumes, against all orders, nodes and equal volumes there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import CHOSEN
from serried.api.volume import ClaimRequirements, Volume, VolumeChoice, VolumePool
from serried.plan.fit import matches_terms
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.builders import node, pod
from tests.support.rules import PLAN_RULES
from tests.support.volumes import volume

ZONE = "topology.kubernetes.io/zone"
GIB = 1 << 30


@dataclass(frozen=True)
class Problem:
    """A gang, the nodes and the volumes."""

    nodes: dict[str, Node]
    volumes: list[Volume]
    members: list[Pod]


def draw(random: Random) -> Problem:
    nodes = [
        node(f"n{at}").label(ZONE, random.choice("abc")).cpu(random.randint(1, 2)) for at in range(random.randint(2, 5))
    ]
    volumes = []
    for at in range(random.randint(1, 6)):
        zones = random.sample("abc", random.randint(1, 2))
        where = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": zones}]}
        made = volume(f"v{at}").available("local", random.choice(["1Gi", "2Gi"]))
        volumes.append((made if random.random() < 0.1 else made.node_affinity(where)).value())
    ordered = sorted(volumes, key=VolumePool.rank)
    pools = [_pool(ordered, size) for size in (GIB, 2 * GIB)]
    shared = VolumeChoice(random.choice(pools), "default/shared")
    members = []
    for at in range(random.randint(1, 5)):
        own = tuple(VolumeChoice(random.choice(pools)) for _ in range(random.choice([0, 1, 1, 1, 2])))
        choices = (*own, shared) if random.random() < 0.2 else own
        value = pod(f"p{at}").cpu(1).value()
        members.append(replace(value, shape=replace(value.shape, volumes=choices)))
    return Problem({each.value().name: each.value() for each in nodes}, ordered, members)


def _pool(volumes: Sequence[Volume], size: int) -> VolumePool:
    fitting = tuple(each for each in volumes if each.capacity >= size)
    return VolumePool(ClaimRequirements("local", size), f"{CHOSEN}local/{size}", fitting)


@dataclass(frozen=True)
class State:
    """The room and the volumes that are left after some members have been placed."""

    room: tuple[tuple[str, int], ...]
    gone: frozenset[str] = frozenset()
    shared: str = ""


def exists(problem: Problem) -> bool:
    """Return whether kube-scheduler can place all members, in some order, on some nodes, with some of equal volumes."""
    room = tuple((name, each.allocatable["cpu"] // 1000) for name, each in problem.nodes.items())
    seen: set[tuple[State, frozenset[str]]] = set()

    def go_on(state: State, left: frozenset[str]) -> bool:
        if not left:
            return True
        if (state, left) in seen:
            return False
        seen.add((state, left))
        waiting = [each for each in problem.members if each.uid in left]
        return any(
            go_on(after, left - {member.uid}) for member in waiting for after in list_next(problem, state, member)
        )

    return go_on(State(room), frozenset(each.uid for each in problem.members))


def list_next(problem: Problem, state: State, member: Pod) -> Iterator[State]:
    claims = sorted(member.shape.volumes, key=lambda each: each.pool.wish.request if each.pool else 0)
    for name, slots in state.room:
        if slots:
            room = tuple((each, count - (each == name)) for each, count in state.room)
            yield from _serve(problem.nodes[name], claims, replace(state, room=room), problem)


def _serve(at: Node, claims: Sequence[VolumeChoice], state: State, problem: Problem) -> Iterator[State]:
    if not claims:
        yield state
        return
    claim, *rest = claims
    if claim.claim and state.shared:
        there = next(each for each in problem.volumes if each.name == state.shared)
        if there.terms is None or matches_terms(there.terms, at):
            yield from _serve(at, rest, state, problem)
        return
    assert claim.pool is not None
    free = [
        each
        for each in claim.pool.volumes
        if each.name not in state.gone and (each.terms is None or matches_terms(each.terms, at))
    ]
    for each in free:
        if each.capacity == free[0].capacity:
            taken = replace(state, gone=state.gone | {each.name}, shared=each.name if claim.claim else state.shared)
            yield from _serve(at, rest, taken, problem)


FEW, MANY = range(300), range(300, 3000)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.full)], ids=["few", "many"])
def test_a_plan_is_found_exactly_where_there_is_a_way(seeds: range) -> None:
    for seed in seeds:
        problem = draw(Random(seed))  # noqa: S311 - not for secrets
        found = plan_gang(
            Snapshot(problem.nodes, {}, rules=PLAN_RULES), PlanRequest(problem.members, len(problem.members))
        )
        assert isinstance(found, Plan) == exists(problem), seed
