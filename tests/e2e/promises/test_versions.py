"""Every other version of the Workload API: the older minors', our CRDs on them, and the second one of 1.37."""

from collections.abc import Callable

import pytest

from bench.cluster import Cluster
from tests.e2e.promises import test_preemption as preemption
from tests.e2e.promises import test_preemption_victims as victims
from tests.e2e.promises.test_preemption import create_high_class, run_low, submit
from tests.support.cluster_stage import RACK, ClusterStage, eventually, staged
from tests.support.clusters import LEVELS, Find, on_older_kubernetes

pytestmark = pytest.mark.e2e

IN_1_36 = pytest.mark.parametrize("older", [on_older_kubernetes("1.36.4", level) for level in LEVELS], indirect=True)

Story = Callable[[ClusterStage, str], None]
"""One that is told in 1.37, too: of a stage and the name of a high PriorityClass."""

CLUSTERS = [
    *(on_older_kubernetes(version, level) for version in ("1.36.4", "1.35.4") for level in LEVELS),
    pytest.param("1.37.1 native v1alpha3", marks=pytest.mark.full),  # beside v1beta1, which all other stories use
]


@pytest.fixture(scope="module", params=CLUSTERS)
def older(request: pytest.FixtureRequest, shared: Find) -> Cluster:
    return shared(request.param)


def test_a_job_waits_whole_and_runs_whole_in_one_rack(older: Cluster) -> None:
    stage = ClusterStage(older, "story")
    stage.fill_a_node()
    stage.create_job("train", 9, cpu="10", key=RACK)
    stage.await_bound("train", 9)
    assert stage.selfcheck()["api"]["podsKeepTheirGroup"] is stage.native
    assert stage.selfcheck()["api"]["version"] == older.spec.api_version.split("/")[1]
    assert len(stage.racks("train")) == 1
    assert sorted(filter(None, stage.ranks("train").values())) == list("012345678")
    if not stage.inline:
        eventually("the condition", lambda: stage.condition(stage.group_of_job("train")) == ("True", "Scheduled", ""))

    stage.create_job("wide", 10, cpu="10", key=RACK)
    stage.await_reason(stage.group_of_job("wide"), "NoDomainFits")
    assert not stage.bound("wide")
    stage.close()


@pytest.mark.parametrize("older", [on_older_kubernetes("1.35.4", "native")], indirect=True)
def test_in_1_35_every_replica_key_is_an_independent_gang(older: Cluster) -> None:
    stage = ClusterStage(older, "replicas")
    stage.create_group("serve", 3)
    stage.create_pods(["zero-0", "zero-1", "zero-2"], "serve", replica="0")
    stage.create_pods(["one-0", "one-1"], "serve", replica="1")

    stage.await_bound("zero", 3)
    message = "QuorumMissing: 2 of 3 members exist"
    eventually("the reason", lambda: stage.debug_page("serve/serve/1").get("message") == message, 10)
    eventually("the event", lambda: ("QuorumMissing", message) in stage.events("serve"))
    assert not stage.bound("one")

    stage.create_pods(["one-2"], "serve", replica="1")
    stage.await_bound("one", 3)
    stage.close()


@IN_1_36
def test_in_1_36_a_gang_gets_the_room_of_lower_pods(older: Cluster) -> None:
    stage = ClusterStage(older, "preemption")
    high = create_high_class(stage)
    run_low(stage, 12, end_after="2s")
    submit(stage, "ring", 3, high, RACK)
    stage.await_bound("ring", 3, 60)
    assert len(stage.racks("ring")) == 1
    assert len(stage.pods("low")) == 9
    stage.close()


@pytest.mark.full
@IN_1_36
@pytest.mark.parametrize(
    "story",
    [
        pytest.param(preemption.test_a_budget_keeps_its_pods_and_others_go, id="a budget keeps its pods"),
        pytest.param(
            preemption.test_members_wait_and_are_not_bound_alone_while_the_others_end, id="members wait for victims"
        ),
        pytest.param(victims.test_victims_that_do_not_end_in_time_are_waited_for_no_longer, id="victims do not end"),
    ],
)
def test_in_1_36_preemption_is_as_in_1_37(older: Cluster, story: Story) -> None:
    with staged(ClusterStage, older) as stage:
        story(stage, create_high_class(stage))
