"""The Store after objects are deleted, or an API is no longer served."""

from serried.api.names import GroupKey, GroupKind
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import PodGroupBuilder, job, pod, pod_group, workload

GANG = job("train").size(2).scheduler("serried")
LOAD = workload("w").for_job("train").gang_template("t", 2)
GROUP = pod_group("g").gang(2).from_template("w", "t").controlled_by("Job", "train")
RUNS, WAITS = (pod(f"train-{index}").of_job("train", index).scheduler("serried") for index in range(2))


def running_gang(group: PodGroupBuilder = GROUP) -> Store:
    """A Job with a bound pod and a waiting one."""
    store = Store(["serried"], rules=RULES)
    store.put_job(GANG.value())
    store.put_workload(LOAD.value())
    store.put_group(group.value())
    for each in (RUNS.on("n1"), WAITS):
        store.put_pod(each.value())
    return store


def group_of(store: Store) -> GroupKey | None:
    return store.members.group_of(WAITS.value().uid)


def test_the_waiting_pods_of_a_running_gang_stay_held_while_the_api_is_gone() -> None:
    store = running_gang()
    store.set_obstacle("not served")
    store.drop_group(GROUP.value().key)
    store.drop_workload(LOAD.value().key)
    assert group_of(store) == GroupKey("default", "train", GroupKind("Job"))
    assert not store.dirty.orphans

    store.put_workload(LOAD.value())
    store.put_group(GROUP.value())
    store.set_obstacle("")
    assert group_of(store) == GroupKey("default", "g")


def test_pods_of_a_job_that_began_without_objects_are_let_go_again_when_the_api_is_back() -> None:
    store = Store(["serried"], rules=RULES)
    store.put_job(GANG.value())
    for each in (RUNS.on("n1"), WAITS):
        store.put_pod(each.value())
    assert group_of(store) is None
    store.set_obstacle("not served")
    assert group_of(store) is not None
    store.set_obstacle("")
    assert group_of(store) is None
    assert WAITS.value().uid in store.dirty.orphans


def test_a_workload_that_is_deleted_changes_nothing_while_its_pod_group_stands() -> None:
    store = running_gang()
    store.drop_workload(LOAD.value().key)
    assert group_of(store) == GroupKey("default", "g")


def test_a_pod_group_whose_owner_was_taken_off_leaves_no_trace_behind() -> None:
    store = running_gang()
    store.put_group(pod_group("g").gang(2).from_template("w", "t").value())
    store.drop_workload(LOAD.value().key)
    store.drop_group(GroupKey("default", "g"))
    store.put_job(job("train").uid("another").size(2).scheduler("serried").value())
    again = pod("again-0").of_job("train", 0, "another").scheduler("serried")
    store.put_pod(again.value())
    assert store.members.group_of(again.value().uid) == GroupKey("default", "train", GroupKind("Job"))


def test_a_job_that_comes_to_say_that_it_is_no_gang_lets_its_pods_go() -> None:
    store = Store(["serried"], rules=RULES)
    store.put_job(GANG.value())
    store.put_pod(WAITS.value())
    store.put_job(GANG.gang_policy("NoGang").value())
    assert group_of(store) is None
