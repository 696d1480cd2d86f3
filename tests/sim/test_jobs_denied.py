"""An extender whose Jobs are not shown to it any more, by a role that went, or by a connection that is dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from extender.core.protocol import Hold, Pass
from extender.process import Extender
from serried import feed
from serried.api.names import GroupKey, GroupKind
from serried.kube.reflector import WatchTiming
from serried.kube.wire import JOBS, NODES, PODS
from tests.support.apiserver import FakeApiServer
from tests.support.builders import job, node, pod
from tests.support.extender_process import run_extender
from tests.support.faults import calls
from tests.support.reflector_harness import wait_until

WAITING = GroupKey("default", "j", GroupKind("Job"))
PODS_OF_J = [pod(f"j-{index}").of_job("j", index).cpu(1).scheduler("serried") for index in range(2)]


def refuse(server: FakeApiServer) -> None:
    """Delete the role that lets the extender read Jobs."""
    server.reject(calls("GET", "/jobs"), 10**6, status=403, reason="Forbidden")
    server.end_watches(JOBS)


def fall_silent(server: FakeApiServer) -> None:
    """Drop all changes of Jobs from the watches."""
    server.drop_changes(JOBS)


@asynccontextmanager
async def planning(server: FakeApiServer) -> AsyncIterator[Extender]:
    async with run_extender(server, "--job-unknown-deadline=0.05") as extender:
        await wait_until(lambda: extender.core.term.plans)
        yield extender


def why(extender: Extender) -> str:
    """Return the detail of the verdict on Job j's pods; "" without one."""
    state = extender.core.groups.states.get(WAITING)
    return state.verdict.detail if state is not None and state.verdict is not None else ""


@pytest.mark.parametrize(
    ("go_blind", "said"),
    [
        pytest.param(
            refuse,
            "Serried cannot find out whether the Job exists: GET /apis/batch/v1/namespaces/default/jobs",
            id="403",
        ),
        pytest.param(fall_silent, "the API server has the Job, but no watch has shown it yet", id="silence"),
    ],
)
async def test_the_pods_of_a_job_that_is_made_meanwhile_are_held_and_say_why(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, go_blind: Callable[[FakeApiServer], None], said: str
) -> None:
    monkeypatch.setattr(feed, "_WATCH_TIMING", WatchTiming(unserved=0.02, unserved_after=0.02))
    server.add(NODES, node("n1").cpu(4).raw())
    async with planning(server) as extender:
        await asyncio.wait_for(server.await_watch(JOBS), 10)
        go_blind(server)
        server.add(JOBS, job("j").size(2).scheduler("serried").raw())
        for each in PODS_OF_J:
            server.add(PODS, each.raw())
        await wait_until(lambda: why(extender).startswith(said))
        assert [extender.core.service.filter(each.value(), ["n1"]) for each in PODS_OF_J] == [Hold(), Hold()]


async def test_the_pods_of_a_job_that_is_gone_are_let_go(server: FakeApiServer) -> None:
    server.add(NODES, node("n1").cpu(4).raw())
    server.add(PODS, PODS_OF_J[0].raw())
    async with planning(server) as extender:
        await wait_until(lambda: extender.core.service.filter(PODS_OF_J[0].value(), ["n1"]) == Pass())
