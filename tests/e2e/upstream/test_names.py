"""The names that kube-controller-manager gives to Workloads and PodGroups, and ours."""

import pytest

from controller.diff.objects import pod_group_name, template_name, workload_body, workload_name
from controller.diff.owner import DesiredAction, make_workload_create
from serried.api.level import NATIVE
from tests.e2e.upstream.stage import UpstreamStage
from tests.support.cluster_stage import Raw, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

# Our controller leaves the Jobs of another scheduler alone: whatever is there for them, upstream has made.
_NOT_OURS = "default-scheduler"


@pytest.mark.parametrize("name", ["a", "my-job", "0-1", "n" * 57], ids=["letter", "words", "digits", "57 characters"])
def test_a_job_gets_the_same_names_from_upstream_as_from_us(stage: UpstreamStage, name: str) -> None:
    job = stage.submit_job(name, _NOT_OURS)
    group = stage.await_group(name)
    workload = stage.workloads_of(name)[0]

    assert workload["metadata"]["name"] == workload_name(job)
    assert _template_of(workload) == template_name(job)
    assert group["metadata"]["name"] == pod_group_name(workload_name(job), template_name(job))


@pytest.mark.parametrize(
    ("name", "mode", "refusal"),
    [
        ("l" * 58, "Indexed", "must be no more than 63 bytes"),
        ("l" * 61, "Indexed", "must be no more than 63 bytes"),
        ("l" * 63, "NonIndexed", "must be no more than 63 bytes"),
        ("my.job", "NonIndexed", "must not contain dots"),
    ],
    ids=["too long by one", "the longest Indexed Job", "the longest Job", "dotted"],
)
def test_a_job_that_upstream_cannot_name_gets_its_pods_once_our_workload_is_there(
    stage: UpstreamStage, name: str, mode: str, refusal: str
) -> None:
    job = stage.submit_job(name, _NOT_OURS, completionMode=mode)
    message = eventually("upstream's refusal", lambda: dict(stage.events(name)).get("FailedWorkloadCreate"))
    assert f'"{workload_name(job)}" is invalid' in message
    assert refusal in message
    assert not stage.pods()

    stage.create_workload(workload_body(make_workload_create(job, DesiredAction.TRACK), NATIVE))

    group = pod_group_name(workload_name(job), template_name(job))
    eventually("its pods", lambda: stage.named_groups(name) == [group, group])


def test_a_pod_group_of_the_longest_workload_is_cut_as_upstream_cuts_it(stage: UpstreamStage) -> None:
    name, longest = "l" * 58, "w" * 253
    job = stage.submit_job(name, _NOT_OURS)
    body = workload_body(make_workload_create(job, DesiredAction.TRACK), NATIVE)
    body["metadata"]["name"] = longest

    stage.create_workload(body)

    group = stage.await_group(name)
    assert group["metadata"]["name"] == pod_group_name(longest, template_name(job))


def _template_of(workload: Raw) -> str:
    (template,) = workload["spec"]["podGroupTemplates"]
    return str(template["name"])
