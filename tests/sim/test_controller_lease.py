"""Two controllers: one works, one knows everything and writes nothing until its turn comes."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from controller import process
from controller.process import Controller
from serried.kube.election import LeaseLostError, Timing
from serried.kube.wire import JOBS, LEASES
from serried.model.level import FALLBACK
from serried.observe.prometheus import PrometheusControllerMetrics
from serried.settings import controller_settings
from tests.support.apiserver import FakeApiServer
from tests.support.controller_harness import CREATES_GROUP, GROUPS, WORKLOADS, gang, until

NAMESPACE, NAME = "serried-system", "serried-controller"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setattr(process, "TIMING", Timing(retry=0.01))
    async with FakeApiServer() as made:
        yield made


class Pod:
    """A controller in a Pod of its own."""

    def __init__(self, server: FakeApiServer, name: str) -> None:
        self._client = server.client()
        settings = controller_settings(["--lease-holder", name], {})
        self._metrics = PrometheusControllerMetrics()
        self.controller = Controller(settings, self._client, FALLBACK, self._metrics)
        self.task = asyncio.create_task(self.controller.run())

    def leads(self) -> bool:
        return self.controller.election.leads()

    def shows(self) -> str:
        """What its metrics say of whether it is active."""
        text = self._metrics.render().decode()
        return next(line for line in text.splitlines() if line.startswith("serried_controller_active"))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._client.close()


async def test_a_standby_notes_everything_and_takes_over_what_is_left(server: FakeApiServer) -> None:
    first = Pod(server, "a")
    await until(first.leads)
    standby = Pod(server, "b")
    server.refuse(CREATES_GROUP, times=1_000_000, status=500)
    server.add(JOBS, gang("one").raw())
    await until(lambda: server.all(WORKLOADS) and len(standby.controller.queue) > 0)
    assert not standby.leads()
    assert (first.shows(), standby.shows()) == ("serried_controller_active 1.0", "serried_controller_active 0.0")
    await first.end()
    server.recover()
    await until(lambda: server.all(GROUPS))
    assert standby.leads()
    assert len(server.all(WORKLOADS)) == 1
    await standby.end()


async def test_whoever_loses_the_lease_ends(server: FakeApiServer) -> None:
    pod = Pod(server, "a")
    await until(pod.leads)
    taken = {"holderIdentity": "b_1", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    server.change(LEASES, NAMESPACE, NAME, {"spec": taken})
    with pytest.raises(ExceptionGroup) as caught:
        await pod.task
    assert caught.group_contains(LeaseLostError)
    assert not pod.leads()
    await pod.end()
