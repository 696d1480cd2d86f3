"""``/debug/groups/NAMESPACE/NAME?dryRun``: what would be evicted for a gang now, and that asking changes nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.look.explain import Inquiries
from extender.look.routes import debug_routes
from extender.options import PreemptionMode
from serried.api.level import NATIVE
from serried.api.names import Disruption, write_time
from serried.plan.request import PlanRequest, Snapshot
from tests.support.builders import Builder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100


@asynccontextmanager
async def ask(world: Harness) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), NATIVE, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield http


async def try_out(world: Harness, query: str = "dryRun") -> Any:
    """The answer for gang g."""
    async with ask(world) as http:
        return (await http.get(f"/debug/groups/default/g?{query}")).json()["dryRun"]


def urgent(count: int) -> list[Builder]:
    """Gang g of high priority, each member of which fills a node."""
    return [gang(count).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(count))]


def polite() -> list[Builder]:
    """Return a gang like `urgent` with one member, for which no pod may be evicted."""
    return [gang(1).priority(HIGH), members(1)[0].cpu(2).priority(HIGH).with_field("Never", "spec", "preemptionPolicy")]


def full(world: Harness, priority: int = 0) -> Harness:
    """Two nodes of two racks, each taken by one pod, low1 and low2."""
    for i in (1, 2):
        world.add(node(f"n{i}").cpu(2).rack(f"rack{i}"), pod(f"low{i}").cpu(2).on(f"n{i}").priority(priority - i))
    return world


@pytest.fixture(params=[PreemptionMode.OFF, PreemptionMode.ADVICE], ids=["off", "advice"])
async def idle(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A harness in which no pod is evicted for another."""
    made = Harness(preemption=request.param)
    yield made
    await made.close()


async def test_who_would_go_is_told_also_where_nobody_is_evicted(idle: Harness) -> None:
    full(idle).add(gang(1).priority(HIGH).topology(), members(1)[0].cpu(2).priority(HIGH))
    await idle.run_until_idle()
    told = await try_out(idle)
    assert told["message"].startswith(
        "the gang would fit without 1 pod of lower priority (default/low2), but Serried evicts no pod: "
    )
    found = told["found"]
    assert (found["domain"], found["victims"]) == ("rack2", ["default/low2"])
    assert found["cost"] == [{"priority": -2, "violations": 0, "broken": 0, "pods": 1}]
    assert found["nextBest"]["domain"] == "rack1"
    assert found["nextBest"]["cost"] == [{"priority": -1, "violations": 0, "broken": 0, "pods": 1}]


async def test_nothing_is_changed_by_it(idle: Harness) -> None:
    await full(idle).add(*urgent(2)).run_until_idle()
    state = idle.groups.states[GANG]
    before = (replace(state), list(idle.api.calls), list(idle.heard.verdicts), dict(idle.store.occupancy.used))
    first = await try_out(idle)
    assert first["found"]["victims"] == ["default/low1", "default/low2"]
    await idle.run_until_idle()
    assert (replace(state), idle.api.calls, idle.heard.verdicts, idle.store.occupancy.used) == before
    assert await try_out(idle) == first


async def test_a_whole_gang_is_shown(idle: Harness) -> None:
    idle.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL))
    idle.add(*(pod(f"v{i}").cpu(2).on(f"n{i + 1}").scheduler(SCHEDULER).in_group("v") for i in range(2)))
    await idle.add(*urgent(1)).run_until_idle()
    found = (await try_out(idle))["found"]
    assert (found["victims"], found["cost"][0]["broken"]) == (["default/v0", "default/v1"], 1)


async def test_a_gang_that_has_backed_off_is_told_until_when(world: Harness) -> None:
    world.api.graceful.update([world.pod_key("low1"), world.pod_key("low2")])
    await full(world).add(*urgent(2)).run_until_idle()
    await world.pass_time(601)
    world.delete("low1")
    world.delete("low2")
    await world.add(*(pod(f"next{i}").cpu(2).on(f"n{i}") for i in (1, 2))).run_until_idle()
    await world.pass_time(5)  # in which it says that its victims have not ended in time
    told = await try_out(world)
    assert told["message"].endswith("but Serried evicts no pod in the next 25 s: the last search found no victims")
    assert told["found"]["victims"] == ["default/next1", "default/next2"]


async def test_a_forecast_that_wins_is_said(world: Harness) -> None:
    now = write_time(world.wall_time())
    low = [pod(f"low{i}").cpu(2).on(f"n{i}").started(now).active_deadline(15) for i in (1, 2)]
    await world.add(*small_nodes(2), *low, *urgent(2)).run_until_idle()
    told = await try_out(world)
    assert told["message"].endswith(
        "but Serried evicts no pod: the gang is forecast to fit before these pods would have ended"
    )


@pytest.mark.parametrize(
    ("cluster", "group", "message"),
    [
        pytest.param(small_nodes(2), urgent(2), "the gang does not wait for free resources", id="it has its nodes"),
        pytest.param([], urgent(2)[:2], "the gang does not wait for free resources", id="it has not its members"),
        pytest.param(
            [*small_nodes(1), pod("low1").cpu(2).on("n1")],
            polite(),
            "the PriorityClass, the group or a member has preemptionPolicy Never",
            id="policy Never",
        ),
        pytest.param(
            [*small_nodes(1), pod("other").cpu(2).on("n1").priority(HIGH)],
            urgent(1),
            "no running pod has a lower priority",
            id="nothing is lower",
        ),
        pytest.param(
            [*small_nodes(2), pod("high").cpu(2).on("n1").priority(HIGH), pod("low").cpu(2).on("n2")],
            urgent(2),
            "preemption would help, but pods of priority 100 have no lower priority",
            id="too little is lower",
        ),
        pytest.param(
            [*small_nodes(1), pod("low").cpu(2).on("n1")],
            urgent(2),
            "the gang would not fit even if all pods of lower priority were evicted",
            id="nothing would help",
        ),
        pytest.param(
            [*small_nodes(1), pod("low").cpu(2).on("n1").controlled_by("DaemonSet", "d")],
            urgent(1),
            "preemption would help, but 1 pod may not be evicted: the DaemonSet would recreate its pod at once",
            id="it is protected",
        ),
    ],
)
async def test_why_nobody_would_go(world: Harness, cluster: list[Builder], group: list[Builder], message: str) -> None:
    await world.add(*cluster, *group).run_until_idle()
    told = await try_out(world)
    assert told["message"] == message
    assert not told["found"] or not told["found"]["victims"]


async def test_nobody_is_looked_for_unless_asked(world: Harness) -> None:
    await full(world).add(*urgent(2)).run_until_idle()
    assert await try_out(world, "") is None


async def test_dry_run_may_be_written_as_for_the_api_server(world: Harness) -> None:
    await full(world, HIGH + 9).add(*urgent(2)).run_until_idle()
    assert (await try_out(world, "dryRun=All"))["message"] == "no running pod has a lower priority"


async def test_one_that_does_not_lead_says_so(world: Harness) -> None:
    await full(world).add(*urgent(2)).run_until_idle()
    world.core.end_term()
    assert (await try_out(world))["message"] == "this instance does not plan the group: ask the instance that leads"


async def test_a_search_that_takes_too_long_is_given_up_and_no_group_hears_of_it(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(snapshot: Snapshot, _: object) -> None:
        while True:
            snapshot.limit.spend()

    ticks = count()
    await full(world).add(*urgent(2)).run_until_idle()
    world.group_scheduler.take_dirty()
    monkeypatch.setattr(world.core.preemptions, "find_search", lambda _: Mock(request=PlanRequest((), 0)))
    monkeypatch.setattr(world.core.preemptions, "make_search_function", lambda _: make)
    told = await Inquiries(world.core, lambda: next(ticks) * 0.001).dry_run(GANG)
    assert told.found is None
    assert told.message == "Serried found no victims in time"
    assert GANG not in world.group_scheduler.take_dirty()
