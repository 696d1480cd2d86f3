"""The stage that all stories on a real control plane have, in a cluster.

The cluster is a shared one, at each API level. A folder that needs another ``cluster`` says so in its own conftest, and
which ``stage_class`` it has if it has words of its own.
Stories on other Kubernetes versions than the default one, or with another kube-scheduler, are told in `make test-full`,
which builds them first.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.cluster import Cluster, ports
from bench.cluster.binaries import are_at_hand
from bench.cluster.spec import DEFAULT_VERSION
from tests.support.cluster_stage import ClusterStage, staged
from tests.support.clusters import LEVELS, Find, share_clusters

CLUSTERS = ("cluster", "bare", "older", "server")
"""The fixtures whose parameter says in which cluster a story runs."""

FOLDERS = {"cluster", "bare", "older", "forecasting", "plain", "strict"}
"""The fixtures that start a cluster for a whole folder."""

WORKERS = 8
"""The number of processes that may tell stories at the same time: each has a part of the ports."""

LEVEL = "SERRIED_LEVEL"
"""The API level at which `make test-full` tells what `make test` leaves out; if unset, another one from day to day."""

LONG = 20
"""Most stories whose parameters name no cluster start one of their own: each takes as long as so many others."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Tell each story where it has to be told, those of one cluster together, and what takes longest first.

    Those on Kubernetes versions that are not there are skipped. Marks are given before anybody else looks at the
    stories, the order last: pytest has one of its own.
    """
    stories = [item for item in items if _is_story(item)]
    _tell_once(stories)
    for item in stories:
        item.add_marker(pytest.mark.xdist_group(_name_group(item)))
        for version in {str(mark.args[0]) for mark in item.iter_markers("kubernetes")}:
            if version != DEFAULT_VERSION:
                item.add_marker(pytest.mark.full)
            if not are_at_hand(version):
                reason = f"Kubernetes {version} is not built: python -m bench.cluster binaries --kubernetes {version}"
                item.add_marker(pytest.mark.skip(reason=reason))
        for version in {str(mark.args[0]) for mark in item.iter_markers("scheduler")}:
            item.add_marker(pytest.mark.full)
            if not are_at_hand(DEFAULT_VERSION, version):
                command = f"python -m bench.cluster binaries --scheduler {version}"
                reason = f"kube-scheduler {version} is not built: {command}"
                item.add_marker(pytest.mark.skip(reason=reason))
    yield
    told = [item for item in items if _is_story(item)]
    lengths = Counter[str]()
    for item in told:
        lengths[_name_group(item)] += 1 if _list_clusters(item) else LONG
    longest = Counter[str]()
    for item in told:
        longest[_name_cluster(item)] = max(longest[_name_cluster(item)], lengths[_name_group(item)])
    told.sort(key=lambda item: _find_place(item, longest, lengths))
    items[:] = [*told, *(item for item in items if not _is_story(item))]


def _find_place(item: pytest.Item, longest: Mapping[str, int], lengths: Mapping[str, int]) -> tuple[int, str, int, str]:
    """The order of the stories: clusters by the longest group of stories in them, and the groups of each by length."""
    cluster, group = _name_cluster(item), _name_group(item)
    return -longest[cluster], cluster, -lengths[group], group


def _name_cluster(item: pytest.Item) -> str:
    """Return the name of the cluster that a process has up while it tells a story: a shared one, or the group's."""
    return " ".join(_list_clusters(item)) if "shared" in getattr(item, "fixturenames", ()) else _name_group(item)


def pytest_configure() -> None:
    """Choose the level of the day, once for all processes."""
    os.environ.setdefault(LEVEL, LEVELS[datetime.now(UTC).toordinal() % 2])


def _tell_once(stories: list[pytest.Item]) -> None:
    """Tell a story that could be told at both API levels at one of them.

    `make test` tells it at the fallback level, which is ours alone, so the harder one, and `make test-full` natively.
    If only `make test-full` tells it, then at the level of the day. What is about the API level itself, or about what
    kube-scheduler does with native objects, is marked ``both_levels``: it is told at both.
    """
    levels = defaultdict[tuple[str, ...], dict[str, bool]](dict)
    """Of each story: its levels, and whether `make test` would tell it there."""
    alike = [item for item in stories if _level(item) and not item.get_closest_marker("both_levels")]
    for item in alike:
        if not item.get_closest_marker("skip"):
            levels[_name_story(item)][_level(item)] = item.get_closest_marker("full") is None
    for item in alike:
        found = levels[_name_story(item)]
        if len(found) < len(LEVELS):
            continue
        level = "native" if found["fallback"] else os.environ[LEVEL]
        if _level(item) != level:
            item.add_marker(pytest.mark.again)
        if _level(item) == "native" and found["fallback"]:
            item.add_marker(pytest.mark.full)


def _level(item: pytest.Item) -> str:
    """``native`` or ``fallback``, if the story is told at such a level."""
    return next((word for word in " ".join(_list_clusters(item)).split() if word in {"native", "fallback"}), "")


def _name_story(item: pytest.Item) -> tuple[str, ...]:
    """Return what a story has in common at both levels of a version."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    others = [f"{name} {value}" for name, value in sorted(parameters.items()) if name not in CLUSTERS]
    versions = [word for word in " ".join(_list_clusters(item)).split() if word[0].isdecimal()]
    return str(item.path), getattr(item, "originalname", item.name), *versions, *others


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on where pytest-xdist does not see the groups: every process would start every cluster."""
    if not session.config.getoption("loadgroup", default=False):
        return
    if any(not item.nodeid.endswith(f"@{_name_group(item)}") for item in session.items if _is_story(item)):
        raise pytest.UsageError("this pytest-xdist does not see the groups of this pytest")


def _is_story(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents


def _name_group(item: pytest.Item) -> str:
    """The stories that are told one after the other in one process: those of a cluster.

    Each process has shared clusters of its own at both levels, so for them it is enough that a file stays together.
    Those that are started for a folder go by it and their parameter, all others by their file.
    """
    clusters = _list_clusters(item)
    if "shared" in getattr(item, "fixturenames", ()):
        apart = [f"{item.path.parent.name}/{item.path.name}"] if clusters[0] in LEVELS else []
        return " ".join([*apart, *clusters])
    place = item.path.parent if FOLDERS & set(getattr(item, "fixturenames", ())) else item.path
    return " ".join([place.name, *clusters])


def _list_clusters(item: pytest.Item) -> list[str]:
    """Return the parameters that choose a story's cluster."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return [str(parameters[name]) for name in CLUSTERS if name in parameters]


@pytest.fixture(scope="session", autouse=True)
def own_ports(worker_id: str) -> Iterator[None]:
    """A part of the ports for each of the processes that tell stories at the same time."""
    number = int(worker_id.removeprefix("gw")) % WORKERS if worker_id.startswith("gw") else None
    with pytest.MonkeyPatch.context() as patch:
        if number is not None and ports.SHARE not in os.environ:
            size = len(ports.RANGE) // WORKERS
            first = ports.RANGE.start + number * size
            patch.setenv(ports.SHARE, f"{first}-{first + size - 1}")
        yield


@pytest.fixture(scope="session", autouse=True)
def rarely_collected() -> Iterator[None]:
    """Control planes spend a fifth less of their CPU where Go collects garbage at five times the heap, not at twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOGC", "400")
        yield


@pytest.fixture(scope="session")
def shared(own_ports: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Find]:
    """The clusters that all folders share."""
    with share_clusters(tmp_path_factory) as find:
        yield find


@pytest.fixture(scope="session", params=LEVELS)
def cluster(request: pytest.FixtureRequest, shared: Find) -> Cluster:
    """The shared cluster of an API level, or the one that a story names."""
    return shared(request.param)


@pytest.fixture(scope="session")
def stage_class() -> type[ClusterStage]:
    """The words in which the stories of a folder are told."""
    return ClusterStage


@pytest.fixture
def stage(cluster: Cluster, stage_class: type[ClusterStage]) -> Iterator[ClusterStage]:
    """A namespace for one story."""
    with staged(stage_class, cluster) as stage:
        yield stage
