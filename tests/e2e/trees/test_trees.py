"""Trees of groups on the real control plane: planned as one, bound together, each group whole or not at all."""

from typing import Any

import pytest

from tests.e2e.promises.test_interpod import apart, beside
from tests.e2e.trees.stage import WHOLE_NODE, ZONE, TreeStage
from tests.support.cluster_stage import RACK, eventually, names

pytestmark = pytest.mark.e2e

LEADER = {"role": "leader"}


def test_a_tree_waits_for_its_last_member_and_then_every_level_keeps_its_domain(stage: TreeStage) -> None:
    stage.create_composite("root", 2, ZONE)
    stage.create_branch("front", 2, RACK)
    stage.create_branch("back", 2, RACK)
    stage.create_pods(names("front", 2), "front", cpu=WHOLE_NODE)
    stage.create_pods(names("back", 1), "back", cpu=WHOLE_NODE)

    message = "QuorumMissing: 3 of 4 members exist; back has 1 of 2"
    eventually("the reason", lambda: stage.debug_page("front").get("message") == message)
    waiting = ("False", "Unschedulable", message)
    eventually("the conditions", lambda: stage.composite_condition("root") == stage.condition("back") == waiting)
    eventually("the event", lambda: ("QuorumMissing", message) in stage.events("root"))
    assert not stage.bound()

    stage.create_pods(names("back", 1, start=1), "back", cpu=WHOLE_NODE)
    stage.await_bound("", 4)
    assert len(stage.domains(RACK, "front")) == len(stage.domains(RACK, "back")) == 1
    assert len(stage.domains(ZONE, "front", "back")) == 1
    done = ("True", "Scheduled", "")
    eventually("the conditions", lambda: stage.composite_condition("root") == stage.condition("back") == done)
    eventually("the record's end", lambda: not stage.reservations() and not stage.held_in_ledger())


def test_a_tree_that_fits_no_zone_waits_whole_though_each_of_its_groups_would_fit(stage: TreeStage) -> None:
    stage.create_composite("root", 4, ZONE)
    for group in ("a", "b", "c", "d"):
        stage.create_branch(group, 2, RACK)
        stage.create_pods(names(group, 2), group, cpu=WHOLE_NODE)
    stage.await_reason("a", "NoDomainFits", "(zone-0: 6, zone-1: 6)")
    assert not stage.bound()


def test_groups_beyond_those_that_are_needed_come_along_as_far_as_they_fit(stage: TreeStage) -> None:
    stage.create_composite("root", 2, ZONE)
    for group in ("a", "b", "c", "d"):
        stage.create_branch(group, 2, RACK)
        stage.create_pods(names(group, 2), group, cpu=WHOLE_NODE)
    stage.await_bound("", 6)
    assert len(stage.domains(ZONE, "a", "b", "c", "d")) == 1
    sizes = sorted(len(stage.bound(group)) for group in ("a", "b", "c", "d"))
    assert sizes == [0, 2, 2, 2]


def test_a_tree_of_four_levels_is_planned_as_one(stage: TreeStage) -> None:
    stage.create_composite("root", 2)
    for zone in ("east", "west"):
        stage.create_composite(zone, 1, ZONE, parent="root")
        stage.create_composite(f"{zone}-row", 2, parent=zone)
        for group in (f"{zone}-x", f"{zone}-y"):
            stage.create_branch(group, 2, RACK, parent=f"{zone}-row")
            stage.create_pods(names(group, 2), group, cpu=WHOLE_NODE)
    stage.await_bound("", 8)
    for zone in ("east", "west"):
        assert len(stage.domains(ZONE, zone)) == 1
        assert len(stage.domains(RACK, f"{zone}-x")) == len(stage.domains(RACK, f"{zone}-y")) == 1
    eventually("the condition", lambda: stage.composite_condition("east-row")[0] == "True")


def test_members_are_held_until_their_composite_group_exists(stage: TreeStage) -> None:
    stage.create_branch("lone", 2)
    stage.create_pods(names("lone", 2), "lone")
    stage.await_reason("lone", "PodGroupMissing", "CompositePodGroup root does not exist")
    assert not stage.bound()
    stage.create_composite("root", None)
    stage.await_bound("lone", 2)


def test_a_group_that_joins_a_tree_that_runs_starts_whole_in_its_zone(stage: TreeStage) -> None:
    stage.create_composite("root", 1, ZONE)
    stage.create_branch("first", 2)
    stage.create_pods(names("first", 2), "first", cpu=WHOLE_NODE)
    stage.await_bound("first", 2)
    stage.create_branch("later", 3)
    stage.create_pods(names("later", 2), "later", cpu=WHOLE_NODE)
    stage.await_reason("later", "QuorumMissing")
    assert not stage.bound("later")
    stage.create_pods(names("later", 1, start=2), "later", cpu=WHOLE_NODE)
    stage.await_bound("later", 3)
    assert len(stage.domains(ZONE, "first", "later")) == 1


def test_a_restart_amid_a_trees_round_binds_it_whole(stage: TreeStage) -> None:
    stage.create_composite("root", 2, ZONE)
    for group in ("a", "b"):
        stage.create_branch(group, 2, RACK)
    with stage.stopped("scheduler"):
        for group in ("a", "b"):
            stage.create_pods(names(group, 2), group, cpu=WHOLE_NODE)
        eventually("a plan", stage.held_in_ledger)
        stage.cluster.restart("extender")
    stage.await_bound("", 4)
    assert len(stage.domains(ZONE, "a", "b")) == 1


@pytest.mark.parametrize(
    ("rules", "together"),
    [pytest.param(beside(LEADER), True, id="beside"), pytest.param(apart(LEADER), False, id="apart from")],
)
def test_the_workers_of_a_tree_are_where_its_leader_has_to_be_to_them(
    stage: TreeStage, rules: dict[str, Any], *, together: bool
) -> None:
    stage.create_composite("root", 2, ZONE)
    stage.create_branch("workers", 2, RACK)
    stage.create_branch("leader", 1)
    stage.create_pods(names("workers", 2), "workers", cpu="15", **rules)
    stage.create_pods(["leader-0"], "leader", cpu="15", labels=LEADER)
    stage.await_bound("", 3)
    assert not [said for said in stage.decisions("composite:root") if "refuse" in said]
    assert len(stage.domains(ZONE, "workers", "leader")) == 1
    assert (stage.domains(RACK, "workers") == stage.domains(RACK, "leader")) is together
