"""Pages about much leave the loop to filter on their way, however large a gang, the queue or the cluster is."""

from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.look.routes import debug_routes, process_routes
from serried.api.level import FALLBACK
from serried.ops import slices as pace
from serried.ops.slices import Pace, Paced
from serried.settings import extender_settings
from tests.support.builders import node, pod, pod_group
from tests.support.clock import Clock
from tests.support.extender_harness import SCHEDULER, Harness, gang, members

MEMBERS, GANGS = 60, 40
PODS = MEMBERS + GANGS


class Busy(Clock):
    """A clock by which every piece of work is a long one."""

    def __call__(self) -> float:
        self.advance(0.01)
        return self.now


class Breaths:
    """Counts how often a reader has left the loop to others."""

    def __init__(self) -> None:
        self.count = 0
        self._clock = Busy()
        self.pace = Pace(self._clock, self._rest)

    async def _rest(self, seconds: float) -> None:
        self.count += 1
        self._clock.advance(seconds)


async def crowd(world: Harness) -> None:
    """A large gang that waits for the end of the pod that has the only rack, and many small ones behind it."""
    ends = pod("x").cpu(MEMBERS).on("n").active_deadline(600).started("2023-11-14T22:30:00Z")
    await world.add(
        node("n").rack("r").cpu(MEMBERS).pods(2 * MEMBERS), ends, gang(MEMBERS), *members(MEMBERS)
    ).run_until_idle()
    for number in range(GANGS):
        world.add(pod_group(f"h{number}").gang(1))
        world.add(pod(f"h{number}-0").cpu(1).scheduler(SCHEDULER).in_group(f"h{number}"))
    await world.run_until_idle()


@pytest.mark.parametrize(
    ("path", "breaths"),
    [
        pytest.param("/groups/default/g?diagnosis=none", PODS + GANGS + MEMBERS, id="at each pod, gang and member"),
        pytest.param("/groups?limit=0", GANGS, id="at each group that might be listed"),
        pytest.param("/groups", 2 * GANGS, id="at each that is, too"),
        pytest.param("/queue?limit=0", GANGS, id="at each gang of the queue"),
        pytest.param("/queue", 2 * GANGS, id="at each that is shown, too"),
        pytest.param("/lookup/default/pod/nobody", 2 * PODS, id="at each pod that is searched"),
        pytest.param("/lookup/default/workload/none", GANGS, id="at each group that is searched"),
        pytest.param("/lookup/default/job/none", GANGS, id="at each that may have the owner"),
        pytest.param("/domains?key=topology.kubernetes.io/rack", MEMBERS + 2 * GANGS, id="at each member"),
    ],
)
async def test_filter_gets_its_turn(world: Harness, path: str, breaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_ITEMS_BETWEEN_PAUSES", 1)
    await crowd(world)
    app, counted = FastAPI(), Breaths()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    transport = httpx.ASGITransport(Paced(app, counted.pace, frozenset()))
    async with httpx.AsyncClient(transport=transport, base_url="http://debug") as http:
        answer = await http.get(f"/debug{path}")
    assert answer.status_code in {200, 404}
    assert counted.count >= breaths


async def test_a_long_document_is_written_as_a_short_one_is(world: Harness) -> None:
    await world.add(gang(3), *members(3)).run_until_idle()
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    app.include_router(process_routes(extender_settings([], {}), Mock()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        detail = (await http.get("/debug/groups/default/g")).json()
    assert [member["name"] for member in detail["detail"]] == ["m0", "m1", "m2"]
    assert (detail["name"], detail["queue"]["position"]) == ("g", 1)
