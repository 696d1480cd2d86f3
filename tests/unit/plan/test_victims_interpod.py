"""Victims where rules about other pods are in the way: the pods that those rules mean, and no others.

Upstream's cases are those of podgrouppreemption_test.go (test/integration/scheduler/preemption/podgroup, 1.37).
"""

from collections.abc import Sequence

import pytest

from serried.api.interpod import Namespace
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.eviction import Allowances, Blocker, EvictionUnit, NoVictims, Preemption
from serried.plan.preemption import plan_victims
from serried.plan.request import PlanRequest
from serried.rules.all import RULES
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod
from tests.support.preemption import HIGH, names
from tests.support.rules import run_deferred_work

HOSTNAME = "kubernetes.io/hostname"
RING, CACHE, OTHER = {"app": "ring"}, {"app": "cache"}, {"app": "other"}


class Ground:
    """Nodes, and pods of some priorities that run there."""

    def __init__(self, *nodes: NodeBuilder) -> None:
        self.store = Store(["default-scheduler"], rules=RULES)
        self.store.note_state(Namespace, KindState.KNOWN)
        self.store.put_object(Namespace("default"))
        self._priorities: dict[str, int] = {}
        self._nodes = [each.value().name for each in nodes]
        for each in nodes:
            self.store.put_node(each.value())

    def run(self, *pods: PodBuilder, priority: int = 0) -> "Ground":
        """Add pods that run. Return this ground."""
        for each in pods:
            value = each.value()
            self.store.put_pod(value)
            self._priorities[value.uid] = priority
        return self

    def fill(self, cpu: int, labels: dict[str, str], *on: str, priority: int = 0) -> "Ground":
        """A pod on each of these nodes, or on all, named by its label and node."""
        app = labels["app"]
        return self.run(*(one(f"{app}-{name}", name, cpu, labels) for name in on or self._nodes), priority=priority)

    def plan(self, members: Sequence[PodBuilder], key: str | None = None, need: int = 0) -> Preemption | NoVictims:
        """Plan victims for a gang that needs all of its members, unless ``need`` says less."""
        waiting = self.put(members)
        ask = PlanRequest(waiting, need or len(waiting), key)
        return self.solve(ask)

    def plan_tree(self, *groups: Sequence[PodBuilder]) -> Preemption | NoVictims:
        """Plan victims for a tree that needs all members of all its groups."""
        found = [self.put(members) for members in groups]
        parts = tuple(PlanRequest(each, len(each), name=f"g{place}") for place, each in enumerate(found))
        members = [member for part in parts for member in part.members]
        return self.solve(PlanRequest(members, len(members), name="root", parts=parts, wanted=len(parts)))

    def solve(self, ask: PlanRequest) -> Preemption | NoVictims:
        """Plan victims among the pods that run. Return the preemption, or why there is none."""
        run_deferred_work(self.store)
        units = [EvictionUnit((self.store.pods[uid],), priority) for uid, priority in self._priorities.items()]
        snapshot = self.store.snapshots.take(HIGH, ask.members)
        return plan_victims(snapshot, ask, HIGH, units, Allowances())

    def put(self, members: Sequence[PodBuilder]) -> list[Pod]:
        """Add pods that wait. Return them as the store has them."""
        values = [each.in_group("g").value() for each in members]
        for value in values:
            self.store.put_pod(value)
        return [self.store.pods[value.uid] for value in values]


def host(name: str, cpu: int = 8) -> NodeBuilder:
    """A node whose rack is its first letter."""
    return node(name).rack(name[0]).label(HOSTNAME, name).cpu(cpu).pods(20)


def one(name: str, on: str, cpu: int = 1, labels: dict[str, str] = OTHER) -> PodBuilder:
    """A pod that runs."""
    return labelled(pod(name).cpu(cpu).on(on), labels)


def labelled(builder: PodBuilder, labels: dict[str, str]) -> PodBuilder:
    for key, value in labels.items():
        builder = builder.label(key, value)
    return builder


def ring(size: int, cpu: int = 1) -> list[PodBuilder]:
    """Members that carry a label of their own."""
    return [labelled(pod(f"m{place}").cpu(cpu), RING) for place in range(size)]


def apart(size: int, labels: dict[str, str], key: str = HOSTNAME, cpu: int = 1) -> list[PodBuilder]:
    return [each.anti_affinity(labels, key) for each in ring(size, cpu)]


def spread(size: int, key: str = HOSTNAME, cpu: int = 1, **fields: object) -> list[PodBuilder]:
    return [each.spread(RING, key, **fields) for each in ring(size, cpu)]


def beside(size: int, labels: dict[str, str], key: str = RACK, cpu: int = 1) -> list[PodBuilder]:
    return [each.affinity(labels, key) for each in ring(size, cpu)]


def victims(found: Preemption | NoVictims) -> list[str]:
    assert isinstance(found, Preemption), found
    return names(found.victims)


def pair() -> Ground:
    return Ground(host("a1"), host("b1"))


def racks() -> Ground:
    return Ground(*(host(f"{rack}{place}") for rack in "ab" for place in (1, 2)))


class TestWhoIsInTheWay:
    def test_goes_though_there_is_room_beside_it(self) -> None:
        ground = pair().run(one("old", "a1", labels=CACHE), one("other", "b1"))
        assert victims(ground.plan(apart(2, CACHE, cpu=5))) == ["old"]

    def test_goes_for_a_tree_as_well(self) -> None:
        ground = pair().run(one("old", "a1", labels=CACHE), one("other", "b1"))
        members = apart(2, CACHE, cpu=5)
        assert victims(ground.plan_tree(members[:1], members[1:])) == ["old"]

    def test_goes_if_it_is_the_one_that_keeps_members_away(self) -> None:
        ground = pair().run(one("old", "a1").anti_affinity(RING), one("other", "b1").anti_affinity(CACHE))
        assert victims(ground.plan(ring(2, cpu=5))) == ["old"]

    def test_goes_with_the_port_that_members_listen_on(self) -> None:
        ground = pair().run(one("old", "a1").host_port(80), one("other", "b1").host_port(81))
        members = [each.host_port(80) for each in ring(2)]
        assert victims(ground.plan(members)) == ["old"]

    def test_goes_for_the_skew_of_members_that_have_one_node_only(self) -> None:
        ground = pair().run(one("old", "a1", labels=RING))
        members = [each.node_selector(HOSTNAME, "a1") for each in spread(2, maxSkew=2, minDomains=10)]
        assert victims(ground.plan(members)) == ["old"]

    def test_goes_alone_where_others_that_count_are_elsewhere_and_of_lower_priority(self) -> None:
        ground = pair().run(one("old", "a1", labels=RING), priority=10)
        ground.run(one("older", "b1", labels=RING), priority=5)
        members = [each.node_selector(HOSTNAME, "a1") for each in spread(2, maxSkew=2, minDomains=10)]
        assert victims(ground.plan(members)) == ["old"]

    def test_goes_where_the_fewest_of_them_are(self) -> None:
        ground = racks().fill(1, CACHE, "a1", "a2", "b1")
        assert victims(ground.plan(apart(2, CACHE, RACK), RACK)) == ["cache-b1"]

    def test_goes_from_the_whole_domain_of_the_rule(self) -> None:
        ground = racks().fill(1, CACHE, "a1", "a2", "b1", "b2")
        assert len(victims(ground.plan(apart(2, CACHE, RACK), RACK))) == 2


class TestNobodyGoesInVain:
    def test_where_the_holder_of_the_rule_has_the_gang_s_priority(self) -> None:
        ground = pair().run(one("equal", "a1", labels=CACHE), priority=HIGH).run(one("low", "b1", cpu=6))
        found = ground.plan(apart(2, CACHE, cpu=5))
        assert isinstance(found, NoVictims)
        assert (found.blocker, found.priority) == (Blocker.PRIORITY, HIGH)

    def test_where_nobody_is_left_to_be_beside(self) -> None:
        found = pair().fill(8, OTHER).plan(beside(2, CACHE))
        assert isinstance(found, NoVictims)
        assert found.blocker is Blocker.ROOM

    def test_where_the_domain_of_a_rule_is_wider_than_that_of_the_gang(self) -> None:
        # The victim in rack a would go in vain: the pod in rack b keeps the zone, and is not evicted for this gang.
        zone = "topology.kubernetes.io/zone"
        ground = Ground(host("a1").label(zone, "z"), host("b1").label(zone, "z"))
        ground.run(one("old", "a1", labels=CACHE), one("older", "b1", labels=CACHE))
        found = ground.plan(apart(1, CACHE, zone), RACK)
        assert isinstance(found, NoVictims)

    def test_where_members_keep_each_other_off(self) -> None:
        found = pair().fill(8, OTHER).plan(apart(3, RING))
        assert isinstance(found, NoVictims)

    @pytest.mark.parametrize(
        ("labels", "members", "most"),
        [
            pytest.param(OTHER, spread(8, RACK, cpu=8), 8, id="spread"),
            pytest.param(RING, spread(8, RACK, cpu=8), 8, id="spread among those of their own kind"),
            pytest.param(OTHER, beside(8, RING, cpu=8), 8, id="beside each other"),
            pytest.param(RING, beside(4, RING, cpu=8), 4, id="beside those of their own kind"),
            pytest.param(OTHER, apart(8, RING, RACK, cpu=8), 8, id="apart"),
            pytest.param(RING, apart(8, RING, RACK, cpu=8), 8 * 8, id="apart from all of their own kind in 8 racks"),
        ],
    )
    def test_of_a_large_cluster_full_of_pods(
        self, labels: dict[str, str], members: list[PodBuilder], most: int
    ) -> None:
        ground = Ground(*(host(f"{rack}{place}") for rack in "abcdefghij" for place in range(8)))
        assert len(victims(ground.fill(8, labels).plan(members))) == most


class TestWhoIsNeeded:
    def test_stays_and_the_pod_beside_it_goes(self) -> None:
        ground = racks().fill(1, CACHE, "a1").fill(7, OTHER, "a1", "a2").fill(8, OTHER, "b1", "b2")
        found = ground.plan(beside(2, CACHE, cpu=4))
        assert victims(found) in (["other-a1"], ["other-a2"])

    def test_keeps_its_rack_the_one_for_the_gang(self) -> None:
        ground = racks().fill(1, CACHE, "a1").fill(7, OTHER, "a1", "a2", priority=5).fill(8, OTHER, "b1", "b2")
        found = ground.plan(beside(2, CACHE, cpu=4), RACK)
        assert isinstance(found, Preemption)
        assert found.plan.domain == "a"
        assert "cache-a1" not in victims(found)

    def test_may_go_if_members_are_beside_each_other_then(self) -> None:
        ground = pair().fill(8, RING, "a1").fill(8, OTHER, "b1", priority=1)
        assert victims(ground.plan(beside(2, RING))) == ["ring-a1"]


class TestSpread:
    def test_members_that_get_room_keep_their_skew(self) -> None:
        ground = racks().fill(8, OTHER)
        found = ground.plan(spread(4, RACK, cpu=4))
        assert isinstance(found, Preemption)
        assert len(found.victims) == 2
        assert sorted(name[0] for name in found.plan.nodes.values()) == ["a", "a", "b", "b"]

    def test_those_that_count_stay_where_others_take_the_room(self) -> None:
        ground = (
            racks()
            .fill(4, RING, "a1", "b1", priority=2)
            .fill(4, OTHER, "a1", "b1")
            .fill(8, CACHE, "a2", "b2", priority=1)
        )
        assert victims(ground.plan(spread(2, RACK, cpu=4))) == ["other-a1", "other-b1"]

    def test_those_that_cannot_come_back_first_do_so_beside_those_that_can(self) -> None:
        # With the one in rack b there, the emptiest rack is no longer empty, and the one in rack a may stay.
        ground = Ground(host("a1"), host("b1", 4)).fill(1, RING, "a1", "b1").fill(7, OTHER, "a1")
        members = [each.node_selector(RACK, "a") for each in spread(1, RACK, cpu=4)]
        assert victims(ground.plan(members)) == ["other-a1"]


def test_late_members_get_room_by_the_rules_too() -> None:
    ground = pair().fill(1, CACHE, "a1", "b1")
    assert len(victims(ground.solve(PlanRequest(ground.put(apart(1, CACHE)), 0)))) == 1
