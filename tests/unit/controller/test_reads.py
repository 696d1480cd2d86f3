import asyncio
from collections.abc import AsyncIterator

import pytest

from controller.writes import read_named_groups
from serried.api.names import GroupKey
from serried.kube.errors import Gone
from serried.kube.wire import PODS
from tests.support.apiserver import FakeApiServer
from tests.support.builders import PodBuilder, pod

G = GroupKey("default", "g")
H = GroupKey("default", "h")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.mark.parametrize(
    ("builder", "named"),
    [
        pytest.param(pod("a").in_group("g"), {G}, id="by the field"),
        pytest.param(pod("a").labelled_group("g"), {G}, id="by the label"),
        pytest.param(pod("a").in_group("g").labelled_group("h"), {G, H}, id="both, where they differ"),
        pytest.param(pod("a").in_group("g").on("n1").deleting(), {G}, id="until it is gone, however long it ends"),
        pytest.param(pod("a").in_group("g").phase("Succeeded"), set(), id="not after it succeeded"),
        pytest.param(pod("a").in_group("g").phase("Failed"), set(), id="not after it failed"),
        pytest.param(pod("a").of_job("train", 0), set(), id="not through its Job: it joins the group's successor"),
    ],
)
async def test_a_pod_names_its_group(server: FakeApiServer, builder: PodBuilder, named: set[GroupKey]) -> None:
    server.add(PODS, builder.raw())
    async with server.client() as client:
        assert await read_named_groups(client, "default") == named
        assert await read_named_groups(client, "elsewhere") == set()


async def test_all_pages_are_read_and_none_from_a_stale_cache(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serried.kube.client._OBJECTS_PER_PAGE", 2)
    for number in range(5):
        server.add(PODS, pod(f"p-{number}").in_group(f"g-{number}").raw())
    async with server.client() as client:
        assert await read_named_groups(client, "default") == {GroupKey("default", f"g-{number}") for number in range(5)}
    assert len(server.requests) == 3
    assert not any("resourceVersion" in request.params for request in server.requests)


async def test_half_of_a_list_is_no_list(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.kube.client._OBJECTS_PER_PAGE", 1)
    for number in range(2):
        server.add(PODS, pod(f"p-{number}").in_group(f"g-{number}").raw())
    second_page = server.hold(lambda request: "continue" in request.params)
    async with server.client() as client:
        reading = asyncio.create_task(read_named_groups(client, "default"))
        async with asyncio.timeout(10):
            await second_page.reached.wait()
        server.add(PODS, pod("new").raw())
        server.compact()
        second_page.open()
        with pytest.raises(Gone):
            await reading
