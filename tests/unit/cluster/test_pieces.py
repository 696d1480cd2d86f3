"""Updates by the rules after a change of one object come in pieces, whose size does not grow with the cluster."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from bench.events import CASES, Case, build_store
from serried.cluster import cache
from serried.cluster.cache import Store
from serried.cluster.rule import AT_ONCE
from serried.rules.all import RULES
from serried.rules.devices import inventory
from serried.rules.interpod.cluster import MatchingPods
from tests.support.builders import pod
from tests.support.rules import run_deferred_work

NODES, PODS, SORTS = 100, 1_000, 8

PUT_ANEW = cache.MAX_UPDATES + 2 * AT_ONCE * (len(RULES) + 1)
"""The most pods and nodes that a piece updates: the last round may begin with hardly anything left."""

MATCHED = 2 * (cache.MAX_UPDATES // cache.DEFERRED_COST) * (inventory.MATCHED_AT_ONCE + 8 * SORTS)
"""The most times that devices are matched in a piece."""


@pytest.fixture(scope="module")
def world() -> Store:
    """A cluster on which the benchmark's changes are applied one after the other."""
    store = build_store(NODES, PODS, SORTS)
    run_deferred_work(store)
    return store


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what is done for pods, nodes and devices."""
    done: Counter[str] = Counter()

    def counted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done[what] += 1
            return function(*arguments)

        return call

    with ExitStack() as stack:
        for place, name, what in (
            (Store, "_put_pod", "put anew"),
            (Store, "_extend_node", "put anew"),
            (MatchingPods, "recount", "put anew"),
            (inventory, "_is_in_selection", "matched"),
        ):
            stack.enter_context(patch.object(place, name, counted(what, getattr(place, name))))
        yield done


@pytest.mark.parametrize("case", [pytest.param(each, id=each.name) for each in CASES])
def test_no_piece_is_longer_than_any_other_change_may_be(world: Store, case: Case) -> None:
    change = case.prepare(world)
    run_deferred_work(world)
    with counting() as done:
        change()
        assert done["put anew"] <= PUT_ANEW
        assert done["matched"] <= MATCHED
        more = True
        while more:
            done.clear()
            more = world.apply_rule_changes()
            assert done["put anew"] <= PUT_ANEW
            assert done["matched"] <= MATCHED


def test_a_gang_of_many_members_is_let_go_in_pieces_when_its_rule_is_counted(world: Store) -> None:
    odd = [
        pod(f"odd-{index}").in_group("odd").scheduler("serried").anti_affinity({}, "zone", namespaceSelector={})
        for index in range(200)
    ]
    for each in odd:
        world.put_pod(each.value())
    assert any(each.awaits for each in world.pods.values())
    more = True
    while more:
        with counting() as done:
            more = world.apply_rule_changes()
        assert done["put anew"] <= PUT_ANEW
    assert not any(each.awaits for each in world.pods.values())
