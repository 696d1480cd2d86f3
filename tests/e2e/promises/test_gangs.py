"""The promises of a gang's way from its first pod to its last Binding."""

import pytest

from tests.support.cluster_stage import RACK, ClusterStage, eventually, names

pytestmark = pytest.mark.e2e


@pytest.mark.both_levels
def test_a_gang_without_quorum_waits_whole_and_says_so_and_its_last_member_starts_it_in_one_rack(
    stage: ClusterStage,
) -> None:
    stage.fill_a_node()
    stage.create_group("ring", 4, RACK)
    stage.create_pods(names("ring", 3), "ring", cpu="16")

    message = "QuorumMissing: 3 of 4 members exist"
    # The reason is there before the last pod has been seen: the numbers are waited for.
    eventually("the reason", lambda: stage.debug_page("ring").get("message") == message, 2)
    eventually("the condition", lambda: stage.condition("ring") == ("False", "Unschedulable", message), 2)
    eventually("the event", lambda: ("QuorumMissing", message) in stage.events("ring"), 2)
    assert not stage.bound("ring")
    assert not stage.reservations()

    stage.create_pods(names("ring", 1, start=3), "ring", cpu="16")
    stage.await_bound("ring", 4)
    assert len(stage.racks("ring")) == 1
    eventually("the condition", lambda: stage.condition("ring") == ("True", "Scheduled", ""))
    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())


def test_of_two_gangs_that_need_most_of_the_cluster_one_runs_whole_and_the_other_follows_it(
    stage: ClusterStage,
) -> None:
    stage.create_job("first", 8, cpu="30")
    stage.await_bound("first", 8)
    stage.create_job("second", 8, cpu="30")

    stage.await_reason(stage.group_of_job("second"), "NoCapacity")
    assert not stage.bound("second")

    stage.delete_job("first")
    stage.await_bound("second", 8)


def test_two_gangs_that_arrive_at_once_never_hold_halves(stage: ClusterStage) -> None:
    stage.create_job("left", 8, cpu="30")
    stage.create_job("right", 8, cpu="30")

    eventually("one whole gang", lambda: sorted(map(len, (stage.bound("left"), stage.bound("right")))) == [0, 8])
    loser = "left" if stage.bound("right") else "right"
    stage.await_reason(stage.group_of_job(loser), "NoCapacity")
    assert not stage.bound(loser)


def test_a_gang_that_fits_the_cluster_but_no_rack_waits_whole_and_says_so_per_rack(stage: ClusterStage) -> None:
    stage.create_group("wide", 4, RACK)
    stage.create_pods(names("wide", 4), "wide", cpu="30")

    view = stage.await_reason(
        "wide", "NoDomainFits", "4 members do not fit into any domain of topology.serried.dev/rack"
    )
    assert all(f"rack-{i}: 3" in view["message"] for i in range(4))
    assert "12 members fit into the whole cluster" in view["message"]
    eventually("the condition", lambda: stage.condition("wide") == ("False", "Unschedulable", view["message"]))
    assert not stage.bound()


def test_late_members_go_to_the_gangs_rack_and_never_elsewhere_when_it_is_full(stage: ClusterStage) -> None:
    stage.create_group("core", 2, RACK)
    stage.create_pods(names("core", 2), "core", cpu="30")
    stage.await_bound("core", 2)

    stage.create_pods(names("core", 1, start=2), "core", cpu="30")
    stage.await_bound("core", 3)
    assert len(stage.racks("core")) == 1

    stage.create_pods(names("core", 1, start=3), "core", cpu="30")
    stage.await_reason("core", "DomainFull", "only 0 of 1 waiting members fit")
    eventually("the event", lambda: any(reason == "DomainFull" for reason, _ in stage.events("core")))
    assert len(stage.bound("core")) == 3
    assert stage.condition("core")[0] == "True"


def test_surplus_members_bind_as_many_as_fit(stage: ClusterStage) -> None:
    stage.create_group("elastic", 2, RACK)
    stage.create_pods(names("elastic", 5), "elastic", cpu="30")

    stage.await_bound("elastic", 3)
    stage.await_reason("elastic", "DomainFull")
    assert len(stage.racks("elastic")) == 1


def test_pods_before_their_pod_group_wait_for_it(stage: ClusterStage) -> None:
    stage.create_pods(names("early", 2), "early")

    stage.await_reason("early", "PodGroupMissing")
    eventually("the event", lambda: any(reason == "PodGroupMissing" for reason, _ in stage.events("early-0")))
    assert not stage.bound()

    stage.create_group("early", 2)
    stage.await_bound("early", 2)


@pytest.mark.parametrize("min_count", [3, None], ids=["a gang", "a basic group"])
def test_a_member_with_a_gate_of_another_owner_holds_its_whole_group_until_the_gate_is_lifted(
    stage: ClusterStage, min_count: int | None
) -> None:
    stage.create_group("ring", min_count)
    stage.create_pods(["ring-2"], "ring", schedulingGates=[{"name": "example.com/quota"}])
    stage.create_pods(names("ring", 2), "ring")

    said = "1 member has a scheduling gate that another controller has to remove: example.com/quota"
    view = stage.await_reason("ring", "MemberGated", said)
    eventually("the event", lambda: ("MemberGated", view["message"]) in stage.events("ring"))
    assert not stage.bound("ring")

    stage.remove_gates("ring-2")
    stage.await_bound("ring", 3)


@pytest.mark.both_levels
def test_a_basic_group_passes_like_plain_pods_beside_gangs(stage: ClusterStage) -> None:
    stage.create_group("waiting", 3)
    stage.create_pods(names("waiting", 2), "waiting")
    stage.create_group("loose", None)
    stage.create_pods(names("loose", 2), "loose")
    stage.create_pods(names("plain", 2))

    stage.await_bound("loose", 2)
    stage.await_bound("plain", 2)
    eventually("the condition", lambda: stage.condition("loose") == ("True", "Scheduled", ""))
    assert not stage.bound("waiting")


@pytest.mark.both_levels
def test_a_plain_indexed_job_with_a_topology_annotation_is_a_gang_in_one_rack(stage: ClusterStage) -> None:
    stage.fill_a_node()
    stage.create_job("train", 9, cpu="10", key=RACK)

    stage.await_bound("train", 9)
    assert len(stage.racks("train")) == 1
    group = stage.group_of_job("train")
    eventually("the condition", lambda: stage.condition(group) == ("True", "Scheduled", ""))


def test_a_job_deleted_while_held_leaves_no_reservation(stage: ClusterStage) -> None:
    stage.create_job("huge", 13, cpu="30")
    stage.await_reason(stage.group_of_job("huge"), "NoCapacity")

    stage.delete_job("huge")
    eventually("no pod", lambda: not stage.pods("huge"))
    eventually("no reservation", lambda: not stage.reservations() and not stage.held_in_ledger())
    stage.create_job("next", 12, cpu="30")
    stage.await_bound("next", 12)


@pytest.mark.both_levels
def test_a_deleted_pod_group_goes_once_no_pod_names_it_any_more(stage: ClusterStage) -> None:
    stage.create_group("kept", 1)
    stage.create_pods(["kept-0"], "kept")
    stage.await_bound("kept", 1)

    stage.delete_group("kept")
    # The fallback level has no protection: there the object goes at once.
    assert stage.groups() == ({"kept"} if stage.native else set())
    stage.delete_pods("kept-0")

    eventually("the PodGroup's end", lambda: not stage.groups())


@pytest.mark.both_levels
def test_the_selfcheck_says_whether_pods_keep_the_field_that_names_their_group(stage: ClusterStage) -> None:
    api = eventually(
        "an answer", lambda: api if (api := stage.selfcheck()["api"])["podsKeepTheirGroup"] is not None else None
    )
    assert (api["level"], api["podsKeepTheirGroup"]) == (stage.cluster.spec.api, stage.native)


def test_a_basic_group_with_a_key_takes_the_rack_that_holds_most_and_never_spills(stage: ClusterStage) -> None:
    stage.create_group("taken", 1)
    stage.create_pods(names("taken", 1), "taken", cpu="30")
    stage.await_bound("taken", 1)
    stage.create_pods(names("loose", 4), "loose", cpu="30")
    eventually("four members", lambda: stage.debug_page("loose").get("members") == 4)
    stage.create_group("loose", None, RACK)

    stage.await_bound("loose", 3)
    stage.await_reason("loose", "DomainFull")
    assert len(stage.racks("loose")) == 1
    assert len(stage.bound("loose")) == 3


def test_a_leader_and_its_workers_of_another_size_share_one_rack(stage: ClusterStage) -> None:
    stage.fill_a_node()
    stage.create_group("crew", 7, RACK)
    stage.create_pods(["crew-leader"], "crew", cpu="30")
    stage.create_pods(names("crew", 6), "crew", cpu="10")

    stage.await_bound("crew", 7)
    assert len(stage.racks("crew")) == 1
