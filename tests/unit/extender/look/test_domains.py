"""``/debug/domains``: how full each rack is, and who is there."""

from typing import Any
from unittest.mock import Mock

import httpx
from fastapi import FastAPI

from extender.look.routes import debug_routes
from serried.api.level import FALLBACK
from tests.support.builders import RACK, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness


async def get(world: Harness, query: str = "") -> Any:
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        return (await http.get(f"/debug/domains{query}")).json()


def racks(world: Harness) -> Harness:
    return world.add(
        node("a").cpu(8).rack("r1"), node("b").cpu(8).rack("r1").cordoned(), node("c").cpu(4).rack("r2"), node("d")
    )


async def test_a_rack_has_its_nodes_what_they_have_and_what_is_used(world: Harness) -> None:
    racks(world).add(pod("p").cpu(3).on("a"))
    await world.run_until_idle()
    found = await get(world, f"?key={RACK}")
    first, second = found["domains"]
    assert (first["domain"], first["nodes"], first["unschedulable"]) == ("r1", 2, 1)
    assert first["resources"]["cpu"] == {"allocatable": 16000, "used": 3000}
    assert (second["domain"], second["resources"]["cpu"]["used"]) == ("r2", 0)
    assert found["unlabelled"] == 1


async def test_a_gang_that_runs_is_there_and_so_is_one_that_is_about_to(world: Harness) -> None:
    racks(world).add(pod_group("old").gang(1), pod("o").cpu(1).in_group("old").on("c"))
    world.add(pod_group("new").gang(2).topology(RACK))
    world.add(*(pod(f"n{number}").cpu(4).scheduler(SCHEDULER).in_group("new") for number in range(2)))
    await world.run_until_idle()
    found = await get(world)
    present = {
        each["domain"]: {group["name"]: group["members"] for group in each["groups"]} for each in found["domains"]
    }
    assert present == {"r1": {"new": 2}, "r2": {"old": 1}}


async def test_without_a_key_it_is_the_one_that_most_groups_ask_for(world: Harness) -> None:
    racks(world).add(pod_group("a").gang(1).topology("zone"), pod_group("b").gang(1).topology(RACK))
    world.add(pod_group("c").gang(1).topology(RACK))
    await world.run_until_idle()
    found = await get(world)
    assert (found["key"], found["keys"]) == (RACK, [RACK, "zone"])


async def test_where_nobody_asks_for_a_key_it_is_the_racks(world: Harness) -> None:
    racks(world)
    await world.run_until_idle()
    assert (await get(world))["key"] == RACK


async def test_a_member_that_has_ended_is_nowhere(world: Harness) -> None:
    racks(world).add(pod_group("old").gang(1), pod("o").in_group("old").on("c").phase("Succeeded"))
    await world.run_until_idle()
    assert [each["groups"] for each in (await get(world, f"?key={RACK}"))["domains"]] == [[], []]
