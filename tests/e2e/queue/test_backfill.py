"""A large gang waits for the whole cluster while small ones come: who gets the room?"""

import pytest

from tests.e2e.queue.stage import QueueStage
from tests.support.cluster_stage import eventually
from tests.support.clusters import BESIDE_NATIVE_GANGS

pytestmark = pytest.mark.e2e

ALSO_BESIDE = pytest.mark.parametrize("forecasting", ["fallback", BESIDE_NATIVE_GANGS], indirect=True, scope="package")


@ALSO_BESIDE
def test_a_large_gang_is_not_passed_by_small_ones_however_many_come(stage: QueueStage) -> None:
    stage.occupy_rack()
    stage.run_gang("large", 4)
    stage.await_reason(
        stage.group_of_job("large"),
        "NoCapacity",
        f"Serried keeps 4 nodes for job/large ({stage.namespace}/{stage.group_of_job('large')}), "
        "and cannot tell when the gang will fit",
    )

    for number in range(3):
        stage.run_gang(f"small-{number}", 2)
    for number in range(3):
        stage.await_reason(
            stage.group_of_job(f"small-{number}"),
            "BehindHead",
            f"for job/large ({stage.namespace}/{stage.group_of_job('large')})",
        )
    group = stage.group_of_job("small-0")
    eventually("the condition", lambda: stage.condition(group)[2].startswith("BehindHead: 2 members would fit"))
    assert not stage.bound("small")

    stage.delete_job("early")
    stage.await_bound("large", 4)
    assert not stage.bound("small")
    stage.delete_job("large")
    stage.await_bound("small", 4)


@ALSO_BESIDE
def test_a_small_gang_that_ends_before_the_forecast_passes_and_the_forecast_comes_true(stage: QueueStage) -> None:
    before = stage.outcomes().get("kept", 0)
    stage.occupy_rack(seconds=30)
    stage.run_gang("large", 4)
    stage.await_reason(stage.group_of_job("large"), "NoCapacity")
    assert stage.queue()["head"]["forecast"]

    stage.run_gang("long", 2, seconds=300)
    stage.await_reason(stage.group_of_job("long"), "BehindHead")
    stage.run_gang("short", 2, seconds=5)
    stage.await_bound("short", 2)
    passed = f"{stage.namespace}/{stage.group_of_job('short')}"
    assert passed in stage.queue()["head"]["passed"]
    assert not stage.bound("large")

    stage.await_bound("large", 4, seconds=90)
    assert not stage.bound("long")
    assert stage.outcomes().get("kept", 0) == before + 1


@ALSO_BESIDE
def test_a_small_gang_runs_at_once_beside_the_room_of_a_gang_that_is_too_large_for_now(stage: QueueStage) -> None:
    stage.occupy_rack()
    stage.run_gang("large", 4)
    stage.await_reason(stage.group_of_job("large"), "NoCapacity", "cannot tell when the gang will fit")

    stage.run_gang("small", 2, cpu="1")
    stage.await_bound("small", 2)
    stage.delete_job("early")
    stage.await_bound("large", 4)


def test_a_restart_keeps_room_for_the_same_gang(stage: QueueStage) -> None:
    stage.occupy_rack()
    stage.run_gang("large", 4)
    stage.await_reason(stage.group_of_job("large"), "NoCapacity")
    stage.run_gang("small", 2)
    stage.await_reason(stage.group_of_job("small"), "BehindHead")

    stage.cluster.restart("extender")
    stage.await_reason(stage.group_of_job("small"), "BehindHead", seconds=30.0)
    assert stage.queue()["head"]["name"] == stage.group_of_job("large")
    assert not stage.bound("small")


def test_without_backfill_the_small_gang_takes_the_room(stage_without_backfill: QueueStage) -> None:
    stage = stage_without_backfill
    stage.occupy_rack()
    stage.run_gang("large", 4)
    stage.await_reason(stage.group_of_job("large"), "NoCapacity")
    stage.run_gang("small", 2)
    stage.await_bound("small", 2)
    assert stage.queue()["head"] is None
