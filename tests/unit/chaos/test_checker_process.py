"""A checker that dies leaves no report, and none of an earlier run passes for its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bench.cluster import Cluster
from tests.chaos.checker_process import CheckerProcess


class Somewhere:
    """The properties of a cluster that the checker reads."""

    server = "https://127.0.0.1:1"
    ops_url = "http://127.0.0.1:1"

    class spec:  # noqa: N801 - a name of the cluster's
        api_version = "scheduling.k8s.io/v1beta1"

    def __init__(self, directory: Path) -> None:
        self.pki = directory


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckerProcess]:
    """A checker that ends as soon as it begins, where an earlier run has left a report without violations."""
    (tmp_path / "checker.json").write_text('{"violations": []}')
    start = subprocess.Popen

    def die(_: list[str], **settings: Any) -> subprocess.Popen[str]:
        return start([sys.executable, "-c", "raise SystemExit(3)"], **settings)

    monkeypatch.setattr("tests.chaos.checker_process.subprocess.Popen", die)
    process = CheckerProcess(cast("Cluster", Somewhere(tmp_path)), tmp_path)
    yield process
    process.close()


def test_the_run_fails_if_its_checker_has_died(dying: CheckerProcess) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 3 and left no report; see .*checker\.log"):
        dying.end()
