import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import pytest

from extender import reports
from extender.reports import Reports
from serried.cluster.store import Store
from serried.kube.events import EventWriter
from serried.kube.wire import pod_groups
from serried.model.group import Key
from serried.model.verdict import Reason, Verdict
from serried.testing.builders import job, pod, pod_group
from tests.unit.extender.world import GANG, SCHEDULER, FakeApi, error, gang, members

MISSING = Verdict(Reason.QUORUM_MISSING, have=1, need=2)
PLANNED = Verdict(Reason.PLANNED, need=2)
UP = Verdict(Reason.SCHEDULED, have=2)


class Speaker:
    """Keeps the events."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str, str]] = []

    def emit(self, regarding: Mapping[str, str], kind: str, reason: str, message: str) -> None:
        self.said.append((f"{regarding['kind']}/{regarding['name']}", kind, reason, message))

    def reasons(self) -> list[str]:
        return [reason for _, _, reason, _ in self.said]


class Office:
    """Reports over a Store in which PodGroup g exists; verdicts settle in no time."""

    def __init__(self) -> None:
        self.api, self.speaker, self.store = FakeApi(), Speaker(), Store([SCHEDULER])
        self.store.put_group(gang(2).value())
        clock = asyncio.get_running_loop().time
        events = cast("EventWriter", self.speaker)
        groups = pod_groups("scheduling.serried.dev", "v1beta1")
        self.reports = Reports(self.api.client(), self.store, events, groups, clock)
        self.task = asyncio.create_task(self.reports.run())

    def members_run(self) -> None:
        """Both members are bound."""
        for each in members(2):
            self.store.put_pod(each.on("n1").value())

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 - the state under test has no event
                await asyncio.sleep(0.005)

    async def write_all(self) -> None:
        """Until nothing is left to write."""
        await self.until(lambda: not self.reports._pending)
        for _ in range(10):
            await asyncio.sleep(0)

    def conditions(self) -> list[tuple[str, str]]:
        return [(each["status"], each["reason"]) for each in self.api.conditions]


@pytest.fixture
async def office(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    monkeypatch.setattr(reports, "_SETTLE_SECONDS", 0.02)
    made = Office()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_condition_event_and_debug_give_the_same_reason(office: Office) -> None:
    office.reports.say(GANG, MISSING)
    await office.write_all()
    (condition,) = office.api.conditions
    text = "QuorumMissing: 1 of 2 members exist"
    assert (condition["type"], condition["status"]) == ("PodGroupInitiallyScheduled", "False")
    assert (condition["reason"], condition["message"]) == ("Unschedulable", text)
    assert office.speaker.said == [("PodGroup/g", "Warning", "QuorumMissing", text)]
    assert [(said.group, said.reason, said.text) for said in office.reports.decisions] == [
        ("default/g", "QuorumMissing", text)
    ]


async def test_a_gang_that_passes_through_costs_one_write(office: Office) -> None:
    office.reports.say(GANG, MISSING)
    office.reports.say(GANG, PLANNED)
    office.members_run()
    office.reports.say(GANG, UP)
    await office.write_all()
    assert office.conditions() == [("True", "Scheduled")]
    assert office.speaker.reasons() == ["Scheduled"]
    assert len(office.reports.decisions) == 3


async def test_a_verdict_that_keeps_changing_is_still_told_in_time(office: Office) -> None:
    async def chatter() -> None:
        for have in range(10_000):
            office.reports.say(GANG, Verdict(Reason.QUORUM_MISSING, have=have, need=20_000))
            await asyncio.sleep(0)

    talking = asyncio.create_task(chatter())
    await office.until(lambda: office.api.conditions)
    assert not talking.done()
    talking.cancel()


async def test_a_condition_that_stands_already_is_not_written_again(office: Office) -> None:
    office.store.put_group(gang(2).condition("False", "Unschedulable", "QuorumMissing: 1 of 2 members exist").value())
    office.reports.say(GANG, MISSING)
    await office.write_all()
    assert office.api.conditions == []
    assert office.speaker.reasons() == ["QuorumMissing"]


@pytest.mark.parametrize("reason", [Reason.RECORD_FAILED, Reason.PLAN_OUTDATED, Reason.DEADLINE_EXCEEDED])
async def test_faults_of_ours_are_scheduler_errors(office: Office, reason: Reason) -> None:
    office.reports.say(GANG, Verdict(reason))
    await office.write_all()
    assert office.conditions() == [("False", "SchedulerError")]


async def test_once_true_it_is_never_false_again(office: Office) -> None:
    office.store.put_group(gang(2).condition("True", "Scheduled").value())
    office.reports.say(GANG, MISSING)
    await office.write_all()
    assert office.api.conditions == []
    assert office.speaker.reasons() == ["QuorumMissing"]


async def test_once_true_it_is_never_false_again_also_before_our_watch_shows_it(office: Office) -> None:
    office.members_run()
    office.reports.say(GANG, UP)
    await office.write_all()
    office.store.drop_pod("pod-m0")
    office.reports.say(GANG, MISSING)
    await office.write_all()
    assert office.conditions() == [("True", "Scheduled")]


async def test_a_podgroup_made_anew_begins_anew(office: Office) -> None:
    office.members_run()
    office.reports.say(GANG, UP)
    await office.write_all()
    office.store.drop_pod("pod-m0")
    office.store.put_group(gang(2).uid("another").value())
    office.reports.say(GANG, MISSING)
    await office.write_all()
    assert office.conditions() == [("True", "Scheduled"), ("False", "Unschedulable")]


async def test_a_late_members_wait_does_not_hide_that_the_gang_is_up(office: Office) -> None:
    office.members_run()
    office.reports.say(GANG, Verdict(Reason.NO_CAPACITY, need=1))
    await office.write_all()
    assert office.conditions() == [("True", "Scheduled")]
    assert office.speaker.reasons() == ["NoCapacity"]


async def test_a_write_that_fails_is_tried_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.api.fail("apply", error(500))
    office.reports.say(GANG, MISSING)
    await office.until(lambda: office.api.conditions)
    assert office.conditions() == [("False", "Unschedulable")]


async def test_a_group_that_is_gone_or_going_is_not_written_to(office: Office) -> None:
    office.store.put_group(gang(2).deleting().value())
    office.reports.say(GANG, MISSING)
    await office.write_all()
    office.store.put_group(gang(2).value())
    office.api.fail("apply", error(404))
    office.reports.say(GANG, PLANNED)
    await office.write_all()
    assert office.api.conditions == []


async def test_members_without_their_group_hear_of_it_themselves(office: Office) -> None:
    office.store.put_pod(pod("p").in_group("missing").value())
    office.reports.say(Key("default", "missing"), Verdict(Reason.POD_GROUP_MISSING))
    await office.write_all()
    assert [(about, reason) for about, _, reason, _ in office.speaker.said] == [("Pod/p", "PodGroupMissing")]


async def test_a_job_whose_podgroup_does_not_exist_yet_hears_of_it(office: Office) -> None:
    office.store.put_job(job("j").size(2).value())
    office.reports.say(Key("default", "job:j"), Verdict(Reason.POD_GROUP_MISSING))
    await office.write_all()
    assert [(about, reason) for about, _, reason, _ in office.speaker.said] == [("Job/j", "PodGroupMissing")]


async def test_success_is_an_event_once(office: Office) -> None:
    office.members_run()
    for have in (2, 3):
        office.reports.say(GANG, Verdict(Reason.SCHEDULED, have=have))
        await office.write_all()
    assert office.speaker.reasons() == ["Scheduled"]


async def test_groups_that_are_gone_are_not_remembered_for_ever(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_REMEMBERED", 5)
    for number in range(20):
        key = Key("default", f"g{number}")
        office.store.put_group(pod_group(key.name).value())
        office.reports.say(key, MISSING)
        await office.write_all()
        office.store.drop_group(key)
    assert len(office.reports._told) <= 10
