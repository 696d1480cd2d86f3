"""Gangs of Kueue's plain pod groups: their pods say the name and the number, and there is no object."""

import asyncio
from typing import cast
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.core.protocol import Hold, Pass
from extender.look.routes import debug_routes
from extender.process import make_reports
from serried.api.level import FALLBACK
from serried.api.names import GroupKey, GroupKind
from serried.api.verdict import Reason, Verdict
from serried.kube.events import EventWriter
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import SCHEDULER, Harness, small_nodes

THEIRS = GroupKey("default", "g", GroupKind.COUNTED, "3")


def grouped(count: int, first: int = 0, total: int = 3) -> list[PodBuilder]:
    """Pods k0, k1, ... of a pod group g of Kueue, one CPU each."""
    made = [pod(f"k{index}").cpu(1).scheduler(SCHEDULER) for index in range(first, first + count)]
    return [each.in_counted_group("g", str(total)) for each in made]


async def test_pods_wait_until_all_of_the_group_are_there_and_are_bound_together(world: Harness) -> None:
    await world.add(*small_nodes(3), *grouped(2)).run_until_idle()
    assert world.reasons(THEIRS) == [Reason.QUORUM_MISSING]
    assert isinstance(world.filter("k0"), Hold)

    await world.add(*grouped(1, first=2)).run_until_idle()
    calls = [world.bind(f"k{index}") for index in range(2)]
    await world.run_tasks()
    assert [call.waiting for call in calls] == [True, True]
    calls.append(world.bind("k2"))
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", "", ""]
    assert world.reasons(THEIRS)[-1] is Reason.SCHEDULED


async def test_a_group_that_does_not_fit_as_a_whole_is_not_bound_in_part(world: Harness) -> None:
    await world.add(*small_nodes(1), *grouped(3)).run_until_idle()
    assert world.reasons(THEIRS)[-1] is Reason.NO_CAPACITY
    assert isinstance(world.filter("k0"), Hold)


async def test_the_gate_of_kueue_is_named_while_one_pod_has_it(world: Harness) -> None:
    gated = [each.gate("kueue.x-k8s.io/admission") for each in grouped(1, first=2)]
    await world.add(*small_nodes(3), *grouped(2), *gated).run_until_idle()
    verdict = world.groups.states[THEIRS].verdict
    assert verdict is not None
    assert verdict.reason is Reason.MEMBER_GATED
    assert "kueue.x-k8s.io/admission" in str(verdict)


async def test_the_group_is_gone_with_its_last_pod(world: Harness) -> None:
    await world.add(*small_nodes(1), *grouped(2)).run_until_idle()
    assert THEIRS in world.store.groups
    world.delete("k0")
    await world.run_until_idle()
    assert THEIRS in world.store.groups
    world.delete("k1")
    await world.run_until_idle()
    assert THEIRS not in world.store.groups
    assert THEIRS not in world.groups.states


async def test_pods_that_disagree_about_the_number_are_no_gang_together(world: Harness) -> None:
    await world.add(*small_nodes(3), *grouped(2), *grouped(1, first=2, total=2)).run_until_idle()
    other = THEIRS._replace(part="2")
    assert (world.reasons(THEIRS)[-1], world.reasons(other)[-1]) == (Reason.QUORUM_MISSING, Reason.QUORUM_MISSING)


async def test_the_record_has_no_owner_and_is_found_again_by_its_group(world: Harness) -> None:
    await world.add(*small_nodes(2), *grouped(3)).run_until_idle()
    world.api.hold("bind")
    for index in range(3):
        world.bind(f"k{index}")
    await world.run_tasks()
    ((key, record),) = world.api.records.items()
    assert key.name.startswith("kueue.g.3-")
    assert record["metadata"]["ownerReferences"] == []
    (loaded,) = await world.records.take_over()
    assert loaded.group == THEIRS


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(grouped(1)[0].annotation("kueue.x-k8s.io/pod-group-serving", "true"), id="that serves"),
        pytest.param(grouped(1)[0].annotation("kueue.x-k8s.io/pod-group-fast-admission", "true"), id="admitted early"),
        pytest.param(pod("k0").cpu(1).scheduler(SCHEDULER).in_counted_group("g", "many"), id="without a number"),
    ],
)
async def test_a_pod_of_a_group_passes_by_itself(world: Harness, builder: PodBuilder) -> None:
    await world.add(*small_nodes(1), builder).run_until_idle()
    assert isinstance(world.filter("k0"), Pass)


async def test_events_are_about_a_pod_and_nothing_is_written(world: Harness) -> None:
    said = Mock()
    reports = make_reports(world.api.client(), world.store, cast("EventWriter", said), FALLBACK, world.clock)
    world.add(*grouped(2))
    reports.report_verdict(THEIRS, Verdict(Reason.QUORUM_MISSING, have=2, need=3))
    world.clock.advance(1.0)
    task = asyncio.create_task(reports.run())
    await world.run_tasks()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (call,) = said.emit.call_args_list
    about, *event = call.args
    assert (about["kind"], about["name"]) == ("Pod", "k0")
    assert event == ["Warning", "QuorumMissing", "QuorumMissing: 2 of 3 members exist"]
    assert world.api.list_calls("apply") == []


async def test_debug_shows_the_group_without_an_object(world: Harness) -> None:
    await world.add(*small_nodes(2), *grouped(2)).run_until_idle()
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        shown = (await http.get("/debug/groups/default/kueue:g:3")).json()
    assert shown["object"] is None
    assert (shown["minCount"], shown["reason"]) == (3, "QuorumMissing")
