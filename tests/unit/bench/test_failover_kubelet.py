"""The stand-in of a kubelet: what a container's process sees, and when one that has ended is started again."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.cluster import processes
from bench.failover.kubelet import Kubelet, launch_in_pod
from bench.failover.pods import Container


@pytest.fixture
def kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelet]:
    monkeypatch.setattr("bench.failover.kubelet._RELIST_SECONDS", 0.02)
    monkeypatch.setattr("bench.failover.kubelet._TICK_SECONDS", 0.005)
    container = Container("main", (), sidecar=False, startup=None, liveness=None, readiness=None)
    command = ("/bin/sh", "-c", "echo $POD_NAME on $(hostname) $WEATHER; while sleep 1; do :; done")
    launch = partial(launch_in_pod, "serried-1", command, tmp_path / "main.log", {"WEATHER": "in the rain"})
    made = Kubelet("serried-1", [container], {"main": launch}, {})
    made.start()
    until(made.is_ready)
    yield made
    made.power_off()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_container_knows_its_pod_by_name_and_host_and_what_it_is_told(kubelet: Kubelet, tmp_path: Path) -> None:
    until(lambda: "serried-1 on serried-1 in the rain" in (tmp_path / "main.log").read_text())
    assert kubelet.restarts("main") == 0


def test_one_that_is_spoiled_ends_until_it_is_mended(kubelet: Kubelet) -> None:
    kubelet.break_starts("main")
    kubelet.send("main", 9)
    until(lambda: kubelet.restarts("main") == 1 and not kubelet.is_ready())
    kubelet.repair()
    until(kubelet.is_ready)
    assert kubelet.restarts("main") == 2


def test_a_kubelet_that_leaves_ends_nothing(kubelet: Kubelet) -> None:
    before = kubelet.pid("main")
    kubelet.stop_supervising()
    assert kubelet.pid("main") == before
    assert processes.start_time(before) is not None
