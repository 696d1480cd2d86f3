import pytest

from extender.features.repair import count_wanted
from serried.api.group import PodGroup
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import JobBuilder, PodBuilder, job, pod, pod_group
from tests.support.parents import JobSetBuilder, LeaderWorkerSetBuilder, job_set, leader_worker_set

SCHEDULER = "serried"


def member(number: int) -> PodBuilder:
    return pod(f"p{number}").scheduler(SCHEDULER).in_group("g")


def wanted(store: Store, group: PodGroup, *members: PodBuilder) -> int:
    store.put_group(group)
    for each in members:
        store.put_pod(each.value())
    return count_wanted(store, group, store.members.classify(group.key))


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        pytest.param(job("j").size(4), 4, id="as many as run at a time"),
        pytest.param(job("j").size(4, 2), 2, id="never more than complete"),
        pytest.param(job("j").size(4).completed_indexes("0-1"), 2, id="fewer when some are done"),
        pytest.param(job("j").size(4).failed_indexes("3"), 3, id="or were given up"),
        pytest.param(
            job("j").size(2, 8).completed_indexes("0-4"), 2, id="of many, as many as run at a time until the end"
        ),
        pytest.param(job("j").size(4).suspended(), 0, id="none while it is suspended"),
        pytest.param(job("j").size(4).condition("Complete"), 0, id="none when it is over"),
        pytest.param(job("j").size(4).condition("FailureTarget"), 0, id="nor when it fails, and its pods still end"),
        pytest.param(job("j").size(4).condition("SuccessCriteriaMet"), 0, id="or has succeeded with fewer"),
        pytest.param(job("j").size(4).deleting(), 0, id="none when it goes"),
        pytest.param(job("j").size(4).uid("another"), 0, id="none if it is another one of the same name"),
    ],
)
def test_a_job_wants(owner: JobBuilder, expected: int) -> None:
    store = Store([SCHEDULER], rules=RULES)
    store.put_job(owner.value())
    assert wanted(store, pod_group("g").gang(2).controlled_by("Job", "j").value()) == expected


@pytest.mark.parametrize(
    ("owner", "template", "expected"),
    [
        pytest.param(job_set("s").gang_policy().replicated("a", 2, 3), "", 6, id="the pods of all its Jobs"),
        pytest.param(
            job_set("s").gang_policy().replicated("a", 1, 3).replicated("b", 1, 2).in_order(),
            "b",
            2,
            id="those of one stage, if they start in order",
        ),
        pytest.param(
            job_set("s").gang_policy().replicated("a", 2, 3).condition("Failed"), "", 0, id="none when it is over"
        ),
    ],
)
def test_a_job_set_wants(owner: JobSetBuilder, template: str, expected: int) -> None:
    store = Store([SCHEDULER], rules=RULES)
    store.put_parent(owner.value())
    group = pod_group("g").gang(2).from_template("w", template).controlled_by("JobSet", "s")
    assert wanted(store, group.value()) == expected


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        pytest.param(leader_worker_set("s").gang_policy().size(2, 4), 4, id="the size of a replica"),
        pytest.param(leader_worker_set("s").gang_policy().size(1, 4), 0, id="none of a replica that was scaled away"),
    ],
)
def test_a_leader_worker_set_wants(owner: LeaderWorkerSetBuilder, expected: int) -> None:
    store = Store([SCHEDULER], rules=RULES)
    store.put_parent(owner.value())
    group = pod_group("g").gang(2).replica(1).controlled_by("LeaderWorkerSet", "s")
    assert wanted(store, group.value()) == expected


def test_where_nobody_says_a_number_min_count_is_wanted_as_long_as_anybody_is_left() -> None:
    store, group = Store([SCHEDULER], rules=RULES), pod_group("g").gang(3).value()
    assert wanted(store, group) == 0
    assert wanted(store, group, member(0).on("n")) == 3
    assert wanted(store, group, member(1).on("n").phase("Succeeded")) == 2
