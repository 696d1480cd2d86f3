"""PodGroups of scheduler-plugins on a real control plane, beside both API levels, with their CRD and with our copy."""

from typing import Any

import pytest

from bench.cluster.api import ApiError
from tests.e2e.compatible.stage import API, CompatibleStage, Shape, install, uninstall
from tests.support.cluster_stage import RACK, eventually, names

pytestmark = pytest.mark.e2e

IN_ONE_RACK = {"scheduling.serried.dev/required-topology": RACK}


@pytest.mark.both_levels
def test_a_gang_waits_whole_says_so_and_runs_whole_in_one_rack_beside_a_group_of_its_name(
    stage: CompatibleStage,
) -> None:
    stage.fill_a_node()
    stage.create_group("ring", 2)
    stage.create_pods(["other-0"], "ring")
    stage.create_their_group("ring", {"minMember": 4}, annotations=IN_ONE_RACK)
    stage.create_their_pods(names("ring", 3), "ring", cpu="16")

    message = "QuorumMissing: 3 of 4 members exist"
    eventually("the reason", lambda: stage.debug_page("compatible:ring").get("message") == message, 5)
    assert stage.debug_page("compatible:ring")["object"] == {"apiVersion": API, "kind": "PodGroup", "name": "ring"}
    eventually("the event", lambda: ("QuorumMissing", message) in stage.their_events("ring"), 5)
    stage.await_reason("ring", "QuorumMissing", "1 of 2 members exist")
    assert not stage.bound("ring")

    stage.create_their_pods(names("ring", 1, start=3), "ring", cpu="16")
    stage.await_bound("ring", 4)
    assert len(stage.racks("ring")) == 1
    eventually("the event", lambda: "Scheduled" in dict(stage.their_events("ring")))
    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())
    assert "status" not in stage.their_group("ring")
    assert not stage.bound("other")


def test_pods_wait_for_their_group_and_run_as_soon_as_it_is_there(stage: CompatibleStage) -> None:
    stage.create_their_pods(names("early", 2), "early")

    stage.await_reason("compatible:early", "PodGroupMissing")
    eventually("the event", lambda: any(reason == "PodGroupMissing" for reason, _ in stage.events("early-0")))
    assert not stage.bound()

    stage.create_their_group("early", {"minMember": 2})
    stage.await_bound("early", 2)


@pytest.mark.full
def test_an_api_that_goes_and_comes_back_needs_no_restart(stage: CompatibleStage, shape: Shape) -> None:
    uninstall(stage.cluster)
    stage.await_watch(served=False)
    stage.create_their_pods(names("late", 2), "late")
    stage.await_reason(
        "compatible:late",
        "WorkloadAPIMissing",
        "the API server does not serve podgroups.scheduling.x-k8s.io (v1alpha1)",
    )
    stage.create_pods(["plain-0"])
    stage.await_bound("plain", 1)

    install(stage.cluster, shape)
    stage.create_their_group("late", {"minMember": 2})
    stage.await_bound("late", 2)
    stage.await_watch(served=True, listed=True)


def test_planned_members_wait_no_longer_than_their_group_says_and_go_when_room_is_freed(stage: CompatibleStage) -> None:
    stage.create_pods(["filler-0"])
    stage.await_bound("filler", 1)
    with stage.stopped("scheduler"):
        # The scheduler, which brings members to their bind call, stands still: the barrier's own deadline is a minute.
        stage.create_their_group("brief", {"minMember": 2, "scheduleTimeoutSeconds": 3})
        stage.create_their_pods(names("brief", 2), "brief")
        stage.await_reason("compatible:brief", "DeadlineExceeded")
    assert not stage.bound("brief")

    stage.delete_pods("filler-0")
    stage.await_bound("brief", 2)


def test_members_of_a_group_without_quorum_go_one_by_one(stage: CompatibleStage) -> None:
    stage.create_their_group("loose", {})
    stage.create_their_pods(["loose-0"], "loose")
    stage.await_bound("loose", 1)


FULL: dict[str, Any] = {
    "minMember": 3,
    "minResources": {"cpu": "3", "memory": "1536Mi", "example.com/gpu": 3},
    "scheduleTimeoutSeconds": 60,
}


@pytest.mark.both_levels
def test_every_field_of_theirs_is_kept_and_their_status_is_theirs_to_write(stage: CompatibleStage) -> None:
    assert stage.create_their_group("full", FULL)["spec"] == FULL
    status = {"phase": "Running", "occupiedBy": "ns/owner", "running": 3, "succeeded": 1, "failed": 0}
    stage.patch_status("full", status)
    assert stage.their_group("full")["status"] == status


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        pytest.param({"minMember": 0}, "should be greater than or equal to 1", id="a quorum of nobody"),
        pytest.param({"minMember": "three"}, "must be of type integer", id="a quorum that is a word"),
        pytest.param({"minResources": {"cpu": "many"}}, "spec.minResources.cpu", id="an amount that is none"),
    ],
)
def test_what_their_shape_refuses_is_refused(stage: CompatibleStage, spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ApiError, match="422") as refused:
        stage.create_their_group("wrong", spec)
    assert sentence in str(refused.value)
