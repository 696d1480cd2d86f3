"""If the preemptor goes after the first evictions, only the victims that stay lose their condition."""

from collections.abc import Awaitable, Callable

import pytest

from serried.api.names import PREEMPTED, Disruption, Key
from tests.support.builders import PodBuilder, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal

HIGH = 100


async def test_who_ends_keeps_the_condition_though_the_watch_has_not_shown_the_end_yet(world: Harness) -> None:
    """The deletion of v0 is answered, that of v1 is refused; then the gang goes, and the watch lags."""
    world.api.add_budget()
    world.api.graceful.update(Key("default", f"v{i}") for i in range(2))
    world.api.hold("evict")
    world.add(*small_nodes(2), *(pod_group(f"v{i}").gang(1).disruption(Disruption.ALL) for i in range(2)))
    world.add(*(pod(f"v{i}").cpu(2).on(f"n{i + 1}").scheduler(SCHEDULER).in_group(f"v{i}") for i in range(2)))
    await world.add(gang(2).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(2))).run_until_idle()
    world.api.fail("evict", budget_refusal())
    world.api.release("evict")
    world.store.drop_group(GANG)
    world.schedule_groups()
    await world.run_tasks()
    world.schedule_groups()
    await world.run_tasks()
    ending = {name for name in ("v0", "v1") if "deletionTimestamp" in world.api.pods[Key("default", name)]["metadata"]}
    assert len(ending) == 1
    assert {name for name in ("v0", "v1") if world.pod(name).disruption == PREEMPTED} == ending
    staying = {"v0", "v1"} - ending
    assert world.heard.spared == [f"default/{name}" for name in staying]


WHOLE = ("v0", "v1", "v2")


def whole(index: int) -> PodBuilder:
    """A member of gang v of mode all, on a node of its own that it fills."""
    return pod(f"v{index}").cpu(2).on(f"n{index + 1}").scheduler(SCHEDULER).in_group("v")


async def refuse_rest(world: Harness) -> None:
    """v0 is evicted for a gang; then the budget, which others have used up meanwhile, keeps v1 and v2."""
    world.api.add_budget()
    world.api.graceful.update(Key("default", name) for name in WHOLE)
    world.add(*small_nodes(3), pod_group("v").gang(3).disruption(Disruption.ALL), *map(whole, range(3)))
    world.add(gang(1).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(1)))
    world.api.hold("evict")
    await world.run_until_idle()
    world.api.guarded.update(Key("default", name) for name in ("v1", "v2"))
    world.api.release("evict")
    await world.run_until_idle()
    assert list_going(world) == {"v0"}


async def delete_gang(world: Harness) -> None:
    world.delete("m0")
    world.store.drop_group(GANG)
    await world.run_until_idle()


async def wait_too_long(world: Harness) -> None:
    await world.pass_time(700.0)
    await world.run_until_idle()


def list_going(world: Harness) -> set[str]:
    return {name for name in WHOLE if world.pod(name).deleting}


def list_deleted(world: Harness) -> list[str]:
    return [call.name for call in world.api.list_calls("delete") if call.resource == "pods"]


GIVE_UP = pytest.mark.parametrize(
    "give_up",
    [pytest.param(delete_gang, id="the gang is deleted"), pytest.param(wait_too_long, id="they do not end in time")],
)
Step = Callable[[Harness], Awaitable[None]]


class TestTheRestOfAGangThatABudgetKept:
    """The preemption asked the budgets, so what is left of the gang does not go without asking them."""

    @GIVE_UP
    async def test_stays_as_long_as_the_budget_keeps_it(self, world: Harness, give_up: Step) -> None:
        await refuse_rest(world)
        await give_up(world)
        assert list_going(world) == {"v0"}
        assert list_deleted(world) == []

    @GIVE_UP
    async def test_goes_if_the_budget_allows_it_by_then(self, world: Harness, give_up: Step) -> None:
        await refuse_rest(world)
        world.api.guarded.clear()
        await give_up(world)
        assert list_going(world) == set(WHOLE)
        assert list_deleted(world) == []

    async def test_goes_with_one_of_it_that_another_scheduler_preempts_later(self, world: Harness) -> None:
        """Then budgets do not count, as ever, though v1 said itself that it goes when it was kept."""
        await refuse_rest(world)
        world.api.hold("mark")  # what was said of v1 and v2 is not taken back yet when it is found that they stay
        await delete_gang(world)
        world.api.release("mark")
        await world.run_until_idle()
        await world.add(whole(1).disrupted().deleting()).run_until_idle()
        assert list_deleted(world) == ["v2"]
