"""Clusters of the tests: each has a state directory of its own, so that no two runs are in each other's way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.cluster import Cluster, Spec, state
from bench.cluster.spec import Api

GANG_GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true")
"""kube-scheduler's own gates for gangs and racks; the API server keeps no constraints without the second."""


LEVELS: tuple[Api, Api] = ("native", "fallback")
"""The API levels. `make test` tells a story at one of them, unless it is marked ``both_levels``."""


def on_kubernetes(version: str, *values: Any) -> Any:
    """A parameter for stories on a Kubernetes version: the version, or the values; skipped where it is not built."""
    return pytest.param(values or version, marks=pytest.mark.kubernetes(version))


BESIDE = pytest.param("beside", marks=pytest.mark.full)
"""The cluster of the promises in which these gates are on, told of in `make test-full`."""


def at_one_level(level: Api, *others: Any, fixture: str = "cluster") -> pytest.MarkDecorator:
    """For stories in which the API level has no part: `make test` tells them at this one, `make test-full` at both.

    ``others`` are more clusters in which they are told.
    """
    told = [each if each == level else pytest.param(each, marks=pytest.mark.full) for each in LEVELS]
    return pytest.mark.parametrize(fixture, [*told, *others], indirect=True)


@contextmanager
def running(spec: Spec, directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that is up for as long as the body runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.STATE, str(directories.mktemp("state")))
        cluster = Cluster.up(spec)
        try:
            yield cluster
        finally:
            cluster.down()
