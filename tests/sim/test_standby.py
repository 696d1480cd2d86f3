"""Standby: an extender that does not lead writes nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.core.protocol import BindRequest
from extender.process import Extender
from serried.api.level import FALLBACK
from serried.api.names import GroupKey, Key
from serried.api.verdict import Reason, Verdict
from serried.kube.wire import NODES, PODS, pod_groups
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_process import run_extender
from tests.support.faults import Request

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)


def _changes(request: Request) -> bool:
    # The dry run that tells whether pods keep their group is nobody's change.
    return request.method != "GET" and "podtemplates" not in request.path


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        made.add(NODES, node("n1").cpu(8).raw())
        made.add(GROUPS, pod_group("g").gang(2).raw())
        for name in ("p0", "p1"):
            made.add(PODS, pod(name).cpu(1).scheduler("serried").in_group("g").raw())
        made.add(PODS, pod("plain").cpu(1).scheduler("serried").raw())
        yield made


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def bind_plain(extender: Extender) -> str:
    request = BindRequest(Key("default", "plain"), "pod-plain", "n1")
    return await extender.core.service.bind(request, never)


async def test_a_standby_changes_nothing(server: FakeApiServer) -> None:
    async with run_extender(server, "--lease=serried-system/serried", "--lease-holder-prefix=here") as standby:
        await standby.feed.synced.wait()
        standby.reports.report_verdict(GroupKey("default", "g"), Verdict(Reason.QUORUM_MISSING))
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p0", "uid": "pod-p0"}
        standby.events.emit(about, "Warning", "Anything", "whatever it is")
        assert "NotLeading" in await bind_plain(standby)
        await wait_until(lambda: standby.events.dropped > 0)
        assert server.list_requests(_changes) == []
