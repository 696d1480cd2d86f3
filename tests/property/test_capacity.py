"""Slots that are kept up to date against slots that are counted anew, under any order of changes."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.cluster.cache import Store
from serried.plan.capacity import Capacity, Census, group_classes
from serried.plan.gang import plan_gang
from serried.plan.request import PlanRequest
from serried.rules.all import RULES
from tests.support.builders import RACK, pod
from tests.support.strategies import POOL, nodes

_NAMES = ("n1", "n2", "n3", "n4")
_SHAPES = tuple(
    each.value().shape for each in (pod("p").cpu(1), pod("p").cpu(2), pod("p").cpu(1).node_selector(POOL, "a"))
)
_KEYS = ((RACK,), (POOL,), (POOL, RACK))


class CapacityMachine(RuleBasedStateMachine):
    """A Store under random changes, with a query now and then, so that it has tables that may become outdated."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(["serried"], rules=RULES)

    @initialize(found=st.tuples(*(nodes(name) for name in _NAMES)))
    def begin(self, found: tuple[Node, ...]) -> None:
        for node in found:
            self.store.put_node(node)

    @rule(data=st.data(), name=st.sampled_from(_NAMES))
    def put_node(self, data: st.DataObject, name: str) -> None:
        self.store.put_node(data.draw(nodes(name)))

    @rule(name=st.sampled_from(_NAMES))
    def drop_node(self, name: str) -> None:
        self.store.drop_node(name)

    @rule(number=st.integers(0, 5), name=st.sampled_from([*_NAMES, ""]), shape=st.sampled_from(_SHAPES))
    def put_pod(self, number: int, name: str, shape: Shape) -> None:
        self.store.put_pod(Pod("ns", f"p{number}", f"u{number}", shape, node=name))

    @rule(number=st.integers(0, 5))
    def drop_pod(self, number: int) -> None:
        self.store.drop_pod(f"u{number}")

    @rule(number=st.integers(0, 5), name=st.sampled_from(_NAMES), shape=st.sampled_from(_SHAPES))
    def nominate(self, number: int, name: str, shape: Shape) -> None:
        self.store.put_pod(Pod("ns", f"p{number}", f"u{number}", shape, nominated=name))

    @rule(shape=st.sampled_from(_SHAPES), key=st.sampled_from(_KEYS))
    def ask(self, shape: Shape, key: tuple[str, ...]) -> None:
        self.store.capacity.table(shape).sum_by(key, self.store.capacity.domains_by_node(key))

    @invariant()
    def what_is_kept_is_what_would_be_counted(self) -> None:
        snapshot = self.store.snapshots.take(0, [])
        for shape in _SHAPES:
            ask = PlanRequest([Pod("ns", "m", "m", shape)], 1, closed=frozenset({"n2"}))
            (kind,) = group_classes(ask.members)
            kept, anew = Census(snapshot, ask, self.store.capacity), Census(snapshot, ask, None)
            assert sorted(kept.node_counts(kind, None)) == sorted(anew.node_counts(kind, None))
            assert kept.total(kind) == anew.total(kind)
            for key in _KEYS:
                assert _without_empty(kept.totals(kind, key)) == _without_empty(anew.totals(kind, key))
                assert kept.domains(key) == anew.domains(key)

    @rule(count=st.integers(1, 4), key=st.sampled_from([RACK, None]))
    def plan(self, count: int, key: str | None) -> None:
        snapshot = self.store.snapshots.take(0, [])
        ask = PlanRequest([Pod("ns", f"m{i}", f"m{i}", _SHAPES[0], index=i) for i in range(count)], count, key)
        anew = Capacity(snapshot.nodes, snapshot.used, Capacity(snapshot.nodes, {}))
        assert plan_gang(snapshot, ask, self.store.capacity) == plan_gang(snapshot, ask, anew)


def _without_empty(sums: object) -> dict[object, int]:
    assert isinstance(sums, dict)
    return {domain: free for domain, free in sums.items() if free}


TestCapacity = CapacityMachine.TestCase


def test_only_the_classes_that_were_asked_for_last_are_kept_where_all_would_be_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serried.plan.capacity._MAX_ENTRIES_KEPT", 0)
    capacity = Capacity({}, {})
    first = capacity.table(pod("p").cpu(1).value().shape)
    for cpu in range(2, 20):
        capacity.table(pod("p").cpu(cpu).value().shape)
    assert capacity.table(pod("p").cpu(1).value().shape) is not first
