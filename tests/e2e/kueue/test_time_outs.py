"""Gangs that Kueue evicts because they are not ready in time, and what becomes of them.

12 nodes of 32 CPU; a filler has taken one, so that no gang of 12 times 30 CPU fits.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.kueue.manager import IMPATIENT, Kueue
from tests.e2e.kueue.stage import KueueStage
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

TIMED_OUT = "PodsReadyTimeout"


@pytest.fixture(scope="module", autouse=True)
def impatient(kueue: Kueue) -> Iterator[None]:
    """Kueue waits for a few seconds only."""
    with kueue.configured(IMPATIENT):
        yield


def test_a_job_that_was_not_ready_in_time_comes_back_and_starts_whole(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="1000")
    stage.fill_a_node()
    stage.queue_job("team", "train", 12, "30")
    group = stage.group_of_job("train")
    stage.await_reason(group, "NoCapacity", "11 of 12")
    before = stage.pod_uids("train")
    stage.await_evicted("train", TIMED_OUT)

    stage.await_new_pods("train", before)
    stage.await_reason(group, "NoCapacity", "11 of 12")
    stage.delete_pods("filler-0")
    stage.await_bound("train", 12)
    assert stage.starts(train=12) == {"train": [12]}
    stage.await_ready_in_kueue("train")


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_a_gang_that_was_not_ready_in_time_keeps_its_place_before_those_that_came_later(
    stage: KueueStage, kind: str
) -> None:
    stage.create_queue("team", cpu="1000")
    stage.fill_a_node()
    if kind == "Job":
        stage.queue_job("team", "large", 12, "30")
    else:
        stage.queue_job_set("team", "large", 3, 4, "30")
    large = stage.await_group("large")["metadata"]["name"]
    stage.await_reason(large, "NoCapacity", "11 of 12")

    stage.hold_queue("team")
    stage.await_evicted("large", TIMED_OUT)
    eventually("no pods", lambda: not stage.pods("large"))
    stage.create_job("later", 12, cpu="20")
    later = stage.group_of_job("later")
    stage.await_reason(later, "NoCapacity", "11 of 12")

    stage.release_queue("team")
    eventually("large before later", lambda: (stage.position(large), stage.position(later)) == (1, 2))
    stage.delete_pods("filler-0")
    stage.await_bound("large", 12)
    assert not stage.bound("later")
    assert stage.starts(large=12) == {"large": [12]}


def test_a_set_of_jobs_that_was_not_ready_in_time_comes_back_and_starts_whole(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="1000")
    stage.fill_a_node()
    stage.queue_job_set("team", "train", 3, 4, "30")
    eventually("its pods", lambda: len(stage.pods("train")) == 12)
    before = stage.pod_uids("train")
    stage.await_evicted("train", TIMED_OUT)

    stage.await_new_pods("train", before)
    stage.delete_pods("filler-0")
    stage.await_bound("train", 12)
    assert stage.starts(train=12) == {"train": [12]}
    stage.await_ready_in_kueue("train")


@pytest.mark.parametrize("member", [False, True], ids=["of no PodGroup", "of a PodGroup"])
def test_plain_pods_that_were_not_ready_in_time_start_whole_once_they_are_made_anew(
    stage: KueueStage, *, member: bool
) -> None:
    stage.create_queue("team", cpu="1000")
    stage.fill_a_node()
    group = stage.queue_pods("team", "ours", 12, "30", member=member)
    stage.await_reason(group, "NoCapacity", "11 of 12")
    stage.await_evicted("ours", TIMED_OUT)
    eventually("the end of all", lambda: all("deletionTimestamp" in pod["metadata"] for pod in stage.pods("ours")))

    stage.add_pods("team", "ours", 12, "30", "ours-again", member=member)
    stage.await_reason(group, "NoCapacity", "11 of 12")
    stage.delete_pods("filler-0")
    stage.await_bound("ours-again", 12)
    assert stage.starts(ours=12) == {"ours": [12]}


def test_a_gang_that_lacks_a_member_for_too_long_goes_whole_and_comes_back_whole(stage: KueueStage) -> None:
    stage.create_queue("team", cpu="1000")
    stage.queue_job("team", "train", 12, "30")
    stage.await_bound("train", 12)
    stage.await_ready_in_kueue("train")
    before = stage.pod_uids("train")
    name, node = next(iter(stage.bound("train").items()))
    with stage.cordoned(node):
        stage.delete_pods(name)
        stage.await_evicted("train", TIMED_OUT)
        stage.await_new_pods("train", before)
        stage.await_reason(stage.group_of_job("train"), "NoCapacity", "11 of 12")
        assert not stage.bound("train")

    stage.await_bound("train", 12)
    assert stage.starts(train=12) == {"train": [12, 12]}
