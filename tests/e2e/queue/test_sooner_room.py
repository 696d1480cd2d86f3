"""Room that is forecast sooner than victims would end is waited for: nobody is evicted for it."""

import pytest

from tests.e2e.promises.test_preemption import create_high_class
from tests.e2e.queue.stage import WHOLE_NODE, QueueStage
from tests.support.cluster_stage import indexed_spec, names

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def run_slow_to_end(stage: QueueStage, name: str, deadline: int) -> None:
    """A gang Job on two nodes, which is ended after so many seconds, while its pods could take much longer to end."""
    spec = indexed_spec("serried", WHOLE_NODE)
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    stage.submit_job(name, **spec, activeDeadlineSeconds=deadline)
    stage.await_bound(name, 2)


def test_nobody_goes_for_a_gang_that_has_room_before_victims_would_have_ended(stage: QueueStage) -> None:
    high = create_high_class(stage)
    stage.create_pods(names("other", 2), cpu=WHOLE_NODE, priorityClassName=high)
    stage.await_bound("other", 2)
    run_slow_to_end(stage, "low", deadline=25)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": high}
    stage.create_scheduling("PodGroup", "ring", spec)
    stage.create_pods(names("ring", 2), "ring", cpu=WHOLE_NODE, priorityClassName=high)
    stage.await_reason("ring", "NoCapacity", "Serried keeps 2 nodes for default/g, which is expected to fit at")
    asked = stage.debug_page("ring?dryRun")["dryRun"]
    assert len(asked["found"]["victims"]) == 2
    assert asked["message"].endswith(
        "but Serried evicts no pod: the gang is forecast to fit before these pods would have ended"
    )
    assert len(stage.bound("low")) == 2

    stage.await_bound("ring", 2, 60)
    assert not stage.messages("ring", "PreemptionBegun")
