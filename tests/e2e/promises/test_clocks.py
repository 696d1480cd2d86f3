"""The wall clocks of extender and controller are set an hour ahead or back, while all others are right."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.cluster.components import Name
from tests.e2e.promises.test_repair import ONE_LEVEL, await_bound_to, await_vacancy, run_gang
from tests.support import clock_offset
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.preload import import_first

pytestmark = [pytest.mark.e2e, pytest.mark.full, ONE_LEVEL]

OURS: tuple[Name, ...] = ("extender", "controller")
HOUR = 3600.0


class Clocks:
    """The wall clocks of the processes of ours. ``file`` says to these how far they are off."""

    def __init__(self, stage: ClusterStage, file: Path) -> None:
        self._stage = stage
        self._file = file
        clock_offset.write_offset(self._file, 0.0)

    def set(self, seconds: float) -> None:
        """Set the clocks off by so many seconds from now on."""
        clock_offset.write_offset(self._file, seconds)
        eventually(f"clocks that are off by {seconds:g} s", lambda: abs(self._look() - seconds) < 60.0)

    def _look(self) -> float:
        """Return the seconds by which the extender's clock is off."""
        return (datetime.fromisoformat(self._stage.selfcheck()["now"]) - datetime.now(UTC)).total_seconds()


@pytest.fixture
def clocks(stage: ClusterStage, tmp_path: Path) -> Iterator[Clocks]:
    file = tmp_path / "seconds"
    made = Clocks(stage, file)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in import_first(clock_offset.__name__, tmp_path / "first").items():
                patch.setenv(name, value)
            patch.setenv(clock_offset.FILE, str(file))
            for process in OURS:
                stage.cluster.restart(process)
        yield made
    finally:
        for process in OURS:
            stage.cluster.restart(process)


def test_ahead_nobody_leads_and_nobody_is_bound_until_the_clock_is_right(stage: ClusterStage, clocks: Clocks) -> None:
    stage.create_group("ring", 4, RACK)
    stage.create_pods(names("ring", 3), "ring")
    stage.await_reason("ring", "QuorumMissing")

    clocks.set(HOUR)
    eventually("an extender that does not lead", lambda: not stage.selfcheck()["active"])
    stage.create_pods(names("ring", 1, start=3), "ring")
    # The controller's Lease is its own, and others count from when they have seen it renewed.
    stage.submit_job("train")
    stage.await_group("train")
    eventually("the pods of the Job", lambda: len(stage.pods("train-")) == 2)
    assert not stage.bound()
    assert not stage.reservations()

    clocks.set(0.0)
    stage.await_bound("ring", 4, 60)
    assert len(stage.racks("ring")) == 1
    stage.await_bound("train-", 2, 60)
    eventually("the records' end", lambda: not stage.reservations())


def test_back_all_goes_on_and_a_lease_that_nobody_renews_is_lost_as_soon_as_ever(
    stage: ClusterStage, clocks: Clocks
) -> None:
    clocks.set(-HOUR)
    pair = run_gang(stage, "pair", 2, RACK)
    eventually("the condition", lambda: stage.condition("pair")[:2] == ("True", "Scheduled"))
    stage.submit_job("train")
    stage.await_bound("train-", 2)
    stage.delete_pods("pair-0")
    await_vacancy(stage, "pair-0")
    stage.create_pods(["pair-2"], "pair", cpu="30")
    await_bound_to(stage, "pair-2", pair["pair-0"])

    with stage.stopped("scheduler"):
        eventually("an extender that does not lead", lambda: not stage.selfcheck()["active"])
    eventually("an extender that leads again", lambda: stage.selfcheck()["planning"], 60)
    run_gang(stage, "after", 2, RACK)
    assert stage.bound("pair") == {"pair-1": pair["pair-1"], "pair-2": pair["pair-0"]}
