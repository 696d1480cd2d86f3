"""Members and the nodes that are shut to some of them."""

import random

from serried.api.pod import Pod, Shape
from serried.plan.packing import choose_nodes, match_members

ONE = Shape((("pods", 1),))


def members(*uids: str) -> list[Pod]:
    return [Pod("ns", uid, uid, ONE) for uid in uids]


def excluded(**nodes: str) -> dict[str, frozenset[str]]:
    return {uid: frozenset(names.split()) for uid, names in nodes.items()}


def test_a_member_makes_way_for_one_that_can_go_nowhere_else() -> None:
    placed = match_members(members("a", "b"), [(1, "n1"), (1, "n2")], excluded(a="", b="n2"))
    assert placed == {"a": "n2", "b": "n1"}


def test_a_chain_of_three_makes_way() -> None:
    counts_by_path = [(1, "n1"), (1, "n2"), (1, "n3")]
    placed = match_members(members("a", "b", "c"), counts_by_path, excluded(a="n3", b="", c="n2 n3"))
    assert sorted(placed.values()) == ["n1", "n2", "n3"]
    assert placed["c"] == "n1"


def test_who_finds_no_way_leaves_the_earlier_ones_where_they_are() -> None:
    placed = match_members(members("a", "b", "c"), [(2, "n1")], excluded(a="", b="", c=""))
    assert placed == {"a": "n1", "b": "n1"}


def test_as_many_are_placed_as_by_trying_everything() -> None:
    for seed in range(300):
        source = random.Random(seed)  # noqa: S311 - no secret
        counts_by_path = [(source.randint(1, 2), f"n{i}") for i in range(source.randint(1, 4))]
        uids = [f"u{i}" for i in range(source.randint(1, 5))]
        kinds = {uid: frozenset(name for _, name in counts_by_path if source.random() < 0.5) for uid in uids}
        placed = match_members(members(*uids), counts_by_path, kinds)
        assert all(name not in kinds[uid] for uid, name in placed.items())
        assert all(list(placed.values()).count(name) <= free for free, name in counts_by_path)
        assert len(placed) == most(uids, {name: free for free, name in counts_by_path}, kinds)


def most(uids: list[str], free: dict[str, int], kinds: dict[str, frozenset[str]]) -> int:
    """By trying everything."""
    if not uids:
        return 0
    best = most(uids[1:], free, kinds)
    for name, left in free.items():
        if left and name not in kinds[uids[0]]:
            best = max(best, 1 + most(uids[1:], {**free, name: left - 1}, kinds))
    return best


def test_where_one_node_holds_all_the_tightest_such_node_is_taken() -> None:
    assert choose_nodes(3, [(9, "a"), (4, "c"), (4, "b"), (2, "d")]) == [(3, "b")]
    assert choose_nodes(0, [(9, "a")]) == []
