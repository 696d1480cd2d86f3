"""A short run of the soak with a fixed seed: processes die, requests are tampered with, and no promise breaks."""

from pathlib import Path

import pytest

from tests.chaos.soak import Plan, Soak, make_spec
from tests.support.clusters import running

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("api", "rounds"),
    [pytest.param("native", 4, marks=pytest.mark.full, id="native, also two actives"), ("fallback", 2)],
)
def test_no_promise_is_broken_by_faults(
    api: str, rounds: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = Plan(seed=14, rounds=rounds, storm=12.0, quiet=4.0, alive=20, rest=4.0)
    with running(make_spec(f"chaos-{api}", api), tmp_path_factory) as cluster:
        result = Soak(cluster, plan, tmp_path).run()
    assert result["violations"] == []
    # A run in which nothing happens shows nothing.
    assert result["totals"]["proxy"] > 50
    assert result["totals"]["kills"] > 3
    assert result["totals"]["cluster"] > 5
    assert result["faults"]["split_brains"] == (rounds > 2)
    assert result["gangs"]["completed"] > 10
