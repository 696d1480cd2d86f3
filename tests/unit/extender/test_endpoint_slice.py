"""The leader has its own address in the EndpointSlice, and no other instance writes it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extender.lead import by_service as endpoint_slice
from extender.lead.by_service import ENDPOINT_SLICES, EndpointSlice
from serried.api.names import Key
from serried.kube.client import ApiClient
from serried.kube.retry import Backoff
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.controller_harness import wait_until
from tests.support.faults import calls

NAME = Key("serried-system", "serried-verbs")
PORTS = {"filter": 8910, "bind": 8911}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer((*SERVED, ENDPOINT_SLICES)) as made:
        yield made


class Instance:
    def __init__(self, client: ApiClient, address: str, check_seconds: float = 0.02) -> None:
        self.leads = False
        self.slice = EndpointSlice(client, NAME, address, PORTS, leads=lambda: self.leads, check_seconds=check_seconds)

    def turn(self, *, leads: bool) -> None:
        self.leads = leads
        self.slice.on_leadership_change()


def addresses(server: FakeApiServer) -> list[str]:
    found = server.get_object(ENDPOINT_SLICES, NAME.namespace, NAME.name) or {"endpoints": ()}
    return [address for endpoint in found["endpoints"] for address in endpoint["addresses"]]


async def test_the_service_leads_to_the_leader(server: FakeApiServer) -> None:
    async with server.client() as client, asyncio.TaskGroup() as tasks:
        first, second = (Instance(client, address) for address in ("10.0.0.1", "fd00::2"))
        running = [tasks.create_task(each.slice.run()) for each in (first, second)]
        first.turn(leads=True)
        await wait_until(lambda: addresses(server) == ["10.0.0.1"])
        first.turn(leads=False)
        server.remove(ENDPOINT_SLICES, NAME.namespace, NAME.name)
        second.turn(leads=True)
        await wait_until(lambda: addresses(server) == ["fd00::2"])
        found = server.get_object(ENDPOINT_SLICES, NAME.namespace, NAME.name)
        assert found is not None
        assert found["addressType"] == "IPv6"
        assert found["metadata"]["labels"]["kubernetes.io/service-name"] == NAME.name
        assert {port["name"]: port["port"] for port in found["ports"]} == PORTS
        for task in running:
            task.cancel()


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({"endpoints": [{"addresses": ["10.0.0.9"]}]}, id="another address"),
        pytest.param(
            {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]}, id="that we are not ready"
        ),
        pytest.param({"ports": [{"port": 8910}]}, id="a port without a name"),
        pytest.param({"metadata": {"labels": {"kubernetes.io/service-name": "other"}}}, id="another Service"),
    ],
)
async def test_what_somebody_else_has_written_there_is_set_right_and_what_is_right_is_left(
    server: FakeApiServer, written: dict[str, Any]
) -> None:
    async with server.client() as client:
        instance = Instance(client, "10.0.0.1")
        await instance.slice.reconcile()
        await instance.slice.reconcile()
        assert len(server.list_requests(lambda request: request.method == "PATCH")) == 1
        right = server.get_object(ENDPOINT_SLICES, NAME.namespace, NAME.name)
        server.patch(ENDPOINT_SLICES, NAME.namespace, NAME.name, written)
        await instance.slice.reconcile()
        found = server.get_object(ENDPOINT_SLICES, NAME.namespace, NAME.name)
        assert right is not None
        assert found is not None
        assert (found["endpoints"], found["ports"]) == (right["endpoints"], right["ports"])
        assert found["metadata"]["labels"] == right["metadata"]["labels"]


async def test_a_slice_that_cannot_be_written_is_told_of_and_tried_again(server: FakeApiServer) -> None:
    async with server.client() as client:
        instance = Instance(client, "10.0.0.1")
        server.served.discard(ENDPOINT_SLICES)
        await instance.slice.reconcile()
        assert instance.slice.obstacle
        server.served.add(ENDPOINT_SLICES)
        await instance.slice.reconcile()
        assert not instance.slice.obstacle


async def test_after_a_refused_write_the_next_look_comes_soon(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_slice, "_RETRY", Backoff(first=0.001, cap=0.01))
    server.reject(calls("PATCH", "/endpointslices"), times=3, status=403, reason="Forbidden")
    async with server.client() as client, asyncio.TaskGroup() as tasks:
        instance = Instance(client, "10.0.0.1", check_seconds=600.0)
        running = tasks.create_task(instance.slice.run())
        instance.turn(leads=True)
        await wait_until(lambda: addresses(server) == ["10.0.0.1"])
        await wait_until(lambda: not instance.slice.obstacle)
        running.cancel()


async def test_who_leads_no_more_has_no_obstacle(server: FakeApiServer) -> None:
    server.served.discard(ENDPOINT_SLICES)
    async with server.client() as client, asyncio.TaskGroup() as tasks:
        instance = Instance(client, "10.0.0.1")
        running = tasks.create_task(instance.slice.run())
        instance.turn(leads=True)
        await wait_until(lambda: bool(instance.slice.obstacle))
        instance.turn(leads=False)
        await wait_until(lambda: not instance.slice.obstacle)
        running.cancel()
