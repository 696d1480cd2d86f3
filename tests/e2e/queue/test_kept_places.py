"""A gang is suspended while it waits, as Kueue does after its time-out, and comes back with new pods."""

import pytest

from tests.e2e.queue.stage import QueueStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import BESIDE_NATIVE_GANGS

pytestmark = pytest.mark.e2e

ALSO_BESIDE = pytest.mark.parametrize("forecasting", ["fallback", BESIDE_NATIVE_GANGS], indirect=True, scope="package")


def first_quorum(stage: QueueStage, job: str) -> str:
    """The status of the condition FirstQuorum of a Job's PodGroup, "" if it has none."""
    (group,) = stage.groups_of(job)
    said = {each["type"]: each["status"] for each in group.get("status", {}).get("conditions", [])}
    return str(said.get("scheduling.serried.dev/FirstQuorum", ""))


@ALSO_BESIDE
def test_it_is_before_a_gang_that_came_meanwhile_also_after_a_restart(stage: QueueStage) -> None:
    stage.occupy_rack()
    stage.run_gang("large", 4)
    large = stage.group_of_job("large")
    stage.await_reason(large, "NoCapacity")
    eventually("the place is written", lambda: first_quorum(stage, "large") == "True")

    stage.change_job("large", suspend=True)
    eventually("no pods", lambda: not stage.pods("large"))
    stage.cluster.restart("extender")
    stage.run_gang("younger", 4)
    younger = stage.group_of_job("younger")
    stage.await_reason(younger, "NoCapacity", seconds=30.0)
    stage.change_job("large", suspend=False)
    eventually("its place in the queue", lambda: stage.queue()["head"]["name"] == large)

    stage.delete_job("early")
    stage.await_bound("large", 4)
    assert not stage.bound("younger")
    eventually("the place is used", lambda: not first_quorum(stage, "large"))
    eventually("the younger one waits since it came", lambda: first_quorum(stage, "younger") == "True")
