"""A gang's bind calls on the scheduler's socket: they stay open until the gang binds or the scheduler hangs up."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import httpx
import pytest

from extender.core.http.server import Listener
from extender.core.http.verbs import CallPath, Verbs
from tests.support.builders import pod
from tests.support.extender_harness import Harness, gang, members, small_nodes


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    """A gang of two that is planned: both members may come to their bind call."""
    made = Harness()
    made.add(*small_nodes(1), gang(2), *members(2))
    await made.run_until_idle()
    yield made
    await made.close()


@pytest.fixture
def call_path() -> CallPath:
    return CallPath.SAME_POD


@pytest.fixture
async def http(world: Harness, call_path: CallPath) -> AsyncIterator[httpx.AsyncClient]:
    listener = Listener(Verbs(world.service, lambda: True, Mock(), world.clock, call_path).routes())
    port = await listener.open("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield client
    await listener.close()


def bind(http: httpx.AsyncClient, name: str, seconds: float = 5.0) -> asyncio.Task[httpx.Response]:
    body = {"PodName": name, "PodNamespace": "default", "PodUID": f"pod-{name}", "Node": "n1"}
    return asyncio.create_task(http.post("/bind", json=body, timeout=seconds))


async def until_at_bind(world: Harness, *uids: str) -> None:
    async with asyncio.timeout(5):
        while world.binding_cycle().at_bind != set(uids):  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.005)


async def test_the_first_member_waits_for_the_second_and_both_are_told(world: Harness, http: httpx.AsyncClient) -> None:
    first = bind(http, "m0")
    await until_at_bind(world, "pod-m0")
    assert not first.done()
    second = bind(http, "m1")
    assert [(await call).json() for call in (first, second)] == [{"Error": ""}, {"Error": ""}]


async def test_a_member_whose_scheduler_hangs_up_leaves_the_barrier(world: Harness, http: httpx.AsyncClient) -> None:
    call = bind(http, "m0", seconds=0.2)
    await until_at_bind(world, "pod-m0")
    with pytest.raises(httpx.ReadTimeout):
        await call
    await until_at_bind(world)
    await world.run_tasks()
    assert world.api.list_calls("bind") == []


@pytest.mark.parametrize(
    ("call_path", "told"),
    [
        pytest.param(CallPath.SAME_POD, None, id="beside keeps its connection"),
        pytest.param(CallPath.SERVICE, "close", id="elsewhere makes a new one, to the instance that leads by then"),
    ],
)
async def test_after_its_bind_call_a_scheduler(http: httpx.AsyncClient, told: str | None) -> None:
    for call in [bind(http, "m0"), bind(http, "m1")]:
        assert (await call).headers.get("connection") == told


@pytest.mark.parametrize("call_path", [CallPath.SERVICE])
async def test_one_elsewhere_keeps_the_connection_of_its_filter_calls(http: httpx.AsyncClient) -> None:
    answer = await http.post("/filter", json={"Pod": pod("p").cpu(1).raw(), "Nodes": None, "NodeNames": ["n1"]})
    assert answer.json()["NodeNames"] == ["n1"]
    assert "connection" not in answer.headers
