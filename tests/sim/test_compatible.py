"""The extender and the PodGroups of scheduler-plugins: their API may come later, go, or not be granted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.process import Extender
from serried import feed as feed_room
from serried.api.names import COMPATIBLE_API, GroupKey, GroupKind
from serried.feed import Kind
from serried.kube.reflector import WatchTiming
from serried.kube.retry import Backoff
from serried.kube.wire import NODES, PODS, pod_groups
from tests.support.apiserver import FakeApiServer
from tests.support.builders import compatible_group, node, pod
from tests.support.controller_harness import wait_until
from tests.support.extender_process import run_extender
from tests.support.faults import calls

GROUPS = pod_groups(*COMPATIBLE_API.split("/"))
GANG = GroupKey("default", "g", GroupKind.COMPATIBLE)


class Scene:
    """An extender over an API server with room for a gang of two, whose members exist."""

    def __init__(self, server: FakeApiServer, extender: Extender) -> None:
        self.server, self._extender = server, extender

    def reason(self) -> str:
        """Return the reason of the gang's verdict; "" without one."""
        gang = self._extender.core.groups.states.get(GANG)
        return gang.verdict.reason.value if gang is not None and gang.verdict is not None else ""

    def watch(self) -> dict[str, Any]:
        """Return the state of the watch that ``/debug/selfcheck`` shows."""
        watches: dict[str, dict[str, Any]] = self._extender.selfcheck.describe()["watches"]
        return {word: watches[Kind.COMPATIBLE_POD_GROUPS][word] for word in ("served", "listed")}

    def ready(self) -> bool:
        """Return whether the readiness probe reports that all caches are listed."""
        return self._extender.readiness()["synced"]


@asynccontextmanager
async def running(server: FakeApiServer) -> AsyncIterator[Scene]:
    for name in ("n1", "n2"):
        server.add(NODES, node(name).cpu(2).raw())
    for name in ("p0", "p1"):
        server.add(PODS, pod(name).cpu(1).scheduler("serried").in_compatible_group("g").raw())
    async with run_extender(server) as extender:
        yield Scene(server, extender)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setattr(
        feed_room,
        "_OPTIONAL_WATCH_TIMING",
        WatchTiming(unserved=0.02, unserved_after=0.02, absent_after=0.0, backoff=Backoff(0.005, cap=0.02)),
    )
    async with FakeApiServer() as server:
        yield server


async def test_an_api_that_is_installed_later_is_found_without_a_restart(server: FakeApiServer) -> None:
    async with running(server) as scene:
        await wait_until(lambda: scene.reason() == "WorkloadAPIMissing")
        assert scene.ready()
        assert scene.watch() == {"served": False, "listed": False}
        server.served.add(GROUPS)
        server.add(GROUPS, compatible_group("g").gang(2).raw())
        await wait_until(lambda: scene.reason() == "Planned")
        assert scene.watch() == {"served": True, "listed": True}


async def test_an_api_that_is_removed_leaves_its_pods_waiting_and_everything_else_alone(server: FakeApiServer) -> None:
    server.served.add(GROUPS)
    server.add(GROUPS, compatible_group("g").gang(3).raw())
    async with running(server) as scene:
        await wait_until(lambda: scene.reason() == "QuorumMissing")
        server.served.discard(GROUPS)
        server.end_watches(GROUPS)
        await wait_until(lambda: scene.reason() == "WorkloadAPIMissing")
        assert scene.ready()
        assert scene.watch() == {"served": False, "listed": False}


async def test_an_older_installation_without_the_right_to_see_it_starts_as_ever(server: FakeApiServer) -> None:
    server.served.add(GROUPS)
    server.add(GROUPS, compatible_group("g").gang(2).raw())
    refused = server.reject(calls("GET", GROUPS.root), times=10_000, status=403)
    async with running(server) as scene:
        await wait_until(lambda: scene.reason() == "WorkloadAPIMissing")
        assert scene.ready()
        assert scene.watch() == {"served": True, "listed": False}
        refused.left = 0
        await wait_until(lambda: scene.reason() == "Planned")
