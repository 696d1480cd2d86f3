"""Clusters of the tests: each has a state directory of its own, so that no two runs are in each other's way."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster, Spec, state
from bench.cluster.spec import Api

GANG_GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true")
"""kube-scheduler's own gates for gangs and racks; the API server keeps no constraints without the second."""

LEVELS: tuple[Api, Api] = ("native", "fallback")
"""The API levels. A story is told at one of them, unless it is marked ``both_levels``."""


def on_kubernetes(version: str, *values: Any) -> Any:
    """A parameter for tests on a Kubernetes version: the version, or the values; skipped if it is not built."""
    return pytest.param(values or version, marks=pytest.mark.kubernetes(version))


def on_older(version: str, level: Api) -> Any:
    """A parameter for the shared cluster of an older minor, whose native API is another one; the fallback one is ours.

    So `make test` tells of the native one.
    """
    left = [pytest.mark.full] if level == "fallback" else []
    return pytest.param(f"{version} {level}", marks=[pytest.mark.kubernetes(version), *left])


NEXT_SCHEDULER = "1.38.0-beta.0"
"""The newest kube-scheduler under test. It runs with an API server of the default version."""


def on_next_scheduler(*words: str) -> Any:
    """A parameter for stories with NEXT_SCHEDULER: its version and these words; skipped where it is not built."""
    return pytest.param(" ".join((NEXT_SCHEDULER, *words)), marks=pytest.mark.scheduler(NEXT_SCHEDULER))


BESIDE = pytest.param("beside", marks=pytest.mark.full)
"""The shared cluster in which BESIDE_GATES are on, told of in `make test-full`."""


def at_one_level(level: Api, *others: Any, fixture: str = "cluster") -> pytest.MarkDecorator:
    """For stories in which the API level has no part: `make test` tells them at this one, `make test-full` at either.

    ``others`` are more clusters in which they are told.
    """
    told = [each if each == level else pytest.param(each, marks=pytest.mark.full) for each in LEVELS]
    return pytest.mark.parametrize(fixture, [*told, *others], indirect=True)


BESIDE_GATES = (*GANG_GATES, "DRAWorkloadResourceClaims=true")
"""With the third one PodGroups have ResourceClaims; it is beta in 1.37, and off."""

ALPHA_GATES = (*GANG_GATES, "CompositePodGroup=true", "PodGroupPreemptionPolicy=true")
"""Trees of groups, and what groups may say of preemption, are alpha in 1.37."""

_NATIVE = Spec(
    name="native",
    nodes=12,
    racks=4,
    node_pods=400,
    hold="filter",
    profiles=("second",),
    serried_args=("--barrier-idle", "8"),
)
"""12 nodes of 32 CPU in 4 racks, 384 CPU in all. The deadline is short, so that a story about it is short, too."""

_DEFAULT = {
    "native": _NATIVE,
    "fallback": replace(_NATIVE, name="fallback", api="fallback"),
    "beside": replace(
        _NATIVE, name="beside", server_gates=BESIDE_GATES, manager_gates=BESIDE_GATES, scheduler_gates=BESIDE_GATES
    ),
    "native alpha": replace(_NATIVE, name="alpha", server_gates=ALPHA_GATES),
}

SHARED = {
    **_DEFAULT,
    "one account": replace(_NATIVE, name="one-account", one_account=True),
    "1.37.1 native v1alpha3": replace(_NATIVE, name="v1alpha3", native_version="v1alpha3"),
    **{
        f"{version} {level}": replace(
            _NATIVE, name=f"v{version.replace('.', '-')}-{level}", api=level, kubernetes=version
        )
        for version in ("1.36.4", "1.35.4")
        for level in LEVELS
    },
    **{
        f"{NEXT_SCHEDULER} {name}": replace(
            spec, name=f"v{NEXT_SCHEDULER.replace('.', '-')}-{spec.name}", scheduler=NEXT_SCHEDULER
        )
        for name, spec in _DEFAULT.items()
    },
}
"""The clusters that all folders share. A story has a namespace of its own, and puts back what it changes outside it."""

Find = Callable[[str], Cluster]
"""The shared cluster of this name."""


@contextmanager
def sharing(directories: pytest.TempPathFactory) -> Iterator[Find]:
    """A shared cluster is up until another one is wanted: stories come in the order of their clusters."""
    up: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def find(name: str) -> Cluster:
            if name not in up:
                stack.close()
                up.clear()
                up[name] = stack.enter_context(running(SHARED[name], directories))
            return up[name]

        yield find


@contextmanager
def running(spec: Spec, directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that is up for as long as the body runs, and beside others that begin and end meanwhile."""
    home = directories.mktemp("state")
    with _at_home(home):
        cluster = Cluster.up(spec)
    try:
        yield cluster
    finally:
        with _at_home(home):
            cluster.down()


@contextmanager
def _at_home(directory: Path) -> Iterator[None]:
    """Clusters are kept here while the body runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.STATE, str(directory))
        yield
