"""Gangs of scheduler-plugins' PodGroups, beside those of the level in use."""

import asyncio
from typing import cast
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.core.binding.records import Records
from extender.core.protocol import Hold, Pass
from extender.look.routes import debug_routes
from extender.process import make_reports
from serried.api.level import FALLBACK
from serried.api.names import COMPATIBLE_API, GroupKey, GroupKind
from serried.api.reservation import Reservation, Slot
from serried.api.verdict import Reason, Verdict
from serried.kube.events import EventWriter
from serried.ops.steps import finish
from tests.support.builders import CompatibleGroupBuilder, PodBuilder, compatible_group, pod
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

THEIRS = GroupKey("default", "g", GroupKind.COMPATIBLE)


def theirs(min_member: int) -> CompatibleGroupBuilder:
    """PodGroup g of scheduler-plugins."""
    return compatible_group("g").gang(min_member)


def their_members(count: int, first: int = 0) -> list[PodBuilder]:
    """Pods c0, c1, ... of it, one CPU each."""
    return [
        pod(f"c{index}").cpu(1).scheduler(SCHEDULER).in_compatible_group("g") for index in range(first, first + count)
    ]


async def test_two_groups_of_one_name_are_two_gangs(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), theirs(3), *members(2), *their_members(2)).run_until_idle()
    assert world.reasons()[-1] is Reason.PLANNED
    assert world.reasons(THEIRS) == [Reason.QUORUM_MISSING]
    assert isinstance(world.filter("c0"), Hold)

    await world.add(*small_nodes(3), *their_members(1, first=2)).run_until_idle()
    calls = [world.bind(f"c{index}") for index in range(3)]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", "", ""]
    assert not world.binding_cycle(GANG).at_bind


async def test_the_record_is_owned_by_the_object_and_found_again_by_its_group(world: Harness) -> None:
    await world.add(*small_nodes(2), theirs(2), *their_members(2)).run_until_idle()
    world.api.hold("bind")
    for name in ("c0", "c1"):
        world.bind(name)
    await world.run_tasks()
    ((key, record),) = world.api.records.items()
    assert key.name.startswith("compatible.g-")
    assert record["metadata"]["ownerReferences"] == [
        {"apiVersion": COMPATIBLE_API, "kind": "PodGroup", "name": "g", "uid": "compatible-g"}
    ]
    (loaded,) = await world.records.take_over()
    assert loaded.group == THEIRS


async def test_what_an_earlier_term_has_committed_is_rolled_forward(world: Harness) -> None:
    group = theirs(2).value()
    slots = {f"pod-c{index}": Slot(f"pod-c{index}", f"c{index}", "n1") for index in range(2)}
    left = Reservation(THEIRS, group.uid, "", 2, slots, frozenset(slots))
    await Records(world.api.client(), "v1", "earlier").write(group, left)
    world.add(*small_nodes(2), theirs(2), *their_members(2))
    await world.recovery.recover()
    await world.run_until_idle()
    assert (world.node_of("c0"), world.node_of("c1")) == ("n1", "n1")
    assert world.nothing_reserved


async def test_pods_without_their_group_are_held(world: Harness) -> None:
    await world.add(*small_nodes(2), *their_members(2)).run_until_idle()
    assert world.reasons(THEIRS) == [Reason.POD_GROUP_MISSING]
    assert isinstance(world.filter("c0"), Hold)


async def test_pods_hear_of_the_api_that_their_own_group_lacks(world: Harness) -> None:
    world.store.set_obstacle("no API of Workloads")
    await world.add(*small_nodes(2), *members(2), *their_members(2)).run_until_idle()
    assert (world.reasons(), world.reasons(THEIRS)) == ([Reason.API_MISSING], [Reason.POD_GROUP_MISSING])
    world.store.set_compatible_obstacle("no API of scheduler-plugins")
    await world.run_until_idle()
    assert world.groups.states[THEIRS].verdict == Verdict(Reason.API_MISSING, detail="no API of scheduler-plugins")
    world.store.set_compatible_obstacle("")
    await world.run_until_idle()
    assert world.reasons(THEIRS)[-1] is Reason.POD_GROUP_MISSING


async def test_members_of_a_group_without_quorum_pass_one_by_one(world: Harness) -> None:
    await world.add(*small_nodes(2), compatible_group("g"), *their_members(1)).run_until_idle()
    assert isinstance(world.filter("c0"), Pass)


class TestTimeout:
    @pytest.mark.parametrize(
        ("own", "kept", "over"),
        [
            pytest.param(20, 19.0, 1.5, id="a shorter one counts"),
            pytest.param(4000, 59.0, 1.5, id="a longer one leaves the barrier's own deadlines alone"),
        ],
    )
    async def test_a_gang_waits_at_bind_no_longer_than_it_says(
        self, world: Harness, own: int, kept: float, over: float
    ) -> None:
        await world.add(*small_nodes(2), theirs(2).timeout(own), *their_members(2)).run_until_idle()
        call = world.bind("c0")
        await world.run_tasks()
        await world.pass_time(kept)
        assert call.waiting
        await world.pass_time(over)
        assert call.error == "serried: DeadlineExceeded"
        assert world.reasons(THEIRS)[-1] is Reason.DEADLINE_EXCEEDED
        assert world.nothing_reserved


class TestOtherSchedulers:
    """scheduler-plugins may run in the same cluster, with PodGroups and pods of its own."""

    @pytest.mark.parametrize(
        "group", [pytest.param([theirs(2)], id="whose group we see"), pytest.param([], id="whose group we do not see")]
    )
    async def test_of_a_gang_of_another_scheduler_nothing_is_said(
        self, world: Harness, group: list[CompatibleGroupBuilder]
    ) -> None:
        foreign = [each.scheduler("scheduler-plugins-scheduler") for each in their_members(1)]
        await world.add(*small_nodes(2), *group, *foreign).run_until_idle()
        assert world.reasons(THEIRS) == []

    async def test_of_a_group_without_pods_nothing_is_said(self, world: Harness) -> None:
        await world.add(*small_nodes(2), theirs(2)).run_until_idle()
        assert world.reasons(THEIRS) == []

    async def test_one_member_of_ours_makes_it_ours_until_it_goes(self, world: Harness) -> None:
        await world.add(*small_nodes(2), theirs(2), *their_members(1)).run_until_idle()
        assert world.reasons(THEIRS) == [Reason.QUORUM_MISSING]
        world.delete("c0")
        await world.run_until_idle()
        assert THEIRS not in world.groups.states


async def test_its_turn_comes_by_the_priority_of_its_pods(world: Harness) -> None:
    important = [each.priority(10) for each in their_members(2)]
    world.add(*small_nodes(2), gang(2).priority(5), *members(2), theirs(2), *important)
    assert finish(world.group_scheduler.sort_in_queue_order({GANG, THEIRS})) == [THEIRS, GANG]


async def test_debug_names_the_object(world: Harness) -> None:
    await world.add(*small_nodes(2), theirs(3), *their_members(2)).run_until_idle()
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        shown = (await http.get("/debug/groups/default/compatible:g")).json()
    assert shown["object"] == {"apiVersion": COMPATIBLE_API, "kind": "PodGroup", "name": "g"}
    assert (shown["minCount"], shown["reason"]) == (3, "QuorumMissing")


async def test_events_are_about_the_object_and_its_status_is_left_alone(world: Harness) -> None:
    said = Mock()
    reports = make_reports(world.api.client(), world.store, cast("EventWriter", said), FALLBACK, world.clock)
    world.add(theirs(3), *their_members(2))
    reports.report_verdict(THEIRS, Verdict(Reason.QUORUM_MISSING, have=2, need=3))
    world.clock.advance(1.0)
    task = asyncio.create_task(reports.run())
    await world.run_tasks()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    first, second = (call.args for call in said.emit.call_args_list)
    about, *event = first
    assert about == {
        "apiVersion": COMPATIBLE_API, "kind": "PodGroup", "namespace": "default", "name": "g", "uid": "compatible-g",
    }  # fmt: skip
    assert event == ["Warning", "QuorumMissing", "QuorumMissing: 2 of 3 members exist"]
    assert (second[0]["kind"], second[0]["name"], list(second[1:])) == ("Pod", "c0", event)
    assert world.api.list_calls("apply") == []
