"""A question takes its time, and the cluster goes on meanwhile."""

import pytest

from extender.whatif.hypothesis import Changes, Hypothesis
from extender.whatif.newcomers import find_existing
from serried.model.verdict import render
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(Changes(), "Scheduled: 3 members are bound", id="nothing changes"),
        pytest.param(Changes(drained=("n3",)), "Scheduled: 3 members are bound", id="a node goes where no member is"),
        pytest.param(Changes(drained=("n2",)), "Scheduled: 2 members are bound", id="enough members stay"),
        pytest.param(
            Changes(drained=("n1",)),
            "Broken: 1 of 2 members of a gang that ran are left; no other place was looked for",
            id="too few members stay",
        ),
        pytest.param(
            Changes(removed=(GANG,)),
            "Broken: 0 of 2 members of a gang that ran are left; no other place was looked for",
            id="it is taken away itself",
        ),
    ],
)
async def test_a_gang_that_runs_is_judged_by_the_members_that_stay(world: Harness, changes: Changes, said: str) -> None:
    one, two, three = members(3)
    world.add(*small_nodes(3), gang(2), one.on("n1"), two.on("n1"), three.on("n2"))
    hypothesis = Hypothesis(world.core, changes, Haste())
    hypothesis.check()
    (found,) = finish(hypothesis.solve([find_existing(world.store, GANG)]))
    assert found.verdict is not None
    assert render(found.verdict) == said
