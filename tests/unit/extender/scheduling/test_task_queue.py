"""Turns of tasks: plans of a namespace side by side, searches for victims one after the other."""

from collections.abc import Iterator
from itertools import count

import pytest

from extender.core.scheduling.planning_tasks import PlanningTask, TaskKind, TaskQueue
from serried.api.names import GroupKey
from serried.plan.request import PlanRequest


class Turns:
    """Tasks by the names of their gangs; each slice takes one of them so much work."""

    def __init__(self) -> None:
        self._tasks: dict[GroupKey, list[PlanningTask]] = {}
        self._turns = TaskQueue(self._tasks)
        self._numbers: Iterator[int] = count()

    def add(self, kind: TaskKind, *names: str, namespace: str = "default") -> None:
        for name in names:
            group = GroupKey(namespace, name)
            request = PlanRequest((), 0)
            task = PlanningTask(
                group,
                kind,
                request,
                (),
                compute=lambda snapshot, capacity: None,
                limit=5.0,
                number=next(self._numbers),
                tried_inline=True,
            )
            self._tasks.setdefault(group, []).append(task)
            self._turns.add(task)

    def work(self, slices: int, seconds: float = 0.01) -> list[str]:
        """The names of those that got the next slices."""
        names: list[str] = []
        for _ in range(slices):
            task = self._turns.choose()
            if task is None:
                break
            task.spent += seconds
            names.append(task.group.name)
        return names

    def end(self, name: str) -> None:
        """The answer for a gang is there."""
        for task in self._tasks[GroupKey("default", name)]:
            task.done = True


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_of_searches_for_victims_the_next_begins_when_the_first_has_ended(turns: Turns) -> None:
    turns.add(TaskKind.PREEMPTION, "a", "b")
    assert set(turns.work(10)) == {"a"}
    turns.end("a")
    assert set(turns.work(10)) == {"b"}


def test_a_search_that_takes_long_keeps_no_other_waiting(turns: Turns) -> None:
    turns.add(TaskKind.PREEMPTION, "long", "short")
    assert set(turns.work(3, seconds=0.2)) == {"long"}
    assert turns.work(3) == ["short"] * 3


def test_so_do_several_but_not_as_many_as_there_are_gangs(turns: Turns) -> None:
    turns.add(TaskKind.PREEMPTION, *(f"long{number}" for number in range(20)))
    assert len(set(turns.work(400, seconds=0.2))) == 2


def test_plans_take_turns_beside_a_search(turns: Turns) -> None:
    turns.add(TaskKind.PREEMPTION, "search", "later")
    turns.add(TaskKind.PLAN, "a", "b")
    assert set(turns.work(100, seconds=0.05)) >= {"search", "a", "b"}


def test_searches_of_another_namespace_do_not_wait(turns: Turns) -> None:
    turns.add(TaskKind.PREEMPTION, "a")
    turns.add(TaskKind.PREEMPTION, "b", namespace="other")
    assert set(turns.work(40, seconds=0.05)) == {"a", "b"}
