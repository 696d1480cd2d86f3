"""The page's files and its stream, over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import extender.look
from extender.look.page import MAX_READERS
from serried.ops.access import Guard, Reviews, TokenDemand
from tests.support.access_reviews import FakeReviews
from tests.support.page_stage import ExampleCluster, make_app, make_broadcast, make_world, serving

SOON = 1e-6
"""A time in seconds that is over with the first look."""

FOLDER = Path(extender.look.__file__).with_name("page")


@pytest.fixture
async def page() -> AsyncIterator[httpx.AsyncClient]:
    world = make_world()
    await ExampleCluster(world).create_workloads()
    async with serving(world, make_broadcast(world)) as url, httpx.AsyncClient(base_url=url, timeout=10.0) as http:
        yield http
    await world.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        pytest.param("", "text/html", id="the page"),
        pytest.param("page/page.css", "text/css", id="its style"),
        pytest.param("page/main.js", "text/javascript", id="its program"),
        pytest.param("page/icon.svg", "image/svg+xml", id="its icon"),
    ],
)
async def test_a_file_may_load_nothing_from_elsewhere_and_is_read_again_only_when_it_changed(
    page: httpx.AsyncClient, path: str, kind: str
) -> None:
    answer = await page.get(path)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    again = await page.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_no_other_file_is_given_away(page: httpx.AsyncClient) -> None:
    assert (await page.get("page/live.py")).status_code == 404
    assert (await page.get("page/..%2Flive.py")).status_code == 404


async def test_without_the_last_slash_it_is_found_as_well(page: httpx.AsyncClient) -> None:
    answer = await page.get(str(page.base_url).removesuffix("/"))
    assert answer.status_code == 307


def test_no_file_names_another_host() -> None:
    texts = {path.name: path.read_text() for path in FOLDER.iterdir()}
    namespaces = "http://www.w3.org/2000/svg"
    assert [name for name, text in texts.items() if "://" in text.replace(namespaces, "")] == []


async def test_readers_that_leave_make_room_for_others(page: httpx.AsyncClient) -> None:
    for _ in range(3):
        streams = [page.stream("GET", "stream") for _ in range(MAX_READERS)]
        answers = [await stream.__aenter__() for stream in streams]
        chunks = [anext(answer.aiter_bytes()) for answer in answers]
        assert all([(await chunk).startswith(b"data: ") for chunk in chunks])
        refused = await page.get("stream")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        for stream in streams:
            await stream.__aexit__(None, None, None)
        async with page.stream("GET", "stream") as answer:
            assert answer.status_code == 200


async def test_a_stream_that_a_token_has_opened_ends_when_the_token_has_to_be_shown_again() -> None:
    world = make_world()
    await ExampleCluster(world).create_workloads()
    fake_reviews = FakeReviews()
    fake_reviews.users["token"] = "reader"
    fake_reviews.grants.add(("reader", "get", "/debug/stream"))
    guard = Guard(make_app(world, make_broadcast(world)), TokenDemand.REMOTE, Reviews(fake_reviews.client(), SOON))
    transport = httpx.ASGITransport(guard, client=("10.0.0.9", 40000))
    async with asyncio.timeout(20), httpx.AsyncClient(transport=transport, base_url="https://serried") as http:
        answer = await http.get("/debug/stream", headers={"Authorization": "Bearer token"})
    assert "complete" in answer.text
    assert answer.text.endswith("event: renew\ndata: {}\n\n")
    await world.close()
