"""A short soak with a fixed seed: processes die, requests fail, nodes go, and no promise breaks."""

import gc
from pathlib import Path

import pytest

from tests.chaos.soak import Soak, make_spec
from tests.chaos.storm import Plan
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.tools]

PLAN = Plan(
    seed=14,
    rounds=1,
    kinds=("kills", "freezes", "proxy", "cluster"),
    killed=("extender", "extender", "controller"),
    storm=8.0,
    quiet=4.0,
    snare=2.0,
    alive=12,
    rest=65.0,
)
"""Without the ends that kube-scheduler waits after for a long time: less than a minute in all."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_promise_is_broken_by_faults(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with run_cluster(make_spec("faults"), tmp_path_factory) as cluster:
        result = Soak(cluster, PLAN, tmp_path).run()
    gc.collect()  # a connection that a fault has left open is no affair of the next story
    assert result["violations"] == []
    # A run in which nothing happens shows nothing.
    assert result["totals"]["proxy"] >= 20
    assert result["totals"]["kills"] >= 2
    assert result["totals"]["cluster"] >= 2
    assert result["gangs"]["completed"] >= 5
