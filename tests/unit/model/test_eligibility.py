"""Jobs that are gangs (KEP-5547, KEP-5764, the rulings of docs/kinds.md)."""

import pytest

from serried.api.job import GangJobs, find_no_gang, is_gang_job
from tests.support.builders import JobBuilder, job


def ours(name: str = "j") -> JobBuilder:
    return job(name).scheduler("serried")


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(ours().size(2), id="Indexed with as many completions as pods at a time"),
        pytest.param(ours().size(2).suspended(), id="suspended: its objects come before its pods"),
        pytest.param(ours().size(2).controlled_by("CronJob", "c"), id="made by a CronJob"),
        pytest.param(ours().size(4, 9).gang_policy("JobAsGang"), id="asked for, with more completions"),
        pytest.param(ours().size(4).not_indexed().gang_policy("JobAsGang"), id="asked for, not Indexed"),
        pytest.param(ours().size(4).controlled_by("JobSet", "s").gang_policy("JobAsGang"), id="asked for, in a JobSet"),
        pytest.param(ours().size(2).managed_by("kubernetes.io/job-controller"), id="managed by the Job controller"),
        pytest.param(
            ours().size(2).managed_by("example.com/queue").gang_policy("JobAsGang"),
            id="asked for by annotation, though another controller makes its pods",
        ),
        pytest.param(ours().size(2).gang_policy("Sometimes"), id="a policy that does not exist counts as none"),
    ],
)
def test_a_gang(builder: JobBuilder) -> None:
    assert is_gang_job(builder.value(), ["serried"])
    assert find_no_gang(builder.value(), ["serried"]) is None


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(ours().size(1), id="one pod"),
        pytest.param(ours().size(2, 4), id="more completions than pods at a time"),
        pytest.param(ours().size(2).not_indexed(), id="not Indexed"),
        pytest.param(ours().size(2).controlled_by("JobSet", "s"), id="part of a JobSet"),
        pytest.param(ours().size(2).managed_by("example.com/queue"), id="another controller makes its pods"),
        pytest.param(
            ours().size(2).managed_by("example.com/queue").scheduling(schedulingPolicy={"gang": {}}),
            id="its field asks the other controller that makes its pods",
        ),
        pytest.param(
            ours().size(2).delegated("t").gang_policy("JobAsGang"),
            id="it names a template of another's Workload",
        ),
        pytest.param(ours().size(2).template_group("g"), id="its template names a group"),
        pytest.param(job("j").size(2), id="another scheduler's"),
        pytest.param(ours().size(2).condition("Complete"), id="complete"),
        pytest.param(ours().size(2).deleting(), id="on its way out"),
        pytest.param(ours().size(2).manual_selector(), id="it selects its pods by itself"),
        pytest.param(ours().size(2).gang_policy("NoGang"), id="it says so"),
        pytest.param(ours().size(1, 5).gang_policy("JobAsGang"), id="asked for, but one pod at a time"),
        pytest.param(ours().size(4, 1).gang_policy("JobAsGang"), id="asked for, but one completion"),
        pytest.param(job("j").size(4).gang_policy("JobAsGang"), id="asked for, with another scheduler"),
    ],
)
def test_no_gang(builder: JobBuilder) -> None:
    assert not is_gang_job(builder.value(), ["serried"])


def test_where_jobs_are_gangs_only_if_they_ask_a_jobs_shape_says_nothing() -> None:
    assert not is_gang_job(ours().size(2).value(), ["serried"], GangJobs.ASKED)
    assert is_gang_job(ours().size(2).gang_policy("JobAsGang").value(), ["serried"], GangJobs.ASKED)


@pytest.mark.parametrize(
    ("builder", "why", "remedy"),
    [
        pytest.param(ours().size(1), "one pod at a time", "larger parallelism", id="one pod"),
        pytest.param(ours().size(2, 4), "parallelism is 2, and its completions are 4", "JobAsGang", id="more to do"),
        pytest.param(ours().size(2).not_indexed(), "not Indexed", "completionMode: Indexed", id="not Indexed"),
        pytest.param(ours().size(2).controlled_by("RayJob", "r"), "RayJob r controls it", "JobAsGang", id="controlled"),
        pytest.param(ours().size(2).managed_by("x.io/y"), "x.io/y makes its pods", "JobAsGang", id="managed"),
        pytest.param(
            job("j").size(2), "scheduler default-scheduler", "schedulerName serried", id="another scheduler's"
        ),
        pytest.param(ours().size(2).manual_selector(), "manualSelector", "no spec.manualSelector", id="own selector"),
        pytest.param(ours().size(2).condition("Complete"), "ended", "", id="complete"),
        pytest.param(
            ours().size(2).gang_policy("NoGang"),
            "it has the annotation scheduling.serried.dev/gang-policy: NoGang",
            "",
            id="it wants none",
        ),
        pytest.param(ours().size(1, 5).gang_policy("JobAsGang"), "one pod at a time", "completions", id="in vain"),
    ],
)
def test_a_job_that_is_no_gang_can_be_told_why_and_what_to_do(builder: JobBuilder, why: str, remedy: str) -> None:
    found = find_no_gang(builder.value(), ["serried"])
    assert found is not None
    assert why in found.why
    assert remedy in found.remedy
    assert bool(found.remedy) is bool(remedy)


def test_the_operators_choice_is_named() -> None:
    asked, none = (find_no_gang(ours().size(2).value(), ["serried"], each) for each in (GangJobs.ASKED, GangJobs.NONE))
    assert asked is not None
    assert none is not None
    assert ("asked" in asked.why, "JobAsGang" in asked.remedy) == (True, True)
    assert ("none" in none.why, none.remedy) == (True, "")


def test_of_a_job_whose_pods_are_of_a_group_already_nothing_is_to_be_said() -> None:
    assert find_no_gang(ours().size(2).template_group("g").value(), ["serried"]) is None
    assert find_no_gang(ours().size(2).delegated("t").value(), ["serried"]) is None
