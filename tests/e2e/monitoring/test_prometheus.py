"""A real Prometheus scrapes both processes and understands every query of alerts and dashboard."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from bench.cluster import Cluster, ports
from tests.support.cluster_stage import RACK, ClusterStage, eventually
from tests.support.monitoring import list_queries, needs_prometheus

ONE_LEVEL = pytest.mark.parametrize("cluster", ["fallback"], indirect=True)
pytestmark = [pytest.mark.e2e, needs_prometheus, ONE_LEVEL]

TELL_SOMETHING = (
    'sum(serried_groups{state="NoDomainFits"}) > 0',
    "sum(serried_gang_start_seconds_count) > 0",
    'sum(serried_gang_wait_seconds_count{reason="QuorumMissing"}) >= 0',
    "max(serried_active) == 1",
    'sum(serried_gangs{owner="Job"}) == 2',
    "max(serried_namespace_waiting_gangs) > 0",
    "max(serried_namespace_longest_wait_seconds) > 0",
    "sum(serried_namespace_bound_members_total) > 0",
    'count(serried_build_info{version!=""}) == 2',
    'sum(serried_podgroup_creations_total{result="success"}) > 0',
    'sum(serried_cache_objects{resource="nodes"}) > 0',
    "max(serried_free_slots) > 0",
    f'max(serried_largest_gang{{key="{RACK}"}}) > 0',
    'sum(serried_job_syncs_total{result="success"}) > 0',
    'sum(rate(serried_verb_seconds_count{verb="filter"}[1m])) >= 0',
    'max(serried_watch_silent_seconds{resource="pods"}) < 180',
)
"""The queries that must be true after a gang has started and another waits."""


class Prometheus:
    """A Prometheus of this test."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, query: str) -> list[Any]:
        """The vector that a query gives. Raises AssertionError with what Prometheus says of it."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", f"{query}: {answer.get('error')}"
        found: list[Any] = answer["data"]["result"]
        return found

    def is_up(self) -> bool:
        """Return whether Prometheus has scraped both processes."""
        try:
            return len(self.query("up == 1")) == 2
        except httpx.TransportError:
            return False


@pytest.fixture
def prometheus(cluster: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    described = cluster.describe()
    targets = [urlsplit(described[name]).netloc for name in ("metrics_url", "controller_url")]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "serried", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = ports.pick(["prometheus"], [])["prometheus"]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


def test_every_query_runs_on_what_both_processes_serve(stage: ClusterStage, prometheus: Prometheus) -> None:
    stage.create_group("late", 2, RACK)
    stage.create_pods(["late-0"], "late")
    stage.await_reason("late", "QuorumMissing")
    stage.create_pods(["late-1"], "late")
    stage.await_bound("late", 2)
    stage.create_job("starts", 4, key=RACK)
    stage.await_bound("starts", 4)
    stage.create_job("waits", 8, cpu="20", key=RACK)
    stage.await_reason(stage.group_of_job("waits"), "NoDomainFits")
    eventually("two scrapes", prometheus.is_up)

    for query in TELL_SOMETHING:
        eventually(query, partial(prometheus.query, query))
    for query in list_queries():
        prometheus.query(query)
