"""No gang stays among the unschedulable groups although it fits, however the cluster changes."""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.core.scheduling.unschedulable import UnschedulableGroups
from serried.api.names import GroupKey
from serried.api.pod import Pod, Shape
from serried.api.verdict import Verdict
from serried.cluster.cache import Store
from serried.cluster.usage import UsageSource
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest
from serried.rules.all import RULES
from tests.support.builders import RACK
from tests.support.strategies import nodes, shapes

NAMES = st.sampled_from(["n0", "n1", "n2", "n3", "n4"])
GROUPS = [GroupKey("default", f"g{number}") for number in range(4)]
UIDS = st.sampled_from([f"u{number}" for number in range(8)])


class UnschedulableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store(["serried"], rules=RULES)
        self.unschedulable = UnschedulableGroups(self.store.nodes, self.store.occupancy.used)
        self.asks: dict[GroupKey, PlanRequest] = {}

    def plan(self, ask: PlanRequest) -> Plan | Verdict:
        priority = min(member.priority for member in ask.members)
        return plan_gang(self.store.snapshots.take(priority, ask.members), ask, self.store.capacity)

    @rule(data=st.data(), name=NAMES)
    def change_node(self, data: st.DataObject, name: str) -> None:
        self.store.put_node(data.draw(nodes(name)))

    @rule(name=NAMES)
    def drop_node(self, name: str) -> None:
        self.store.drop_node(name)

    @rule(uid=UIDS, name=NAMES, shape=shapes())
    def use(self, uid: str, name: str, shape: Shape) -> None:
        self.store.occupancy.add_usage(uid, UsageSource.BOUND, name, shape.requests)

    @rule(uid=UIDS)
    def free(self, uid: str) -> None:
        self.store.occupancy.forget(uid)

    @rule(number=st.integers(0, 2), name=st.sampled_from(["", "n0", "n1"]), shape=shapes(), priority=st.integers(0, 1))
    def nominate(self, number: int, name: str, shape: Shape, priority: int) -> None:
        self.store.put_pod(Pod("default", f"p{number}", f"p{number}", shape, nominated=name, priority=priority))

    @rule(
        group=st.sampled_from(GROUPS),
        kinds=st.lists(shapes(), min_size=1, max_size=2),
        count=st.integers(1, 5),
        key=st.sampled_from([RACK, None]),
        pinned=st.sampled_from([frozenset[str](), frozenset({"r1"})]),
        closed=st.sampled_from([frozenset[str](), frozenset({"n0", "n1"})]),
        priority=st.integers(0, 1),
    )
    def wait(
        self,
        group: GroupKey,
        kinds: list[Shape],
        count: int,
        key: str | None,
        pinned: frozenset[str],
        closed: frozenset[str],
        priority: int,
    ) -> None:
        """A gang is planned, and waits if it is refused."""
        each = [kinds[index % len(kinds)] for index in range(count)]
        members = [Pod("default", f"m{i}", f"{group}-{i}", shape, priority=priority) for i, shape in enumerate(each)]
        ask = PlanRequest(members, count, key, pinned if key else frozenset(), closed=closed)
        answer = self.plan(ask)
        self.unschedulable.leave(group)
        if isinstance(answer, Verdict):
            self.unschedulable.put(group, ask, answer)
            self.asks[group] = ask

    @invariant()
    def who_sleeps_does_not_fit(self) -> None:
        self.unschedulable.wake(self.store.occupancy.freed_nodes.take(), self.store.nominations.withdrawn_nodes.take())
        for group in self.unschedulable:
            assert isinstance(self.plan(self.asks[group]), Verdict), group


TestUnschedulableGroups = UnschedulableMachine.TestCase
