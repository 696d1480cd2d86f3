"""Beside a kube-controller-manager that makes Workloads itself: who looks after which Job."""

import pytest

from controller import reconciler as upstream
from controller.diff.objects import workload_body
from controller.diff.owner import DesiredAction, make_workload_create
from serried.api.level import FALLBACK
from serried.kube.wire import JOBS
from tests.support.apiserver import FakeApiServer
from tests.support.builders import JobBuilder
from tests.support.controller_harness import (
    CREATES_GROUP,
    CREATES_WORKLOAD,
    GROUPS,
    WORKLOADS,
    controller_on,
    events,
    gang,
    wait_until,
    wait_until_idle,
)


def make_as_upstream(server: FakeApiServer, builder: JobBuilder) -> None:
    """A basic Workload, as kube-controller-manager makes it: our name, the Job as controller, no label."""
    body = workload_body(make_workload_create(builder.value(), DesiredAction.TRACK), FALLBACK)
    server.add(WORKLOADS, {**body, "metadata": {**body["metadata"], "labels": {}}})


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PATIENCE_SECONDS", 3600.0)


@pytest.mark.usefixtures("patient")
async def test_its_jobs_are_left_to_it_once_it_was_seen_and_that_is_told(server: FakeApiServer) -> None:
    make_as_upstream(server, gang("first"))
    server.add(JOBS, gang("first").raw())
    async with controller_on(server) as controller:
        await wait_until(lambda: events(server, "NoGang"))
        server.add(JOBS, gang("second").raw())
        await wait_until_idle(controller, server)
        (event,) = events(server, "NoGang")
        assert "made Workload first-" in event["message"]
        assert "spec.scheduling.schedulingPolicy.gang" in event["message"]
    assert not server.list_requests(CREATES_WORKLOAD)
    assert not server.list_requests(CREATES_GROUP)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(gang("nightly-1").controlled_by("CronJob", "nightly"), id="a CronJob's"),
        pytest.param(gang("l" * 58), id="one whose template upstream cannot name"),
    ],
)
async def test_the_jobs_that_it_does_not_look_after_are_ours(server: FakeApiServer, builder: JobBuilder) -> None:
    make_as_upstream(server, gang("first"))
    server.add(JOBS, gang("first").raw())
    async with controller_on(server):
        await wait_until(lambda: events(server, "NoGang"))
        server.add(JOBS, builder.raw())
        await wait_until(lambda: server.list_objects(GROUPS))


async def test_a_job_for_which_it_makes_nothing_is_ours_after_a_while(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "PATIENCE_SECONDS", 0.05)
    make_as_upstream(server, gang("first"))
    server.add(JOBS, gang("first").raw())
    async with controller_on(server):
        await wait_until(lambda: events(server, "NoGang"))
        server.add(JOBS, gang("second").raw())
        await wait_until(lambda: len(server.list_objects(WORKLOADS)) == 2)
