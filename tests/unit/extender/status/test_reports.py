import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import pytest

from extender.features.status import reports
from extender.process import make_reports
from serried.api.group import FirstQuorum
from serried.api.level import FALLBACK, NATIVE, V1ALPHA2, ApiLevel
from serried.api.names import GroupKey, GroupKind
from serried.api.verdict import Reason, Verdict, render
from serried.cluster.cache import Store
from serried.kube.events import EventWriter
from serried.rules.all import RULES
from tests.support.builders import job, pod, pod_group
from tests.support.clock import Clock
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, gang, members
from tests.support.fake_api import FakeApi, error
from tests.support.memory import read_memory
from tests.support.parents import leader_worker_set
from tests.support.priorities import priority_class

MISSING = Verdict(Reason.QUORUM_MISSING, have=1, need=2)
MISSING_TEXT = "QuorumMissing: 1 of 2 members exist"
PLANNED = Verdict(Reason.PLANNED, need=2)
FULL = Verdict(Reason.NO_CAPACITY, have=1, need=2)
OUTDATED = Verdict(Reason.PLAN_OUTDATED)
NO_CLASS = Verdict(Reason.PRIORITY_UNKNOWN, key="high")
UP = Verdict(Reason.SCHEDULED, have=2)


def binding(have: int) -> Verdict:
    """The commit stands, and so many members are bound."""
    return Verdict(Reason.BINDING, have=have, need=20)


class Speaker:
    """A recorder of events."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str, str]] = []
        self.pods: list[tuple[str, str]] = []
        """The reasons that members have heard, with their names."""

    def emit(self, regarding: Mapping[str, str], kind: str, reason: str, message: str) -> None:
        if regarding["kind"] == "Pod" and self.said and self.said[-1][2:] == (reason, message):
            self.pods.append((regarding["name"], reason))
            return
        self.said.append((f"{regarding['kind']}/{regarding['name']}", kind, reason, message))

    def reasons(self) -> list[str]:
        return [reason for _, _, reason, _ in self.said]


class Office:
    """Reports over a Store in which PodGroup g and its member m0 exist. Time passes when told to."""

    def __init__(self, level: ApiLevel = FALLBACK) -> None:
        self.api, self.speaker, self.store = FakeApi(), Speaker(), Store([SCHEDULER], rules=RULES)
        self.store.put_group(gang(2).value())
        self.store.put_pod(members(1)[0].value())
        self.clock = Clock()
        events = cast("EventWriter", self.speaker)
        self.binds = False
        """True while a gang is being bound."""

        self.place: FirstQuorum | None = None
        """The place of PodGroup g in the queue."""

        self.reports = make_reports(
            self.api.client(), self.store, events, level, self.clock, lambda: self.binds, lambda _: self.place
        )
        self.stuck: set[GroupKey] = set()
        self.task = asyncio.create_task(self.reports.run())

    def members_run(self, job: str = "") -> None:
        """Bind both members, as pods of a Job if one is named."""
        for place, each in enumerate(members(2)):
            made = each.of_job(job, place) if job else each
            self.store.put_pod(made.on("n1").value())

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - the state under test has no event
                await asyncio.sleep(0.005)

    async def pass_time(self, seconds: float) -> None:
        """Until all that is due by then is written, but for what the API server keeps waiting."""
        self.clock.advance(seconds)
        self.reports.wake()
        await self.until(lambda: not self._due() and not read_memory(self.reports)["writing"] - self.stuck)

    def _due(self) -> bool:
        memory = read_memory(self.reports)
        return bool(memory["due_entries"]) or any(due <= self.clock() for due, _ in memory["due_times"])

    async def settle(self) -> None:
        """Until what was said last is told."""
        await self.pass_time(1.0)

    def conditions(self) -> list[tuple[str, str]]:
        return [(each["status"], each["reason"]) for each in self.api.conditions]


@pytest.fixture
async def office(request: pytest.FixtureRequest) -> AsyncIterator[Office]:
    made = Office(getattr(request, "param", FALLBACK))
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_condition_event_and_debug_give_the_same_reason(office: Office) -> None:
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    (condition,) = office.api.conditions
    assert (condition["type"], condition["status"]) == ("PodGroupInitiallyScheduled", "False")
    assert (condition["reason"], condition["message"]) == ("Unschedulable", MISSING_TEXT)
    assert office.speaker.said == [("PodGroup/g", "Warning", "QuorumMissing", MISSING_TEXT)]
    assert [(said.group, said.reason, said.text) for said in office.reports.decisions] == [
        (GANG, "QuorumMissing", MISSING_TEXT)
    ]


async def test_a_reason_is_told_also_if_the_wall_clock_was_set_back_since_the_last_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    back = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: back)
    office.reports.report_verdict(GANG, FULL)
    await office.settle()
    before, after = office.api.conditions
    assert after["lastTransitionTime"] < before["lastTransitionTime"]
    assert after["message"] == render(FULL)
    assert office.speaker.reasons() == ["QuorumMissing", "NoCapacity"]


@pytest.mark.parametrize("office", [ApiLevel("native", "scheduling.k8s.io", V1ALPHA2)], indirect=True)
async def test_1_36_has_another_name_for_the_condition(office: Office) -> None:
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.api.conditions[0]["type"] == "PodGroupScheduled"


async def test_a_gang_that_passes_through_costs_one_condition_and_one_event(office: Office) -> None:
    for verdict in (MISSING, PLANNED, binding(0), binding(1)):
        office.reports.report_verdict(GANG, verdict)
        await office.pass_time(0.4)
    office.members_run()
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    assert office.conditions() == [("True", "Scheduled")]
    assert office.speaker.reasons() == ["Scheduled"]
    assert len(office.reports.decisions) == 5


class TestWhenAReasonIsTold:
    async def test_not_before_it_has_settled(self, office: Office) -> None:
        office.reports.report_verdict(GANG, MISSING)
        await office.pass_time(0.7)
        assert not office.speaker.said
        await office.pass_time(0.1)
        assert office.speaker.reasons() == ["QuorumMissing"]

    @pytest.mark.parametrize("verdict", [PLANNED, binding(1)], ids=lambda verdict: verdict.reason)
    async def test_also_a_passing_one_if_it_lasts(self, office: Office, verdict: Verdict) -> None:
        office.reports.report_verdict(GANG, verdict)
        await office.settle()
        assert office.conditions() == [("False", "Unschedulable")]
        assert office.speaker.reasons() == [verdict.reason]

    async def test_never_if_another_took_its_place_before(self, office: Office) -> None:
        office.reports.report_verdict(GANG, MISSING)
        await office.pass_time(0.7)
        office.reports.report_verdict(GANG, FULL)
        await office.pass_time(0.1)
        assert not office.speaker.said
        await office.pass_time(0.2)
        assert office.speaker.reasons() == ["NoCapacity"]

    async def test_new_numbers_do_not_put_it_off(self, office: Office) -> None:
        for have in range(1, 10):
            office.reports.report_verdict(GANG, Verdict(Reason.QUORUM_MISSING, have=have, need=20))
            await office.pass_time(0.1)
        assert office.speaker.said == [
            ("PodGroup/g", "Warning", "QuorumMissing", "QuorumMissing: 8 of 20 members exist")
        ]

    async def test_numbers_that_go_on_changing_are_told_every_two_seconds_and_when_they_stand(
        self, office: Office
    ) -> None:
        for have in range(1, 50):
            office.reports.report_verdict(GANG, Verdict(Reason.QUORUM_MISSING, have=have, need=100))
            await office.pass_time(0.1)
        assert len(office.api.conditions) == 3
        await office.settle()
        assert office.api.conditions[-1]["message"] == "QuorumMissing: 49 of 100 members exist"

    async def test_the_progress_of_a_burst_is_not_told_until_it_takes_two_seconds(self, office: Office) -> None:
        for have in range(18):
            office.reports.report_verdict(GANG, binding(have))
            await office.pass_time(0.1)
        assert not office.speaker.said
        for have in range(18, 21):
            office.reports.report_verdict(GANG, binding(have))
            await office.pass_time(0.1)
        assert office.speaker.reasons() == ["Binding"]

    async def test_a_burst_that_is_through_leaves_the_word_to_its_end(self, office: Office) -> None:
        office.reports.report_verdict(GANG, binding(19))
        await office.pass_time(0.7)
        office.reports.report_verdict(GANG, binding(20))
        await office.pass_time(5)
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.settle()
        assert office.speaker.reasons() == ["Scheduled"]

    async def test_reasons_that_never_settle_are_told_within_a_second(self, office: Office) -> None:
        for verdict in (FULL, OUTDATED, FULL):
            assert not office.speaker.said
            office.reports.report_verdict(GANG, verdict)
            await office.pass_time(0.31)
        assert office.speaker.reasons() == ["NoCapacity"]
        assert office.speaker.pods == [("m0", "NoCapacity")]
        assert [each["message"].split(":")[0] for each in office.api.conditions] == ["NoCapacity"]

    async def test_plans_that_fail_one_after_the_other_are_told_within_a_second(self, office: Office) -> None:
        for verdict in (PLANNED, OUTDATED):
            assert not office.speaker.said
            office.reports.report_verdict(GANG, verdict)
            await office.pass_time(0.46)
        assert office.speaker.reasons() == ["PlanOutdated"]
        assert office.speaker.pods == [("m0", "PlanOutdated")]
        assert [each["message"].split(":")[0] for each in office.api.conditions] == ["PlanOutdated"]

    async def test_one_that_changes_while_the_gang_gets_on_is_left_to_its_end_for_two_seconds(
        self, office: Office
    ) -> None:
        office.reports.report_verdict(GANG, FULL)
        await office.pass_time(0.7)
        for have in range(12):
            assert not office.speaker.said
            office.reports.report_verdict(GANG, binding(have))
            await office.pass_time(0.1)
        await office.pass_time(0.1)
        assert office.speaker.reasons() == ["Binding"]

    async def test_a_podgroup_without_pods_keeps_nobody_waiting(self, office: Office) -> None:
        office.store.drop_pod("pod-m0")
        office.reports.report_verdict(GANG, Verdict(Reason.QUORUM_MISSING, have=0, need=2))
        await office.pass_time(29)
        assert not office.speaker.said
        office.store.put_pod(members(1)[0].value())
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        assert office.speaker.reasons() == ["QuorumMissing"]

    async def test_a_reason_that_members_do_not_change_is_told_when_they_come(self, office: Office) -> None:
        office.store.drop_pod("pod-m0")
        office.reports.report_verdict(GANG, NO_CLASS)
        await office.settle()
        assert not office.speaker.said
        office.store.put_pod(members(1)[0].value())
        office.reports.report_verdict(GANG, NO_CLASS)
        await office.settle()
        assert office.speaker.reasons() == ["PriorityUnknown"]

    async def test_a_podgroup_whose_pods_never_come_says_so_in_the_end(self, office: Office) -> None:
        office.store.drop_pod("pod-m0")
        office.reports.report_verdict(GANG, Verdict(Reason.QUORUM_MISSING, have=0, need=2))
        await office.pass_time(30)
        assert office.conditions() == [("False", "Unschedulable")]


class TestWhileGangsAreBound:
    async def test_steps_are_overtaken_by_the_end(self, office: Office) -> None:
        office.binds = True
        office.reports.report_verdict(GANG, PLANNED)
        for _ in range(12):
            await office.pass_time(0.25)
        office.reports.report_verdict(GANG, binding(1))
        await office.pass_time(1.0)
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.pass_time(0.8)
        assert not office.speaker.said
        office.binds = False
        await office.pass_time(0.25)
        assert office.conditions() == [("True", "Scheduled")]
        assert office.speaker.reasons() == ["Scheduled"]

    async def test_a_reason_to_wait_is_told_within_a_second(self, office: Office) -> None:
        office.binds = True
        office.reports.report_verdict(GANG, PLANNED)
        await office.pass_time(0.5)
        office.reports.report_verdict(GANG, FULL)
        await office.pass_time(0.4)
        assert office.speaker.reasons() == ["NoCapacity"]

    async def test_a_reason_that_comes_after_news_that_waited_has_to_last_first(self, office: Office) -> None:
        office.binds = True
        office.reports.report_verdict(GANG, PLANNED)
        for _ in range(12):
            await office.pass_time(0.25)
        office.reports.report_verdict(GANG, FULL)
        await office.pass_time(0.5)
        office.reports.report_verdict(GANG, PLANNED)
        await office.pass_time(0.5)
        assert not office.speaker.said

    async def test_a_binding_that_fails_is_told_as_ever(self, office: Office) -> None:
        office.binds = True
        office.reports.report_verdict(GANG, Verdict(Reason.BINDING, have=0, need=2, detail="the Binding of m0 failed"))
        await office.settle()
        assert office.speaker.reasons() == ["Binding"]

    @pytest.mark.parametrize("verdict", [PLANNED, binding(1), UP], ids=lambda verdict: verdict.reason)
    async def test_nothing_waits_longer_than_five_seconds(self, office: Office, verdict: Verdict) -> None:
        office.binds = True
        office.reports.report_verdict(GANG, verdict)
        for _ in range(19):
            await office.pass_time(0.25)
        assert not office.speaker.said
        await office.pass_time(0.25)
        assert office.speaker.reasons() == [verdict.reason]
        assert len(office.api.conditions) == 1


class TestTheMemberThatIsFirst:
    """One pod of the gang shows the reason to its readers, without a write per pod or per change."""

    async def test_hears_the_reason_once_and_not_its_numbers(self, office: Office) -> None:
        office.store.put_pod(members(1, first=1)[0].value())
        for have in (1, 2, 3):
            office.reports.report_verdict(GANG, Verdict(Reason.NO_CAPACITY, have=have, need=4))
            await office.pass_time(5)
        assert office.speaker.reasons() == ["NoCapacity"] * 3
        assert office.speaker.pods == [("m0", "NoCapacity")]

    async def test_hears_another_reason(self, office: Office) -> None:
        for verdict in (MISSING, FULL):
            office.reports.report_verdict(GANG, verdict)
            await office.settle()
        assert office.speaker.pods == [("m0", "QuorumMissing"), ("m0", "NoCapacity")]

    async def test_is_the_next_one_when_it_waits_no_more(self, office: Office) -> None:
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        office.store.put_pod(members(1)[0].on("n1").value())
        office.store.put_pod(members(1, first=1)[0].value())
        office.reports.report_verdict(GANG, Verdict(Reason.NO_CAPACITY, have=0, need=1))
        await office.settle()
        assert office.speaker.pods == [("m0", "NoCapacity"), ("m1", "NoCapacity")]

    @pytest.mark.parametrize("verdict", [PLANNED, binding(1), UP], ids=lambda verdict: verdict.reason)
    async def test_hears_nothing_while_the_gang_gets_on(self, office: Office, verdict: Verdict) -> None:
        office.reports.report_verdict(GANG, verdict)
        await office.settle()
        assert office.speaker.reasons() == [verdict.reason]
        assert office.speaker.pods == []


class TestADecisionsLine:
    async def test_names_the_decision_that_debug_has(self, office: Office, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            office.reports.report_verdict(GANG, MISSING)
            office.reports.report_verdict(GANG, FULL)
        lines = [record for record in caplog.records if record.message == "decided"]
        said = {each.id: (each.reason, each.text) for each in office.reports.decisions}
        assert {vars(line)["decision"]: (vars(line)["reason"], vars(line)["text"]) for line in lines} == said
        assert len(said) == 2

    async def test_is_one_for_numbers_that_change_before_the_reason_is_told(
        self, office: Office, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            for have in range(20):
                office.reports.report_verdict(GANG, binding(have))
        assert len([record for record in caplog.records if record.message == "decided"]) == 1
        assert len(office.reports.decisions) == 20


async def test_a_topology_that_does_not_count_is_told_once(office: Office) -> None:
    office.store.put_group(gang(2).topology("example.com/rack").value())
    office.store.ignore_topology(GANG, "Kueue has chosen hosts in r1, r2")
    for verdict in (FULL, MISSING):
        office.reports.report_verdict(GANG, verdict)
        await office.pass_time(3)
    (told,) = [said for said in office.speaker.said if said[2] == "TopologyIgnored"]
    text = "Serried does not place the members in one domain of example.com/rack: Kueue has chosen hosts in r1, r2"
    assert told == ("PodGroup/g", "Warning", "TopologyIgnored", text)


class TestThePlaceInTheQueue:
    WAITS = FirstQuorum(since=1_700_000_000)
    LOST = FirstQuorum(since=1_700_000_000, lost=1_700_001_800)

    async def test_is_written_with_the_reason_to_wait(self, office: Office) -> None:
        office.place = self.WAITS
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        assert len(office.api.list_calls("apply")) == 1
        (said,) = office.api.first_quorums
        assert (said["type"], said["status"]) == ("scheduling.serried.dev/FirstQuorum", "True")
        assert (said["message"], said["lastTransitionTime"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z")

    async def test_is_written_again_with_the_loss_of_the_quorum(self, office: Office) -> None:
        office.place = self.WAITS
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        office.place = self.LOST
        office.reports.report_verdict(GANG, MISSING)
        await office.pass_time(3)
        said = office.api.first_quorums[-1]
        assert (said["status"], said["reason"]) == ("False", "QuorumLost")
        assert (said["message"], said["lastTransitionTime"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:43:20Z")

    async def test_is_left_out_once_the_gang_is_scheduled(self, office: Office) -> None:
        office.place = self.WAITS
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.pass_time(3)
        last = office.api.list_calls("apply")[-1].body["status"]["conditions"]
        assert [each["type"] for each in last] == ["PodGroupInitiallyScheduled", "Ready"]

    @pytest.mark.parametrize("office", [FALLBACK, NATIVE], indirect=True, ids=["fallback", "native"])
    async def test_of_a_gang_that_has_run_and_waits_again_is_written_and_left_out_again(self, office: Office) -> None:
        office.store.put_group(gang(2).condition("True", "Scheduled").value())
        office.place = self.WAITS
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        assert len(office.api.first_quorums) == 1
        office.members_run()
        office.place = None
        office.reports.report_verdict(GANG, UP)
        await office.pass_time(3)
        last = office.api.list_calls("apply")[-1]
        assert not [each for each in last.body["status"]["conditions"] if "FirstQuorum" in each["type"]]
        assert not office.api.conditions

    async def test_that_the_group_has_already_is_not_written_once_more(self, office: Office) -> None:
        said = gang(2).condition("False", "Unschedulable", render(FULL)).ready("NoCapacity", "0/2")
        office.store.put_group(said.first_quorum("2023-11-14T22:13:20Z").value())
        office.place = self.WAITS
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        assert not office.api.list_calls("apply")

    async def test_of_a_tree_is_that_of_its_root(self, office: Office) -> None:
        office.store.put_composite(composite("tree").gang(1).value())
        office.store.put_group(gang(2).child_of("tree").value())
        office.place = self.WAITS
        office.reports.report_verdict(GroupKey("default", "tree", GroupKind.COMPOSITE), FULL)
        await office.settle()
        told = {
            call.body["kind"]: [each["type"] for each in call.body["status"]["conditions"]]
            for call in office.api.list_calls("apply")
        }
        assert "scheduling.serried.dev/FirstQuorum" in told["CompositePodGroup"]
        assert "scheduling.serried.dev/FirstQuorum" not in told["PodGroup"]


async def test_a_group_is_not_told_of_after_thousands_of_another_namespace(office: Office) -> None:
    flood = [GroupKey("flood", f"g{number:04}") for number in range(5000)]
    for key in (*flood, GroupKey("other", "one")):
        office.store.put_group(pod_group(key.name).namespace(key.namespace).gang(2).value())
        office.reports.report_verdict(key, MISSING)
    office.clock.advance(30)
    office.reports.wake()
    await office.until(lambda: len(office.api.conditions) > len(flood))
    told = [call.name for call in office.api.list_calls("apply")]
    assert told.index("one") == 1
    assert [name for name in told if name != "one"] == [key.name for key in flood]


class TestASlowWrite:
    async def test_does_not_keep_other_groups_waiting(self, office: Office) -> None:
        office.api.hold("apply")
        office.stuck.add(GANG)
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.api.stop_holding("apply")  # this one stays
        other = GroupKey("default", "other")
        office.store.put_group(pod_group("other").gang(2).value())
        office.store.put_pod(pod("o").in_group("other").value())
        office.reports.report_verdict(other, MISSING)
        await office.settle()
        assert [call.name for call in office.api.list_calls("apply")] == ["g", "other"]
        assert len(office.api.conditions) == 1

    async def test_is_followed_by_the_newest_verdict_of_its_group_and_by_no_other(self, office: Office) -> None:
        office.api.hold("apply")
        office.stuck.add(GANG)
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        for verdict in (FULL, OUTDATED):
            office.reports.report_verdict(GANG, verdict)
            await office.pass_time(5)
        assert len(office.api.list_calls("apply")) == 1
        office.stuck.clear()
        office.api.release("apply")
        await office.settle()
        assert [each["message"].split(":")[0] for each in office.api.conditions] == ["QuorumMissing", "PlanOutdated"]

    async def test_a_group_that_cannot_be_told_of_keeps_no_other_in_the_dark(
        self, office: Office, caplog: pytest.LogCaptureFixture
    ) -> None:
        office.api.fail("apply", AttributeError("odd"))
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        assert [each["message"].split(":")[0] for each in office.api.conditions] == ["NoCapacity"]
        assert "odd" in caplog.text

    async def test_no_more_than_eight_are_on_their_way(self, office: Office) -> None:
        office.api.hold("apply")
        keys = [GroupKey("default", f"h{number}") for number in range(20)]
        for key in keys:
            office.store.put_group(pod_group(key.name).gang(2).value())
            office.store.put_pod(pod(f"p-{key.name}").in_group(key.name).value())
            office.reports.report_verdict(key, MISSING)
        office.clock.advance(1)
        office.reports.wake()
        await office.until(lambda: len(office.api.list_calls("apply")) == 8)
        assert len(read_memory(office.reports)["writing"]) == 8
        office.api.release("apply")
        await office.pass_time(0)
        assert len(office.api.conditions) == 20


async def test_a_condition_that_stands_already_is_not_written_again(office: Office) -> None:
    told = gang(2).condition("False", "Unschedulable", MISSING_TEXT).ready("QuorumMissing", "0/2")
    office.store.put_group(told.value())
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.api.list_calls("apply") == []
    assert office.speaker.reasons() == ["QuorumMissing"]


class TestReady:
    """The condition that has our reason and the count: what kubectl shows of a PodGroup of our own kind."""

    def shown(self, office: Office) -> list[tuple[str, str, str]]:
        return [(each["status"], each["reason"], each["message"]) for each in office.api.ready]

    async def test_it_is_written_with_the_other_one_and_turns_true_with_the_gang(self, office: Office) -> None:
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.settle()
        assert self.shown(office) == [("False", "QuorumMissing", "0/2"), ("True", "Scheduled", "2/2")]
        assert len(office.api.list_calls("apply")) == 2

    async def test_it_is_taken_back_when_a_member_is_lost(self, office: Office) -> None:
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.settle()
        office.store.drop_pod("pod-m0")
        office.reports.report_verdict(GANG, Verdict(Reason.BROKEN, have=1, need=2))
        await office.settle()
        assert self.shown(office) == [("True", "Scheduled", "2/2"), ("False", "Broken", "1/2")]
        assert office.conditions() == [("True", "Scheduled")]

    async def test_members_beyond_the_quorum_cost_no_write(self, office: Office) -> None:
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.settle()
        office.store.put_pod(members(3)[2].on("n1").value())
        office.reports.report_verdict(GANG, Verdict(Reason.SCHEDULED, have=3))
        await office.settle()
        assert self.shown(office) == [("True", "Scheduled", "2/2")]

    async def test_a_gang_that_ran_before_it_was_known_costs_no_write(self, office: Office) -> None:
        office.store.put_group(gang(2).condition("True", "Scheduled").value())
        office.members_run()
        office.reports.report_verdict(GANG, UP)
        await office.settle()
        assert office.api.list_calls("apply") == []

    @pytest.mark.parametrize("office", [NATIVE], indirect=True)
    async def test_a_kind_that_is_not_ours_has_none(self, office: Office) -> None:
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        assert (len(office.api.conditions), self.shown(office)) == (1, [])

    async def test_a_basic_group_waits_for_no_count_and_has_none(self, office: Office) -> None:
        office.store.put_group(pod_group("g").value())
        office.reports.report_verdict(GANG, Verdict(Reason.MEMBER_GATED, have=1))
        await office.settle()
        assert (len(office.api.conditions), self.shown(office)) == (1, [])


@pytest.mark.parametrize("reason", [Reason.RECORD_FAILED, Reason.PLAN_OUTDATED, Reason.DEADLINE_EXCEEDED])
async def test_faults_of_ours_are_scheduler_errors(office: Office, reason: Reason) -> None:
    office.reports.report_verdict(GANG, Verdict(reason))
    await office.settle()
    assert office.conditions() == [("False", "SchedulerError")]


async def test_once_true_it_is_never_false_again(office: Office) -> None:
    office.store.put_group(gang(2).condition("True", "Scheduled").value())
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.api.conditions == []
    assert office.speaker.reasons() == ["QuorumMissing"]


async def test_once_true_it_is_never_false_again_also_before_our_watch_shows_it(office: Office) -> None:
    office.members_run()
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    office.store.drop_pod("pod-m0")
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.conditions() == [("True", "Scheduled")]


async def test_a_podgroup_made_anew_begins_anew(office: Office) -> None:
    office.members_run()
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    office.store.drop_pod("pod-m0")
    office.store.put_group(gang(2).uid("another").value())
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.conditions() == [("True", "Scheduled"), ("False", "Unschedulable")]


async def test_a_late_members_wait_does_not_hide_that_the_gang_is_up(office: Office) -> None:
    office.members_run()
    office.reports.report_verdict(GANG, Verdict(Reason.NO_CAPACITY, need=1))
    await office.settle()
    assert office.conditions() == [("True", "Scheduled")]
    assert office.speaker.reasons() == ["NoCapacity"]


async def test_a_write_that_fails_is_tried_again_and_its_event_is_not(office: Office) -> None:
    office.api.fail("apply", error(500))
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.conditions() == []
    await office.pass_time(1)
    assert office.conditions() == [("False", "Unschedulable")]
    assert office.speaker.reasons() == ["QuorumMissing"]


class TestARefusedCondition:
    """RBAC, admission or the schema refuses the write: only somebody else can change that."""

    @pytest.mark.parametrize("status", [403, 422])
    async def test_it_is_tried_again_with_pauses_that_grow_to_minutes(self, office: Office, status: int) -> None:
        office.api.fail("apply", *[error(status)] * 1000)
        office.reports.report_verdict(GANG, MISSING)
        for _ in range(3600):
            await office.pass_time(1.0)
        # After 1, 2, 4 ... 256 s, then every 300 s.
        assert len(office.api.list_calls("apply")) == 20
        assert office.speaker.reasons() == ["QuorumMissing"]

    async def test_without_an_answer_the_pauses_stay_short(self, office: Office) -> None:
        office.api.fail("apply", *[error(0)] * 1000)
        office.reports.report_verdict(GANG, MISSING)
        for _ in range(3600):
            await office.pass_time(1.0)
        assert 120 <= len(office.api.list_calls("apply")) <= 130

    async def test_verdicts_that_change_do_not_cut_a_pause_short_and_their_events_do_not_wait(
        self, office: Office
    ) -> None:
        office.api.fail("apply", *[error(403)] * 1000)
        for number in range(100):
            office.reports.report_verdict(GANG, (MISSING, FULL)[number % 2])
            await office.settle()
        assert len(office.api.list_calls("apply")) == 7
        assert len(office.speaker.said) == 100

    async def test_when_the_pause_is_over_the_newest_verdict_is_written(self, office: Office) -> None:
        office.api.fail("apply", *[error(403)] * 3)
        office.reports.report_verdict(GANG, MISSING)
        for _ in range(5):
            await office.pass_time(1.0)
        office.reports.report_verdict(GANG, FULL)
        await office.pass_time(4.0)
        assert [each["message"].split(":")[0] for each in office.api.conditions] == ["NoCapacity"]

    async def test_nothing_is_remembered_of_a_group_that_went(self, office: Office) -> None:
        office.api.fail("apply", error(403))
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.store.drop_group(GANG)
        await office.pass_time(10.0)
        left = read_memory(office.reports)
        assert (left["failures"], left["pending"]) == ({}, {})


async def test_what_stood_before_a_verdict_is_written_again_although_our_watch_still_shows_it(office: Office) -> None:
    office.store.put_group(gang(2).condition("False", "Unschedulable", MISSING_TEXT).value())
    for verdict in (FULL, MISSING):
        office.reports.report_verdict(GANG, verdict)
        await office.settle()
    assert [each["message"].split(":")[0] for each in office.api.conditions] == ["NoCapacity", "QuorumMissing"]


async def test_a_reason_that_is_back_before_another_was_told_is_no_news(office: Office) -> None:
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    office.reports.report_verdict(GANG, PLANNED)
    await office.pass_time(0.2)
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert office.speaker.reasons() == ["QuorumMissing"]
    assert len(office.api.conditions) == 1


async def test_a_group_that_is_being_deleted_is_told_how_it_stands_as_natively(office: Office) -> None:
    office.store.put_group(gang(2).deleting().value())
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert [each["message"] for each in office.api.conditions] == [MISSING_TEXT]


async def test_a_group_that_is_gone_is_not_written_to(office: Office) -> None:
    office.store.put_group(gang(2).value())
    office.api.fail("apply", error(404))
    office.reports.report_verdict(GANG, PLANNED)
    await office.settle()
    assert office.api.conditions == []


async def test_members_without_their_group_hear_of_it_themselves(office: Office) -> None:
    office.store.put_pod(pod("p").in_group("missing").value())
    office.reports.report_verdict(GroupKey("default", "missing"), Verdict(Reason.POD_GROUP_MISSING))
    await office.settle()
    assert [(about, reason) for about, _, reason, _ in office.speaker.said] == [("Pod/p", "PodGroupMissing")]


async def test_a_job_whose_podgroup_does_not_exist_yet_hears_of_it(office: Office) -> None:
    office.store.put_job(job("j").size(2).scheduler(SCHEDULER).value())
    office.store.put_pod(pod("p").of_job("j", 0).value())
    office.reports.report_verdict(GroupKey("default", "j", GroupKind("Job")), Verdict(Reason.POD_GROUP_MISSING))
    await office.settle()
    assert [(about, reason) for about, _, reason, _ in office.speaker.said] == [("Job/j", "PodGroupMissing")]


async def test_a_set_whose_podgroup_does_not_exist_yet_hears_of_it(office: Office) -> None:
    office.store.put_parent(leader_worker_set("s").gang_policy().size(2, 3).value())
    office.store.put_pod(pod("p").of_replica("s", 1).scheduler(SCHEDULER).value())
    waiting = office.store.members.group_of("pod-p")
    assert waiting is not None
    office.reports.report_verdict(waiting, Verdict(Reason.POD_GROUP_MISSING))
    await office.settle()
    said = [(about, reason) for about, _, reason, _ in office.speaker.said]
    assert said == [("LeaderWorkerSet/s", "PodGroupMissing")]


async def test_a_job_whose_pods_have_found_their_podgroup_hears_of_nothing(office: Office) -> None:
    office.store.put_job(job("j").size(2).value())
    office.reports.report_verdict(GroupKey("default", "j", GroupKind("Job")), Verdict(Reason.POD_GROUP_MISSING))
    await office.pass_time(60)
    assert not office.speaker.said


async def test_success_is_an_event_once(office: Office) -> None:
    office.members_run()
    for have in (2, 3):
        office.reports.report_verdict(GANG, Verdict(Reason.SCHEDULED, have=have))
        await office.settle()
    assert office.speaker.reasons() == ["Scheduled"]


async def test_the_job_of_a_gang_hears_why_it_waits_and_when_it_runs_but_not_of_the_steps_between(
    office: Office,
) -> None:
    office.store.put_group(gang(2).controlled_by("Job", "train").value())
    office.store.put_pod(members(1)[0].of_job("train", 0).value())
    for verdict in (MISSING, PLANNED):
        office.reports.report_verdict(GANG, verdict)
        await office.settle()
    office.members_run("train")
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    heard = [(kind, reason, text) for about, kind, reason, text in office.speaker.said if about == "Job/train"]
    assert [reason for _, reason, _ in heard] == ["QuorumMissing", "Scheduled"]
    assert heard[0] == ("Warning", "QuorumMissing", MISSING_TEXT)


async def test_the_set_of_a_gang_hears_why_it_waits(office: Office) -> None:
    office.store.put_group(gang(2).controlled_by("JobSet", "train").value())
    office.reports.report_verdict(GANG, MISSING)
    await office.settle()
    assert ("JobSet/train", "QuorumMissing") in [(about, reason) for about, _, reason, _ in office.speaker.said]


async def test_a_gang_that_ran_before_this_process_is_no_news(office: Office) -> None:
    office.store.put_group(gang(2).condition("True", "Scheduled").value())
    office.members_run()
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    assert not office.speaker.said
    assert not office.api.conditions


async def test_groups_that_are_gone_are_not_remembered_for_ever(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_MAX_GONE", 5)
    for number in range(20):
        key = GroupKey("default", f"g{number}")
        office.store.put_group(pod_group(key.name).value())
        office.store.put_pod(pod(f"p{number}").in_group(key.name).value())
        office.reports.report_verdict(key, MISSING)
        await office.settle()
        office.store.drop_group(key)
        office.store.drop_pod(f"pod-p{number}")
    assert len(read_memory(office.reports)["last_events"]) <= 10


class TestBrokenGangs:
    async def test_one_that_stays_broken_is_a_warning_on_the_group_and_no_condition(self, office: Office) -> None:
        office.reports.report_broken(GANG, Verdict(Reason.BROKEN, have=1, need=2, detail="broken for 300 s"))
        await office.settle()
        text = "Broken: only 1 of 2 members are left of this gang, which was running; broken for 300 s"
        assert office.speaker.said == [("PodGroup/g", "Warning", "GangBroken", text)]
        assert office.api.conditions == []
        assert office.reports.decisions[-1].reason == "GangBroken"

    async def test_the_job_that_controls_it_hears_it_too(self, office: Office) -> None:
        office.store.put_group(gang(2).controlled_by("Job", "j").value())
        office.reports.report_broken(GANG, Verdict(Reason.BROKEN, have=1, need=2))
        assert [about for about, *_ in office.speaker.said] == ["PodGroup/g", "Job/j"]


async def test_a_gang_that_goes_with_one_of_its_members_is_a_warning_on_the_group_and_its_job(office: Office) -> None:
    office.store.put_group(gang(2).controlled_by("Job", "j").value())
    office.reports.report_disrupted(GANG, "m0 is disrupted")
    assert office.speaker.said == [
        ("PodGroup/g", "Warning", "GangDisrupted", "m0 is disrupted"),
        ("Job/j", "Warning", "GangDisrupted", "m0 is disrupted"),
    ]


class TestPriorities:
    TEXT = (
        "Serried uses priority 5 for all members of the group, although 1 of 1 members have another priority, "
        "such as m0 with 0"
    )

    async def test_a_member_that_has_another_than_its_group_is_one_event_and_no_reason(self, office: Office) -> None:
        office.store.put_priority_class(priority_class("high", 5).value())
        office.store.put_group(gang(2).with_field("high", "spec", "priorityClassName").priority(5).value())
        for verdict in (MISSING, FULL, OUTDATED):
            office.reports.report_verdict(GANG, verdict)
            await office.settle()
        assert office.speaker.said.count(("PodGroup/g", "Warning", "PriorityMismatch", self.TEXT)) == 1
        assert office.speaker.reasons().count("PriorityMismatch") == 1

    async def test_a_group_made_anew_and_another_leader_say_it_again(self, office: Office) -> None:
        office.store.put_group(gang(2).priority(5).value())
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.reports.end_term()
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        office.store.put_group(gang(2).priority(5).uid("anew").value())
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        assert office.speaker.reasons().count("PriorityMismatch") == 3

    async def test_nothing_is_said_where_all_say_the_same(self, office: Office) -> None:
        office.store.put_group(gang(2).priority(0).value())
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        assert "PriorityMismatch" not in office.speaker.reasons()


async def test_a_tree_that_1_38_takes_for_invalid_is_one_event_on_its_root_and_no_reason(office: Office) -> None:
    tree = GroupKey("default", "root", GroupKind.COMPOSITE)
    office.store.put_composite(composite("root").gang(1).value())
    office.store.put_group(pod_group("g").child_of("root").priority(5).value())
    for verdict in (MISSING, FULL, OUTDATED):
        office.reports.report_verdict(tree, verdict)
        await office.settle()
    text = (
        "kube-scheduler 1.38 with its own gang scheduling rejects every pod of this tree: "
        "root is a gang, and g below it is basic"
    )
    assert office.speaker.said.count(("CompositePodGroup/root", "Warning", "TreeInvalidIn138", text)) == 1
    assert office.speaker.reasons().count("TreeInvalidIn138") == 1


async def test_a_tree_is_told_of_by_its_root_by_the_condition_of_every_group_and_by_the_owners_of_all(
    office: Office,
) -> None:
    tree = GroupKey("default", "root", GroupKind.COMPOSITE)
    office.store.put_composite(composite("root").gang(2).value())
    for name in ("a", "b"):
        office.store.put_group(pod_group(name).gang(1).child_of("root").controlled_by("Job", f"job-{name}").value())
    office.store.put_pod(pod("a0").of_job("job-a", 0).scheduler(SCHEDULER).in_group("a").on("n1").value())
    office.reports.report_verdict(tree, MISSING)
    await office.settle()
    told = {(each["type"], each["status"]) for each in office.api.conditions}
    assert told == {
        ("CompositePodGroupInitiallyScheduled", "False"),
        ("PodGroupInitiallyScheduled", "True"),
        ("PodGroupInitiallyScheduled", "False"),
    }
    counted = sorted((each["message"], each["status"]) for each in office.api.ready)
    assert counted == [("0/1", "False"), ("1/1", "True"), ("1/2", "False")]
    assert [about for about, *_ in office.speaker.said] == ["CompositePodGroup/root", "Job/job-a", "Job/job-b"]


async def test_one_refused_condition_of_a_tree_keeps_no_other_group_of_it_in_the_dark(office: Office) -> None:
    office.store.put_composite(composite("root").gang(2).value())
    for name in ("left", "right"):
        office.store.put_group(pod_group(name).gang(2).child_of("root").value())
    office.store.put_pod(pod("p").scheduler(SCHEDULER).in_group("left").value())
    office.api.fail("apply", error(422))
    office.reports.report_verdict(GroupKey("default", "root", GroupKind.COMPOSITE), MISSING)
    await office.settle()
    assert len(office.api.conditions) == 2


async def test_a_group_in_the_middle_of_a_tree_that_goes_whole_says_so_itself(office: Office) -> None:
    half = GroupKey("default", "half", GroupKind.COMPOSITE)
    office.store.put_composite(composite("root").gang(1).value())
    office.store.put_composite(composite("half").gang(1).child_of("root").value())
    office.store.put_group(pod_group("a").gang(1).child_of("half").controlled_by("Job", "job-a").value())
    for group in (half, GroupKey("default", "a")):
        await office.reports.mark_preempted(group, "for another")
    assert [(each["type"], each["reason"]) for each in office.api.conditions] == [
        ("DisruptionTarget", "PreemptionByScheduler")
    ] * 2
    written = [(call.resource, call.name) for call in office.api.list_calls("apply")]
    assert written == [("compositepodgroups", "half"), ("podgroups", "a")]
    assert [about for about, *_ in office.speaker.said] == ["CompositePodGroup/half", "PodGroup/a", "Job/job-a"]


async def test_a_group_that_stays_loses_the_condition(office: Office) -> None:
    await office.reports.mark_preempted(GANG, "for another")
    await office.reports.unmark_preempted(GANG)
    assert [len(call.body["status"]["conditions"]) for call in office.api.list_calls("apply")] == [1, 0]


@pytest.mark.parametrize(
    ("starts", "written"),
    [
        pytest.param(["2026-01-01T00:01:00Z", ""], [0], id="all that run have started since"),
        pytest.param(["2025-12-31T23:59:59Z", ""], [], id="one of those that run is to go"),
        pytest.param(["2026-01-01T00:00:00Z", ""], [], id="one that is to go had started in the same second"),
    ],
)
async def test_a_gang_that_is_placed_anew_does_not_say_any_more_that_it_goes(
    office: Office, starts: list[str], written: list[int]
) -> None:
    scheduled = gang(2).condition("True", "Scheduled").preempted("2026-01-01T00:00:00Z")
    office.store.put_group(scheduled.value())
    for each, start in zip(members(2), starts, strict=True):
        office.store.put_pod((each.on("n1").started(start) if start else each.on("n1")).value())
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    assert [len(call.body["status"]["conditions"]) for call in office.api.list_calls("apply")] == written


@pytest.mark.parametrize(
    ("said", "start", "written"),
    [
        pytest.param("2026-01-01T01:00:00Z", "2026-01-01T00:01:00Z", [0], id="ahead, by those that have started since"),
        pytest.param("2025-12-31T23:00:00Z", "2025-12-31T23:30:00Z", [], id="back, not by those that are to go"),
    ],
)
async def test_that_is_told_also_where_the_condition_was_written_by_a_clock_that_was_set(
    office: Office, said: str, start: str, written: list[int]
) -> None:
    """The API server says when it took the condition."""
    conditions: dict[str, Any] = {'k:{"type":"DisruptionTarget"}': {"f:type": {}}}
    taken = {
        "manager": "serried-preemption",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:status": {"f:conditions": conditions}},
    }
    group = gang(2).condition("True", "Scheduled").preempted(said).with_field([taken], "metadata", "managedFields")
    office.store.put_group(group.value())
    for each in members(2):
        office.store.put_pod(each.on("n1").started(start).value())
    office.reports.report_verdict(GANG, UP)
    await office.settle()
    assert [len(call.body["status"]["conditions"]) for call in office.api.list_calls("apply")] == written


async def test_a_gang_that_waits_to_be_placed_anew_still_says_why_it_went(office: Office) -> None:
    office.store.put_group(gang(2).condition("True", "Scheduled").preempted("2026-01-01T00:00:00Z").value())
    office.reports.report_verdict(GANG, FULL)
    await office.settle()
    assert office.conditions() == []
    assert all(call.body["status"]["conditions"] for call in office.api.list_calls("apply"))


class TestWhatHeldMembersAreTold:
    """By filter's answer: kube-scheduler puts it into the condition and the event of every held pod."""

    HELD = "Serried holds this pod for its gang: "

    async def test_whose_gang_it_is_before_a_reason_is_told_and_then_the_reason(self, office: Office) -> None:
        office.store.put_group(gang(2).controlled_by("Job", "train").value())
        office.store.put_pod(members(1)[0].of_job("train", 0).value())
        assert office.reports.describe_hold(GANG) == f"{self.HELD}see the events of job/train"
        office.reports.report_verdict(GANG, MISSING)
        assert office.reports.describe_hold(GANG) == f"{self.HELD}see the events of job/train"
        await office.settle()
        assert office.reports.describe_hold(GANG) == f"{self.HELD}job/train (PodGroup g) waits: QuorumMissing"

    async def test_nothing_changes_when_the_jobs_podgroup_is_made(self, office: Office) -> None:
        awaited = GroupKey("default", "train", GroupKind("Job"))
        office.store.put_group(gang(2).controlled_by("Job", "train").value())
        assert office.reports.describe_hold(awaited) == office.reports.describe_hold(GANG)

    async def test_a_podgroup_that_people_made_is_named_itself(self, office: Office) -> None:
        office.reports.report_verdict(GANG, MISSING)
        await office.settle()
        assert office.reports.describe_hold(GANG) == f"{self.HELD}PodGroup g waits: QuorumMissing"

    async def test_new_numbers_and_steps_on_the_way_change_nothing(self, office: Office) -> None:
        office.reports.report_verdict(GANG, FULL)
        await office.settle()
        first = office.reports.describe_hold(GANG)
        for verdict in (Verdict(Reason.NO_CAPACITY, have=0, need=2), PLANNED, binding(1)):
            office.reports.report_verdict(GANG, verdict)
            await office.pass_time(100.0)
            assert office.reports.describe_hold(GANG) == first

    async def test_a_reason_that_comes_and_goes_is_told_once_a_minute(self, office: Office) -> None:
        texts = set()
        for _ in range(10):
            for verdict in (MISSING, FULL):
                office.reports.report_verdict(GANG, verdict)
                await office.pass_time(2.5)
                texts.add(office.reports.describe_hold(GANG))
        assert texts == {f"{self.HELD}PodGroup g waits: QuorumMissing"}
        await office.pass_time(20.0)
        assert office.reports.describe_hold(GANG) == f"{self.HELD}PodGroup g waits: NoCapacity"

    async def test_another_leader_goes_on_with_the_reason_in_the_condition(self, office: Office) -> None:
        office.store.put_group(gang(2).condition("False", "Unschedulable", MISSING_TEXT).value())
        assert office.reports.describe_hold(GANG) == f"{self.HELD}PodGroup g waits: QuorumMissing"

    async def test_what_kube_scheduler_wrote_into_the_condition_is_no_reason_of_ours(self, office: Office) -> None:
        office.store.put_group(gang(2).condition("False", "Unschedulable", "0/3 nodes are available: x").value())
        assert office.reports.describe_hold(GANG) == f"{self.HELD}see the events of PodGroup g"

    async def test_nobody_is_named_before_the_objects_are_listed(self, office: Office) -> None:
        said = office.reports.describe_hold(GroupKey("default", ""))
        assert said == f"{self.HELD}see the events of this pod"

    async def test_a_tree_and_a_part_of_a_workload_have_names_too(self, office: Office) -> None:
        tree, part = GroupKey("default", "root", GroupKind.COMPOSITE), GroupKey("default", "w", GroupKind.WORKLOAD, "t")
        assert office.reports.describe_hold(tree) == f"{self.HELD}see the events of CompositePodGroup root"
        assert office.reports.describe_hold(part) == f"{self.HELD}see the events of PodGroup w/t"
