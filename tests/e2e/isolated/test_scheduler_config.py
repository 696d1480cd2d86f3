"""Answers of the real kube-scheduler to extender entries with managed resources."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cluster import Cluster, binaries, installation
from bench.cluster.progress import silent

pytestmark = pytest.mark.e2e


def load(cluster: Cluster) -> dict[str, Any]:
    """The shipped config with credentials that work."""
    ports = {"filter": 1, "bind": 2}
    return dict(yaml.safe_load(installation.scheduler_config(cluster.spec, cluster.kubeconfigs["scheduler"], ports)))


def check(cluster: Cluster, config: dict[str, Any], directory: Path) -> subprocess.CompletedProcess[str]:
    """Let kube-scheduler read and check a config, and end before it schedules anything."""
    given, written = directory / "given.yaml", directory / "written.yaml"
    given.write_text(yaml.safe_dump(config))
    program = binaries.locate(cluster.spec.kubernetes, silent, cluster.spec.scheduler).paths["kube-scheduler"]
    command = [str(program), f"--config={given}", f"--write-config-to={written}", "--secure-port=0"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_shipped_config_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    checked = check(cluster, load(cluster), tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert (tmp_path / "written.yaml").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("scheduling.serried.dev/member", "duplicate extender managed resource name", id="in two entries"),
        pytest.param("member", "is an invalid extended resource name", id="without a domain"),
        pytest.param("kubernetes.io/member", "is an invalid extended resource name", id="in Kubernetes' own domain"),
    ],
)
def test_a_marker_is_refused(cluster: Cluster, tmp_path: Path, name: str, sentence: str) -> None:
    config = load(cluster)
    config["extenders"][1]["managedResources"][0]["name"] = name
    checked = check(cluster, config, tmp_path)
    assert checked.returncode != 0
    assert sentence in checked.stderr
