"""A question takes its time, and the cluster goes on meanwhile."""

from extender.whatif.hypothesis import Changes, Hypothesis
from extender.whatif.newcomers import find_existing
from serried.plan.steps import Haste, finish
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


async def test_a_node_that_goes_meanwhile_is_not_there_and_others_are_still_like_it(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(6), *members(6)).go()
    hypothesis = Hypothesis(world.core, Changes(drained=("n1",), added=(("n1", 2),)), Haste())
    hypothesis.check()
    work = hypothesis.solve([find_existing(world.store, GANG)])
    next(work)
    world.store.drop_node("n1")
    (found,) = finish(work)
    assert found.plan is not None
    assert set(found.plan.nodes.values()) == {"n1+1", "n1+2", "n2"}
