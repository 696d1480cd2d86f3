"""What stands for a kubelet: whatever ends is started again, and falls and rises are told in their order."""

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from bench.cluster import Cluster
from tests.chaos.kubelet import Kubelet


class Processes:
    """A cluster of two processes that are words."""

    def __init__(self) -> None:
        self.alive = {"extender": True, "scheduler": True}
        self.pids = {"extender": -1, "scheduler": -2}
        self.ready = True
        self.started: list[str] = []
        self.signals: list[tuple[str, int]] = []

    def kill(self, name: str, number: int) -> None:
        self.signals.append((name, number))
        if number == signal.SIGKILL:
            self.alive[name] = False

    def start(self, name: str) -> None:
        self.started.append(name)
        self.pids[name] -= 10
        self.alive[name] = True

    def is_ready(self, name: str) -> bool:
        if not self.ready:
            raise ConnectionRefusedError
        return True


@pytest.fixture(autouse=True)
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.kubelet.reap", lambda _pid: None)
    monkeypatch.setattr("tests.chaos.kubelet._LOOK_SECONDS", 0.005)


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def kubelet(processes: Processes, told: list[tuple[str, str]]) -> Iterator[Kubelet]:
    cluster = cast("Cluster", cast("Any", processes))
    made = Kubelet(cluster, ("extender", "scheduler"), lambda what, about: told.append((what, about)))
    made.start()
    yield made
    made.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_is_killed_is_started_again(kubelet: Kubelet, processes: Processes, told: list[tuple[str, str]]) -> None:
    kubelet.kill("extender")
    assert kubelet.await_well(10)
    assert processes.started == ["extender"]
    assert told == [("fall", "extender"), ("rise", "extender")]
    assert (kubelet.kills["extender"], kubelet.own_ends["extender"]) == (1, 0)


def test_what_ends_by_itself_is_counted_as_that(kubelet: Kubelet, processes: Processes) -> None:
    processes.alive["scheduler"] = False
    until(lambda: processes.started == ["scheduler"])
    assert kubelet.await_well(10)
    assert (kubelet.kills["scheduler"], kubelet.own_ends["scheduler"]) == (0, 1)


def test_it_is_down_until_it_is_ready(kubelet: Kubelet, processes: Processes, told: list[tuple[str, str]]) -> None:
    processes.ready = False
    kubelet.kill("extender")
    until(lambda: processes.started == ["extender"])
    assert not kubelet.await_well(0.05)
    assert told == [("fall", "extender")]
    processes.ready = True
    assert kubelet.await_well(10)


def test_what_stands_still_goes_on_after_its_time(
    kubelet: Kubelet, processes: Processes, told: list[tuple[str, str]]
) -> None:
    kubelet.freeze("extender", 0.05)
    assert not kubelet.is_well()
    assert kubelet.await_well(10)
    assert processes.signals == [("extender", signal.SIGSTOP), ("extender", signal.SIGCONT)]
    assert told == [("fall", "extender"), ("rise", "extender")]
    assert not processes.started


def test_one_that_is_dead_is_not_killed_again(kubelet: Kubelet, processes: Processes) -> None:
    kubelet.stop()
    kubelet.kill("extender")
    kubelet.kill("extender")
    assert kubelet.kills["extender"] == 1
