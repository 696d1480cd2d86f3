import pytest

from controller.diff import (
    PROTECTION,
    CreatePodGroup,
    CreateWorkload,
    Duty,
    Found,
    RemoveFinalizer,
    ReportAmbiguous,
    diff_job,
    duty_for,
    free_group,
    is_leaving,
)
from controller.names import workload_name
from serried.model.group import Key
from serried.testing.builders import JobBuilder, PodBuilder, job, pod, pod_group, workload

SCHEDULERS = frozenset({"serried"})
GANG = job("train").size(3).scheduler("serried")
MEMBER = pod("train-0").of_job("train", 0)
OURS = workload("train-x").for_job("train").gang_template("train-pgt-0", 3)
GROUP = pod_group("train-g").gang(3).of("train-x", "train-pgt-0")


@pytest.mark.parametrize(
    ("builder", "pods", "duty"),
    [
        pytest.param(GANG, [], Duty.START, id="a gang without pods is started"),
        pytest.param(GANG.suspended(), [], Duty.START, id="a suspended gang gets its objects before its pods"),
        pytest.param(GANG, [MEMBER, MEMBER.gate()], Duty.START, id="pods that wait do not matter"),
        pytest.param(GANG.controlled_by("CronJob", "nightly"), [], Duty.START, id="a CronJob's Job is a gang"),
        pytest.param(GANG, [MEMBER.on("n1")], Duty.COMPLETE, id="a bound pod: nothing is begun"),
        pytest.param(GANG, [MEMBER.phase("Failed")], Duty.COMPLETE, id="a finished pod: nothing is begun"),
        pytest.param(GANG.size(1), [], Duty.COMPLETE, id="a Job of one pod is no gang"),
        pytest.param(GANG.size(3, 5), [], Duty.COMPLETE, id="more completions than parallelism: no gang"),
        pytest.param(GANG.not_indexed(), [], Duty.COMPLETE, id="a Job without indexes is no gang"),
        pytest.param(GANG.scheduler("default-scheduler"), [], Duty.NONE, id="another scheduler's Job is left alone"),
        pytest.param(GANG.template_group("mine"), [], Duty.NONE, id="a template that names its group opts out"),
        pytest.param(GANG.controlled_by("JobSet", "set"), [], Duty.NONE, id="a JobSet's Job is the JobSet's"),
        pytest.param(GANG.condition("Complete"), [], Duty.NONE, id="a finished Job is done"),
        pytest.param(GANG.deleting(), [], Duty.NONE, id="a Job that is being deleted is done"),
    ],
)
def test_duty(builder: JobBuilder, pods: list[PodBuilder], duty: Duty) -> None:
    assert duty_for(builder.value(), [p.value() for p in pods], SCHEDULERS) is duty


def test_a_gang_gets_its_workload_first() -> None:
    gang = GANG.value()
    assert diff_job(gang, Found(), Duty.START) == [CreateWorkload(gang, workload_name(gang))]


@pytest.mark.parametrize("duty", [Duty.START, Duty.COMPLETE])
def test_a_workload_without_pod_group_is_completed(duty: Duty) -> None:
    (action,) = diff_job(GANG.value(), Found([OURS.value()]), duty)
    assert isinstance(action, CreatePodGroup)
    assert action.workload == OURS.value()
    assert action.name.startswith("train-x-train-pgt-0-")


@pytest.mark.parametrize(
    ("found", "duty"),
    [
        pytest.param(Found(), Duty.COMPLETE, id="nothing is begun for a Job that runs"),
        pytest.param(Found(), Duty.NONE, id="nothing is begun for a Job of others"),
        pytest.param(Found([OURS.value()]), Duty.NONE, id="nothing is completed for a Job of others"),
        pytest.param(Found([OURS.value()], [GROUP.value()]), Duty.START, id="all is there"),
        pytest.param(Found([OURS.value()], [GROUP.gang(7).value()]), Duty.START, id="what differs is not changed"),
        pytest.param(
            Found([workload("theirs").for_job("train").basic_template("t").value()], [GROUP.value()]),
            Duty.START,
            id="a foreign Workload and PodGroup are used as they are",
        ),
        pytest.param(Found([OURS.value(), OURS.value()]), Duty.NONE, id="ambiguity of others' Jobs is not ours"),
    ],
)
def test_nothing_is_to_be_done(found: Found, duty: Duty) -> None:
    assert diff_job(GANG.value(), found, duty) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(
            Found([OURS.value(), workload("theirs").for_job("train").gang_template("t", 2).value()]),
            ["train-x, theirs"],
            id="two Workloads",
        ),
        pytest.param(
            Found([OURS.gang_template("more", 2).value()]), ["train-x", "2 PodGroup templates"], id="two templates"
        ),
        pytest.param(Found([workload("theirs").for_job("train").value()]), ["theirs", "0 PodGroup"], id="no template"),
        pytest.param(
            Found([OURS.value()], [GROUP.value(), pod_group("other").value()]), ["train-g, other"], id="two PodGroups"
        ),
    ],
)
def test_ambiguity_is_told_by_name(found: Found, words: list[str]) -> None:
    (action,) = diff_job(GANG.value(), found, Duty.START)
    assert isinstance(action, ReportAmbiguous)
    assert all(word in action.message for word in words)


GOING = pod_group("g").finalizer("example.com/mine").finalizer(PROTECTION).version("7").deleting()


def test_a_pod_group_is_freed_of_its_protection_only() -> None:
    assert free_group(GOING.value()) == RemoveFinalizer(Key("default", "g"), "7", ("example.com/mine",))


def test_a_pod_group_is_leaving_if_it_is_deleted_and_protected() -> None:
    assert is_leaving(GOING.value())
    assert not is_leaving(pod_group("g").finalizer(PROTECTION).value())
    assert not is_leaving(pod_group("g").finalizer("example.com/mine").deleting().value())
