"""Two clusters whose API servers note what our accounts ask for: 12 nodes of 32 CPU, so 12 pods of 30 CPU fill them.

In one the cluster's own API serves groups, and the controllers of JobSet and LeaderWorkerSet are at work; in the other
ours does, members are held by gates, and there are PodGroups of scheduler-plugins. In both lists come in pages, as a
list that is streamed needs no right to list, and OwnerReferencesPermissionEnforcement is on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.installation import MANIFESTS
from tests.e2e.compatible.stage import Shape, install
from tests.e2e.kinds.operators import at_work
from tests.e2e.roles.audit import Audit, note_our_accounts
from tests.e2e.roles.stage import RoleStage
from tests.support import foreign_levels
from tests.support.clusters import GANG_GATES, run_cluster

_IN_PAGES = "WatchList=false"
_IMPATIENT = ("--barrier-idle", "8")
"""Flags that make the extender plan again soon what it planned without a right."""


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that the story's parameter names.

    A parameter beside another one that is no fixture starts a cluster a story.
    """
    flags = (
        *note_our_accounts(tmp_path_factory.mktemp("audit")),
        "enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
    begin = _begin_native if request.param == "native" else _begin_fallback
    with begin(flags, tmp_path_factory) as started:
        started.kubectl("apply", "-f", str(MANIFESTS / "kustomize" / "control-plane" / "rbac.yaml"))
        yield started


@contextmanager
def _begin_native(flags: tuple[str, ...], directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    gates = (*GANG_GATES, "CompositePodGroup=true", _IN_PAGES)
    spec = Spec(
        name="roles-native",
        nodes=12,
        racks=4,
        hold="filter",
        server_gates=gates,
        server_flags=flags,
        serried_args=_IMPATIENT,
    )
    with at_work(spec, directories) as started:
        yield started


@contextmanager
def _begin_fallback(flags: tuple[str, ...], directories: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(
        name="roles-fallback",
        nodes=12,
        racks=4,
        api="fallback",
        hold="gate",
        server_gates=(_IN_PAGES,),
        server_flags=flags,
        serried_args=_IMPATIENT,
    )
    with run_cluster(spec, directories) as started:
        install(started, Shape.OURS)
        foreign_levels.install(started)
        yield started


@pytest.fixture(scope="package")
def audit(cluster: Cluster) -> Audit:
    return Audit.of(cluster.spec)


@pytest.fixture(scope="package")
def stage_class() -> type[RoleStage]:
    return RoleStage
