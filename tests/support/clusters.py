"""The clusters of the end-to-end tests. Each test run has its own state directory, so that runs do not conflict."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster, Spec, state
from bench.cluster.spec import Api

GANG_GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true")
"""Kubernetes' feature gates for gangs and topology constraints. Without the second the API server drops the field."""

LEVELS: tuple[Api, Api] = ("native", "fallback")
"""The API levels. A test runs at one of them, unless it is marked ``both_levels``."""


def on_kubernetes(version: str, *values: Any) -> Any:
    """Return a parameter for a test on a Kubernetes version. The test is skipped if that version is not built.

    The parameter's value is ``values`` if given, else the version.
    """
    return pytest.param(values or version, marks=pytest.mark.kubernetes(version))


def on_older_kubernetes(version: str, level: Api) -> Any:
    """Return a parameter for the shared cluster of an older Kubernetes minor at this API level.

    `make test` runs the test at the native level only, because the native API differs between minors; the fallback API
    is Serried's own, and is tested in `make test-full`.
    """
    left = [pytest.mark.full] if level == "fallback" else []
    return pytest.param(f"{version} {level}", marks=[pytest.mark.kubernetes(version), *left])


NEXT_SCHEDULER = "1.38.0-beta.0"
"""The newest kube-scheduler under test. It runs with an API server of the default version."""


def on_next_scheduler(*words: str) -> Any:
    """Return a parameter for tests with NEXT_SCHEDULER: the name of its shared cluster, which is version and ``words``.

    The test is skipped if that version is not built.
    """
    return pytest.param(" ".join((NEXT_SCHEDULER, *words)), marks=pytest.mark.scheduler(NEXT_SCHEDULER))


BESIDE_NATIVE_GANGS = pytest.param("beside", marks=pytest.mark.full)
"""The shared cluster with BESIDE_GATES on, a parameter of tests that only `make test-full` runs there."""


def at_one_level(level: Api, *others: Any, fixture: str = "cluster") -> pytest.MarkDecorator:
    """Mark a test that does not depend on the API level: `make test` runs it at ``level``, `make test-full` at both.

    ``others`` are more clusters for the test, and ``fixture`` is the fixture that gets the cluster's name.
    """
    told = [each if each == level else pytest.param(each, marks=pytest.mark.full) for each in LEVELS]
    return pytest.mark.parametrize(fixture, [*told, *others], indirect=True)


BESIDE_GATES = (*GANG_GATES, "DRAWorkloadResourceClaims=true")
"""Gates for Kubernetes' own gang scheduling, and for ResourceClaims of PodGroups (beta in 1.37, and off)."""

ALPHA_GATES = (*GANG_GATES, "CompositePodGroup=true", "PodGroupPreemptionPolicy=true")
"""Feature gates for CompositePodGroups and for preemption policies of PodGroups, which are alpha in 1.37."""

_NATIVE = Spec(
    name="native",
    nodes=12,
    racks=4,
    node_pods=400,
    hold="filter",
    profiles=("second",),
    serried_args=("--barrier-idle", "8"),
)
"""12 nodes of 32 CPU in 4 racks, 384 CPU in all. The gang deadline is short, so that tests of it are short, too."""

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
"""By name: the clusters that all test folders share.

A test has its own namespace, and restores what it changes outside.
"""

Find = Callable[[str], Cluster]
"""Starts the shared cluster of a name if needed, and returns it."""


@contextmanager
def share_clusters(directories: pytest.TempPathFactory) -> Iterator[Find]:
    """Yield a function that returns a shared cluster by name. Only one is up at a time: tests are sorted by cluster."""
    up: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def find(name: str) -> Cluster:
            if name not in up:
                stack.close()
                up.clear()
                up[name] = stack.enter_context(run_cluster(SHARED[name], directories))
            return up[name]

        yield find


@contextmanager
def run_cluster(spec: Spec, directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster, yield it, and stop it at the end. Other clusters may run at the same time."""
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
    """Let `bench.cluster` keep the state of clusters in this directory while the body runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state.STATE, str(directory))
        yield
