"""Random cases of preemption: small full clusters, and preemptor gangs of a higher priority."""

from dataclasses import dataclass, replace
from random import Random

from serried.api.names import GroupKey, Key
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.eviction import Budget, EvictionUnit, SpareMembers
from serried.plan.request import PlanRequest
from tests.support.builders import RACK
from tests.support.preemption import HIGH, Occupied

_MAX_UNITS = 8


@dataclass(frozen=True)
class Features:
    """The distribution of random cases."""

    sizes: tuple[int, ...] = (1, 2, 3, 4)
    """CPUs of a running pod, one of these."""

    memory: int = 2
    """The largest memory request; 0 for no memory requests."""

    shapes: int = 1
    """The largest number of shapes of the preemptor's members."""

    gangs: int = 2
    """Number of running gangs."""

    budgets: int = 2
    """Number of PodDisruptionBudgets."""

    together: int = 2
    """The largest number of pods that are evicted together."""

    binding: bool = False
    """True if victims must not exceed the budgets."""

    exclusive: bool = False
    """True if some running gangs hold their racks exclusively."""

    protected: bool = True
    """True if some pods must not be evicted, and some have the preemptor's priority."""


PLAIN = Features(sizes=(1,), memory=0, gangs=0, budgets=0, together=1, protected=False)
"""Equal plain pods of a few priorities, which are evicted one by one."""

MIXED = Features(shapes=2)

BINDING = Features(budgets=3, binding=True)
"""Cases with budgets that victims must not exceed."""

EXCLUSIVE = Features(exclusive=True)
"""Cases with gangs that hold racks exclusively."""


def draw_case(source: Random, features: Features) -> tuple[Occupied, PlanRequest]:
    """Return a random full cluster, and the request of a preemptor gang."""
    nodes = {name: _draw_node(source, name) for name in [f"n{place}" for place in range(source.randint(1, 4))]}
    gangs = {GroupKey("default", f"g{place}"): SpareMembers(source.randint(0, 2)) for place in range(features.gangs)}
    priorities = {gang: _draw_priority(source, features) for gang in gangs}
    budgets: dict[Budget, int] = {
        Key("default", f"b{place}"): source.randint(0, 1) for place in range(features.budgets)
    }
    left = {name: dict(node.allocatable) for name, node in nodes.items()}
    units: list[EvictionUnit] = []
    for place in range(30):
        pods = _draw_pods(source, features, left, place)
        if not pods or len(units) == _MAX_UNITS:
            continue
        gang = source.choice([None, *gangs]) if len(pods) == 1 or not gangs else source.choice([*gangs])
        units.append(
            EvictionUnit(
                pods,
                _draw_priority(source, features) if gang is None else priorities[gang],
                gang,
                source.choice([(), *((budget,) * len(pods) for budget in budgets)]),
                protection="it is dear" if features.protected and source.random() < 0.1 else "",
            )
        )
    alone = {gang for gang in gangs if features.exclusive and source.random() < 0.7}
    told = [replace(unit, holds_domain=unit.gang in alone) for unit in units]
    field = Occupied(nodes, tuple(told), gangs, budgets, features.binding)
    return field, field.request_after(_draw_gang(source, features))


def _draw_node(source: Random, name: str) -> Node:
    room = {"cpu": source.randint(2, 6), "memory": source.randint(3, 6), "pods": 9}
    return Node(name, room, {RACK: source.choice("ab")})


def _draw_priority(source: Random, features: Features) -> int:
    return HIGH if features.protected and source.random() < 0.1 else source.randrange(3)


def _draw_pods(source: Random, features: Features, left: dict[str, dict[str, int]], place: int) -> tuple[Pod, ...]:
    pods = []
    for number in range(source.randint(1, features.together)):
        name = source.choice(sorted(left))
        cpu = source.choice(features.sizes)
        memory = source.randint(0, features.memory)
        if left[name]["cpu"] >= cpu and left[name]["memory"] >= memory:
            left[name]["cpu"] -= cpu
            left[name]["memory"] -= memory
            uid = f"p{place}-{number}"
            shape = _make_shape(cpu, memory)
            pods.append(Pod("default", uid, uid, shape, node=name, started=source.randint(1, 9)))
    return tuple(pods)


def _draw_gang(source: Random, features: Features) -> PlanRequest:
    shapes = [
        _make_shape(source.randint(1, 4), source.randint(0, 1) * source.randint(0, features.memory))
        for _ in range(features.shapes)
    ]
    count = source.randint(1, 4)
    members = [Pod("default", f"m{place}", f"m{place}", source.choice(shapes)) for place in range(count)]
    return PlanRequest(members, source.randint(1, count), source.choice([RACK, None]))


def _make_shape(cpu: int, memory: int) -> Shape:
    return Shape((("cpu", cpu), *((("memory", memory),) if memory else ()), ("pods", 1)))
