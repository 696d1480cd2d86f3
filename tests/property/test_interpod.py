"""The planner against kube-scheduler's rules: a gang is placed exactly when its members could come one by one.

The rules are written down in `tests.support.truth.rules`, and all orders and nodes are tried on up to six nodes.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, combinations
from random import Random
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from serried.plan.eviction import NoVictims
from serried.plan.request import Plan
from tests.support.preemption import HIGH
from tests.support.truth.ours import SerriedPlanner
from tests.support.truth.rules import Cluster, Raw, list_feasible
from tests.support.truth.search import find_most, find_placement, is_sound
from tests.support.truth.worlds import ALL, COUNTED, HOSTNAME, NAMESPACES, RACK, ZONE, Draws, Feature, as_stored

sources = st.integers(0, 1 << 32).map(Random)


def draw_cluster(draws: Draws) -> Cluster:
    cluster = draws.cluster()
    return replace(cluster, pods=[as_stored(pod) for pod in cluster.pods])


def draw_gang(draws: Draws, most_classes: int) -> list[Raw]:
    return [as_stored(member) for member in draws.gang(most_classes=most_classes)]


def names_of(cluster: Cluster) -> list[str]:
    return [node["metadata"]["name"] for node in cluster.nodes]


def domains_of(cluster: Cluster, key: str | None) -> dict[str, list[str]]:
    """The names of the nodes in each domain; all under "" without a key."""
    found: dict[str, list[str]] = {}
    for node in cluster.nodes:
        domain = "" if key is None else node["metadata"]["labels"].get(key)
        if domain is not None:
            found.setdefault(domain, []).append(node["metadata"]["name"])
    return found


@given(random=sources)
def test_the_planner_takes_the_nodes_for_a_pod_that_kube_scheduler_would(random: Random) -> None:
    draws = Draws(random, COUNTED)
    cluster = draw_cluster(draws)
    ours = SerriedPlanner(cluster)
    for index in range(3):
        pod = as_stored(draws.pod(f"p{index}"))
        assert ours.list_feasible(pod) == list_feasible(cluster, pod)


@given(random=sources, key=st.sampled_from([None, RACK, ZONE]))
def test_a_gang_of_equal_members_is_placed_exactly_when_they_could_come_one_by_one(
    random: Random, key: str | None
) -> None:
    draws = Draws(random, COUNTED)
    cluster, members = draw_cluster(draws), draw_gang(draws, most_classes=1)
    need = random.randint(1, len(members))
    most = max((find_most(cluster, members, inside) for inside in domains_of(cluster, key).values()), default=0)
    plan = SerriedPlanner(cluster).plan(members, need, key)
    assert isinstance(plan, Plan) == (most >= need)
    assert not isinstance(plan, Plan) or len(plan.nodes) == most


@given(random=sources, key=st.sampled_from([None, RACK, ZONE]))
def test_every_plan_is_one_whose_members_can_come_in_some_order(random: Random, key: str | None) -> None:
    draws = Draws(random, COUNTED)
    cluster, members = draw_cluster(draws), draw_gang(draws, most_classes=3)
    need = random.randint(1, len(members))
    most = max((find_most(cluster, members, inside) for inside in domains_of(cluster, key).values()), default=0)
    plan = SerriedPlanner(cluster).plan(members, need, key)
    assert isinstance(plan, Plan) == (most >= need)
    if isinstance(plan, Plan):
        assert is_sound(cluster, [members[int(uid)] for uid in plan.nodes], list(plan.nodes.values()))
        assert set(plan.nodes.values()) <= set(domains_of(cluster, key)[plan.domain])


@given(random=sources)
def test_members_of_a_wave_may_come_in_any_order_once_those_before_it_have_come(random: Random) -> None:
    draws = Draws(random, COUNTED)
    cluster, members = draw_cluster(draws), draw_gang(draws, most_classes=3)
    plan = SerriedPlanner(cluster).plan(members, random.randint(1, len(members)))
    if not isinstance(plan, Plan):
        return
    waves = plan.waves or (tuple(plan.nodes),)
    assert sorted(uid for wave in waves for uid in wave) == sorted(plan.nodes)
    for wave in waves:
        for uid in wave:
            for before in list_subsets(set(wave) - {uid}):
                ground = place_all(cluster, members, plan.nodes, before)
                assert plan.nodes[uid] in list_feasible(ground, members[int(uid)])
        cluster = place_all(cluster, members, plan.nodes, wave)


def list_subsets(uids: Collection[str]) -> Iterator[Collection[str]]:
    return chain.from_iterable(combinations(sorted(uids), size) for size in range(len(uids) + 1))


def place_all(cluster: Cluster, members: list[Raw], nodes: Mapping[str, str], uids: Collection[str]) -> Cluster:
    """The cluster with these members on their nodes."""
    for uid in uids:
        cluster = cluster.joined_by(members[int(uid)], nodes[uid])
    return cluster


@given(random=sources)
def test_a_tree_of_two_groups_is_placed_exactly_when_the_members_of_both_could_come_one_by_one(random: Random) -> None:
    draws = Draws(random, COUNTED)
    cluster, members = draw_cluster(draws), draw_gang(draws, most_classes=3)
    assume(len(members) > 1)
    plan = SerriedPlanner(cluster).plan_tree(members, random.randint(1, len(members) - 1))
    most = find_most(cluster, members, names_of(cluster))
    assert isinstance(plan, Plan) == (most == len(members))
    if isinstance(plan, Plan):
        assert is_sound(cluster, [members[int(uid)] for uid in plan.nodes], list(plan.nodes.values()))


@dataclass(frozen=True)
class Pair:
    """A cluster, and a tree of two groups that have more members than they need."""

    cluster: Cluster
    members: list[Raw]
    first: int
    needs: tuple[int, int]

    @property
    def uids(self) -> tuple[frozenset[str], frozenset[str]]:
        """The members of either group."""
        found = list(map(str, range(len(self.members))))
        return frozenset(found[: self.first]), frozenset(found[self.first :])

    def plan(self, wanted: int) -> Plan | None:
        """The planner's answer, None for a refusal. A plan is sound, and no group of it is short of its quorum."""
        plan = SerriedPlanner(self.cluster).plan_tree(self.members, self.first, self.needs, wanted)
        if not isinstance(plan, Plan):
            return None
        assert is_sound(self.cluster, [self.members[int(uid)] for uid in plan.nodes], list(plan.nodes.values()))
        counts = [len(group.intersection(plan.nodes)) for group in self.uids]
        assert all(not count or count >= need for count, need in zip(counts, self.needs, strict=True))
        assert sum(map(bool, counts)) >= wanted
        return plan

    def can_be_placed(self, wanted: int) -> bool:
        """Return whether quorums of this many groups can be placed one pod after the other."""
        quorums = [list(combinations(sorted(group), need)) for group, need in zip(self.uids, self.needs, strict=True)]
        ways = chain(*quorums) if wanted == 1 else (one + other for one in quorums[0] for other in quorums[1])
        names = names_of(self.cluster)
        return any(find_most(self.cluster, [self.members[int(uid)] for uid in way], names) == len(way) for way in ways)


def draw_pair(random: Random) -> Pair | None:
    """Draw two gangs; None if there are too few members for one to be spare."""
    draws = Draws(random, COUNTED)
    cluster, members = draw_cluster(draws), draw_gang(draws, most_classes=2)
    if len(members) < 3:
        return None
    first = random.randint(1, len(members) - 1)
    return Pair(cluster, members, first, (random.randint(1, first), random.randint(1, len(members) - first)))


@given(random=sources)
def test_a_tree_that_takes_one_of_two_groups_is_placed_exactly_when_any_quorum_could_come(random: Random) -> None:
    pair = draw_pair(random)
    assume(pair is not None)
    assert pair is not None
    assert (pair.plan(wanted=1) is not None) == pair.can_be_placed(wanted=1)


def test_a_tree_of_two_groups_with_spare_members_is_hardly_ever_refused_in_vain() -> None:
    """The planner may miss plans in which a quorum of the second group has to be placed before one of the first."""
    pairs = [pair for pair in map(draw_pair, map(Random, range(400))) if pair is not None]
    planned = {place for place, pair in enumerate(pairs) if pair.plan(wanted=2) is not None}
    possible = {place for place, pair in enumerate(pairs) if pair.can_be_placed(wanted=2)}
    assert planned <= possible
    assert len(possible) > 80
    assert len(possible - planned) <= 1


# --- the search itself ------------------------------------------------------------------------------------------------


@given(random=sources)
def test_what_the_search_finds_can_come_and_no_more(random: Random) -> None:
    draws = Draws(random, ALL)
    cluster, members = draw_cluster(draws), draw_gang(draws, most_classes=2)[:4]
    found = find_placement(cluster, members, names_of(cluster))
    assert is_sound(cluster, [member for member, _ in found], [node for _, node in found])
    assert len(found) == count_by_hand(cluster, members, names_of(cluster))


def count_by_hand(cluster: Cluster, members: Collection[Raw], inside: Collection[str]) -> int:
    """Return the largest number of members that fit, by trying every order of members without a cache."""
    most = 0
    for member in members:
        rest = [each for each in members if each is not member]
        for node in list_feasible(cluster, member) & set(inside):
            most = max(most, 1 + count_by_hand(cluster.joined_by(member, node), rest, inside))
            if most == len(members):
                return most
    return most


def make_node(name: str, **labels: str) -> Raw:
    keys = {"zone": ZONE, "rack": RACK, "host": HOSTNAME}
    has = {keys[label]: value for label, value in labels.items()}
    return {
        "metadata": {"name": name, "labels": has},
        "spec": {},
        "status": {"allocatable": {"cpu": "8", "pods": "9"}},
    }


def make_pod(app: str, node: str = "", namespace: str = "truth-one", **spec: Any) -> Raw:
    said = {"containers": [{"name": "main"}], **spec} | ({"nodeName": node} if node else {})
    return {"metadata": {"name": app, "namespace": namespace, "labels": {"app": app}}, "spec": said}


def beside(kind: str, app: str, key: str, **more: Any) -> dict[str, Any]:
    """A required term of this kind for the pods of an app."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(app: str, key: str, **more: Any) -> dict[str, Any]:
    """A constraint that spreads the pods of an app."""
    selector = {"matchLabels": {"app": app}}
    constraint = {"labelSelector": selector, "topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [constraint | more]}


TWO_ZONES = [make_node("a1", zone="a", host="a1"), make_node("b1", zone="b", host="b1"), make_node("x1", host="x1")]


@pytest.mark.parametrize(
    ("bound", "pod", "nodes"),
    [
        pytest.param([], make_pod("w", **beside("podAffinity", "w", ZONE)), "a1 b1", id="the first of its kind"),
        pytest.param([], make_pod("w", **beside("podAffinity", "db", ZONE)), "", id="nobody to be beside"),
        pytest.param(
            [make_pod("db", "x1")], make_pod("db", **beside("podAffinity", "db", ZONE)), "a1 b1", id="outside all zones"
        ),
        pytest.param([make_pod("db", "a1")], make_pod("w", **beside("podAffinity", "db", ZONE)), "a1", id="beside"),
        pytest.param([make_pod("w", "a1")], make_pod("w", **beside("podAntiAffinity", "w", ZONE)), "b1 x1", id="apart"),
        pytest.param(
            [make_pod("old", "a1", **beside("podAntiAffinity", "w", ZONE))], make_pod("w"), "b1 x1", id="kept away"
        ),
        pytest.param(
            [make_pod("old", "a1", "truth-two", **beside("podAntiAffinity", "w", ZONE))],
            make_pod("w"),
            "a1 b1 x1",
            id="of another namespace",
        ),
        pytest.param(
            [
                make_pod(
                    "old",
                    "a1",
                    "truth-two",
                    **beside("podAntiAffinity", "w", ZONE, namespaceSelector={"matchLabels": {"team": "red"}}),
                )
            ],
            make_pod("w"),
            "b1 x1",
            id="of a namespace that it selects",
        ),
        pytest.param([make_pod("w", "a1")], make_pod("w", **spread("w", ZONE)), "b1", id="spread"),
        pytest.param([], make_pod("w", **spread("w", ZONE, minDomains=3)), "a1 b1", id="too few domains, empty"),
        pytest.param(
            [make_pod("w", "a1"), make_pod("w", "b1")],
            make_pod("w", **spread("w", ZONE, minDomains=3)),
            "",
            id="too few domains, one in each",
        ),
        pytest.param(
            [make_pod("w", "a1")] * 5,
            make_pod("w", **spread("w", ZONE, labelSelector={})),
            "a1 b1",
            id="empty selector",
        ),
    ],
)
def test_the_rules_of_affinity_and_spread(bound: list[Raw], pod: Raw, nodes: str) -> None:
    assert list_feasible(Cluster(TWO_ZONES, bound, NAMESPACES), pod) == set(nodes.split())


def test_since_1_38_an_empty_selector_counts_every_pod() -> None:
    cluster = Cluster(TWO_ZONES, [make_pod("w", "a1")] * 5, NAMESPACES, empty_counts=True)
    assert list_feasible(cluster, make_pod("w", **spread("w", ZONE, labelSelector={}))) == {"b1"}


def test_two_terms_may_each_have_a_mate_of_its_own() -> None:
    racks = [make_node("a1", zone="a", rack="r1"), make_node("a2", zone="a", rack="r2")]
    cluster = Cluster([*racks, make_node("b1", zone="b", rack="r1")], [make_pod("db", "a2")], NAMESPACES)
    pod = make_pod("w", **beside("podAffinity", "db", ZONE))
    terms = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms.append({**terms[0], "topologyKey": RACK})
    assert list_feasible(cluster, pod) == {"a2"}
    assert list_feasible(cluster.joined_by(make_pod("db"), "b1"), pod) == {"a1", "a2", "b1"}


def test_four_members_over_two_zones_come_two_by_two() -> None:
    cluster = Cluster(TWO_ZONES, [], NAMESPACES)
    found = find_placement(cluster, [make_pod("w", **spread("w", ZONE))] * 4, names_of(cluster))
    assert sorted(node for _, node in found) == ["a1", "a1", "b1", "b1"]


def test_of_two_kinds_that_want_to_be_beside_the_first_the_first_comes_first() -> None:
    members = [make_pod("follower", **beside("podAffinity", "leader", ZONE)), make_pod("leader")]
    cluster = Cluster(TWO_ZONES, [], NAMESPACES)
    assert find_most(cluster, members, ["b1"]) == 2
    assert find_most(cluster, members, ["x1"]) == 1


# --- victims ----------------------------------------------------------------------------------------------------------


@given(random=sources, key=st.sampled_from([None, RACK, ZONE]))
def test_where_all_that_may_go_would_help_some_go_and_none_of_them_in_vain(random: Random, key: str | None) -> None:
    draws = Draws(random, COUNTED - {Feature.TERMINATING})
    cluster = draws.cluster(most_nodes=5, most_pods=7)
    cluster = replace(cluster, pods=[as_stored(pod) for pod in cluster.pods])
    members = [as_stored(member) for member in draws.gang(most_members=4, most_classes=2)]
    need = random.randint(1, len(members))
    priorities = [random.choice([0, 0, 1, HIGH]) for _ in cluster.pods]
    domains = domains_of(cluster, key)

    def fits(gone: Collection[int], inside: Collection[str]) -> bool:
        left = replace(cluster, pods=[pod for at, pod in enumerate(cluster.pods) if at not in gone])
        return find_most(left, members, inside, need) >= need

    low = {at for at, priority in enumerate(priorities) if priority < HIGH}
    here = {name: {at for at in low if cluster.pods[at]["spec"]["nodeName"] in domains[name]} for name in domains}
    found = SerriedPlanner(cluster).plan_victims(members, need, key, priorities)
    event(type(found).__name__)
    if isinstance(found, NoVictims):
        assert not any(fits(here[name], inside) for name, inside in domains.items())
        return
    gone = {int(pod.uid.removeprefix("bound-")) for unit in found.victims for pod in unit.pods}
    left = replace(cluster, pods=[pod for at, pod in enumerate(cluster.pods) if at not in gone])
    assert is_sound(left, [members[int(uid)] for uid in found.plan.nodes], list(found.plan.nodes.values()))
    assert gone <= here[found.plan.domain]
    assert not any(fits(gone - {spared}, domains[found.plan.domain]) for spared in gone)
