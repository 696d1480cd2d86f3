"""Two extenders were active at once, and one has died in its burst: the other one ends what it has committed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extender.core.binding.records import Records
from extender.core.protocol import BindRequest
from extender.lead import leadership as takeover
from extender.process import Extender
from serried.api.level import FALLBACK
from serried.api.names import Key
from serried.api.reservation import Reservation, Slot
from serried.kube.wire import NODES, PODS, RESERVATIONS, pod_groups
from tests.sim.test_standby import never
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_harness import GANG
from tests.support.extender_process import run_extender

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)
GROUP = pod_group("g").gang(2)
SLOTS = {"pod-p0": Slot("pod-p0", "p0", "n1"), "pod-p1": Slot("pod-p1", "p1", "n2")}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_CONTEST_SECONDS", 0.1)


@asynccontextmanager
async def running(server: FakeApiServer) -> AsyncIterator[Extender]:
    for name in ("n1", "n2", "n3"):
        server.add(NODES, node(name).cpu(1).raw())
    server.add(GROUPS, GROUP.raw())
    async with run_extender(server) as extender:
        await wait_until(lambda: extender.core.term.plans)
        yield extender


async def commit_as_rival(server: FakeApiServer) -> None:
    async with server.client() as client:
        rival = Records(client, FALLBACK.api_version, "rival")
        await rival.write(GROUP.value(), Reservation(GANG, "podgroup-g", "", 2, SLOTS, SLOTS.keys()))


def where(server: FakeApiServer, name: str) -> str:
    (found,) = [raw for raw in server.list_objects(PODS) if raw["metadata"]["name"] == name]
    return str(found["spec"].get("nodeName", ""))


async def test_the_rest_of_the_commit_is_bound_where_it_was_committed() -> None:
    async with FakeApiServer() as server, running(server) as extender:
        await commit_as_rival(server)
        for name, on in (("p0", ""), ("p1", "n2")):
            member = pod(name).cpu(1).scheduler("serried").in_group("g")
            server.add(PODS, (member.on(on) if on else member).raw())
        await wait_until(lambda: extender.core.ledger.slot_of("pod-p0"))
        # Our own plan meets the record at its commit.
        slot = extender.core.ledger.slot_of("pod-p0")
        assert slot is not None
        request = BindRequest(Key("default", "p0"), "pod-p0", slot.node)
        coming = asyncio.create_task(extender.core.service.bind(request, never))
        await wait_until(lambda: where(server, "p0"))
        assert (where(server, "p0"), where(server, "p1")) == ("n1", "n2")
        await wait_until(lambda: not server.list_objects(RESERVATIONS))
        assert coming.done()
