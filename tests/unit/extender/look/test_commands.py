"""The commands show what the extender's own pages say: every field that they read is there."""

from collections.abc import AsyncIterator
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from cli.explain import collect, draw_group
from cli.lists import draw_decisions, draw_domains, draw_queue
from cli.names import Name
from cli.output import OutputFormat
from extender.features.status.reports import LoggedDecision
from extender.look.routes import debug_routes
from serried.api.level import FALLBACK
from serried.api.names import GroupKey
from tests.support.builders import RACK, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, small_nodes
from tests.support.pages import Pages, render_parts


@pytest.fixture
async def pages(world: Harness) -> AsyncIterator[Pages]:
    """Two racks of a node: one gang is there already, a larger one waits."""
    world.add(*(node.rack(f"r{number}") for number, node in enumerate(small_nodes(2))))
    world.add(pod_group("big").gang(9).topology().owned_by("Job", "big"))
    world.add(*(pod(f"big-{number}").cpu(1).scheduler(SCHEDULER).in_group("big") for number in range(9)))
    world.add(pod_group("runs").gang(1), pod("runs-0").cpu(1).scheduler(SCHEDULER).in_group("runs"))
    await world.run_until_idle()
    reports = Mock()
    reports.decisions = [
        LoggedDecision("2026-01-01T00:00:00Z", GroupKey("default", name), "X", "X: said") for name in ("big", "gone")
    ]
    app = FastAPI()
    app.include_router(debug_routes(world.core, reports, FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield Pages(http)


async def test_a_gang_that_waits_is_explained_by_its_job(pages: Pages) -> None:
    (group,) = await collect(pages, [Name("default", "job", "big")])
    shown = render_parts(draw_group(group, OutputFormat.TABLE))
    for part in (
        "default/job/big",
        "gang of 9",
        "NoDomainFits",
        "1 of 1 that wait for resources",
        RACK,
        "r0",
        "big-8",
        "quorum",
    ):
        assert part in shown, shown
    assert group["diagnosis"]["advice"] is not None


async def test_the_queue_names_it_and_why_it_waits(pages: Pages) -> None:
    shown = render_parts(draw_queue(await pages.get("queue"), OutputFormat.TABLE))
    assert "job/big" in shown
    assert "NoDomainFits" in shown


async def test_the_racks_show_who_is_there(pages: Pages) -> None:
    shown = render_parts(draw_domains(await pages.get("domains"), OutputFormat.TABLE))
    assert RACK in shown
    assert "default/runs (1)" in shown


async def test_decisions_name_the_job_while_its_group_is_there(pages: Pages) -> None:
    shown = render_parts(draw_decisions(await pages.get("decisions"), OutputFormat.TABLE))
    assert [line.split()[-3] for line in shown.splitlines()[1:]] == ["gone", "job/big"]
