"""An extender that cannot read its records: nothing is planned, everybody hears why, and nobody else waits for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.core.protocol import Hold
from extender.lead import leadership as takeover
from extender.process import Extender
from serried.api.level import FALLBACK
from serried.api.names import GroupKey
from serried.kube.retry import Backoff
from serried.kube.wire import EVENTS, JOBS, NODES, PODS, RESERVATIONS, pod_groups
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.builders import JobBuilder, PodBuilder, job, node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_process import run_extender
from tests.support.faults import calls

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)
GANG = GroupKey("default", "g")
READS = calls("GET", "/reservations")


class Scene:
    """An extender over an API server with room for a gang of two, whose members exist."""

    def __init__(self, server: FakeApiServer, extender: Extender) -> None:
        self.server, self.extender = server, extender

    def reason(self) -> str:
        gang = self.extender.core.groups.states.get(GANG)
        return gang.verdict.reason.value if gang is not None and gang.verdict is not None else ""

    def told(self) -> list[str]:
        """The messages of the PodGroup's events."""
        events = self.server.list_objects(EVENTS)
        return [event["message"] for event in events if event["involvedObject"]["kind"] == "PodGroup"]

    def was_kicked(self, name: str) -> bool:
        (found,) = [raw for raw in self.server.list_objects(PODS) if raw["metadata"]["name"] == name]
        return "scheduling.serried.dev/kick" in found["metadata"].get("annotations", {})


@asynccontextmanager
async def running(server: FakeApiServer) -> AsyncIterator[Scene]:
    for name in ("n1", "n2"):
        server.add(NODES, node(name).cpu(2).raw())
    server.add(GROUPS, pod_group("g").gang(2).raw())
    for name in ("p0", "p1"):
        server.add(PODS, pod(name).cpu(1).scheduler("serried").in_group("g").raw())
    async with run_extender(server) as extender:
        yield Scene(server, extender)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_BACKOFF", Backoff(first=0.02, cap=0.05))


def plain() -> tuple[JobBuilder, PodBuilder]:
    """A Job that is no gang, and its pod."""
    return job("plain").size(1).scheduler("serried"), pod("plain-0").of_job("plain", 0).scheduler("serried")


@asynccontextmanager
async def in_the_dark(status: int) -> AsyncIterator[Scene]:
    """The records cannot be read: their CRD is missing (404), or the right to see them (403)."""
    served = tuple(each for each in SERVED if status != 404 or each != RESERVATIONS)
    async with FakeApiServer(served=served) as server:
        if status == 403:
            server.reject(READS, 10**6, status=403)
        async with running(server) as scene:
            yield scene


def mend(server: FakeApiServer) -> None:
    """The CRD is there, and so is the right."""
    server.served.add(RESERVATIONS)
    server.recover()


WHY = {
    404: "the API server does not serve reservations.scheduling.serried.dev (v1beta1): install the CRDs",
    403: "the API server does not let Serried read reservations.scheduling.serried.dev (v1beta1): apply the roles",
}


@pytest.mark.parametrize("status", WHY)
async def test_a_gang_hears_what_is_missing_and_what_helps(status: int) -> None:
    async with in_the_dark(status) as scene:
        await wait_until(scene.told)
        assert scene.told()[0].startswith("RecordsUnreadable: ")
        assert WHY[status] in scene.told()[0]
        assert not scene.extender.core.ledger.of_group(GANG)


@pytest.mark.parametrize("status", WHY)
async def test_the_probe_and_the_selfcheck_say_it(status: int) -> None:
    async with in_the_dark(status) as scene:
        await wait_until(lambda: scene.extender.selfcheck.describe()["obstacle"] == WHY[status])
        assert scene.extender.selfcheck.describe()["planning"] is False
        assert scene.extender.readiness() == {"synced": True, "records": False}


@pytest.mark.parametrize("status", WHY)
async def test_a_plain_jobs_pod_that_was_held_for_a_moment_is_woken_meanwhile(status: int) -> None:
    its_job, its_pod = plain()
    async with in_the_dark(status) as scene:
        await wait_until(lambda: scene.extender.core.term.obstacle)
        assert scene.extender.core.service.filter(its_pod.value(), ["n1"]) == Hold()
        scene.server.add(JOBS, its_job.raw())
        scene.server.add(PODS, its_pod.raw())
        await wait_until(lambda: scene.was_kicked("plain-0"))
        assert not scene.was_kicked("p0")


@pytest.mark.parametrize("status", WHY)
async def test_gangs_are_planned_once_the_records_can_be_read(status: int) -> None:
    async with in_the_dark(status) as scene:
        await wait_until(lambda: scene.reason() == "RecordsUnreadable")
        mend(scene.server)
        await wait_until(lambda: scene.reason() == "Planned")
        assert scene.extender.readiness() == {"synced": True, "records": True}
        assert scene.extender.selfcheck.describe()["obstacle"] == ""


@pytest.mark.parametrize("status", WHY)
async def test_what_is_lost_within_a_term_is_told_and_its_return_is_seen(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "_READ_SECONDS", 0.02)
    async with FakeApiServer() as server, running(server) as scene:
        await wait_until(lambda: scene.reason() == "Planned")
        if status == 404:
            server.served.discard(RESERVATIONS)
        else:
            server.reject(READS, 10**6, status=403)
        await wait_until(lambda: scene.reason() == "RecordsUnreadable")
        assert scene.extender.selfcheck.describe()["obstacle"] == WHY[status]
        mend(server)
        await wait_until(lambda: scene.reason() == "Planned")


async def test_one_refusal_alone_is_believed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_READ_SECONDS", 0.02)
    async with FakeApiServer() as server, running(server) as scene:
        await wait_until(lambda: scene.reason() == "Planned")
        terms = scene.extender.core.term
        server.reject(READS, 1, status=403)
        seen = len(server.requests)
        await wait_until(lambda: len(server.requests) > seen + 3)
        assert terms.plans
        assert scene.reason() == "Planned"


LATER = {
    "metadata": {"name": "other", "namespace": "default"},
    "spec": {"format": 3, "podGroup": "other", "podGroupUID": "u", "phase": "Committed", "minCount": 1, "slots": []},
}
"""A record that a later release has left behind, in a format that this release does not know."""

HELP = "the Reservation has format 3 of a later release of Serried: run that release, or delete the Reservation"


async def test_a_record_of_a_later_release_is_told_of_and_left_alone_until_somebody_acts() -> None:
    async with FakeApiServer() as server:
        left = server.add(RESERVATIONS, LATER)
        async with running(server) as scene:
            await wait_until(scene.told)
            assert scene.told()[0].startswith("RecordsUnreadable: ")
            assert HELP in scene.told()[0]
            assert scene.extender.readiness() == {"synced": True, "records": False}
            assert server.list_objects(RESERVATIONS) == [left]
            assert not server.list_requests(lambda request: request.method != "GET" and "/reservations" in request.path)

            server.remove(RESERVATIONS, "default", "other")
            await wait_until(lambda: scene.reason() == "Planned")
            assert scene.extender.readiness() == {"synced": True, "records": True}


COMMITTED: dict[str, Any] = {
    "metadata": {"name": "other", "namespace": "default"},
    "spec": {
        "podGroup": "other",
        "podGroupUID": "u",
        "phase": "Committed",
        "minCount": 1,
        "slots": [{"node": "n1", "members": [{"uid": "u0", "name": "other-0"}]}],
    },
}
"""A record that promises a node to a pod that the watch does not show. An earlier leader has written it."""


async def test_a_record_that_cannot_be_judged_is_told_of_and_nothing_is_planned_before() -> None:
    async with FakeApiServer() as server:
        server.add(RESERVATIONS, COMMITTED)
        server.reject(calls("GET", "/pods/other-0"), 10**6, status=500)
        async with running(server) as scene:
            await wait_until(scene.told)
            assert scene.told()[0].startswith("RecordsUnreadable: ")
            assert "cannot tell whether default/other-0, a member of a committed gang, exists" in scene.told()[0]
            assert len(server.list_objects(RESERVATIONS)) == 1

            server.recover()
            await wait_until(lambda: scene.reason() == "Planned")
            await wait_until(lambda: not server.list_objects(RESERVATIONS))


async def test_a_record_that_nobody_may_change_keeps_no_gang_from_being_planned() -> None:
    async with FakeApiServer() as server:
        server.add(RESERVATIONS, {**COMMITTED, "spec": {**COMMITTED["spec"], "phase": "Planned"}})
        for method in ("PUT", "DELETE"):
            server.reject(calls(method, "/reservations/other"), 10**6, status=403)
        async with running(server) as scene:
            await wait_until(lambda: scene.reason() == "Planned")
            assert scene.extender.readiness() == {"synced": True, "records": True}

            server.recover()
            await wait_until(lambda: not server.list_objects(RESERVATIONS))


async def test_a_failure_of_a_moment_is_not_told() -> None:
    async with FakeApiServer() as server:
        server.reject(READS, 2, status=500)
        async with running(server) as scene:
            await wait_until(lambda: scene.reason() == "Planned")
            said = [each.reason for each in scene.extender.reports.decisions]
            assert "RecordsUnreadable" not in said
