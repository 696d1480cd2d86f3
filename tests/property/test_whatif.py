"""Predictions of what-if: the live extender decides the same next on a gang that waits, on clusters of all kinds."""

import asyncio
from random import Random

from hypothesis import assume, event, given, settings

from extender.look.cluster import take_capture
from extender.look.decide import Changes, Decision, Hypothesis, Prediction, find_recorded
from extender.look.owners import find_existing
from serried.api.group import PodGroup, list_leaves
from serried.api.level import NATIVE
from serried.ops.steps import finish
from serried.plan.eviction import Preemption
from serried.plan.limit import Limit
from tests.property.test_replay import RANDOMS, begin, come
from tests.support.examples import scale


@settings(max_examples=scale(80))
@given(source=RANDOMS)
def test_what_would_be_is_what_is_decided_next(source: Random) -> None:
    predicted, live = asyncio.run(play(source))
    event("planned" if live.nodes else str(live.verdict and live.verdict.reason))
    nodes, victims = describe(predicted)
    if live.verdict is None:
        assert (nodes, victims) == (dict(live.nodes), live.victims)
    else:
        assert not victims
        assert predicted.verdict is not None
        assert predicted.verdict.reason is live.verdict.reason


async def play(source: Random) -> tuple[Prediction, Decision]:
    """Return the prediction for the gang that was submitted last, and the live decision on it."""
    world = await begin(source)
    key = come(source, world)
    try:
        assume(not waits_for_levels(world.store.groups[key]))  # live it tries one after the other, here all are open
        (predicted,) = Hypothesis(world.core, Changes(), Limit()).solve([find_existing(world.store, key)])
        world.group_scheduler.consider(key)
        live = find_recorded(finish(take_capture(world.core, NATIVE, key)), key)
    finally:
        await world.close()
    assert live is not None
    return predicted, live


def waits_for_levels(group: PodGroup) -> bool:
    return bool(group.preference.levels) or any(leaf.preference.levels for leaf in list_leaves(group.tree))


def describe(found: Prediction) -> tuple[dict[str, str], tuple[str, ...]]:
    """The node of each member, and the pods that would be evicted; a gang that is only planned gives way."""
    victims: list[str] = []
    plan = found.plan
    if isinstance(found.preemption, Preemption):
        plan = found.preemption.plan
        pods = [pod for unit in found.preemption.victims if not unit.planned for pod in unit.pods]
        victims = sorted(f"{pod.namespace}/{pod.name}" for pod in pods)
    nodes = {found.names[uid]: node for uid, node in plan.nodes.items()} if plan is not None else {}
    return nodes, tuple(victims)
