"""The cluster's API changes under a running process: it notices by itself and begins anew."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import httpx
import pytest
from fastapi import APIRouter

from serried.api.level import FALLBACK, NATIVE, ApiLevel
from serried.kube.client import ApiClient
from serried.kube.wire import pod_groups, workloads
from serried.ops import process
from serried.ops.metrics import ControllerMetrics
from serried.ops.process import Process
from serried.settings import CommonSettings, controller_settings
from tests.support.apiserver import NATIVE_SERVED, SERVED, FakeApiServer
from tests.support.faults import calls
from tests.support.schemas import GROUP, V1BETA1_KINDS, change


class Work:
    """Notes where it was built and when it ends."""

    def __init__(self, level: ApiLevel, house: "House") -> None:
        self.level = level
        self._house = house

    async def run(self) -> None:
        self._house.begun.append(self.level)
        try:
            await self._house.fail.wait()
            raise RuntimeError("a defect")
        finally:
            self._house.ended.append(self.level)

    def readiness(self) -> Mapping[str, bool]:
        return {self.level.name: True}

    def update_refused_versions(self, level: ApiLevel) -> None:
        self._house.refused.append(level.refused)

    def routes(self) -> Sequence[APIRouter]:
        router = APIRouter()
        router.add_api_route("/level", lambda: self.level.name)
        return [router]


class House:
    """A process over a fake API server; only its sockets are missing."""

    def __init__(self, server: FakeApiServer, client: ApiClient, settings: CommonSettings) -> None:
        self.server = server
        self.begun: list[ApiLevel] = []
        self.ended: list[ApiLevel] = []
        self.refused: list[tuple[str, ...]] = []
        self.fail = asyncio.Event()
        self.process = Process("controller", settings, ControllerMetrics())
        self.task = asyncio.create_task(self.process.run_work(client, lambda _client, level: Work(level, self)))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110 - the state under test has no event
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_SECONDS_BETWEEN_DISCOVERIES", 0.01)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with FakeApiServer() as server, server.client() as client:
        made = House(server, client, controller_settings([]))
        await made.until(lambda: made.begun)
        yield made
        made.task.cancel()
        await asyncio.gather(made.task, return_exceptions=True)


async def test_a_cluster_that_begins_to_serve_the_native_api_gets_it_used(house: House) -> None:
    assert house.begun == [FALLBACK]
    house.server.served.update(NATIVE_SERVED)
    await house.until(lambda: house.begun == [FALLBACK, NATIVE])
    assert house.ended == [FALLBACK]
    assert house.process.readiness() == {"native": True}
    transport = httpx.ASGITransport(house.process.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://ops") as client:
        assert (await client.get("/level")).json() == "native"
        assert (await client.get("/readyz")).status_code == 200


async def test_the_native_api_may_go_again(house: House) -> None:
    house.server.served.update(NATIVE_SERVED)
    await house.until(lambda: house.begun == [FALLBACK, NATIVE])
    house.server.served.difference_update(NATIVE_SERVED)
    await house.until(lambda: house.begun == [FALLBACK, NATIVE, FALLBACK])


async def test_the_next_version_is_used_once_it_is_served_and_the_one_before_is_gone(house: House) -> None:
    house.server.served.update(NATIVE_SERVED)
    await house.until(lambda: house.begun == [FALLBACK, NATIVE])
    house.server.schemas["v1"] = V1BETA1_KINDS
    house.server.served.difference_update(NATIVE_SERVED)
    house.server.served.update({pod_groups(GROUP, "v1"), workloads(GROUP, "v1")})
    await house.until(lambda: house.begun[2:] == [ApiLevel("native", GROUP, "v1", like="v1beta1")])


async def test_of_a_version_that_cannot_be_used_the_work_is_told_and_goes_on(house: House) -> None:
    house.server.served.update(NATIVE_SERVED)
    await house.until(lambda: house.begun == [FALLBACK, NATIVE])
    house.server.schemas["v1"] = change(V1BETA1_KINDS, "PodGroup.spec.schedulingPolicy", None)
    house.server.served.update({pod_groups(GROUP, "v1"), workloads(GROUP, "v1")})
    await house.until(lambda: len(house.refused) == 1)
    house.server.schemas["v1"] = change(V1BETA1_KINDS, "PodGroup", None)
    await house.until(lambda: len(house.refused) == 2)
    assert [len(refused) for refused in house.refused] == [1, 1]
    assert house.refused[0] != house.refused[1]
    house.server.served.difference_update({pod_groups(GROUP, "v1"), workloads(GROUP, "v1")})
    await house.until(lambda: len(house.refused) == 3)
    assert house.refused[2] == ()
    assert (house.begun, house.ended) == ([FALLBACK, NATIVE], [FALLBACK])


async def test_an_api_server_that_does_not_answer_changes_nothing(house: House) -> None:
    house.server.served.update(NATIVE_SERVED)
    house.server.reject(calls(), times=20, status=503)
    await house.until(lambda: house.begun == [FALLBACK, NATIVE])
    assert house.ended == [FALLBACK]


async def test_work_that_fails_ends_the_process_with_its_error(house: House) -> None:
    house.fail.set()
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="a defect"):
            await house.task
    assert house.ended == [FALLBACK]


async def test_an_api_of_which_the_server_cannot_read_what_is_stored_is_not_used() -> None:
    left_over = 'no kind "Workload" is registered for version "scheduling.k8s.io/v1alpha1" in scheme "any"'
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        fault = server.reject(calls("GET", f"/{NATIVE.version}/workloads"), 10_000, status=500, message=left_over)
        house = House(server, client, controller_settings([]))
        await house.until(lambda: house.begun == [FALLBACK])
        server.recover()
        await house.until(lambda: house.begun == [FALLBACK, NATIVE])
        house.task.cancel()
        await asyncio.gather(house.task, return_exceptions=True)
        assert fault.left < 10_000
