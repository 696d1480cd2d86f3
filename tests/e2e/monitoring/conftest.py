"""One cluster that is scraped: 6 nodes of 32 CPU in 2 racks."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.clusters import running


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Spec(name="monitoring", nodes=6, racks=2, api="fallback"), tmp_path_factory) as started:
        yield started
