"""Plans that are ended by their limit, and what copies have counted: whatever is known afterwards is true."""

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from unittest.mock import patch

from hypothesis import event, given
from hypothesis import strategies as st

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.cluster.cache import Store
from serried.plan.capacity import Capacity, Census, group_classes
from serried.plan.forecast import Ending, find_forecast
from serried.plan.gang import plan_gang
from serried.plan.limit import Limit, TooLong
from serried.plan.preemption import plan_victims
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.revalidate import revalidate
from serried.plan.tree import plan_group
from serried.rules.all import RULES
from tests.support.builders import RACK, pod
from tests.support.oracle import is_sound
from tests.support.preemption import HIGH
from tests.support.preemption_cases import BINDING, MIXED, Features, draw_case
from tests.support.rules import PLAN_RULES
from tests.support.strategies import POOL, nodes

_NAMES = tuple(f"n{number}" for number in range(5))
_SHAPES = tuple(
    each.value().shape
    for each in (
        pod("p").cpu(1),
        pod("p").cpu(2),
        pod("p").memory("1Gi"),
        pod("p").cpu(1).node_selector(POOL, "a"),
        pod("p").cpu(1).node_affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}),
    )
)

Change = Callable[[Store], None]


@st.composite
def stores(draw: st.DrawFn) -> Store:
    store = Store(["serried"], rules=RULES)
    for name in _NAMES[: draw(st.integers(1, 5))]:
        store.put_node(draw(nodes(name)))
    for number in range(draw(st.integers(0, 4))):
        store.put_pod(Pod("ns", f"p{number}", f"u{number}", draw(shapes()), node=draw(st.sampled_from(_NAMES))))
    if draw(st.booleans()):
        store.put_pod(Pod("ns", "wish", "wish", draw(shapes()), nominated=draw(st.sampled_from(_NAMES))))
    for shape in draw(st.sets(st.sampled_from(_SHAPES))):
        store.capacity.table(shape).sum_by((RACK,), store.capacity.domains_by_node((RACK,)))
    return store


def shapes() -> st.SearchStrategy[Shape]:
    return st.sampled_from(_SHAPES)


@st.composite
def asks(draw: st.DrawFn, name: str = "t") -> PlanRequest:
    kinds = draw(st.lists(shapes(), min_size=1, max_size=5))
    members = tuple(Pod("ns", f"{name}{i}", f"{name}{i}", kind, index=i) for i, kind in enumerate(kinds))
    pairs = st.tuples(st.sampled_from([each.uid for each in members]), st.sampled_from(_NAMES))
    return PlanRequest(
        members,
        draw(st.integers(1, len(members))),
        draw(st.sampled_from([RACK, None])),
        excluded=draw(st.frozensets(pairs, max_size=3)),
        closed=draw(st.frozensets(st.sampled_from(_NAMES), max_size=1)),
        levels=draw(st.sampled_from([(), (POOL,)])),
        name=name,
    )


@st.composite
def trees(draw: st.DrawFn) -> PlanRequest:
    parts = tuple(draw(asks(f"t{place}")) for place in range(2))
    members = (*parts[0].members, *parts[1].members)
    return PlanRequest(members, parts[0].need + parts[1].need, name="top", parts=parts, wanted=draw(st.integers(1, 2)))


def drop_a_pod(uid: str) -> Change:
    return lambda store: store.drop_pod(uid)


def drop_a_node(name: str) -> Change:
    return lambda store: store.drop_node(name)


def put_a_pod(shape: Shape, name: str) -> Change:
    return lambda store: store.put_pod(Pod("ns", "new", "new", shape, node=name))


def put_a_node(node: Node) -> Change:
    return lambda store: store.put_node(node)


def ask_for_slots(shape: Shape) -> Change:
    return lambda store: (store.capacity.table(shape), None)[1]


CHANGES = st.lists(
    st.one_of(
        st.builds(drop_a_pod, st.sampled_from(["u0", "u1", "u2"])),
        st.builds(drop_a_node, st.sampled_from(_NAMES)),
        st.builds(put_a_pod, shapes(), st.sampled_from(_NAMES)),
        st.builds(put_a_node, st.sampled_from(_NAMES).flatmap(nodes)),
        st.builds(ask_for_slots, shapes()),
    ),
    max_size=6,
)


def freeze(store: Store) -> Snapshot:
    """The cluster as it is, copied whole."""
    snapshot = store.snapshots.take(0, [])
    return Snapshot(dict(snapshot.nodes), {name: dict(snapshot.used[name]) for name in snapshot.used}, rules=PLAN_RULES)


def end_after(looks: int) -> Limit:
    """A limit that ends the work after so many charges."""
    return Limit(partial(next, count()), seconds=looks)


def show(store: Store, looks: int) -> Snapshot:
    return replace(store.snapshots.take(0, []), limit=end_after(looks))


def knows_what_is_true(store: Store, ask: PlanRequest) -> bool:
    """Return whether the counts that the Store keeps equal those of a new count."""
    snapshot = store.snapshots.take(0, [])
    for kind in group_classes(ask.members):
        kept, anew = Census(snapshot, ask, store.capacity), Census(snapshot, ask, None)
        if sorted(kept.node_counts(kind, None)) != sorted(anew.node_counts(kind, None)):
            return False
        if kept.total(kind) != anew.total(kind):
            return False
    return True


@patch("serried.plan.limit._UNITS_PER_CHECK", 1)
@given(store=stores(), ask=asks() | trees(), changes=CHANGES, looks=st.integers(0, 60))
def test_a_plan_that_is_ended_leaves_nothing_behind_that_is_not_true(
    store: Store, ask: PlanRequest, changes: list[Change], looks: int
) -> None:
    found: object = None
    with suppress(TooLong):
        found = plan_group(show(store, looks), ask, store.capacity)
    event("ended" if found is None else "in time")
    for change in changes:
        change(store)
    assert knows_what_is_true(store, ask)
    now = freeze(store)
    anew = Capacity(now.nodes, now.used, Capacity(now.nodes, {}))
    assert plan_group(now, ask, anew) == plan_group(store.snapshots.take(0, []), ask, store.capacity)


@patch("serried.plan.limit._UNITS_PER_CHECK", 1)
@given(store=stores(), ask=asks(), looks=st.integers(0, 60), times=st.lists(st.none() | st.integers(1, 9), max_size=4))
def test_nor_does_a_forecast(store: Store, ask: PlanRequest, looks: int, times: list[int | None]) -> None:
    pods = [found for found in store.pods.values() if found.bound]
    endings = [Ending(each.node, each.shape.requests, at) for each, at in zip(pods, times, strict=False)]
    with suppress(TooLong):
        find_forecast(show(store, looks), ask, endings, store.capacity)
    assert knows_what_is_true(store, ask)
    assert find_forecast(freeze(store), ask, endings) == find_forecast(
        store.snapshots.take(0, []), ask, endings, store.capacity
    )


@patch("serried.plan.limit._UNITS_PER_CHECK", 1)
@given(
    source=st.randoms(use_true_random=False),
    features=st.sampled_from([Features(), MIXED, BINDING]),
    looks=st.integers(0, 400),
)
def test_nor_does_a_search_for_victims(source: Random, features: Features, looks: int) -> None:
    field, ask = draw_case(source, features)
    store = Store(["serried"], rules=RULES)
    for each in field.nodes.values():
        store.put_node(each)
    for bound in [bound for unit in field.units for bound in unit.pods]:
        store.put_pod(bound)
    with suppress(TooLong):
        plan_victims(show(store, looks), ask, HIGH, field.units, field.allowances, store.capacity)
    assert knows_what_is_true(store, ask)
    again = plan_victims(store.snapshots.take(0, []), ask, HIGH, field.units, field.allowances, store.capacity)
    assert again == plan_victims(freeze(store), ask, HIGH, field.units, field.allowances)


@given(store=stores(), ask=asks(), changes=CHANGES)
def test_what_a_copy_has_counted_is_true_of_the_cluster_as_it_is_by_then(
    store: Store, ask: PlanRequest, changes: list[Change]
) -> None:
    names, version = tuple(store.nodes), store.capacity.version
    before = Store(["serried"], rules=RULES)
    for each in store.nodes.values():
        before.put_node(each)
    for bound in store.pods.values():
        before.put_pod(bound)
    plan_group(before.snapshots.take(0, []), ask, before.capacity)
    packed = pickle.loads(pickle.dumps(before.capacity.export_tables(0, names)))  # noqa: S301 - our own
    for change in changes:
        change(store)
    store.capacity.import_tables(packed, names, version)
    event(f"{len(packed)} tables")
    assert knows_what_is_true(store, ask)


@given(store=stores(), ask=asks(), changes=CHANGES)
def test_a_plan_that_still_holds_is_sound_in_the_cluster_as_it_is_now(
    store: Store, ask: PlanRequest, changes: list[Change]
) -> None:
    before = freeze(store)
    plan = plan_gang(before, ask)
    for change in changes:
        change(store)
    now = store.snapshots.take(0, [])
    if isinstance(plan, Plan):
        holds = revalidate(plan, ask, before.nodes, now)
        event(f"holds: {holds}")
        if holds:
            assert is_sound(now, ask, dict(plan.nodes))
            homes = {now.nodes[name].labels[RACK] for name in plan.nodes.values()} if ask.topology_key else {""}
            assert homes == {plan.domain}
        if not changes:
            assert holds
