"""Two profiles of one kube-scheduler: extenders are the whole process's, so pods of both come to Serried."""

import pytest

from tests.support.cluster_stage import ClusterStage, names

pytestmark = pytest.mark.e2e

OTHER = "second"


def test_a_pod_of_another_profile_that_names_a_gang_is_that_profiles_alone(stage: ClusterStage) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 2), "ring")
    stage.create_pods(["other-0"], "ring", schedulerName=OTHER)
    stage.create_pods(["other-1"], "no-such-group", schedulerName=OTHER)
    stage.await_bound("other", 2)
    # Bound members count toward the quorum, whichever scheduler bound them.
    stage.await_bound("ring", 2)


def test_jobs_of_another_profile_are_no_gangs_and_wait_for_nothing(stage: ClusterStage) -> None:
    stage.submit_job("other", scheduler=OTHER)
    stage.await_bound("other", 2)
    assert not stage.groups_of("other")


def test_a_pod_of_another_profile_is_no_member_that_a_gang_waits_for(stage: ClusterStage) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 2), "ring")
    stage.create_pods(["other-0"], "ring", cpu="1000", schedulerName=OTHER)
    stage.await_reason("ring", "QuorumMissing", "2 of 3 members exist")
    assert not stage.bound()
