"""The page `/debug/groups/NAMESPACE/NAME`: a gang's timeline, its turn, what domains lack, what would help."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.look.routes import debug_routes
from serried.api.level import FALLBACK
from serried.api.names import Disruption
from serried.ops.slices import Slices
from tests.support.builders import Builder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import DAY, SCHEDULER, Harness, gang, members, small_nodes


@pytest.fixture
async def http(world: Harness) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield http


async def show(http: httpx.AsyncClient, name: str = "g", query: str = "") -> Any:
    answer = await http.get(f"/debug/groups/default/{name}{query}")
    assert answer.status_code == 200
    return answer.json()


def racks() -> list[Builder]:
    """Rack r1 has four CPUs free on each of three nodes, r2 has one node of eight that is cordoned and one tainted."""
    return [
        *(node(f"a{number}").cpu(4).rack("r1") for number in range(3)),
        node("b0").cpu(8).rack("r2").cordoned(),
        node("b1").cpu(8).rack("r2").taint("gpu"),
        node("b2").cpu(8).rack("r2"),
    ]


def wide(count: int, cpus: int) -> list[Builder]:
    """Gang g, in one rack."""
    pods = [pod(f"m{number}").cpu(cpus).scheduler(SCHEDULER).in_group("g") for number in range(count)]
    return [pod_group("g").gang(count).topology(), *pods]


async def test_each_domain_says_how_many_it_holds_and_what_keeps_the_others_off(
    world: Harness, http: httpx.AsyncClient
) -> None:
    await world.add(*racks(), *wide(3, 5)).run_until_idle()
    found = (await show(http))["diagnosis"]
    assert [each["text"] for each in found["domains"]] == [
        "r2: 1 of 3; 1 even if nothing ran there; cordon 1 node, taint gpu 1 node",
        "r1: 0 of 3; 0 even if nothing ran there; cpu 3 nodes",
    ]
    assert found["dominant"] == "cpu 3 nodes"
    assert found["advice"] is None, "nobody has asked for it"
    assert found["complete"]


@pytest.mark.parametrize(
    ("count", "cpus", "advice"),
    [
        pytest.param(
            2,
            6,
            ["uncordon b0; the gang would run in r2", "ask for 4 cpu instead of 6; the gang would run in "],
            id="a cordoned node, or smaller members",
        ),
        pytest.param(
            4,
            4,
            [
                "uncordon b0; the gang would run in r2",
                "prefer {key} instead of requiring it",
                "let 3 members be enough",
            ],
            id="another rack, or fewer members",
        ),
    ],
)
async def test_what_would_make_it_fit_is_told_the_cheapest_first(
    world: Harness, http: httpx.AsyncClient, count: int, cpus: int, advice: list[str]
) -> None:
    await world.add(*racks(), *wide(count, cpus)).run_until_idle()
    found = (await show(http, query="?diagnosis=advice"))["diagnosis"]
    said = [each["text"] for each in found["advice"]]
    for sentence in advice:
        assert any(each.startswith(sentence.format(key=found["key"])) for each in said), said
    assert said[0].startswith("uncordon b0")


async def test_a_gang_in_the_way_could_move_or_end(world: Harness, http: httpx.AsyncClient) -> None:
    world.add(*(node(f"a{number}").cpu(4).rack("r1") for number in range(2)), node("b0").cpu(4).rack("r2"))
    world.add(pod_group("z").gang(1), pod("z0").cpu(2).scheduler(SCHEDULER).in_group("z").on("a0").priority(9))
    await world.add(*wide(2, 4)).run_until_idle()
    found = (await show(http, query="?diagnosis=advice"))["diagnosis"]["advice"]
    said = {each["change"]: each["text"] for each in found}
    assert said["moveGang"] == "move gang default/z (1 pod) to b0; the gang would run in r1"
    assert said["endGang"] == "end gang default/z (1 pod), or wait for its end; the gang would run in r1"


async def test_a_tree_hears_of_the_constraint_of_its_groups(world: Harness, http: httpx.AsyncClient) -> None:
    zone = "topology.example.com/zone"
    world.add(*(node(f"n{number}").cpu(2).rack(f"r{number}").label(zone, f"z{number // 2}") for number in range(4)))
    world.add(composite("root").gang(2))
    for name in ("a", "b"):
        world.add(pod_group(name).gang(3).topology().child_of("root"))
        world.add(*(pod(f"{name}{i}").cpu(1).scheduler(SCHEDULER).in_group(name) for i in range(3)))
    await world.run_until_idle()
    found = (await show(http, "a", "?diagnosis=advice"))["diagnosis"]["advice"]
    said = {each["change"]: each["text"] for each in found}
    assert said["widerLevel"] == f"require one domain of {zone}, the next wider level"
    assert said["preferred"] == "prefer example.com/rack instead of requiring it"


async def test_a_gang_that_is_planned_has_no_diagnosis_but_a_plan(world: Harness, http: httpx.AsyncClient) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    found = await show(http, query="?diagnosis=advice")
    assert found["diagnosis"] is None
    assert sorted(name for names in found["plan"]["slots"].values() for name in names) == ["m0", "m1"]
    assert found["queue"] is None


async def test_its_turn_and_who_is_before_it(world: Harness, http: httpx.AsyncClient) -> None:
    await world.add(*small_nodes(1), gang(4), *members(4)).run_until_idle()
    await world.pass_time(5)
    later = [pod(f"h{number}").cpu(1).scheduler(SCHEDULER).in_group("h") for number in range(4)]
    await world.add(pod_group("h").gang(4), *later).run_until_idle()
    assert (await show(http, "h"))["queue"] == {"position": 2, "length": 2, "before": ["default/g"], "owners": [""]}
    assert (await show(http, "g"))["queue"] == {"position": 1, "length": 2, "before": [], "owners": []}


async def test_the_forecast_of_the_head_says_what_it_is_read_off(world: Harness, http: httpx.AsyncClient) -> None:
    running = pod("x").cpu(2).on("n1").active_deadline(600).started("2023-11-14T22:30:00Z")
    await world.add(*small_nodes(2), running, gang(4), *members(4)).run_until_idle()
    forecast = (await show(http))["forecast"]
    assert forecast["at"] == "2023-11-14T22:40:00Z"
    assert forecast["nodes"] == ["n1", "n2"]
    assert forecast["basis"].startswith("the ends of 1 pod: 1 with a deadline, 0 by how long")


async def test_the_timeline_has_every_milestone_with_its_time(world: Harness, http: httpx.AsyncClient) -> None:
    await world.add(*small_nodes(2), gang(2), *members(1)).run_until_idle()
    await world.pass_time(60)
    await world.add(*members(1, first=1)).run_until_idle()
    for name in ("m0", "m1"):
        world.filter(name, "n1", "n2")
    calls = [world.bind(name) for name in ("m0", "m1")]
    await world.run_until_idle()
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    timeline = (await show(http))["timeline"]
    reached = [each["milestone"] for each in timeline]
    assert reached == ["seen", "quorum", "planned", "steered", "atBind", "committed", "bound"]
    assert timeline[0]["at"] < timeline[1]["at"]


async def test_a_gang_that_breaks_says_since_when(world: Harness, http: httpx.AsyncClient) -> None:
    first = [pod(f"m{n}").cpu(1).scheduler(SCHEDULER).in_group("g").on("n1") for n in range(2)]
    await world.add(*small_nodes(2), gang(2), *first).run_until_idle()
    await world.pass_time(60)
    world.delete("m0")
    await world.run_until_idle()
    await world.pass_time(130)
    timeline = (await show(http))["timeline"]
    assert [each["milestone"] for each in timeline] == ["seen", "quorum", "bound", "broken"]
    assert timeline[-1]["at"] > timeline[-2]["at"]


async def test_a_gang_that_others_end_for_and_one_that_ends_for_it(world: Harness, http: httpx.AsyncClient) -> None:
    world.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL))
    world.add(*(pod(f"v{n}").cpu(2).scheduler(SCHEDULER).in_group("v").on(f"n{n + 1}") for n in range(2)))
    await world.add(gang(1).priority(9), *(each.cpu(2).priority(9) for each in members(1))).run_until_idle()
    for name in ("v0", "v1"):
        world.delete(name)
    await world.run_until_idle()
    reached = {name: [each["milestone"] for each in (await show(http, name))["timeline"]] for name in ("g", "v")}
    assert reached["g"] == ["seen", "quorum", "preempting", "planned"]
    assert "preempted" in reached["v"]


async def test_a_plan_that_led_to_nothing_is_told(world: Harness, http: httpx.AsyncClient) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    await world.pass_time(DAY)
    timeline = (await show(http))["timeline"]
    assert [each["milestone"] for each in timeline][:4] == ["seen", "quorum", "planned", "givenUp"]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until this is set, no inquiry gets on."""
    opened = asyncio.Event()
    finish = Slices.finish

    async def wait(slices: Slices, *work: Any) -> Any:
        await opened.wait()
        return await finish(slices, *work)

    monkeypatch.setattr(Slices, "finish", wait)
    return opened


async def ask_eight(http: httpx.AsyncClient) -> list[asyncio.Task[Any]]:
    """Send as many requests as may wait for their turn."""
    asked = [asyncio.create_task(show(http, query="?diagnosis=advice")) for _ in range(8)]
    for _ in range(20):
        await asyncio.sleep(0)
    return asked


async def test_so_many_diagnoses_wait_for_their_turn_and_no_more(
    world: Harness, http: httpx.AsyncClient, gate: asyncio.Event
) -> None:
    await world.add(*racks(), *wide(3, 5)).run_until_idle()
    asked = await ask_eight(http)
    assert (await http.get("/debug/groups/default/g?diagnosis=advice")).status_code == 429
    gate.set()
    assert all(page["diagnosis"]["advice"] for page in await asyncio.gather(*asked))
    assert (await http.get("/debug/groups/default/g?diagnosis=advice")).status_code == 200


async def test_who_has_not_asked_for_advice_gets_the_page_all_the_same(
    world: Harness, http: httpx.AsyncClient, gate: asyncio.Event
) -> None:
    await world.add(*racks(), *wide(3, 5)).run_until_idle()
    asked = await ask_eight(http)
    page = await show(http)
    assert (page["diagnosis"], page["reason"]) == (None, "NoDomainFits")
    gate.set()
    await asyncio.gather(*asked)


async def test_the_table_counts_as_the_reason_does_also_where_nodes_are_kept_for_another(
    world: Harness, http: httpx.AsyncClient
) -> None:
    busy = pod("busy").cpu(4).on("a0")
    await world.add(*(node(f"a{number}").cpu(4).rack("r1") for number in range(3)), busy, *wide(3, 4)).run_until_idle()
    others = [pod(f"o{number}").cpu(4).scheduler(SCHEDULER).in_group("h") for number in range(4)]
    await world.add(pod_group("h").gang(4).topology(), *others).run_until_idle()
    assert (await show(http, "g"))["forecast"] is not None
    found = await show(http, "h")
    assert "(r1: 2)" in found["message"]
    assert [(each["slots"], each["hurdles"]) for each in found["diagnosis"]["domains"]] == [
        (2, [{"kind": "resource", "name": "cpu", "nodes": 1}])
    ]
