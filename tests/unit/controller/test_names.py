import re

import pytest

from controller.diff.objects import pod_group_name, template_name, workload_name
from serried.api.job import Job
from serried.api.names import Key

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def make_job(name: str, uid: str = "uid-1") -> Job:
    return Job(Key("default", name), uid, parallelism=2, completions=2, indexed=True)


@pytest.mark.parametrize(
    ("uid", "workload", "group"),
    [
        pytest.param(
            "95969761-09b8-4ecc-a7ba-f5065df1590d",
            "my-job-6f8647cfc5",
            "my-job-6f8647cfc5-my-job-pgt-0-649bfb59f7",
            id="as a kube-controller-manager 1.37.1 named them",
        ),
        pytest.param(
            "85b9436d-14df-4a86-872f-266a6fe6109f",
            "my-job-85dcf4977c",
            "my-job-85dcf4977c-my-job-pgt-0-b65dcb77",
            id="as computed from the source of 1.37.1",
        ),
    ],
)
def test_names_are_those_of_the_job_controller(uid: str, workload: str, group: str) -> None:
    job = make_job("my-job", uid)
    assert workload_name(job) == workload
    assert template_name(job) == "my-job-pgt-0"
    assert pod_group_name(workload, template_name(job)) == group


def test_a_workload_name_is_cut_to_253_and_keeps_its_hash() -> None:
    long, longer = make_job("a" * 250), make_job("a" * 253)
    assert len(workload_name(long)) == 253
    assert workload_name(long) == workload_name(longer)
    assert (
        workload_name(make_job("a")).removeprefix("a") == workload_name(long)[-len(workload_name(make_job("a"))) + 1 :]
    )


def test_two_jobs_of_one_name_get_two_workload_names() -> None:
    assert workload_name(make_job("train", "one")) != workload_name(make_job("train", "two"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a" * 57, id="the longest name that fits"),
        pytest.param("a" * 58, id="one too long"),
        pytest.param("a" * 253, id="the longest Job name"),
        pytest.param("train.v1", id="with a dot"),
        pytest.param("a" * 46 + "-." + "b" * 20, id="cut at a dash"),
        pytest.param("1.2", id="digits and a dot"),
    ],
)
def test_a_template_name_is_always_a_dns_label(name: str) -> None:
    template = template_name(make_job(name))
    assert len(template) <= 63
    assert DNS_LABEL.fullmatch(template)
    assert template.endswith("-pgt-0")


def test_long_job_names_that_differ_at_the_end_differ_in_their_template() -> None:
    assert template_name(make_job("a" * 80 + "x")) != template_name(make_job("a" * 80 + "y"))
    assert template_name(make_job("a.b")) != template_name(make_job("a-b"))


@pytest.mark.parametrize(
    ("workload", "template", "start"),
    [
        pytest.param("w" * 100, "t" * 63, "w" * 100 + "-" + "t" * 63 + "-", id="both fit"),
        pytest.param("w" * 10, "t" * 300, "w" * 10 + "-ttt", id="a short workload is kept whole"),
        pytest.param("w" * 300, "t" * 10, "www", id="a short template is kept whole"),
        pytest.param("w" * 300, "t" * 300, "w" * 120, id="both are cut in half"),
    ],
)
def test_a_pod_group_name_is_cut_to_253(workload: str, template: str, start: str) -> None:
    name = pod_group_name(workload, template)
    assert name.startswith(start)
    kept = min(len(workload), 120), min(len(template), 120)
    assert name.count("w") >= kept[0]
    assert name.count("t") >= kept[1]
    assert len(name) == min(253, len(workload) + len(template) + 2 + len(name.rsplit("-", 1)[1]))
