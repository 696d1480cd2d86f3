"""The promises are told in all shared clusters: 12 nodes of 32 CPU in 4 racks, 384 CPU in all.

Two of them are the two API levels. In the third, ``beside``, Kubernetes' own gates for gangs and racks are on, also in
Serried's kube-scheduler: the promises hold there, too. What is otherwise is told in test_beside.py. In the fourth,
``one account``, kube-scheduler has the extender's account, as in the Pod that we ship: what it writes there has to pass
the policies that confine the extender. They hold with the next minor's kube-scheduler, too, without its gates and with.
"""

from typing import Any

import pytest

from bench.cluster import Cluster
from tests.support.clusters import BESIDE_NATIVE_GANGS, LEVELS, Find, on_next_scheduler

_SHORT_BESIDE = frozenset(
    {
        "test_a_gang_without_quorum_waits_whole_and_says_so_and_its_last_member_starts_it_in_one_rack",
        "test_late_members_go_to_the_gangs_rack_and_never_elsewhere_when_it_is_full",
        "test_a_gang_gets_one_rack_of_lower_pods_and_is_bound_whole",
    }
)
"""The stories that `make test` tells beside native gang scheduling."""

_WRITTEN_BY_THE_SCHEDULER = frozenset(
    {
        "test_a_gang_without_quorum_waits_whole_and_says_so_and_its_last_member_starts_it_in_one_rack",
        "test_a_gang_gets_one_rack_of_lower_pods_and_is_bound_whole",
        "test_a_plain_pod_takes_the_room_of_plain_pods_rather_than_of_one_member",
        "test_where_nothing_else_is_left_the_whole_gang_goes_and_is_placed_anew_together",
        "test_a_gang_with_claims_is_bound_whole_where_their_devices_are",
        "test_claims_from_a_template_are_waited_for",
        "test_a_gang_finds_the_one_rack_that_has_the_devices_of_a_class",
        "test_members_go_where_their_volume_is_or_wait_whole",
        "test_claims_without_a_volume_are_said_with_the_plan",
    }
)
"""The stories in which kube-scheduler itself writes: conditions, nominations, preemptions, devices, volumes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tell every story on each of its clusters, unless it names its own."""
    named = {str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")}
    if "cluster" not in metafunc.fixturenames or "cluster" in named:
        return
    clusters = [*LEVELS, *_beside(metafunc), *_with_one_account(metafunc), *_with_next_scheduler(metafunc)]
    metafunc.parametrize("cluster", clusters, indirect=True, scope="session")


def _beside(metafunc: pytest.Metafunc) -> list[Any]:
    """The cluster beside native gang scheduling: for what kube-scheduler has a part in, as it has another one there."""
    name = metafunc.function.__name__
    if name in _SHORT_BESIDE:
        return ["beside"]
    told = name in _WRITTEN_BY_THE_SCHEDULER or metafunc.definition.get_closest_marker("both_levels")
    return [BESIDE_NATIVE_GANGS] if told else []


def _with_one_account(metafunc: pytest.Metafunc) -> list[Any]:
    told = metafunc.function.__name__ in _WRITTEN_BY_THE_SCHEDULER
    return [pytest.param("one account", marks=pytest.mark.full)] if told else []


def _with_next_scheduler(metafunc: pytest.Metafunc) -> list[Any]:
    return [on_next_scheduler(name) for name in (*LEVELS, *("beside" for _ in _beside(metafunc)))]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, shared: Find) -> Cluster:
    return shared(request.param)
