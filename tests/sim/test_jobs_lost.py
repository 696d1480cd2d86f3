"""An extender whose Jobs are not served any more, and after they have come back."""

import asyncio

import pytest

from extender.process import Extender
from serried import feed
from serried.kube.reflector import WatchTiming
from serried.kube.wire import JOBS
from serried.model.level import FALLBACK
from serried.observe.prometheus import PrometheusExtenderMetrics
from serried.settings import extender_settings
from tests.support.apiserver import FakeApiServer
from tests.support.faults import calls
from tests.support.reflector_harness import until_true

FLAGS = ["--lease", "", *(f"--{name}-listen=127.0.0.1:0" for name in ("filter", "bind", "ops"))]
READS = calls("GET", "/reservations")


async def test_a_term_that_begins_meanwhile_judges_the_records_when_all_is_seen_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "_WATCH_TIMING", WatchTiming(unserved=0.02, unserved_after=0.02, absent_after=0.02))
    async with FakeApiServer() as server, server.client() as client:
        extender = Extender(extender_settings(FLAGS, {}), client, FALLBACK, PrometheusExtenderMetrics())
        task = asyncio.create_task(extender.run())
        try:
            await until_true(lambda: extender.core.term.plans)
            server.served.discard(JOBS)
            server.end_watches(JOBS)
            await until_true(lambda: bool(extender.store.obstacles.needed))
            assert not extender.readiness()["synced"]
            extender.core.end_term()
            extender.takeover.note_turn()
            before = len(server.seen(READS))
            asked = len(server.seen(calls("GET", "/jobs")))
            await until_true(lambda: len(server.seen(calls("GET", "/jobs"))) > asked + 3)
            assert len(server.seen(READS)) == before
            assert not extender.core.term.plans
            server.served.add(JOBS)
            await until_true(lambda: extender.core.term.plans)
            assert len(server.seen(READS)) > before
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
