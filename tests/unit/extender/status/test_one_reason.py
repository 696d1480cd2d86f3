"""One reason, in the same words, in every place where people look, within a second of the decision."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import cast
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from cli.explain import collect, draw_group
from cli.lists import draw_decisions, draw_queue
from cli.names import Name
from cli.output import OutputFormat
from extender.features.status.reports import Reports
from extender.lead.holding import Isolation
from extender.lead.leadership import Leadership
from extender.look.routes import Gauges, debug_routes
from extender.process import make_reports
from serried.api.level import NATIVE
from serried.api.names import GroupKey
from serried.api.verdict import Verdict
from serried.feed import Feed
from serried.kube.events import EventWriter
from serried.ops.metrics import ExtenderMetrics
from tests.support.extender_harness import Harness, RecordingMetrics, gang, members, small_nodes
from tests.support.pages import Pages, render_parts

SECOND = 1.0


class Told(RecordingMetrics):
    """Hands decisions on to the reports, as the extender does."""

    reports: Reports

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        super().report_verdict(group, verdict)
        self.reports.report_verdict(group, verdict)


class Speaker:
    """A recorder of the messages of events, by the object that they are about."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = defaultdict(list)

    def emit(self, regarding: Mapping[str, str], kind: str, reason: str, message: str) -> None:
        self.said[f"{regarding['kind']}/{regarding['name']}"].append(message)


class StatusHarness:
    """A gang of three, of which two find room. Time passes when told to."""

    def __init__(self) -> None:
        told = Told()
        self.world = Harness(heard=told)
        self.speaker = Speaker()
        client, store, clock = self.world.api.client(), self.world.store, self.world.clock
        self.reports = told.reports = make_reports(client, store, cast("EventWriter", self.speaker), NATIVE, clock)
        self.telling = asyncio.create_task(self.reports.run())
        app = FastAPI()
        app.include_router(debug_routes(self.world.core, self.reports, NATIVE, dict))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug")
        self.pages = Pages(self.http)

    async def decide(self) -> str:
        """The sentence that is decided at this moment."""
        await self.world.add(*small_nodes(1), gang(3), *members(3)).run_until_idle()
        return self.reports.decisions[-1].text

    async def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.reports.wake()
        await self.world.run_tasks()

    def list_conditions(self) -> list[str]:
        return [each["message"] for each in self.world.api.conditions]

    def count_groups(self, state: str) -> float:
        """Return the number of groups in a state, as a scrape finds it."""
        metrics = ExtenderMetrics()
        isolation = Mock(spec=Isolation)
        isolation.list_unmarked.return_value = []
        leadership = Mock(spec=Leadership, active=True)
        gauges = Gauges(self.world.core, Mock(spec=Feed), NATIVE, isolation, leadership=leadership, metrics=metrics)
        gauges.sample()
        families = text_string_to_metric_families(metrics.render().decode())
        samples = (each for family in families for each in family.samples if each.name == "serried_groups")
        return next(each.value for each in samples if each.labels == {"state": state})

    async def close(self) -> None:
        await self.http.aclose()
        self.telling.cancel()
        await asyncio.gather(self.telling, return_exceptions=True)
        await self.world.close()


@pytest.fixture
async def harness() -> AsyncIterator[StatusHarness]:
    made = StatusHarness()
    yield made
    await made.close()


async def test_debug_metric_and_log_have_it_at_once(harness: StatusHarness, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sentence = await harness.decide()
    assert sentence.startswith("NoCapacity: only 2 of 3 members fit into the cluster")
    group = await harness.pages.get("groups/default/g")
    assert (group["reason"], group["message"]) == ("NoCapacity", sentence)
    assert [each["message"] for each in (await harness.pages.get("queue"))["waiting"]] == [sentence]
    assert harness.count_groups("NoCapacity") == 1.0
    (line,) = [vars(each) for each in caplog.records if vars(each).get("text") == sentence]
    assert (line["podGroup"], line["reason"]) == ("default/g", "NoCapacity")
    decision = await harness.pages.get(f"decisions/{line['decision']}")
    assert (decision["reason"], decision["text"]) == ("NoCapacity", sentence)


async def test_the_commands_have_it_at_once(harness: StatusHarness) -> None:
    sentence = await harness.decide()
    reason, _, why = sentence.partition(": ")
    (explained,) = await collect(harness.pages, [Name("default", "podgroup", "g")])
    shown = render_parts(draw_group(explained, OutputFormat.TABLE))
    assert reason in shown
    assert why in shown
    assert sentence in render_parts(draw_queue(await harness.pages.get("queue"), OutputFormat.TABLE))
    assert sentence in render_parts(draw_decisions(await harness.pages.get("decisions"), OutputFormat.TABLE))


async def test_condition_and_events_of_group_and_pod_have_it_within_a_second(harness: StatusHarness) -> None:
    sentence = await harness.decide()
    await harness.pass_time(SECOND)
    assert harness.list_conditions() == [sentence]
    assert harness.speaker.said == {"PodGroup/g": [sentence], "Pod/m0": [sentence]}


async def test_nothing_is_said_again_while_nothing_changes(harness: StatusHarness) -> None:
    sentence = await harness.decide()
    for _ in range(60):
        await harness.pass_time(SECOND)
        await harness.world.run_until_idle()
    assert harness.list_conditions() == [sentence]
    assert harness.speaker.said == {"PodGroup/g": [sentence], "Pod/m0": [sentence]}
