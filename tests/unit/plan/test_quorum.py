import pytest

from serried.plan.quorum import size_up
from tests.support.builders import JobBuilder, PodBuilder, job, pod

SCHEDULERS = frozenset({"serried"})


def member(index: int) -> PodBuilder:
    return pod(f"p{index}").of_job("train", index).scheduler("serried")


JOB = job("train").size(4).scheduler("serried")


@pytest.mark.parametrize(
    ("pods", "builder", "placed"),
    [
        pytest.param([member(0).on("n"), member(1)], JOB, 1, id="bound members count, waiting ones do not"),
        pytest.param([member(0).phase("Succeeded"), member(1)], JOB, 1, id="completed ones count"),
        pytest.param([member(1)], JOB.completed("0,2"), 2, id="also when their pods have been deleted"),
        pytest.param([member(0).phase("Succeeded")], JOB.completed("0"), 1, id="none counts twice"),
        pytest.param([member(0).phase("Succeeded")], JOB, 1, id="the Job's status may be behind its pods"),
        pytest.param([member(0).on("n"), member(1)], JOB.given_up("2-3"), 3, id="indexes that were given up count"),
        pytest.param([member(0).phase("Failed"), member(1)], JOB, 0, id="a failed pod is replaced, and does not"),
    ],
)
def test_who_counts_toward_the_quorum(pods: list[PodBuilder], builder: JobBuilder, placed: int) -> None:
    assert size_up([each.value() for each in pods], SCHEDULERS, builder.value()).placed == placed


@pytest.mark.parametrize(
    ("completed", "need"),
    [
        pytest.param("", 4, id="a wave of four"),
        pytest.param("0-3", 4, id="the next wave is a gang, too"),
        pytest.param("0-9", 2, id="the last wave is as large as what is left"),
        pytest.param("0-11", 0, id="all is done"),
    ],
)
def test_a_job_of_several_waves_needs_each_of_them_whole(completed: str, need: int) -> None:
    waves = job("train").size(4, 12).scheduler("serried").completed(completed).value()
    assert size_up([], SCHEDULERS, waves, 4).need(4) == need


def test_waiting_members_stand_in_the_order_of_their_ranks() -> None:
    waiting = size_up([member(index).value() for index in (10, 2, 0)], SCHEDULERS).waiting
    assert [pod.index for pod in waiting] == [0, 2, 10]


def test_a_group_of_no_job_counts_its_pods_only() -> None:
    assert size_up([member(0).on("n").value(), member(1).phase("Succeeded").value()], SCHEDULERS).placed == 2
