"""Every example does what its comment says, as it stands: 12 nodes of 16 CPU in 4 racks."""

import pytest

from tests.e2e.examples.stage import EXAMPLES, ExampleStage, read
from tests.support.cluster_stage import RACK, eventually, names

pytestmark = pytest.mark.e2e


def test_training_job_runs_with_all_its_workers(stage: ExampleStage) -> None:
    stage.apply("training-job")
    stage.await_bound("training-job", 8)
    assert stage.counts("training-job") == 8


def test_training_job_of_8_workers_of_which_7_fit_binds_none(stage: ExampleStage) -> None:
    room_for_seven(stage)

    stage.apply("training-job")

    group = stage.group_of_job("training-job")
    stage.await_reason(group, "NoCapacity", "only 7 of 8 members fit")
    assert eventually("8 pods", lambda: len(stage.pods("training-job")) == 8)
    assert stage.bound("training-job") == {}
    assert stage.reservations() == []

    stage.delete_pods("filler-0")
    stage.await_bound("training-job", 8)


def test_gpu_job_runs_in_the_zone_that_has_its_gpus(stage: ExampleStage) -> None:
    with stage.labelled("topology.kubernetes.io/zone"), stage.gpus(rack="rack-2", of_each_node=8):
        stage.apply("gpu-job")
        stage.await_reason(stage.group_of_job("gpu-job"), "NoDomainFits", "topology.kubernetes.io/zone")
    with stage.labelled("topology.kubernetes.io/zone"), stage.gpus(rack="rack-2", of_each_node=16):
        stage.await_bound("gpu-job", 4)
        assert stage.racks("gpu-job") == {"rack-2"}
        stage.delete_job("gpu-job")


def test_batch_job_runs_one_pod_at_a_time_and_is_no_gang(stage: ExampleStage) -> None:
    stage.apply("batch-job")
    stage.await_bound("batch-job", 1)
    assert stage.groups() == set()


def test_tensorflow_workers_start_together_all_that_run_at_a_time(stage: ExampleStage) -> None:
    stage.apply("tensorflow-workers")
    stage.await_bound("tensorflow-workers", 4)
    assert stage.counts("tensorflow-workers") == 4


def test_mpi_job_has_all_its_ranks_in_one_rack_in_their_order(stage: ExampleStage) -> None:
    stage.apply("mpi-job")
    stage.await_bound("mpi-job", 16)
    assert len(stage.racks("mpi-job")) == 1
    nodes = stage.bound("mpi-job")
    by_rank = sorted(stage.ranks("mpi-job").items(), key=lambda item: int(item[1] or -1))
    assert [rank for _, rank in by_rank] == [str(rank) for rank in range(16)]
    assert [nodes[name] for name, _ in by_rank] == sorted(nodes.values())


def test_own_controller_gets_no_gang(stage: ExampleStage) -> None:
    stage.apply("own-controller")
    stage.await_bound("own-controller", 3)
    assert stage.groups() == set()


def test_own_podgroup_runs_once_three_of_its_pods_are_there(stage: ExampleStage) -> None:
    stage.apply("own-podgroup")
    stage.await_bound("own-podgroup", 3)


def test_one_rack_waits_until_one_rack_has_room_for_all(stage: ExampleStage) -> None:
    # 2 of 16 CPU are left on each node, so 3 members of 2 CPU fit into a rack.
    stage.create_pods(names("filler", 12), None, cpu="14")
    stage.await_bound("filler", 12)

    stage.apply("one-rack")

    stage.await_reason(stage.group_of_job("one-rack"), "NoDomainFits", RACK)
    assert stage.bound("one-rack") == {}
    rack = stage.rack_of("filler-0")
    stage.delete_pods(*(name for name in stage.bound("filler") if stage.rack_of(name) == rack))
    stage.await_bound("one-rack", 6)
    assert stage.racks("one-rack") == {rack}


def test_high_priority_gets_the_room_of_pods_of_lower_priority(stage: ExampleStage) -> None:
    stage.create_pods(names("filler", 12), None, cpu="16")
    stage.await_bound("filler", 12)

    stage.apply("high-priority")

    stage.await_bound("high-priority", 4)
    eventually("one victim", lambda: len(stage.pods("filler")) == 11)


def test_every_example_has_a_story() -> None:
    told = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")} | {"tour"}
    examples = {path.stem for path in EXAMPLES.glob("*.yaml")}
    assert {example for example in examples if not any(name.startswith(example) for name in told)} == set()
    assert all(read(example) for example in examples)


def room_for_seven(stage: ExampleStage) -> None:
    """Eleven nodes are full, and of the twelfth so much that 7 pods of 1 CPU fit."""
    stage.create_pods(names("whole", 11), None, cpu="16")
    stage.await_bound("whole", 11)
    stage.create_pods(["filler-0"], None, cpu="9")
    stage.await_bound("filler", 1)
