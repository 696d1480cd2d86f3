"""Effects of a change on the Store: pods that move, groups that are touched, resources that are free."""

import pytest

from serried.api.names import JOB, GroupKey, Key
from serried.api.node import PROTECTED_BY
from serried.api.parent import OwnerKey
from serried.cluster.cache import Store
from serried.cluster.usage import UsageSource
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.unit.cluster.test_membership import WAITING, gang_job, gang_workload, group_of, member, stored

GROUP = GroupKey("default", "g")


def uids(store: Store, group: GroupKey) -> set[str]:
    return {each.uid for each in store.members.of_group(group)}


class TestMovingMembers:
    def test_members_move_to_the_podgroup_when_it_appears_and_back_when_it_goes(self) -> None:
        store = stored(member(0), member(1), gang_job(), gang_workload())
        assert uids(store, WAITING) == {"pod-j-0", "pod-j-1"}
        store.put_group(group_of().value())
        assert (uids(store, WAITING), uids(store, GROUP)) == (set(), {"pod-j-0", "pod-j-1"})
        store.drop_group(GROUP)
        assert (uids(store, WAITING), uids(store, GROUP)) == ({"pod-j-0", "pod-j-1"}, set())

    def test_both_the_left_and_the_joined_group_are_touched(self) -> None:
        store = stored(member(0), gang_job(), gang_workload())
        store.dirty.groups.clear()
        store.put_group(group_of().value())
        assert store.dirty.groups == {WAITING, GROUP}

    def test_members_that_name_their_group_stay_when_it_is_deleted(self) -> None:
        store = stored(pod("p").in_group("g"), pod_group("g").gang(1))
        store.dirty.groups.clear()
        store.drop_group(GROUP)
        assert uids(store, GROUP) == {"pod-p"}
        assert store.dirty.groups == {GROUP}

    def test_the_first_bound_pod_of_a_job_without_workload_frees_its_siblings(self) -> None:
        store = stored(member(0), member(1), gang_job())
        store.put_pod(member(0).on("n1").value())
        assert store.members.group_of("pod-j-1") is None
        assert store.dirty.orphans == {"pod-j-0", "pod-j-1"}

    def test_the_job_is_eligible_again_when_its_last_bound_pod_is_gone(self) -> None:
        store = stored(member(0).on("n1"), member(1), gang_job())
        store.drop_pod("pod-j-0")
        assert store.members.group_of("pod-j-1") == WAITING

    def test_a_pod_of_a_plain_job_that_leaves_no_group_orphans_nobody(self) -> None:
        store = stored(gang_job(size=1), member(0))
        assert store.dirty.orphans == set()

    def test_a_gated_pod_of_no_group_is_orphaned_so_that_its_gate_is_lifted(self) -> None:
        store = stored(gang_job(size=1), member(0).gate())
        assert store.dirty.orphans == {"pod-j-0"}

    def test_a_pod_that_its_job_lets_go_leaves_no_trace(self) -> None:
        store = stored(member(0), member(1), gang_job())
        store.put_pod(pod("j-0").scheduler("serried").value())  # kubectl delete job --cascade=orphan
        store.drop_pod("pod-j-0")
        assert [each.uid for each in store.owners.pods_of(OwnerKey(JOB, Key("default", "j")))] == ["pod-j-1"]
        store.put_job(gang_job(size=3).value())
        assert store.members.group_of("pod-j-1") == WAITING

    def test_dropping_what_is_not_there_changes_nothing(self) -> None:
        store = Store(["serried"], rules=RULES)
        store.drop_pod("p")
        store.drop_node("n")
        store.drop_group(GroupKey("default", "x"))
        for drop in (store.drop_workload, store.drop_job):
            drop(Key("default", "x"))
        assert (store.dirty.groups, store.dirty.orphans, store.occupancy.freed) == (set(), set(), 0)


class TestRoom:
    def test_a_bound_pod_uses_its_node_until_it_is_finished(self) -> None:
        store = stored(pod("p").cpu(2).on("n1"))
        assert store.occupancy.used["n1"]["cpu"] == 2000
        store.put_pod(pod("p").cpu(2).on("n1").phase("Succeeded").value())
        assert store.occupancy.used == {}

    def test_an_assumed_pod_is_counted_once_through_its_echo(self) -> None:
        store = stored(pod("p").cpu(2))
        store.occupancy.add_usage("pod-p", UsageSource.ASSUMED, "n1", pod("p").cpu(2).value().shape.requests)
        store.put_pod(pod("p").cpu(2).on("n1").value())
        assert store.occupancy.used["n1"]["cpu"] == 2000
        store.drop_pod("pod-p")
        assert store.occupancy.used == {}

    def test_a_heartbeat_frees_nothing_and_a_label_may(self) -> None:
        store = Store([], rules=RULES)
        store.put_node(node("n1").version("1").value())
        before = store.occupancy.freed
        store.put_node(node("n1").version("2").value())
        assert store.occupancy.freed == before
        store.put_node(node("n1").rack("r1").version("3").value())
        assert store.occupancy.freed == before + 1

    def test_nominated_pods_of_equal_or_higher_priority_count_as_used(self) -> None:
        store = stored(pod("low").cpu(1).nominated("n1"), pod("high").cpu(4).priority(10).nominated("n1"))
        asking = [pod("me").priority(5).value()]
        assert store.snapshots.take(5, asking).used["n1"]["cpu"] == 4000
        assert store.snapshots.take(0, asking).used["n1"]["cpu"] == 5000
        assert store.snapshots.take(11, asking).used.get("n1") is None

    def test_a_nomination_of_ones_own_or_of_a_counted_pod_is_not_added(self) -> None:
        mine = pod("mine").cpu(1).nominated("n1")
        reserved = pod("reserved").cpu(2).nominated("n1")
        store = stored(mine, reserved)
        store.occupancy.add_usage("pod-reserved", UsageSource.RESERVED, "n1", reserved.value().shape.requests)
        assert store.snapshots.take(0, [mine.value()]).used["n1"]["cpu"] == 2000

    def test_a_snapshot_shows_the_nodes_that_no_nomination_touches_as_they_are(self) -> None:
        store = stored(pod("p").cpu(1).on("n1"), pod("q").cpu(1).nominated("n2"))
        used = store.snapshots.take(0, []).used
        assert {name: used[name]["cpu"] for name in used} == {"n1": 1000, "n2": 1000}
        assert len(used) == 2

    @pytest.mark.parametrize(
        ("after", "frees"),
        [
            pytest.param(None, 1, id="the nominated pod is deleted: its room is free"),
            pytest.param(pod("p").cpu(1), 1, id="the nomination is cleared: its room is free"),
            pytest.param(pod("p").cpu(1).nominated("n2"), 1, id="the nomination moves: its old room is free"),
            pytest.param(pod("p").cpu(1).on("n2"), 1, id="the pod is bound elsewhere: the room is free"),
            pytest.param(pod("p").cpu(1).on("n1"), 0, id="the pod is bound where it was nominated: nothing is free"),
            pytest.param(pod("p").cpu(1).nominated("n1").priority(1), 0, id="another change of the pod frees nothing"),
        ],
    )
    def test_a_nomination_that_ends_wakes_those_who_wait_for_room(self, after: PodBuilder | None, frees: int) -> None:
        store = stored(pod("p").cpu(1).nominated("n1"))
        if after is None:
            store.drop_pod("pod-p")
        else:
            store.put_pod(after.value())
        assert store.nominations.withdrawn == frees
        assert store.occupancy.freed == 0


def test_a_marked_node_is_in_the_index_of_protections_for_as_long_as_it_is_marked() -> None:
    store = Store(["serried"], rules=RULES)
    marked = node("n").cpu(1).with_field("here:", "metadata", "annotations", PROTECTED_BY)
    store.put_node(marked.value())
    assert store.protections.keys() == {"n"}
    seen = store.nodes["n"]
    store.put_node(node("n").cpu(1).value())
    assert store.protections == {}
    assert store.nodes["n"] is seen  # a marker changes nothing of the room
    store.put_node(marked.value())
    store.drop_node("n")
    assert store.protections == {}
