"""The list of groups on ``/debug``: how much of it, and which."""

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.look.routes import debug_routes
from extender.look.views import LEFT_OFF
from serried.api.level import FALLBACK
from tests.support.builders import node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes

Answer = tuple[list[str], str]


class Page:
    """``/debug/groups`` over a gang g that is planned, and five of two namespaces that wait."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, query: str) -> httpx.Response:
        return await self._http.get(f"/debug/groups?{query}")

    async def group(self, name: str) -> Any:
        """A group of namespace default, by the name that the list gives it."""
        return (await self._http.get(f"/debug/groups/default/{name}")).json()

    async def vacancies(self) -> Any:
        return (await self._http.get("/debug/vacancies")).json()

    async def names(self, query: str) -> Answer:
        """The groups in the answer, and how many were left off."""
        answer = await self.get(query)
        assert answer.status_code == 200
        return [f"{group['namespace']}/{group['name']}" for group in answer.json()], answer.headers[LEFT_OFF]


@pytest.fixture
async def page(world: Harness) -> AsyncIterator[Page]:
    world.add(*small_nodes(2), gang(2), *members(2))
    for namespace, name in (("default", "w0"), ("default", "w1"), ("default", "w2"), ("other", "w3"), ("other", "w4")):
        world.add(pod_group(name).namespace(namespace).gang(2))
        world.add(pod(f"p-{name}").namespace(namespace).scheduler(SCHEDULER).in_group(name))
    await world.run_until_idle()
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield Page(http)


@pytest.mark.parametrize(
    ("query", "names", "left_off"),
    [
        pytest.param(
            "",
            ["default/g", "default/w0", "default/w1", "default/w2", "other/w3", "other/w4"],
            0,
            id="all of a few",
        ),
        pytest.param("limit=2", ["default/g", "default/w0"], 4, id="a limit says how many it leaves off"),
        pytest.param("limit=0", [], 6, id="a limit of none only counts"),
        pytest.param("namespace=other", ["other/w3", "other/w4"], 0, id="those of a namespace"),
        pytest.param("namespace=empty", [], 0, id="a namespace that has none"),
        pytest.param("state=Gathering", ["default/g"], 0, id="those in a stage of their round"),
        pytest.param("state=Waiting&namespace=other&limit=1", ["other/w3"], 1, id="all three together"),
    ],
)
async def test_groups_are_chosen_by(page: Page, query: str, names: list[str], left_off: int) -> None:
    assert await page.names(query) == (names, str(left_off))


async def test_no_more_than_500_unless_asked_for(page: Page, world: Harness) -> None:
    world.add(*[pod_group(f"many{number:03}").gang(2) for number in range(600)])
    names, left_off = await page.names("")
    assert (len(names), left_off) == (500, "106")
    assert len((await page.names("limit=1000"))[0]) == 606


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        pytest.param("limit=many", "limit is a number of groups, 0 or more, not 'many'", id="a limit that is a word"),
        pytest.param("limit=-1", "limit is a number of groups, 0 or more, not '-1'", id="a limit below zero"),
        pytest.param("limit=1.5", "limit is a number of groups, 0 or more, not '1.5'", id="half a group"),
        pytest.param("limit=", "limit is a number of groups, 0 or more, not ''", id="no limit at all"),
        pytest.param(f"limit={'9' * 5000}", f"0 or more, not '{'9' * 100}'", id="an endless number"),
        pytest.param(
            "state=waiting",
            "state is one of Unknown, Waiting, Scheduled, Recording, Preempting, Gathering, Committing, Binding, "
            "Ended, not 'waiting'",
            id="a state that does not exist",
        ),
    ],
)
async def test_a_bad_value_is_400_with_a_sentence_that_helps(page: Page, query: str, sentence: str) -> None:
    answer = await page.get(query)
    assert answer.status_code == 400
    assert answer.json()["detail"].endswith(sentence)


async def test_the_slots_that_are_kept_are_shown_with_their_replacements(page: Page, world: Harness) -> None:
    first, second = (pod(name).cpu(1).scheduler(SCHEDULER).in_group("k") for name in ("k0", "k1"))
    await world.add(pod_group("k").gang(2), first.index(0).on("n1"), second.index(1).on("n2")).run_until_idle()
    world.delete("k0")
    world.delete("k1")
    await world.add(pod("k2").cpu(1).scheduler(SCHEDULER).in_group("k").index(1)).run_until_idle()
    await world.pass_time(5.0)
    slot = {"namespace": "default", "group": "k", "kind": "PodGroup", "claimed": True, "refusal": "", "seconds": 5.0}
    assert await page.vacancies() == [
        slot | {"member": "k0", "index": 0, "node": "n1", "replacement": ""},
        slot | {"member": "k1", "index": 1, "node": "n2", "replacement": "k2"},
    ]


async def test_a_group_without_an_object_is_shown_with_its_kind_and_found_by_its_name(
    page: Page, world: Harness
) -> None:
    await world.add(pod("j-0").of_job("j", 0).scheduler(SCHEDULER)).run_until_idle()
    assert "default/job:j" in (await page.names(""))[0]
    shown = await page.group("job:j")
    assert (shown["name"], shown["kind"], shown["members"]) == ("job:j", "Job", 1)


async def test_who_would_have_to_go_for_a_gang_and_where_else(page: Page, world: Harness) -> None:
    world.add(*(node(f"v{i}").cpu(2).rack(f"rack{i}") for i in (1, 2)))
    world.add(*(pod(f"low{i}").cpu(2).on(f"v{i}").priority(-i) for i in (1, 2)))
    world.add(pod_group("top").gang(1).topology().priority(9))
    world.add(pod("top0").cpu(2).scheduler(SCHEDULER).in_group("top").priority(9))
    await world.run_until_idle()
    view = (await page.group("top"))["preemption"]
    assert (view["domain"], view["victims"]) == ("rack2", ["default/low2"])
    assert view["nextBest"]["domain"] == "rack1"
    assert (view["domainsFitting"], view["domainsExamined"]) == (2, 2)
    assert view["cost"] == [{"priority": -2, "violations": 0, "broken": 0, "pods": 1}]


async def test_a_member_of_another_scheduler_is_one_and_does_not_wait_for_us(page: Page, world: Harness) -> None:
    world.add(pod("theirs").scheduler("another").in_group("w0"))
    found = await page.group("w0")
    assert (found["members"], found["waiting"]) == (2, 1)
