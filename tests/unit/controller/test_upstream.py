"""Jobs that are left to kube-controller-manager once it is seen to make Workloads."""

import pytest

from controller.reconciler import UpstreamJobs
from tests.support.builders import JobBuilder, job


@pytest.mark.parametrize(
    ("builder", "is_left"),
    [
        pytest.param(job("j"), True, id="its own"),
        pytest.param(job("j").managed_by("kubernetes.io/job-controller"), True, id="one that says so"),
        pytest.param(job("j").managed_by("example.com/queue"), False, id="not one that another manages"),
        pytest.param(job("j").controlled_by("JobSet", "s"), False, id="not one that something controls"),
        pytest.param(job("j" * 60), False, id="not one whose name is too long for its template"),
    ],
)
def test_which_jobs_are_left_to_it(builder: JobBuilder, is_left: bool) -> None:  # noqa: FBT001
    upstream = UpstreamJobs(lambda: 100.0)
    assert not upstream.manages(builder.value())
    upstream.is_seen = True
    assert upstream.manages(builder.value()) is is_left
