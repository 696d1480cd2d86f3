"""Clusters for all stories: 12 nodes of 32 CPU in 4 racks, 384 CPU in all.

Two of them for the two API levels. In the third, ``beside``, kube-scheduler's own gates for gangs and racks are on; the
stories that are told there, too, say so (``ALSO_BESIDE``).
"""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.clusters import GANG_GATES, running


@pytest.fixture(scope="package", params=["native", "fallback"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Short deadlines, so that a story about them is short, too.
    gates = GANG_GATES if request.param == "beside" else ()
    spec = Spec(
        name=f"promises-{request.param}",
        nodes=12,
        racks=4,
        api="fallback" if request.param == "fallback" else "native",
        hold="filter",
        server_gates=gates,
        scheduler_gates=gates,
        serried_args=("--barrier-idle", "8"),
    )
    with running(spec, tmp_path_factory) as started:
        yield started
