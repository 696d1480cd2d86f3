"""One cluster for the commands: 12 nodes of 32 CPU in 4 racks, and kubectl with our plugin."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.installation import REPOSITORY
from tests.support.clusters import run_cluster
from tests.support.commands import Ended, Run

SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name="commands", nodes=12, racks=4, hold="filter")
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture
def environment(cluster: Cluster) -> dict[str, str]:
    """Of a person with kubectl, our plugin, and a kubeconfig."""
    path = f"{cluster.kubectl_program.parent}:{SCRIPTS}:/usr/bin:/bin"
    return {
        "PATH": path,
        "PYTHONPATH": str(REPOSITORY),
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": os.environ.get("HOME", "/"),
    }


@pytest.fixture
def kubectl(environment: dict[str, str]) -> Run:
    """Runs ``kubectl serried ...``."""
    return _make_run(environment, ["kubectl", "serried"])


@pytest.fixture
def serried(environment: dict[str, str]) -> Run:
    """Runs ``serried ...``."""
    return _make_run(environment, ["serried"])


def _make_run(environment: dict[str, str], begin: list[str]) -> Callable[..., Ended]:
    def run(*arguments: str, **variables: str) -> Ended:
        command = [*begin, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env=environment | variables
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
