"""An extender whose Jobs are not served any more, and after they have come back."""

import pytest

from serried import feed
from serried.kube.reflector import WatchTiming
from serried.kube.wire import JOBS
from tests.support.apiserver import FakeApiServer
from tests.support.extender_process import run_extender
from tests.support.faults import calls
from tests.support.reflector_harness import wait_until

READS = calls("GET", "/reservations")


async def test_a_term_that_begins_meanwhile_judges_the_records_when_all_is_seen_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "_WATCH_TIMING", WatchTiming(unserved=0.02, unserved_after=0.02, absent_after=0.02))
    async with FakeApiServer() as server, run_extender(server) as extender:
        await wait_until(lambda: extender.core.term.plans)
        server.served.discard(JOBS)
        server.end_watches(JOBS)
        await wait_until(lambda: bool(extender.store.obstacles.needed))
        assert not extender.readiness()["synced"]
        extender.core.end_term()
        extender.takeover.on_leadership_change()
        before = len(server.list_requests(READS))
        asked = len(server.list_requests(calls("GET", "/jobs")))
        await wait_until(lambda: len(server.list_requests(calls("GET", "/jobs"))) > asked + 3)
        assert len(server.list_requests(READS)) == before
        assert not extender.core.term.plans
        server.served.add(JOBS)
        await wait_until(lambda: extender.core.term.plans)
        assert len(server.list_requests(READS)) > before
