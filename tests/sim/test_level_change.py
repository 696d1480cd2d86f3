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

    def __init__(self, level: ApiLevel, harness: "ProcessHarness") -> None:
        self.level = level
        self._house = harness

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


class ProcessHarness:
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
async def harness() -> AsyncIterator[ProcessHarness]:
    async with FakeApiServer() as server, server.client() as client:
        made = ProcessHarness(server, client, controller_settings([]))
        await made.until(lambda: made.begun)
        yield made
        made.task.cancel()
        await asyncio.gather(made.task, return_exceptions=True)


async def test_a_cluster_that_begins_to_serve_the_native_api_gets_it_used(harness: ProcessHarness) -> None:
    assert harness.begun == [FALLBACK]
    harness.server.served.update(NATIVE_SERVED)
    await harness.until(lambda: harness.begun == [FALLBACK, NATIVE])
    assert harness.ended == [FALLBACK]
    assert harness.process.readiness() == {"native": True}
    transport = httpx.ASGITransport(harness.process.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://ops") as client:
        assert (await client.get("/level")).json() == "native"
        assert (await client.get("/readyz")).status_code == 200


async def test_the_native_api_may_go_again(harness: ProcessHarness) -> None:
    harness.server.served.update(NATIVE_SERVED)
    await harness.until(lambda: harness.begun == [FALLBACK, NATIVE])
    harness.server.served.difference_update(NATIVE_SERVED)
    await harness.until(lambda: harness.begun == [FALLBACK, NATIVE, FALLBACK])


async def test_the_next_version_is_used_once_it_is_served_and_the_one_before_is_gone(harness: ProcessHarness) -> None:
    harness.server.served.update(NATIVE_SERVED)
    await harness.until(lambda: harness.begun == [FALLBACK, NATIVE])
    harness.server.schemas["v1"] = V1BETA1_KINDS
    harness.server.served.difference_update(NATIVE_SERVED)
    harness.server.served.update({pod_groups(GROUP, "v1"), workloads(GROUP, "v1")})
    await harness.until(lambda: harness.begun[2:] == [ApiLevel("native", GROUP, "v1", like="v1beta1")])


async def test_of_a_version_that_cannot_be_used_the_work_is_told_and_goes_on(harness: ProcessHarness) -> None:
    harness.server.served.update(NATIVE_SERVED)
    await harness.until(lambda: harness.begun == [FALLBACK, NATIVE])
    harness.server.schemas["v1"] = change(V1BETA1_KINDS, "PodGroup.spec.schedulingPolicy", None)
    harness.server.served.update({pod_groups(GROUP, "v1"), workloads(GROUP, "v1")})
    await harness.until(lambda: len(harness.refused) == 1)
    harness.server.schemas["v1"] = change(V1BETA1_KINDS, "PodGroup", None)
    await harness.until(lambda: len(harness.refused) == 2)
    assert [len(refused) for refused in harness.refused] == [1, 1]
    assert harness.refused[0] != harness.refused[1]
    harness.server.served.difference_update({pod_groups(GROUP, "v1"), workloads(GROUP, "v1")})
    await harness.until(lambda: len(harness.refused) == 3)
    assert harness.refused[2] == ()
    assert (harness.begun, harness.ended) == ([FALLBACK, NATIVE], [FALLBACK])


async def test_an_api_server_that_does_not_answer_changes_nothing(harness: ProcessHarness) -> None:
    harness.server.served.update(NATIVE_SERVED)
    harness.server.reject(calls(), times=20, status=503)
    await harness.until(lambda: harness.begun == [FALLBACK, NATIVE])
    assert harness.ended == [FALLBACK]


async def test_work_that_fails_ends_the_process_with_its_error(harness: ProcessHarness) -> None:
    harness.fail.set()
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="a defect"):
            await harness.task
    assert harness.ended == [FALLBACK]


async def test_an_api_of_which_the_server_cannot_read_what_is_stored_is_not_used() -> None:
    left_over = 'no kind "Workload" is registered for version "scheduling.k8s.io/v1alpha1" in scheme "any"'
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        fault = server.reject(calls("GET", f"/{NATIVE.version}/workloads"), 10_000, status=500, message=left_over)
        harness = ProcessHarness(server, client, controller_settings([]))
        await harness.until(lambda: harness.begun == [FALLBACK])
        server.recover()
        await harness.until(lambda: harness.begun == [FALLBACK, NATIVE])
        harness.task.cancel()
        await asyncio.gather(harness.task, return_exceptions=True)
        assert fault.left < 10_000
