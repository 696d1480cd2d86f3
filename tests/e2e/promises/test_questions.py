"""Forecasts and explanations: asked of a running extender, and decided again from its file without one."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cli import main
from tests.support.cluster_stage import RACK, ClusterStage, indexed_spec, names

pytestmark = pytest.mark.e2e


def make_job(name: str, size: int, cpu: str) -> dict[str, Any]:
    """An Indexed Job that needs one rack, as people write it."""
    annotations = {"scheduling.serried.dev/required-topology": RACK}
    spec = indexed_spec("serried", cpu) | {"parallelism": size, "completions": size}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


def test_what_is_foretold_of_a_job_is_what_becomes_of_it_and_asking_changes_nothing(
    stage: ClusterStage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "jobs.yaml"
    manifest.write_text(yaml.safe_dump_all([make_job("three", 3, "30"), make_job("four", 4, "30")]))

    assert main(["whatif", str(manifest), "-n", stage.namespace, "-o", "json", "--server", stage.cluster.ops_url]) == 1
    foretold = {each["source"].rpartition("/")[2]: each for each in json.loads(capsys.readouterr().out)["groups"]}
    assert (foretold["three"]["outcome"], foretold["four"]["outcome"]) == ("Fits", "DoesNotFit")
    assert not stage.pods()
    assert not stage.groups()

    stage.create_job("three", 3, cpu="30", key=RACK)
    stage.await_bound("three", 3)
    assert len(stage.racks("three")) == 1
    stage.create_job("four", 4, cpu="30", key=RACK)
    stage.await_reason(stage.group_of_job("four"), "NoDomainFits")


def test_a_gang_that_waits_is_told_which_node_would_let_it_run(stage: ClusterStage) -> None:
    stage.create_group("wide", 4, RACK)
    stage.create_pods(names("wide", 4), "wide", cpu="30")
    stage.await_reason("wide", "NoDomainFits")

    group = f"{stage.namespace}/wide"
    node = min(item["metadata"]["name"] for item in stage.cluster.api.get("/api/v1/nodes")["items"])
    asked = {"group": group, "add": f"1*{node}"}
    found = httpx.post(f"{stage.cluster.ops_url}/debug/whatif", params=asked, timeout=30).json()
    assert found["groups"][0]["outcome"] == "Fits"
    assert f"{node}+1" in found["groups"][0]["nodes"]
    assert stage.debug_page("wide")["reason"] == "NoDomainFits"


def test_the_decision_on_a_gang_is_made_again_from_its_file(
    stage: ClusterStage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.create_group("runs", 2, RACK)
    stage.create_pods(names("runs", 2), "runs", cpu="16")
    stage.await_bound("runs", 2)
    stage.create_group("wide", 4, RACK)
    stage.create_pods(names("wide", 4), "wide", cpu="30")
    stage.await_reason("wide", "NoDomainFits", "4 members do not fit")

    for form in ("json", "gzip"):
        asked = {"group": f"{stage.namespace}/wide", "form": form}
        answer = httpx.get(f"{stage.cluster.ops_url}/debug/snapshot", params=asked, timeout=30)
        path = tmp_path / form
        path.write_bytes(answer.content)
        assert main(["replay", str(path), "-o", "json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["match"] in {"equal", "other numbers"}
        assert found["replayed"]["text"].startswith("NoDomainFits")
        assert b"image" not in path.read_bytes()
