"""A running gang loses pods: what has ended for good counts, and the replacement of another binds alone."""

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import eventually

pytestmark = pytest.mark.e2e

FOR_GOOD = 42


def test_the_replacement_of_a_failed_pod_binds_alone(stage: JobStage) -> None:
    # The gang fills the cluster: the replacement has room only where its predecessor was.
    stage.submit_job("train", cpu="30", parallelism=12, completions=12)
    stage.await_bound("train", 12)
    first = stage.bound("train")

    lost = stage.fail_index("train", 1)
    stage.await_replacement("train", 1, lost)
    others = {name: node for name, node in first.items() if name != lost}
    assert others.items() <= stage.bound("train").items()


@pytest.mark.full
def test_a_completed_index_counts_even_when_its_pod_has_been_deleted(stage: JobStage) -> None:
    # kubernetes/kubernetes#142330
    stage.submit_job("train", parallelism=3, completions=3)
    stage.await_bound("train", 3)
    done = stage.complete_index("train", 0)
    eventually("the index", lambda: stage.job("train")["status"].get("completedIndexes") == "0")
    stage.delete_pods(done)
    eventually("its pod's end", lambda: not stage.pods("train-0-"))

    lost = stage.fail_index("train", 1)
    stage.await_replacement("train", 1, lost)
    assert stage.counts("train") == [3, 3]


@pytest.mark.full
def test_an_index_that_has_failed_for_good_counts(stage: JobStage) -> None:
    rule = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [FOR_GOOD]}}
    stage.submit_job("train", parallelism=3, completions=3, backoffLimitPerIndex=3, podFailurePolicy={"rules": [rule]})
    stage.await_bound("train", 3)
    gone = stage.fail_index("train", 0, FOR_GOOD)
    eventually("the index", lambda: stage.job("train")["status"].get("failedIndexes") == "0")
    stage.delete_pods(gone)
    eventually("its pod's end", lambda: not stage.pods("train-0-"))

    lost = stage.fail_index("train", 1)
    stage.await_replacement("train", 1, lost)
    assert stage.counts("train") == [3, 3]
