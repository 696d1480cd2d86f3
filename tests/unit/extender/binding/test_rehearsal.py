"""The dry runs before the first eviction, and the request that ends each victim: a budget is always asked."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from extender.evictions import Rehearsal
from extender.options import EvictionMethod
from serried.api.budget import DisruptionBudget
from serried.api.names import GroupKey, Key
from serried.api.reservation import Victim
from serried.api.verdict import Reason
from tests.support.budgets import budget
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import error

HIGH = 100


def running(index: int) -> PodBuilder:
    return pod(f"low{index}").cpu(2).on(f"n{index}")


async def preempt(world: Harness, *victims: PodBuilder) -> None:
    """A gang of higher priority needs the node of each of them."""
    count = len(victims)
    world.add(*small_nodes(count), *victims, gang(count).priority(HIGH))
    await world.add(*(each.cpu(2).priority(HIGH) for each in members(count))).run_until_idle()


def said(world: Harness, verb: str) -> list[str]:
    return [call.name for call in world.api.list_calls(verb) if call.resource == "pods"]


def list_only(world: Harness) -> None:
    """The API server has a budget of which our watch has not heard."""
    world.api.add_budget()


def watch_only(world: Harness) -> None:
    """Our watch has heard of a budget that was not listed yet."""
    world.add(budget("web").selecting(app="web").disruptions_allowed(9))


def show_nothing(world: Harness) -> None:
    """The API server does not say which budgets there are."""
    world.api.fail("list", error(403))


def show_what_cannot_be_read(world: Harness) -> None:
    """A budget is listed that we cannot read."""
    world.api.budgets[Key("default", "odd")] = {"spec": {"selector": {}}}


@pytest.mark.parametrize("know", [list_only, watch_only, show_nothing, show_what_cannot_be_read])
async def test_where_a_budget_may_refuse_each_victim_is_rehearsed_and_evicted(
    world: Harness, know: Callable[[Harness], None]
) -> None:
    know(world)
    await preempt(world, *(running(index).label("app", "web") for index in (1, 2, 3)))
    assert said(world, "rehearse") == said(world, "evict") == ["low1", "low2", "low3"]
    assert said(world, "delete") == []


async def test_victims_that_no_budget_selects_are_deleted_and_one_of_each_kind_is_rehearsed(world: Harness) -> None:
    world.add(budget("db").selecting(app="db").disruptions_allowed(9))
    kinds = {1: "web", 2: "web", 3: "batch", 4: "db", 5: "batch"}
    await preempt(world, *(running(index).label("app", app) for index, app in kinds.items()))
    assert sorted(said(world, "rehearse")) == ["low1", "low3", "low4"]
    assert said(world, "evict") == ["low4"]
    assert sorted(said(world, "delete")) == ["low1", "low2", "low3", "low5"]
    assert set(said(world, "mark")) == {f"low{index}" for index in kinds}


async def test_pods_of_one_owner_are_one_kind_whatever_their_labels(world: Harness) -> None:
    await preempt(world, *(running(index).controlled_by("Job", "train").label("index", str(index)) for index in (1, 2)))
    assert said(world, "rehearse") == ["low1"]


async def test_if_one_of_a_kind_is_refused_all_of_it_are_asked_and_nobody_goes(world: Harness) -> None:
    world.api.fail("rehearse", *(error(403) for _ in range(3)))
    await preempt(world, *(running(index) for index in (1, 2)))
    assert said(world, "rehearse") == ["low1"] * 3 + ["low2"]
    assert world.api.list_evicted() == said(world, "mark") == []
    assert Reason.EVICTION_REFUSED in world.reasons()


@pytest.mark.parametrize("status", [404, 409])
async def test_one_that_is_gone_by_then_says_nothing_of_its_kind_and_the_next_is_asked(
    world: Harness, status: int
) -> None:
    world.api.fail("rehearse", error(status), *(error(403) for _ in range(3)))
    await preempt(world, *(running(index) for index in (1, 2)))
    assert said(world, "rehearse") == ["low1", "low2", "low2", "low2"]
    assert world.api.list_evicted() == said(world, "mark") == []
    assert Reason.EVICTION_REFUSED in world.reasons()


async def test_an_api_server_that_has_too_much_to_do_is_no_budget_that_refuses(world: Harness) -> None:
    world.api.add_budget()
    world.api.fail("rehearse", error(429))
    await preempt(world, running(1))
    assert said(world, "rehearse") == ["low1", "low1"]
    assert said(world, "evict") == ["low1"]


@pytest.mark.parametrize("status", [0, 403, 409, 422, 429, 500])
async def test_an_extender_that_may_not_delete_evicts(world: Harness, status: int) -> None:
    world.api.fail("delete", error(status))
    await preempt(world, running(1))
    assert said(world, "evict") == ["low1"]


async def test_a_budget_that_comes_between_rehearsal_and_eviction_is_asked(world: Harness) -> None:
    world.api.hold("mark")
    await preempt(world, running(1).label("app", "web"))
    watch_only(world)
    world.api.release("mark")
    await world.run_until_idle()
    assert (said(world, "delete"), said(world, "evict")) == ([], ["low1"])


@pytest.mark.parametrize(("listed", "watched"), [(1, 9), (9, 1)])
async def test_no_more_go_than_the_smaller_count_of_a_budget_though_each_dry_run_passes(
    world: Harness, listed: int, watched: int
) -> None:
    """The watch is late, or changes while the budgets are listed."""
    world.api.add_budget(allowed=listed)
    victims = victims_of(world, 2)
    world.add(budget("all").with_field({}, "spec", "selector").disruptions_allowed(watched))
    rehearsal = Rehearsal(world.api.client(), world.store, EvictionMethod.EVICTION)
    await rehearsal.list_budgets()
    assert await rehearsal.find_refused(victims) == {"pod-low2": "a PodDisruptionBudget does not allow the eviction"}
    assert await rehearsal.find_refused(victims[1:]) == {}


async def test_what_a_budget_allows_is_not_promised_to_two_gangs(world: Harness) -> None:
    """A victim of the first gang still runs when the second one looks for its own."""
    world.api.hold("rehearse")
    world.add(budget("web").selecting(app="web").disruptions_allowed(1))
    await preempt(world, running(1).label("app", "web"))
    world.add(node("n2").cpu(2), running(2).label("app", "web"), pod_group("h").gang(1).priority(HIGH))
    await world.add(pod("h0").cpu(2).scheduler(SCHEDULER).in_group("h").priority(HIGH)).run_until_idle()
    assert world.ledger.of_group(GroupKey("default", "h")) is None
    assert Reason.PREEMPTING not in world.reasons(GroupKey("default", "h"))


class Watched:
    """A budget of another namespace that counts how often it is looked at."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def key(self) -> Key:
        """The key of the budget; reading it counts as a look."""
        self.looks += 1
        return Key("elsewhere", "web")


def victims_of(world: Harness, count: int) -> list[Victim]:
    """Pods that run, as victims."""
    world.add(*(running(index) for index in range(1, count + 1)))
    return [Victim(f"pod-low{index}", "default", f"low{index}") for index in range(1, count + 1)]


async def test_budgets_of_other_namespaces_are_not_looked_through(world: Harness) -> None:
    other = Watched()
    world.store.put_budget(cast("DisruptionBudget", other))
    other.looks = 0
    await Rehearsal(world.api.client(), world.store, EvictionMethod.EVICTION).find_refused(victims_of(world, 3))
    assert other.looks == 0


async def test_while_many_victims_are_looked_through_others_get_their_turn(world: Harness) -> None:
    victims = victims_of(world, 200)
    task = asyncio.create_task(
        Rehearsal(world.api.client(), world.store, EvictionMethod.EVICTION).find_refused(victims)
    )
    turns = 0
    for _ in range(1000):
        if said(world, "rehearse"):
            break
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10
    assert await task == {}


async def test_a_budget_that_is_gone_guards_nobody(world: Harness) -> None:
    watch_only(world)
    world.store.drop_budget(Key("default", "web"))
    world.store.drop_budget(Key("default", "web"))
    assert not world.store.budgets_in
    assert not Rehearsal(world.api.client(), world.store, EvictionMethod.EVICTION).has_budget(
        running(1).label("app", "web").value()
    )
