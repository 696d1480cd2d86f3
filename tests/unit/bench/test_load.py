"""Objects of a load, and the figures of its run."""

from itertools import pairwise

import pytest

from bench.load.figures import Figures, Life, Span, compute_figures, percentile
from bench.load.objects import GANG, RUN, Gang, Load, filler_objects, leading_objects, make_gangs, pod_objects
from bench.load.watch import Watch
from serried.kube.reflector import Deleted, Upserted

DOMAINS = {"a1": "rack-a", "a2": "rack-a", "b1": "rack-b"}
RACK = "topology.serried.dev/rack"
PAIR = Gang("g", 2)


def figures(*lives: Life, gang: Gang = PAIR, end: float = 10.0) -> Figures:
    return compute_figures(lives, [gang], DOMAINS, Span(0.0, 1.0, end))


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, None),
        ([7.0], 1, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 95, 95.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([1.0, 2.0], 100, 2.0),
    ],
)
def test_percentiles_are_of_nearest_rank(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_a_run_is_measured_from_its_first_create_to_its_last_bind() -> None:
    found = figures(Life("", 0.5, 2.0, "a1"), Life("", 1.0, 4.0, "a2"))

    assert (found.pods, found.bound, found.seconds, found.pods_per_second) == (2, 2, 4.0, 0.5)
    assert (found.p50, found.p99, found.create_seconds) == (1.5, 3.0, 1.0)


def test_a_whole_gang_is_partial_from_its_first_to_its_last_bind() -> None:
    found = figures(Life("g", 0.0, 2.0, "a1"), Life("g", 0.0, 2.5, "a2"))

    assert (found.partial_gang_seconds, found.longest_burst) == (0.5, 0.5)


def test_a_gang_that_never_becomes_whole_is_partial_to_the_end() -> None:
    assert figures(Life("g", 0.0, 2.0, "a1"), Life("g", 0.0)).partial_gang_seconds == 8.0


def test_a_gang_that_never_starts_is_never_partial() -> None:
    found = figures(Life("g", 0.0), Life("g", 0.0))

    assert (found.partial_gang_seconds, found.longest_burst, found.seconds, found.pods_per_second) == (0, 0, 0, 0)
    assert found.p50 is None


@pytest.mark.parametrize(("key", "nodes", "split"), [(RACK, "a1 a2", 0), (RACK, "a1 b1", 1), ("", "a1 b1", 0)])
def test_a_gang_with_a_key_in_two_domains_is_split(key: str, nodes: str, split: int) -> None:
    lives = [Life("g", 0.0, 1.0, node) for node in nodes.split()]

    assert figures(*lives, gang=Gang("g", 2, key)).split_gangs == split


def test_a_gang_is_quick_from_when_its_last_member_is_seen_to_its_last_bind() -> None:
    found = figures(Life("g", 0.0, 2.0, "a1", seen=0.2), Life("g", 0.5, 2.5, "a2", seen=1.5))

    assert (found.quorum_p50, found.quorum_p99, found.last_create_to_last_bind) == (1.0, 1.0, 1.5)


def test_of_a_gang_that_is_not_bound_whole_no_time_is_said() -> None:
    assert figures(Life("g", 0.0, 2.0, "a1"), Life("g", 0.0)).quorum_p50 is None


def test_plain_pods_beside_gangs_have_percentiles_of_their_own() -> None:
    found = figures(Life("g", 0.0, 9.0, "a1"), Life("g", 0.0, 9.0, "a1"), Life("", 1.0, 1.5, "a2"))

    assert (found.p99, found.plain_p50, found.plain_p99) == (9.0, 0.5, 0.5)


def test_figures_are_described_to_the_millisecond() -> None:
    described = figures(Life("", 0.0, 3.00049, "a1")).describe()

    assert described["seconds"] == 3.0
    assert described["pods"] == 1


def test_native_members_name_their_group_in_the_field() -> None:
    load = Load("r", "serried", gangs=make_gangs(1, 2, RACK))

    [(resource, group)] = leading_objects(load)
    (gang, first), _ = pod_objects(load)

    assert resource.path("default") == "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": RACK}]}
    assert gang == "gang-000"
    assert first["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
    assert first["metadata"]["labels"] == {RUN: "r", GANG: "gang-000"}


def test_fallback_members_name_their_group_in_the_label() -> None:
    load = Load("r", "serried", gangs=make_gangs(1, 2), link="fallback")

    [(resource, group)] = leading_objects(load)
    (_, first), _ = pod_objects(load)

    assert resource.group == "scheduling.serried.dev"
    assert "schedulingConstraints" not in group["spec"]
    assert "schedulingGroup" not in first["spec"]
    assert first["metadata"]["labels"]["scheduling.serried.dev/pod-group"] == group["metadata"]["name"]


def test_a_job_makes_its_pods_itself() -> None:
    load = Load("r", "serried", plain=1, gangs=make_gangs(1, 3, RACK), link="job")

    [(resource, job)] = leading_objects(load)

    assert resource.plural == "jobs"
    assert (job["spec"]["parallelism"], job["spec"]["completionMode"]) == (3, "Indexed")
    assert job["metadata"]["annotations"] == {"scheduling.serried.dev/required-topology": RACK}
    assert job["spec"]["template"]["metadata"]["labels"] == {RUN: "r", GANG: "gang-000"}
    assert [gang for gang, _ in pod_objects(load)] == [""]
    assert load.pods == 4


def test_members_of_gangs_on_ports_want_the_port_of_their_gang() -> None:
    load = Load("r", "s", gangs=make_gangs(2, 2, "", 7000))

    ports = [pod["spec"]["containers"][0]["ports"][0]["hostPort"] for _, pod in pod_objects(load)]

    assert ports == [7000, 7000, 7001, 7001]


@pytest.mark.parametrize(("plain", "gangs"), [(0, 2), (3, 0), (1, 2), (10, 2), (4, 2)])
def test_plain_pods_come_evenly_between_the_members(plain: int, gangs: int) -> None:
    load = Load("r", "s", plain=plain, gangs=make_gangs(gangs, 2))

    found = list(pod_objects(load))

    assert len(found) == len({pod["metadata"]["name"] for _, pod in found}) == load.pods
    assert [gang for gang, _ in found].count("") == plain
    members = [index for index, (gang, _) in enumerate(found) if gang]
    if plain == len(members):
        assert all(later - earlier == 2 for earlier, later in pairwise(members))


def test_the_watch_counts_each_bind_once() -> None:
    now = [1.0]
    watch = Watch(2, lambda: now[0])
    watch.created("p", "g")
    now[0] = 3.0
    bound = {"metadata": {"name": "p", "labels": {GANG: "g"}}, "spec": {"nodeName": "a1"}}

    for event in (Upserted({"metadata": {"name": "p"}, "spec": {}}), Upserted(bound), Upserted(bound), Deleted(bound)):
        watch(event)

    assert watch.lives == [Life("g", 1.0, 3.0, "a1", seen=3.0)]
    assert not watch.complete.is_set()


def test_pods_of_others_making_are_created_when_first_seen() -> None:
    watch = Watch(1, lambda: 5.0)

    watch(Upserted({"metadata": {"name": "q", "labels": {GANG: "g"}}, "spec": {"nodeName": "b1"}}))

    assert watch.lives == [Life("g", 5.0, 5.0, "b1", seen=5.0)]
    assert watch.complete.is_set()


def test_a_restart_counts_every_pod_as_created_now() -> None:
    now = [1.0]
    watch = Watch(1, lambda: now[0])
    watch.created("p", "g")
    now[0] = 4.0

    watch.restart()

    assert watch.lives == [Life("g", 4.0, seen=4.0)]


@pytest.mark.parametrize("percent", [30, 50, 70])
def test_a_cluster_is_filled_to_what_is_asked_for_but_not_every_node_alike(percent: int) -> None:
    rooms = {f"n{number}": 32 for number in range(1000)}
    found = [pod for _, pod in filler_objects(rooms, percent)]
    used = [int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]) for pod in found]
    assert abs(sum(used) / sum(rooms.values()) * 100 - percent) < 3
    assert max(used) <= 32
    assert len(set(used)) > 10
    assert {pod["spec"]["nodeName"] for pod in found} <= rooms.keys()
