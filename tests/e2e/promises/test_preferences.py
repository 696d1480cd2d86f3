"""Preferences of a gang: levels of the topology with waits between them, and its layout."""

from typing import Any

import pytest

from tests.support.cluster_stage import RACK, ClusterStage, staged

pytestmark = pytest.mark.e2e

PREFERRED = "scheduling.serried.dev/preferred-topology"
PACKING = "scheduling.serried.dev/packing"
EXCLUSIVE = "scheduling.serried.dev/exclusive"
REQUIRED = "scheduling.serried.dev/required-topology"


def submit(stage: ClusterStage, name: str, size: int, annotations: dict[str, str], cpu: str = "30") -> None:
    stage.submit_job(name, cpu=cpu, metadata={"annotations": annotations}, parallelism=size, completions=size)


def rack_of_index(stage: ClusterStage, job: str) -> list[str]:
    """The rack of each pod of an Indexed Job, by its index."""
    label = "batch.kubernetes.io/job-completion-index"
    pods = sorted(stage.pods(job), key=lambda pod: int(pod["metadata"]["labels"][label]))
    return [next(iter(stage.racks(pod["metadata"]["name"]))) for pod in pods]


def test_a_gang_that_fits_one_rack_goes_there_and_a_larger_one_takes_as_few_as_it_can_in_rank_order(
    stage: ClusterStage,
) -> None:
    submit(stage, "small", 3, {PREFERRED: RACK})
    stage.await_bound("small", 3)
    assert len(stage.racks("small")) == 1

    submit(stage, "large", 5, {PREFERRED: RACK})
    stage.await_bound("large", 5)
    ranks = rack_of_index(stage, "large")
    assert len(set(ranks)) == 2
    assert ranks == sorted(ranks)


def test_a_gang_waits_for_one_rack_as_long_as_it_says_and_then_takes_several(stage: ClusterStage) -> None:
    submit(stage, "patient", 4, {PREFERRED: f"{RACK}=1h"})
    submit(stage, "hasty", 4, {PREFERRED: f"{RACK}=2s"})

    stage.await_bound("hasty", 4)
    assert len(stage.racks("hasty")) == 2
    stage.await_reason(
        stage.group_of_job("patient"),
        "NoDomainFits",
        f"4 members do not fit into any domain of {RACK}",
        "members fit into the whole cluster",
    )
    assert not stage.bound("patient")


def test_a_gang_that_spreads_has_a_node_for_each_member_and_stays_in_its_required_rack(stage: ClusterStage) -> None:
    submit(stage, "wide", 3, {PACKING: "spread", REQUIRED: RACK}, cpu="1")
    stage.await_bound("wide", 3)
    assert len(set(stage.bound("wide").values())) == 3
    assert len(stage.racks("wide")) == 1


def one_rack(seconds: int) -> dict[str, Any]:
    """A gang of four that waits so long for one rack, by the field that the fallback API has for it."""
    constraints = {"preferredTopology": [{"key": RACK, "waitSeconds": seconds}]}
    return {"schedulingPolicy": {"gang": {"minCount": 4}}, "schedulingConstraints": constraints}


@pytest.fixture
def fallback(stage: ClusterStage) -> ClusterStage:
    if stage.native:
        pytest.skip("scheduling.k8s.io has no such field")
    return stage


def test_at_the_fallback_level_a_field_says_it_and_counts_more_than_the_annotation(fallback: ClusterStage) -> None:
    for name, seconds, annotation in (("patient", 3600, RACK), ("hasty", 2, f"{RACK}=1h")):
        fallback.create_scheduling("PodGroup", name, one_rack(seconds), {PREFERRED: annotation})
        fallback.create_pods([f"{name}-{index}" for index in range(4)], name, cpu="30")

    fallback.await_bound("hasty", 4)
    assert len(fallback.racks("hasty")) == 2
    fallback.await_reason("patient", "NoDomainFits", f"4 members do not fit into any domain of {RACK}")
    assert not fallback.bound("patient")


def test_a_template_hands_its_levels_to_the_group_that_is_made_from_it(fallback: ClusterStage) -> None:
    reference = {"apiGroup": "batch", "kind": "Job", "name": "train"}
    template = {"name": "workers", **one_rack(3600)}
    fallback.create_scheduling("Workload", "train", {"controllerRef": reference, "podGroupTemplates": [template]})
    submit(fallback, "train", 4, {})

    group = fallback.await_group("train", "train")
    assert group["spec"]["schedulingConstraints"] == one_rack(3600)["schedulingConstraints"]
    fallback.await_reason(group["metadata"]["name"], "NoDomainFits", f"4 members do not fit into any domain of {RACK}")
    assert not fallback.bound("train")


def test_exclusive_gangs_share_no_rack_and_leave_one_to_other_namespaces(stage: ClusterStage) -> None:
    for number in range(3):
        submit(stage, f"lone-{number}", 2, {REQUIRED: RACK, EXCLUSIVE: "true"}, cpu="1")
    stage.await_bound("lone", 6)
    assert len(stage.racks("lone")) == 3

    submit(stage, "late", 2, {REQUIRED: RACK, EXCLUSIVE: "true"}, cpu="1")
    stage.await_reason(stage.group_of_job("late"), "NoDomainFits", "have 3 of 4 domains exclusively")
    with staged(ClusterStage, stage.cluster) as other:
        submit(other, "lone", 2, {REQUIRED: RACK, EXCLUSIVE: "true"}, cpu="1")
        other.await_bound("lone", 2)
        assert other.racks("lone").isdisjoint(stage.racks("lone"))
        submit(other, "late", 2, {REQUIRED: RACK, EXCLUSIVE: "true"}, cpu="1")
        other.await_reason(
            other.group_of_job("late"), "NoDomainFits", "4 more domains are used exclusively by other gangs"
        )
        assert not other.bound("late")
    assert not stage.bound("late")
    stage.delete_job("lone-2")
    stage.await_bound("late", 2)
