"""The queue on ``/debug``: who waits, behind whom, and until when."""

from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.look.routes import debug_routes
from serried.api.level import FALLBACK
from tests.support.builders import node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members


@pytest.fixture
def http(world: Harness) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug")


async def show(http: httpx.AsyncClient, query: str = "") -> Any:
    answer = await http.get(f"/debug/queue{query}")
    assert answer.status_code == 200
    return answer.json()


def smalls(group: str, count: int) -> list[Any]:
    pods = [pod(f"{group}-{index}").cpu(1).scheduler(SCHEDULER).in_group(group) for index in range(count)]
    return [pod_group(group).gang(count).owned_by("Job", group), *pods]


async def scene(world: Harness) -> None:
    """Gang g wants both nodes; x, which ends in ten minutes, is on one of them. Gangs h and k are behind."""
    began = pod("x").cpu(2).on("n1").active_deadline(600).started("2023-11-14T22:30:00Z")
    await world.add(node("n1").cpu(2), node("n2").cpu(2), began, gang(4), *members(4)).run_until_idle()
    short = [each.active_deadline(60) if hasattr(each, "active_deadline") else each for each in smalls("h", 1)]
    await world.add(*short).run_until_idle()
    await world.add(*smalls("k", 1)).run_until_idle()


async def test_an_empty_queue_has_no_head(http: httpx.AsyncClient) -> None:
    assert await show(http) == {"head": None, "waiting": [], "leftOff": 0}


async def test_the_head_its_forecast_and_who_passed_it(world: Harness, http: httpx.AsyncClient) -> None:
    await scene(world)
    assert (await show(http))["head"] == {
        "namespace": "default",
        "name": "g",
        "kind": "PodGroup",
        "owner": "",
        "domain": "",
        "nodes": ["n1", "n2"],
        "forecast": "2023-11-14T22:40:00Z",
        "until": "2023-11-14T22:50:00Z",
        "missed": False,
        "passed": {"default/h": "2023-11-14T22:31:00Z"},
        "owners": {"default/h": "job/h"},
    }


async def test_who_waits_in_which_order_and_why(world: Harness, http: httpx.AsyncClient) -> None:
    await scene(world)
    shown = await show(http)
    assert [(each["name"], each["message"].partition(":")[0]) for each in shown["waiting"]] == [
        ("g", "NoCapacity"),
        ("k", "BehindHead"),
    ]
    assert [each["position"] for each in shown["waiting"]] == [1, 2]
    assert shown["waiting"][0]["since"] == "2023-11-14T22:30:00Z"


async def test_a_limit_says_how_many_it_leaves_off(world: Harness, http: httpx.AsyncClient) -> None:
    await scene(world)
    shown = await show(http, "?limit=1")
    assert ([each["name"] for each in shown["waiting"]], shown["leftOff"]) == (["g"], 1)
