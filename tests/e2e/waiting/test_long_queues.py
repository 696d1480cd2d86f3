"""A gang with a long queue of others before it, in a real scheduler."""

import httpx
import pytest

from tests.e2e.promises.test_repair import told
from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = [pytest.mark.e2e, pytest.mark.full]

OTHERS = 2500
"""The scheduler takes several times the idle deadline (3 s here) for so many."""


def test_it_stays_planned_until_its_turn_comes(stage: ClusterStage) -> None:
    with told(stage, barrier_idle=("3", "8")):
        with stage.stopped("scheduler"):
            stage.create_pods(names("plain", OTHERS), cpu="1m")
            stage.create_group("ring", 4)
            stage.create_pods(names("ring", 4), "ring")
        stage.await_bound("ring", 4, 90)
        eventually("the others", lambda: len(stage.bound("plain")) == OTHERS, 90)
        decisions = httpx.get(f"{stage.cluster.debug_url}/decisions?limit=1000&group={stage.namespace}/ring").json()
    assert "DeadlineExceeded" not in {decision["reason"] for decision in decisions}
