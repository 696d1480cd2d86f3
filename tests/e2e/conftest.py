"""What all stories on a real control plane have: a stage in the cluster of their folder.

A folder says in its own conftest which ``cluster`` it wants and, if it has words of its own, which ``stage_class``.
Stories on other Kubernetes versions run where those are built, and in `make test-full`, which builds them first.
"""

from collections.abc import Iterator, Sequence

import pytest

from bench.cluster import Cluster
from bench.cluster.binaries import are_at_hand
from tests.support.cluster_stage import ClusterStage, staged


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip the stories of versions that are not there: a build takes longer than all the others."""
    for item in items:
        for version in {str(mark.args[0]) for mark in item.iter_markers("kubernetes")}:
            if not are_at_hand(version):
                reason = f"Kubernetes {version} is not built: python -m bench.cluster binaries --kubernetes {version}"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def stage_class() -> type[ClusterStage]:
    """The words in which the stories of a folder are told."""
    return ClusterStage


@pytest.fixture
def stage(cluster: Cluster, stage_class: type[ClusterStage]) -> Iterator[ClusterStage]:
    """A namespace for one story."""
    with staged(stage_class, cluster) as stage:
        yield stage
