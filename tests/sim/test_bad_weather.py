"""Faults between our processes and the API server: their state and their writes are right once the faults are over.

The proxy is that of the soak (`tests/chaos`), with shorter pauses.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from random import Random
from urllib.parse import urlsplit

import pytest

from controller.process import Controller
from serried.api.level import FALLBACK
from serried.kube.auth import Credentials
from serried.kube.client import ApiClient, RetryPolicy
from serried.kube.reflector import Reflector
from serried.kube.retry import Backoff
from serried.kube.wire import JOBS, PODS
from serried.ops.metrics import ControllerMetrics
from serried.settings import controller_settings
from tests.chaos import proxy as chaos_proxy
from tests.chaos.mishaps import Mishap, Request, Weather
from tests.chaos.proxy import Proxy
from tests.support.apiserver import FakeApiServer
from tests.support.controller_harness import GROUPS, RELEASE_TIMING, WORKLOADS, gang
from tests.support.reflector_harness import QUICK, Recorder, pod

SEEDS = range(3)
CHANGES = 300
GANGS = 12
RETRY = RetryPolicy(attempts=3, backoff=Backoff(first=0.005, cap=0.02))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TIMEOUT_SECONDS", "_SILENT_SECONDS", "_DELAY_SECONDS", "_SLOW_SECONDS"):
        monkeypatch.setattr(chaos_proxy, name, (0.0, 0.02))
    monkeypatch.setattr(chaos_proxy, "_RETRY_AFTER_SECONDS", 0)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as started:
        yield started


@pytest.fixture(params=SEEDS)
def proxy(request: pytest.FixtureRequest, server: FakeApiServer) -> Iterator[Proxy]:
    """Bad weather before the API server."""
    port = urlsplit(server.url).port
    assert port is not None
    weather = Weather(Random(request.param), requests=0.4, changes=0.25)  # noqa: S311 - seeded
    with Proxy(port, None, weather, lambda _request, _mishap: None) as made:
        yield made


def client(proxy: Proxy) -> ApiClient:
    return ApiClient(Credentials(f"http://127.0.0.1:{proxy.port}"), component="test", retry=RETRY, timeout=5.0)


def calm(proxy: Proxy) -> None:
    proxy.weather.requests = 0.0
    proxy.weather.changes = 0.0


async def test_what_a_watch_has_shown_is_what_the_server_has(server: FakeApiServer, proxy: Proxy) -> None:
    sink = Recorder()
    source = Random(1)  # noqa: S311 - seeded
    async with client(proxy) as through:
        following = asyncio.create_task(Reflector(through, PODS, sink, timing=QUICK).run())
        for number in range(CHANGES):
            name = f"p{source.randrange(20)}"
            there = ("default", name) in server.storage.objects(PODS)
            if not there:
                server.add(PODS, pod(name, step=number))
            elif source.random() < 0.3:
                server.remove(PODS, "default", name)
            else:
                server.patch(PODS, "default", name, {"spec": {"step": number}})
            await asyncio.sleep(0.002)
        calm(proxy)
        expected = {key[1]: obj for key, obj in server.storage.objects(PODS).items()}
        await sink.await_state(lambda: sink.state == expected)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert sum(proxy.weather.counted.values()) > 10
    assert set(proxy.weather.counted) & {Mishap.CUT, Mishap.ENDED, Mishap.COMPACTED, Mishap.EXPIRED}


async def test_every_gang_has_one_workload_and_one_group(server: FakeApiServer, proxy: Proxy) -> None:
    async with client(proxy) as through:
        settings = controller_settings((), {})
        metrics = ControllerMetrics()
        running = asyncio.create_task(Controller(settings, through, FALLBACK, metrics, timing=RELEASE_TIMING).run())
        for number in range(GANGS):
            server.add(JOBS, gang(f"train-{number}").raw())
            await asyncio.sleep(0.05)
        calm(proxy)
        async with asyncio.timeout(30):
            while len(server.storage.objects(GROUPS)) < GANGS:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    owners = [obj["metadata"]["ownerReferences"][0]["name"] for obj in server.storage.objects(GROUPS).values()]
    assert sorted(owners) == sorted(f"train-{number}" for number in range(GANGS))
    assert len(server.storage.objects(WORKLOADS)) == GANGS
    assert sum(proxy.weather.counted.values()) > 2


def test_the_weather_is_that_of_the_soak() -> None:
    weather = Weather(Random(1), requests=1.0, changes=1.0)  # noqa: S311 - seeded
    for _ in range(500):
        weather.draw_request(Request("PUT", "/x"))
        weather.draw_request(Request("GET", "/x?watch=true"))
        weather.draw_change()
    assert set(weather.counted) == set(Mishap)
