"""Gangs of 1.35: parts of a Workload, and an independent one for each replica key."""

import pytest

from serried.api.group import Policy, Workload
from serried.api.names import JOB, REQUIRED_TOPOLOGY, GroupKey, GroupKind, Key
from serried.api.parent import OwnerKey
from serried.cluster.cache import Store
from serried.cluster.membership import provisional
from serried.rules.all import RULES
from tests.support.builders import RACK, job, pod, workload

PART = GroupKey("default", "w", GroupKind.WORKLOAD, "workers")
FIRST = PART._replace(replica="0")
SECOND = PART._replace(replica="1")


@pytest.fixture
def store() -> Store:
    return Store(["serried"], rules=RULES)


def w(min_count: int = 2) -> Workload:
    return workload("w").inline_gang("workers", min_count).value()


class TestParts:
    def test_a_part_is_a_group_with_the_identity_of_its_workload(self, store: Store) -> None:
        store.put_workload(workload("w").annotation(REQUIRED_TOPOLOGY, RACK).inline_gang("workers", 2).value())
        group = store.groups[PART]
        assert (group.uid, group.policy, group.topology_key) == ("workload-w", Policy(2), RACK)
        assert (group.workload, group.template, group.key.kind) == ("w", "workers", GroupKind.WORKLOAD)

    def test_pods_before_their_workload_belong_to_a_group_that_is_missing(self, store: Store) -> None:
        store.put_pod(pod("p").in_workload("w", "workers").value())
        assert store.members.group_of("pod-p") == PART
        assert PART not in store.groups
        store.put_workload(w())
        assert PART in store.groups

    def test_a_pod_of_a_part_that_the_workload_does_not_have_waits_for_it(self, store: Store) -> None:
        store.put_workload(w())
        store.put_pod(pod("p").in_workload("w", "drivers").value())
        assert GroupKey("default", "w", GroupKind.WORKLOAD, "drivers") not in store.groups

    def test_a_workload_that_goes_takes_its_parts_along(self, store: Store) -> None:
        store.put_workload(w())
        store.put_pod(pod("p").in_workload("w", "workers", "0").value())
        store.dirty.groups.clear()
        store.drop_workload(Key("default", "w"))
        assert not store.groups
        assert FIRST in store.dirty.groups

    def test_a_workload_that_has_no_parts_any_more_takes_them_along(self, store: Store) -> None:
        store.put_workload(w())
        store.put_pod(pod("p").in_workload("w", "workers", "0").value())
        store.put_workload(workload("w").gang_template("workers", 2).value())
        assert not store.groups

    def test_a_jobs_pods_find_their_part_through_the_workload(self, store: Store) -> None:
        store.put_job(job("j").size(2).scheduler("serried").value())
        store.put_workload(workload("w").for_job("j").inline_gang("workers", 2).value())
        store.put_pod(pod("j-0").of_job("j", 0).value())
        assert store.members.group_of("pod-j-0") == PART

    def test_a_jobs_pods_wait_once_their_workload_went_and_join_its_successor(self, store: Store) -> None:
        def made(name: str) -> Workload:
            return workload(name).for_job("j").controlled_by("Job", "j").inline_gang("workers", 2).value()

        store.put_job(job("j").size(2).scheduler("serried").value())
        store.put_workload(made("w"))
        store.put_pod(pod("j-0").of_job("j", 0).value())
        store.drop_workload(Key("default", "w"))
        assert store.members.group_of("pod-j-0") == provisional(OwnerKey(JOB, Key("default", "j")))
        store.put_workload(made("v"))
        assert store.members.group_of("pod-j-0") == GroupKey("default", "v", GroupKind.WORKLOAD, "workers")

    def test_a_replica_does_not_make_a_jobs_group_ambiguous(self, store: Store) -> None:
        store.put_job(job("j").size(2).scheduler("serried").value())
        store.put_workload(workload("w").for_job("j").inline_gang("workers", 2).value())
        store.put_pod(pod("p").in_workload("w", "workers", "0").value())
        store.put_pod(pod("j-0").of_job("j", 0).value())
        assert store.members.group_of("pod-j-0") == PART


class TestReplicas:
    @pytest.mark.parametrize("pods_first", [True, False], ids=["pods first", "Workload first"])
    def test_every_replica_key_is_a_gang_of_its_own(self, store: Store, *, pods_first: bool) -> None:
        pods = [pod(f"p{index}").in_workload("w", "workers", str(index % 2)).value() for index in range(4)]
        if not pods_first:
            store.put_workload(w())
        for each in pods:
            store.put_pod(each)
        if pods_first:
            store.put_workload(w())
        assert {FIRST, SECOND} <= store.groups.keys()
        assert [member.name for member in store.members.of_group(FIRST)] == ["p0", "p2"]

    def test_a_replica_ends_with_its_last_pod_and_comes_back_with_a_new_one(self, store: Store) -> None:
        store.put_workload(w())
        store.put_pod(pod("p").in_workload("w", "workers", "0").value())
        store.drop_pod("pod-p")
        assert store.groups.keys() == {PART}
        store.put_pod(pod("q").in_workload("w", "workers", "0").value())
        assert FIRST in store.groups

    def test_a_changed_workload_changes_its_replicas(self, store: Store) -> None:
        store.put_workload(w())
        store.put_pod(pod("p").in_workload("w", "workers", "0").value())
        store.put_workload(w(min_count=5))
        assert store.groups[FIRST].policy == Policy(5)
