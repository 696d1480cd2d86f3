"""``/debug/snapshot``: a file from which the same is decided again."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from extender.features.kueue import POD_SET
from extender.look.decide import Match, compare, decide, find_recorded
from extender.look.simulations import snapshot_routes
from extender.look.snapshot import Capture, read_snapshot
from serried.api.level import NATIVE
from serried.api.names import GroupKey, GroupKind
from serried.ops.slices import Slices, TooLongError, join
from serried.ops.steps import Work
from tests.support.builders import RACK, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes


@pytest.fixture
async def http(world: Harness) -> AsyncIterator[httpx.AsyncClient]:
    """A gang that is planned, and one that waits."""
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    world.add(
        pod_group("big").gang(9),
        *[pod(f"big-{place}").cpu(1).scheduler(SCHEDULER).in_group("big") for place in range(9)],
    )
    await world.run_until_idle()
    app = FastAPI()
    app.include_router(snapshot_routes(world.core, NATIVE))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield http


async def read(http: httpx.AsyncClient, query: str) -> Capture:
    answer = await http.get(f"/snapshot?{query}")
    assert answer.status_code == 200, answer.text
    found = read_snapshot(answer.content)
    assert isinstance(found, Capture)
    return found


@pytest.mark.parametrize(
    "query",
    [pytest.param("group=default/big", id="as JSON"), pytest.param("group=default/big&form=gzip", id="by gzip")],
)
async def test_the_decision_that_is_asked_about_is_made_again(http: httpx.AsyncClient, query: str) -> None:
    capture = await read(http, query)
    assert capture.group is not None
    found = decide(capture, capture.group)
    assert found.describe().startswith("NoCapacity: only 2 of 9 members fit into the cluster")
    assert compare(find_recorded(capture, capture.group), found) is Match.EQUAL


async def test_a_plan_is_made_again_as_if_it_had_not_been_made(http: httpx.AsyncClient) -> None:
    capture = await read(http, "")
    assert capture.group is None
    assert compare(find_recorded(capture, GANG), decide(capture, GANG)) is Match.EQUAL


async def test_a_gang_whose_topology_does_not_count_is_decided_again_without_it(world: Harness) -> None:
    on_racks = [each.node_selector(RACK, f"r{at}").label(POD_SET, "main") for at, each in enumerate(members(2))]
    nodes = [node(f"n{at}").rack(f"r{at}").cpu(0) for at in range(2)]
    await world.add(*nodes, gang(2).topology(RACK), *on_racks).run_until_idle()
    app = FastAPI()
    app.include_router(snapshot_routes(world.core, NATIVE))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        capture = await read(http, "")
    (group,) = capture.groups
    assert group.ignored == world.store.groups[GANG].ignored
    found = decide(capture, GANG)
    assert found.describe().startswith("NoCapacity")
    assert compare(find_recorded(capture, GANG), found) is Match.EQUAL


async def test_a_pod_group_of_kueue_is_decided_again(world: Harness) -> None:
    key = GroupKey("default", "g", GroupKind.COUNTED, "3")
    pods = [pod(f"k{at}").cpu(1).scheduler(SCHEDULER).in_counted_group("g", "3") for at in range(3)]
    await world.add(*small_nodes(1), *pods).run_until_idle()
    app = FastAPI()
    app.include_router(snapshot_routes(world.core, NATIVE))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        capture = await read(http, "group=default/kueue:g:3")
    found = decide(capture, key)
    assert found.describe().startswith("NoCapacity: only 2 of 3 members fit into the cluster")
    assert compare(find_recorded(capture, key), found) is Match.EQUAL


async def test_a_compressed_file_is_one_that_gzip_reads(http: httpx.AsyncClient) -> None:
    answer = await http.get("/snapshot?form=gzip")
    assert answer.headers["content-type"] == "application/gzip"
    assert 'filename="serried-snapshot.json.gz"' in answer.headers["content-disposition"]
    assert gzip.decompress(answer.content) == (await http.get("/snapshot")).content


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        pytest.param("group=big", 400, "group is NAMESPACE/NAME", id="a group without namespace"),
        pytest.param("group=default/none", 404, "no PodGroup default/none is known", id="a group that is not there"),
        pytest.param("form=zip", 422, "Input should be 'json' or 'gzip'", id="a form that does not exist"),
    ],
)
async def test_what_cannot_be_given_is_named(http: httpx.AsyncClient, query: str, status: int, said: str) -> None:
    answer = await http.get(f"/snapshot?{query}")
    assert answer.status_code == status
    assert said in answer.text


async def test_one_is_made_at_a_time(world: Harness) -> None:
    resting = asyncio.Event()
    go = asyncio.Event()

    async def rest(_: float) -> None:
        resting.set()
        await go.wait()

    ticks = iter(range(10**6))
    app = FastAPI()
    app.include_router(snapshot_routes(world.core, NATIVE, Slices(lambda: next(ticks) * 0.001, rest)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        first = asyncio.create_task(http.get("/snapshot"))
        await resting.wait()
        second = await http.get("/snapshot")
        assert (second.status_code, second.headers["Retry-After"]) == (429, "5")
        go.set()
        assert (await first).status_code == 200


async def test_nothing_of_the_state_is_changed(world: Harness, http: httpx.AsyncClient) -> None:
    before = (dict(world.store.occupancy.used), dict(world.store.pods), [*world.ledger], len(world.api.calls))
    await http.get("/snapshot?group=default/big")
    assert (dict(world.store.occupancy.used), dict(world.store.pods), [*world.ledger], len(world.api.calls)) == before


async def test_work_that_takes_too_long_is_given_up() -> None:
    def endless() -> Work[None]:
        while True:
            yield

    async def rest(_: float) -> None:
        return None

    ticks = iter(range(10**6))
    slices = Slices(lambda: next(ticks) * 0.001, rest)
    with pytest.raises(TooLongError):
        await slices.finish(endless(), 0.1)


async def test_a_slice_ends_after_two_milliseconds() -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    ticks = iter(range(10**6))
    slices = Slices(lambda: next(ticks) * 0.001, rest)
    pieces = await slices.finish(join((b"xy" for _ in range(20)), 8), 10.0)
    assert b"".join(pieces) == b"xy" * 20
    assert len(pieces) == 6
    assert len(rests) > 3
    assert max(rests) < 0.01
