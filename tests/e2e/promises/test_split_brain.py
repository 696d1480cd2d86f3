"""Two schedulers with an extender each are active at once, as no Lease would let them: nobody ends as half a gang."""

from pathlib import Path

import pytest

from tests.chaos.rival import rival
from tests.support.cluster_stage import ClusterStage, eventually, names
from tests.support.clusters import BESIDE_NATIVE_GANGS, at_one_level

pytestmark = [pytest.mark.e2e, pytest.mark.full, at_one_level("fallback", BESIDE_NATIVE_GANGS)]

SIZE = 8
FITTING = 6
"""So many gangs fill the cluster, with members of a quarter of a node."""

GANGS = [f"gang{number:02}" for number in range(2 * FITTING)]


def list_whole(stage: ClusterStage) -> set[str]:
    return {gang for gang in GANGS if len(stage.bound(gang)) == SIZE}


def finish(stage: ClusterStage, gangs: set[str]) -> None:
    stage.delete_pods(*(pod for gang in gangs for pod in names(gang, SIZE)))


def test_gangs_that_both_plan_at_once_end_whole(stage: ClusterStage, tmp_path: Path) -> None:
    def fill() -> set[str]:
        whole = list_whole(stage)
        return whole if len(whole) >= FITTING else set()

    with rival(stage.cluster, tmp_path):
        for gang in GANGS:
            stage.create_group(gang, SIZE)
            stage.create_pods(names(gang, SIZE), gang, cpu="8")
        served = eventually("a full cluster", fill)
        finish(stage, served)
        eventually("gangs in their place", lambda: list_whole(stage) - served)

    def serve() -> bool:
        whole = list_whole(stage) - served
        finish(stage, whole)
        served.update(whole)
        return served == set(GANGS)

    eventually("the last gang, once the rival is dead", serve, 90)
    eventually("the records' end", lambda: not stage.reservations() and not stage.held_in_ledger())
    assert '"reason":"Planned"' in (tmp_path / "rival-extender.log").read_text()
