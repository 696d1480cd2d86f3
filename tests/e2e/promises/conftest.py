"""Clusters for all stories: 12 nodes of 32 CPU in 4 racks, 384 CPU in all.

Two of them for the two API levels. In the third, ``beside``, kube-scheduler's own gates for gangs and racks are on.
"""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.clusters import GANG_GATES, running

_BESIDE = frozenset(
    {
        "test_a_gang_without_quorum_waits_whole_and_says_so_and_its_last_member_starts_it_in_one_rack",
        "test_late_members_go_to_the_gangs_rack_and_never_elsewhere_when_it_is_full",
        "test_a_gang_gets_one_rack_of_lower_pods_and_is_bound_whole",
    }
)
"""The stories that are told beside native gang scheduling, too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tell every story on each of its clusters, unless it names its own."""
    named = {str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")}
    if "cluster" not in metafunc.fixturenames or "cluster" in named:
        return
    beside = ["beside"] if metafunc.function.__name__ in _BESIDE else []
    metafunc.parametrize("cluster", ["native", "fallback", *beside], indirect=True, scope="package")


@pytest.fixture(scope="package")
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
