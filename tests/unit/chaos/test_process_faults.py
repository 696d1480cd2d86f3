"""Faults of processes: each is restarted by its kubelet, and its stops and starts are noted in order."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bench.cluster import Cluster, processes
from bench.cluster.cluster import AnyName
from tests.chaos.process_faults import ProcessFaults

NAMES: tuple[AnyName, ...] = ("extender", "scheduler")


class Sleepers:
    """A cluster of two processes that do nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, processes.Process] = {}
        self.ready = True
        self.started: list[str] = []
        self.signals: list[tuple[str, int]] = []
        for name in NAMES:
            self.start(name)
        self.started.clear()

    @property
    def alive(self) -> dict[str, bool]:
        return {name: process.alive for name, process in self._processes.items()}

    def kill(self, name: str, number: int) -> None:
        self.signals.append((name, number))
        if number == signal.SIGKILL:
            processes.stop([self._processes[name]], number)
        else:
            self._processes[name].send(number)

    def start(self, name: str) -> processes.Process:
        if name not in self._processes or not self._processes[name].alive:
            self.started.append(name)
            self._processes[name] = processes.spawn(["sleep", "60"], self._directory / name, self._directory)
        return self._processes[name]

    def is_ready(self, _name: str) -> bool:
        if not self.ready:
            raise ConnectionRefusedError
        return True

    def close(self) -> None:
        processes.stop(self._processes.values(), signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.failover.kubelet._RELIST_SECONDS", 0.02)
    monkeypatch.setattr("bench.failover.kubelet._TICK_SECONDS", 0.005)
    monkeypatch.setattr("tests.chaos.process_faults._LOOK_SECONDS", 0.005)


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[Sleepers]:
    made = Sleepers(tmp_path)
    yield made
    made.close()


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def faults(sleepers: Sleepers, told: list[tuple[str, str]]) -> Iterator[ProcessFaults]:
    cluster = cast("Cluster", cast("Any", sleepers))
    made = ProcessFaults(cluster, NAMES, lambda what, about: told.append((what, about)))
    made.start()
    yield made
    made.stop()


def test_what_runs_when_it_begins_is_left_alone(faults: ProcessFaults, sleepers: Sleepers) -> None:
    faults.kill("extender")
    assert faults.await_well(10)
    assert sleepers.started == ["extender"]


def test_what_is_killed_is_started_again(
    faults: ProcessFaults, sleepers: Sleepers, told: list[tuple[str, str]]
) -> None:
    for _ in range(3):  # and without the pauses of a crash loop
        assert faults.kill("extender")
        assert faults.await_well(5)
    assert sleepers.started == ["extender"] * 3
    assert told == [("fall", "extender"), ("rise", "extender")] * 3
    assert faults.kills["extender"] == 3
    until(lambda: faults.own_ends == {})


def test_what_ends_by_itself_is_counted_as_that(
    faults: ProcessFaults, sleepers: Sleepers, told: list[tuple[str, str]]
) -> None:
    sleepers.kill("scheduler", signal.SIGKILL)
    until(lambda: told == [("fall", "scheduler"), ("rise", "scheduler")])
    assert sleepers.started == ["scheduler"]
    until(lambda: faults.own_ends == {"scheduler": 1})


def test_what_ends_by_itself_again_waits_until_it_is_forgiven(faults: ProcessFaults, sleepers: Sleepers) -> None:
    sleepers.kill("scheduler", signal.SIGKILL)
    until(lambda: faults.own_ends == {"scheduler": 1} and faults.is_well())
    sleepers.kill("scheduler", signal.SIGKILL)
    until(lambda: not faults.is_well())
    assert not faults.await_well(0.1)
    faults.forgive()
    assert faults.await_well(5)


def test_it_is_down_until_it_is_ready(faults: ProcessFaults, sleepers: Sleepers, told: list[tuple[str, str]]) -> None:
    sleepers.ready = False
    faults.kill("extender")
    until(lambda: sleepers.started == ["extender"])
    assert not faults.await_well(0.05)
    assert told == [("fall", "extender")]
    sleepers.ready = True
    assert faults.await_well(10)


def test_what_stands_still_goes_on_after_its_time(
    faults: ProcessFaults, sleepers: Sleepers, told: list[tuple[str, str]]
) -> None:
    faults.freeze("extender", 0.05)
    assert not faults.is_well()
    assert faults.await_well(10)
    assert sleepers.signals == [("extender", signal.SIGSTOP), ("extender", signal.SIGCONT)]
    assert told == [("fall", "extender"), ("rise", "extender")]
    assert not sleepers.started


def test_one_that_is_dead_is_not_killed_again(faults: ProcessFaults) -> None:
    faults.stop()
    assert faults.kill("extender")
    assert not faults.kill("extender")
    assert faults.kills["extender"] == 1
