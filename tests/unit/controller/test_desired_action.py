import pytest

from controller.diff.owner import DesiredAction, GangSettings, Suspended, Track, action_of_job, is_unserved
from serried.api.job import GangJobs
from tests.support.builders import JobBuilder, PodBuilder, job, pod

SETTINGS = GangSettings(frozenset({"serried"}))
GANG = job("train").size(3).scheduler("serried")
MEMBER = pod("train-0").of_job("train", 0)


@pytest.mark.parametrize(
    ("builder", "pods", "action"),
    [
        pytest.param(GANG, [], DesiredAction.START, id="a gang without pods is started"),
        pytest.param(GANG.suspended(), [], DesiredAction.START, id="a suspended gang gets its objects before its pods"),
        pytest.param(GANG, [MEMBER, MEMBER.gate()], DesiredAction.START, id="pods that wait do not matter"),
        pytest.param(GANG.controlled_by("CronJob", "nightly"), [], DesiredAction.START, id="a CronJob's Job is a gang"),
        pytest.param(GANG, [MEMBER.on("n1")], DesiredAction.COMPLETE, id="a bound pod: nothing is begun"),
        pytest.param(GANG, [MEMBER.phase("Failed")], DesiredAction.COMPLETE, id="a finished pod: nothing is begun"),
        pytest.param(GANG.size(1), [], DesiredAction.COMPLETE, id="a Job of one pod is no gang"),
        pytest.param(GANG.size(3, 5), [], DesiredAction.COMPLETE, id="more completions than parallelism: no gang"),
        pytest.param(GANG.not_indexed(), [], DesiredAction.COMPLETE, id="a Job without indexes is no gang"),
        pytest.param(
            GANG.scheduler("default-scheduler"), [], DesiredAction.NONE, id="another scheduler's Job is left alone"
        ),
        pytest.param(
            GANG.template_group("mine"), [], DesiredAction.NONE, id="a template that names its group opts out"
        ),
        pytest.param(
            GANG.controlled_by("JobSet", "set"), [], DesiredAction.COMPLETE, id="a JobSet's Job is the JobSet's"
        ),
        pytest.param(
            GANG.managed_by("example.com/queue"),
            [],
            DesiredAction.COMPLETE,
            id="a Job that another manages is that one's",
        ),
        pytest.param(GANG.condition("Complete"), [], DesiredAction.NONE, id="a finished Job is done"),
        pytest.param(GANG.deleting(), [], DesiredAction.NONE, id="a Job that is being deleted is done"),
    ],
)
def test_duty(builder: JobBuilder, pods: list[PodBuilder], action: DesiredAction) -> None:
    assert action_of_job(builder.value(), [p.value() for p in pods], SETTINGS) is action


DELETING = GangSettings(frozenset({"serried"}), suspended=Suspended.DELETE)
TRACKING = GangSettings(frozenset({"serried"}), track=Track.ALL)
OFF = GangSettings(frozenset({"serried"}), gang_jobs=GangJobs.NONE)


@pytest.mark.parametrize(
    ("builder", "pods", "settings", "action"),
    [
        pytest.param(
            GANG.suspended(), [], DELETING, DesiredAction.RELEASE, id="suspended, without pods: its objects go"
        ),
        pytest.param(
            GANG.suspended(), [MEMBER.on("n1")], DELETING, DesiredAction.COMPLETE, id="not before its pods have gone"
        ),
        pytest.param(
            GANG.suspended().completed_indexes("0"),
            [],
            DELETING,
            DesiredAction.START,
            id="nor if it has completed a part: it keeps them",
        ),
        pytest.param(GANG, [], DELETING, DesiredAction.START, id="resumed: they are made anew"),
        pytest.param(
            GANG.not_indexed(), [], TRACKING, DesiredAction.TRACK, id="all are tracked: also those that are no gangs"
        ),
        pytest.param(GANG, [], TRACKING, DesiredAction.START, id="gangs are gangs"),
        pytest.param(
            GANG.not_indexed(), [MEMBER.on("n1")], TRACKING, DesiredAction.COMPLETE, id="one that runs is left alone"
        ),
        pytest.param(
            GANG.not_indexed().controlled_by("JobSet", "set"),
            [],
            TRACKING,
            DesiredAction.COMPLETE,
            id="others' Jobs are not tracked",
        ),
        pytest.param(GANG, [], OFF, DesiredAction.NONE, id="switched off: nothing is made"),
        pytest.param(GANG, [MEMBER.on("n1")], OFF, DesiredAction.NONE, id="switched off: nothing is completed"),
    ],
)
def test_duty_by_what_the_operator_has_chosen(
    builder: JobBuilder, pods: list[PodBuilder], settings: GangSettings, action: DesiredAction
) -> None:
    assert action_of_job(builder.value(), [p.value() for p in pods], settings) is action


def test_only_a_job_that_asks_is_told_that_its_scheduler_makes_no_gangs() -> None:
    elsewhere = GANG.scheduler("default-scheduler")
    assert is_unserved(elsewhere.gang_policy("JobAsGang").value(), SETTINGS)
    assert not is_unserved(elsewhere.value(), SETTINGS)
    assert not is_unserved(elsewhere.gang_policy("JobAsGang").value(), OFF)
