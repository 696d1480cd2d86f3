from dataclasses import replace

import pytest

from serried.api.group import Branch, Leaf
from serried.plan.quorum import GroupMembers, classify, find_quorum_time, sum_members
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
        pytest.param([member(1)], JOB.completed_indexes("0,2"), 2, id="also when their pods have been deleted"),
        pytest.param([member(0).phase("Succeeded")], JOB.completed_indexes("0"), 1, id="none counts twice"),
        pytest.param([member(0).phase("Succeeded")], JOB, 1, id="the Job's status may be behind its pods"),
        pytest.param(
            [member(0).on("n"), member(1)], JOB.failed_indexes("2-3"), 3, id="indexes that were given up count"
        ),
        pytest.param([member(0).phase("Failed"), member(1)], JOB, 0, id="a failed pod is replaced, and does not"),
    ],
)
def test_who_counts_toward_the_quorum(pods: list[PodBuilder], builder: JobBuilder, placed: int) -> None:
    assert classify([each.value() for each in pods], SCHEDULERS, builder.value()).placed == placed


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
    waves = job("train").size(4, 12).scheduler("serried").completed_indexes(completed).value()
    assert classify([], SCHEDULERS, waves, 4).need(4) == need


def test_waiting_members_stand_in_the_order_of_their_ranks() -> None:
    waiting = classify([member(index).value() for index in (10, 2, 0)], SCHEDULERS).waiting
    assert [pod.index for pod in waiting] == [0, 2, 10]


def test_a_group_of_no_job_counts_its_pods_only() -> None:
    assert classify([member(0).on("n").value(), member(1).phase("Succeeded").value()], SCHEDULERS).placed == 2


def at(second: int, index: int = 0) -> PodBuilder:
    """A member that was created so many seconds after 1970."""
    return member(index).created(f"1970-01-01T00:00:{second:02}Z")


def stand(*pods: PodBuilder) -> GroupMembers:
    return classify([each.value() for each in pods], SCHEDULERS)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([at(7), at(3)], 7, id="the second member came"),
        pytest.param([at(9), at(3), at(5)], 5, id="the second of three"),
        pytest.param([at(3).on("n"), at(5)], 5, id="bound ones count from their creation"),
        pytest.param([member(0).phase("Succeeded"), at(5), at(9)], 5, id="completed ones were there before"),
        pytest.param([at(3)], None, id="too few are there"),
        pytest.param([at(3), at(5).on("n").deleting()], None, id="one that goes does not count"),
        pytest.param([at(3), member(1)], None, id="one does not say when it came"),
        pytest.param([member(0).phase("Succeeded"), member(1).phase("Succeeded"), at(5)], None, id="all is done"),
    ],
)
def test_a_quorum_of_two_is_there_since(pods: list[PodBuilder], expected: int | None) -> None:
    assert find_quorum_time(Leaf("", 2), stand(*pods)) == expected


def test_a_member_for_which_only_the_scheduler_finds_no_node_is_there_all_the_same() -> None:
    refused = replace(at(5).value(), device_claims=("gpu",), objection="no node has one")
    assert find_quorum_time(Leaf("", 2), classify([at(3).value(), refused], SCHEDULERS)) == 5


def test_a_tree_is_there_when_the_last_group_is_that_it_needs() -> None:
    leaves = {"a": stand(at(3), at(4)), "b": stand(at(8)), "c": stand(at(9))}
    tree = Branch("root", 2, None, (Leaf("a", 2), Leaf("b", 1), Leaf("c", 1), Leaf("missing", 1)))
    assert find_quorum_time(tree, sum_members(leaves)) == 8
