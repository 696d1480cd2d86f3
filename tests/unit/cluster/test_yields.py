"""Which gangs are looked at when victims end."""

import pytest

from serried.cluster.touched import Touched
from serried.cluster.yields import Yields
from serried.model.group import GroupKey
from serried.model.pod import Phase, Pod, Shape

GANG = GroupKey("default", "g")


class Stage:
    """Two victims of a gang run."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.touched = Touched()
        self.yields = Yields(self.touched, self.pods)
        for uid in ("a", "b"):
            self.show(uid)
        self.yields.add(["a", "b"], GANG)

    def show(self, uid: str, phase: Phase = Phase.ACTIVE) -> None:
        self.pods[uid] = Pod("default", uid, uid, Shape((("pods", 1),)), node="n1", phase=phase)
        self.yields.note(uid)

    def end(self, uid: str) -> None:
        del self.pods[uid]
        self.yields.note(uid)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_last_victim_that_ends_has_the_gang_looked_at_and_no_other(stage: Stage) -> None:
    stage.show("a")
    stage.end("a")
    assert not stage.touched.take_groups()
    stage.end("b")
    assert stage.touched.take_groups() == {GANG}


def test_one_that_has_failed_has_ended(stage: Stage) -> None:
    stage.show("a", Phase.FAILED)
    stage.show("b", Phase.FAILED)
    assert stage.touched.take_groups() == {GANG}


def test_of_every_change_the_tick_hears_once(stage: Stage) -> None:
    assert not stage.yields.take_changed()
    stage.show("a")
    stage.end("b")
    assert stage.yields.take_changed() == {GANG}
    assert not stage.yields.take_changed()


def test_those_that_are_let_off_are_waited_for_by_nobody(stage: Stage) -> None:
    stage.yields.remove(["a", "b"])
    stage.end("a")
    stage.end("b")
    assert not stage.touched.take_groups()
    assert not stage.yields.take_changed()


def test_victims_of_another_plan_of_the_gang_are_waited_for_anew(stage: Stage) -> None:
    stage.yields.remove(["a", "b"])
    stage.yields.add(["b"], GANG)
    stage.end("b")
    assert stage.touched.take_groups() == {GANG}


def test_a_node_is_free_of_victims_when_the_last_one_there_has_ended(stage: Stage) -> None:
    assert stage.yields.are_on("n1")
    stage.end("a")
    assert stage.yields.are_on("n1")
    stage.end("b")
    assert not stage.yields.are_on("n1")


def test_a_node_whose_victims_are_let_off_has_none(stage: Stage) -> None:
    stage.yields.remove(["a", "b"])
    assert not stage.yields.are_on("n1")
