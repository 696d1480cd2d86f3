"""Pending victims: the gangs that are looked at when victims end."""

import pytest

from serried.api.names import GroupKey
from serried.api.pod import Phase, Pod, Shape
from serried.cluster.members import Dirty
from serried.cluster.usage import PendingVictims
from tests.support.memory import read_memory

GANG = GroupKey("default", "g")


class Stage:
    """Two victims of a gang run."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.dirty = Dirty()
        self.pending_victims = PendingVictims(self.dirty, self.pods)
        for uid in ("a", "b"):
            self.show(uid)
        self.pending_victims.add(["a", "b"], GANG)

    def show(self, uid: str, phase: Phase = Phase.ACTIVE) -> None:
        self.pods[uid] = Pod("default", uid, uid, Shape((("pods", 1),)), node="n1", phase=phase)
        self.pending_victims.update_pod(uid)

    def end(self, uid: str) -> None:
        del self.pods[uid]
        self.pending_victims.update_pod(uid)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_last_victim_that_ends_has_the_gang_looked_at_and_no_other(stage: Stage) -> None:
    stage.show("a")
    stage.end("a")
    assert not stage.dirty.take_groups()
    stage.end("b")
    assert stage.dirty.take_groups() == {GANG}


def test_those_that_have_not_ended_are_counted(stage: Stage) -> None:
    assert stage.pending_victims.count_left(GANG) == 2
    stage.end("a")
    assert stage.pending_victims.count_left(GANG) == 1
    stage.show("b", Phase.FAILED)
    assert stage.pending_victims.count_left(GANG) == 0
    assert stage.pending_victims.count_left(GroupKey("default", "other")) == 0


def test_one_that_has_failed_has_ended(stage: Stage) -> None:
    stage.show("a", Phase.FAILED)
    stage.show("b", Phase.FAILED)
    assert stage.dirty.take_groups() == {GANG}


def test_of_every_change_the_tick_hears_once(stage: Stage) -> None:
    assert not stage.pending_victims.take_changed()
    stage.show("a")
    stage.end("b")
    assert stage.pending_victims.take_changed() == {GANG}
    assert not stage.pending_victims.take_changed()


def test_those_that_are_let_off_are_waited_for_by_nobody(stage: Stage) -> None:
    stage.pending_victims.remove(["a", "b"])
    stage.end("a")
    stage.end("b")
    assert not stage.dirty.take_groups()
    assert not stage.pending_victims.take_changed()


def test_victims_of_another_plan_of_the_gang_are_waited_for_anew(stage: Stage) -> None:
    stage.pending_victims.remove(["a", "b"])
    stage.pending_victims.add(["b"], GANG)
    stage.end("b")
    assert stage.dirty.take_groups() == {GANG}


def test_a_node_is_free_of_victims_when_the_last_one_there_has_ended(stage: Stage) -> None:
    assert stage.pending_victims.are_on("n1")
    stage.end("a")
    assert stage.pending_victims.are_on("n1")
    stage.end("b")
    assert not stage.pending_victims.are_on("n1")


def test_a_node_whose_victims_are_let_off_has_none(stage: Stage) -> None:
    stage.pending_victims.remove(["a", "b"])
    assert not stage.pending_victims.are_on("n1")


def test_the_victims_of_a_node_are_those_that_have_not_ended(stage: Stage) -> None:
    assert set(stage.pending_victims.list_on("n1")) == {"a", "b"}
    stage.end("a")
    assert set(stage.pending_victims.list_on("n1")) == {"b"}
    assert not stage.pending_victims.list_on("n2")


def test_nothing_is_remembered_of_gangs_without_victims_and_of_those_whose_victims_have_ended(stage: Stage) -> None:
    stage.end("a")
    stage.end("b")
    stage.pending_victims.remove(["a", "b"])
    stage.pending_victims.add([], GroupKey("default", "h"))
    memory = read_memory(stage.pending_victims)
    assert not any(memory[name] for name in ("by_uid", "left", "by_node", "spared"))
