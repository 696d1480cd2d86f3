"""Gangs whose members decide about each other: those too large for all ways to be tried, and recorded plans."""

from collections.abc import Sequence

from serried.api.interpod import Namespace
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.coupled import restore_waves
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest
from serried.rules.all import RULES
from tests.support.builders import RACK, NodeBuilder, PodBuilder, node, pod

LEADER, WORKER = {"app": "leader"}, {"app": "worker"}


class Ground:
    """Nodes, and members that wait."""

    def __init__(self, nodes: Sequence[NodeBuilder], members: Sequence[PodBuilder]) -> None:
        self.store = Store(["default-scheduler"], rules=RULES)
        self.store.note_state(Namespace, KindState.KNOWN)
        self.store.put_object(Namespace("default"))
        for each in nodes:
            self.store.put_node(each.value())
        for member in members:
            self.store.put_pod(member.in_group("g").value())
        self.members: list[Pod] = [self.store.pods[member.value().uid] for member in members]

    def plan(self) -> Plan:
        """The plan for all members."""
        snapshot = self.store.snapshots.take(0, self.members)
        answer = plan_gang(snapshot, PlanRequest(self.members, len(self.members)), self.store.capacity)
        assert isinstance(answer, Plan), answer
        return answer

    def restore(self, plan: Plan) -> tuple[tuple[str, ...], ...]:
        """The waves of a plan that was recorded."""
        return restore_waves(self.store.snapshots.take(0, self.members), self.members, plan.nodes)


def one(name: str, cpu: int, labels: dict[str, str], other: dict[str, str]) -> PodBuilder:
    """A member that must not be in a rack with members of the other kind."""
    return pod(name).cpu(cpu).label("app", labels["app"]).anti_affinity(other, RACK)


def hosts(*racks: str) -> list[NodeBuilder]:
    """Six nodes a rack, no two of which are alike: so all ways are too many to be tried."""
    return [
        node(f"{rack}{at}").rack(rack).cpu(40 + at).pods(100).label("kubernetes.io/hostname", f"{rack}{at}")
        for rack in racks
        for at in range(6)
    ]


def test_members_of_a_large_gang_that_fit_few_nodes_leave_the_others_the_only_rack_that_they_may_use() -> None:
    large = [one(f"l{at}", 10, LEADER, WORKER) for at in range(20)]
    small = [one(f"s{at}", 1, WORKER, LEADER).node_selector(RACK, "a") for at in range(30)]
    plan = Ground(hosts("a", "b"), [*large, *small]).plan()
    assert {plan.nodes[each.value().uid][0] for each in large} == {"b"}
    assert {plan.nodes[each.value().uid][0] for each in small} == {"a"}


def test_a_recorded_plan_has_no_waves_when_a_node_of_it_is_gone() -> None:
    ground = Ground(hosts("a", "b"), [one("l", 1, LEADER, WORKER), one("w", 1, WORKER, LEADER)])
    plan = ground.plan()
    assert sorted(uid for wave in ground.restore(plan) for uid in wave) == sorted(plan.nodes)
    ground.store.drop_node(next(iter(plan.nodes.values())))
    assert ground.restore(plan) == ()
