"""etcd forgets its history while nobody of ours watches: what has happened meanwhile is found by another list.

The API server is restarted, so that all watches end, and changes are made while extender and controller stand still.
Then etcd is compacted. Without the API server's watch cache it is etcd itself that refuses to go on from the versions
that they have seen (410); with it, the cache does, which remembers nothing from before the restart.
"""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.cluster import Cluster, Spec
from bench.cluster.cluster import AnyName
from bench.cluster.components import Name
from serried.kube.reflector import Cause
from tests.e2e.promises.test_repair import WHOLE_NODE, await_bound_to, run_gang
from tests.e2e.waiting.test_cache_diff import compare
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names, staged
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

OURS: tuple[Name, ...] = ("extender", "controller")
OTHERS: tuple[AnyName, ...] = ("scheduler", "kube-controller-manager")

LONG_SECONDS = 90.0
"""The time to wait for processes that are not ours: they rest before they watch again, longer after each failure."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose API server may be restarted with other flags."""
    with run_cluster(Spec(name="compaction", nodes=12, racks=4, hold="filter"), tmp_path_factory) as started:
        yield started


@pytest.fixture
def stage(bare: Cluster) -> Iterator[ClusterStage]:
    with staged(ClusterStage, bare) as made:
        yield made


@contextmanager
def unwatched(stage: ClusterStage, *flags: str) -> Iterator[None]:
    """Freeze our processes while the body runs, and let etcd forget the changes that it makes before they watch again.

    The API server is another one from then on, with these flags.
    """
    cluster = stage.cluster
    with stage.stopped(*OURS):
        cluster.restart("kube-apiserver", *flags)
        yield
        compact(cluster)
    for name in OTHERS:
        if not cluster.alive[name]:  # it could not renew its Lease
            cluster.start(name)
            cluster.await_ready(name)


def compact(cluster: Cluster) -> None:
    """etcd forgets all versions but the newest, as kube-apiserver asks it to every five minutes."""
    (url,) = [flag.partition("=")[2] for flag in cluster.commands["etcd"] if flag.startswith("--listen-client-urls=")]
    with httpx.Client(base_url=url, timeout=10.0) as etcd:
        found = etcd.post("/v3/kv/range", json={"key": b64encode(b"none").decode()})
        found.raise_for_status()
        newest = found.json()["header"]["revision"]
        etcd.post("/v3/kv/compaction", json={"revision": newest, "physical": True}).raise_for_status()


def count_forgotten(cluster: Cluster) -> list[float]:
    """Count the watches of the extender, and those of the controller, that have ended with 410 so far."""
    pages = (httpx.get(f"{url}/metrics", timeout=10.0).text for url in (cluster.ops_url, cluster.controller_url))
    return [sum(_list_forgotten(page)) for page in pages]


def _list_forgotten(page: str) -> Iterator[float]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "serried_watch_restarts_total" and sample.labels["cause"] == Cause.GONE:
                yield sample.value


@pytest.mark.parametrize(
    "cache",
    [
        pytest.param("false", id="etcd refuses the next watches"),
        pytest.param("true", id="the API server's cache does"),
    ],
)
def test_what_was_compacted_while_nobody_watched_is_found_all_the_same(stage: ClusterStage, cache: str) -> None:
    stage.create_group("ring", 4, RACK)
    stage.create_pods(names("ring", 3), "ring")
    stage.await_reason("ring", "QuorumMissing")
    pair = run_gang(stage, "pair", 2, RACK)
    eventually("the condition", lambda: stage.condition("pair")[:2] == ("True", "Scheduled"))
    before = count_forgotten(stage.cluster)

    with unwatched(stage, f"--watch-cache={cache}"):
        stage.create_pods(names("ring", 1, start=3), "ring")  # the member that its gang waits for
        stage.submit_job("train")
        stage.delete_pods("pair-0")  # of whose end no event will tell

    stage.await_bound("ring", 4, LONG_SECONDS)
    assert len(stage.racks("ring")) == 1
    stage.await_bound("train-", 2, LONG_SECONDS)
    stage.create_pods(["pair-2"], "pair", cpu=WHOLE_NODE)
    await_bound_to(stage, "pair-2", pair["pair-0"])
    assert stage.bound("pair") == {"pair-1": pair["pair-1"], "pair-2": pair["pair-0"]}

    # Else nothing was forgotten, and this story tells nothing.
    assert all(now > then for now, then in zip(count_forgotten(stage.cluster), before, strict=True))
    eventually("a cache that is right", lambda: compare(stage)["equal"])
    run_gang(stage, "after", 2, RACK)
    eventually("the records' end", lambda: not stage.reservations())
