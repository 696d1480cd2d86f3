"""The extender's cache of a real cluster equals what its API server has."""

from typing import Any

import httpx
import pytest

from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = pytest.mark.e2e


def compare(stage: ClusterStage) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{stage.cluster.debug_url}/cache/diff", timeout=60.0).json()
    return answer


@pytest.mark.both_levels
def test_nothing_is_missing_too_much_or_of_old(stage: ClusterStage) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 3), "ring")
    stage.submit_job("train")
    stage.await_bound("ring", 3)
    found = eventually("no difference", lambda: (said := compare(stage))["equal"] and said)
    listed = {each["kind"]: each["listed"] for each in found["kinds"] if each["served"]}
    assert listed["nodes"] == 12
    assert listed["pods"] >= 3
    assert listed["jobs"] >= 1
    settings = httpx.get(f"{stage.cluster.debug_url}/config").json()["settings"]
    assert {each["flag"]: each["value"] for each in settings}["--barrier-idle"] == "8"
