"""The scenarios of the placement bench, its referee, its plain rules and its figures."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from bench.cluster.nodes import RACK
from bench.placement.figures import Result, average, compare, render_averages, render_duels, summarize_wave
from bench.placement.ground import BrokenPromiseError, Ground, members_of
from bench.placement.mixed import measure_misses
from bench.placement.optimum import fewest, fewest_nodes, fewest_nodes_in_a_rack, fewest_racks, most_members
from bench.placement.play import Offline, Outcome, Wave, play
from bench.placement.rules import RULES, Rule, best_fit, combine, first_fit, roomiest
from bench.placement.scenario import Filler, Gang, Mix, Scenario, Wish, make_nodes, make_scenario
from serried.api.node import Node
from serried.plan.request import PlanRequest

SMALL = Mix(0.5, sizes=(2, 20), most_cpus=100)


def node(name: str, rack: str, cpus: int) -> Node:
    return Node(name, {"cpu": 1000 * cpus, "pods": 110}, {RACK: rack})


NODES = (node("a1", "a", 8), node("a2", "a", 4), node("b1", "b", 6), node("b2", "b", 1))


def ground(*filler: Filler) -> Ground:
    return Ground(Scenario("test", 0, NODES, filler, ()))


def gang(size: int, wish: Wish = "required", cpu: int = 1) -> Gang:
    return Gang("g", size, cpu, wish)


def place(rule: Rule, size: int, key: str | None = RACK) -> dict[str, int] | None:
    """Members by node."""
    ask = PlanRequest(members_of(gang(size)), size, key)
    nodes = rule(ground().snapshot(ask), ask)
    return None if nodes is None else {name: list(nodes.values()).count(name) for name in nodes.values()}


def drawn(seed: int) -> Scenario:
    return make_scenario("test", seed, make_nodes(60, 3, seed), SMALL, 2)


def test_a_seed_says_all_of_a_scenario() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_scenario_is_filled_to_sixty_percent_in_even_racks() -> None:
    scenario = drawn(3)
    racks = [each.labels[RACK] for each in scenario.nodes]
    assert {racks.count(rack) for rack in racks} == {20}
    assert sum(each.cpu for each in scenario.filler) == pytest.approx(0.6 * 60 * 32, abs=16)
    Ground(scenario)
    for each in scenario.nodes:
        assert sum(filler.cpu for filler in scenario.filler if filler.node == each.name) <= 32


def test_gangs_stay_within_their_mix_and_ask_for_more_than_is_free() -> None:
    for wave in drawn(4).waves:
        assert sum(each.size * each.cpu for each in wave) >= 0.5 * 60 * 32
        assert all(2 <= each.size <= 20 and each.size * each.cpu <= 100 for each in wave)
        assert {each.wish for each in wave} == {"required", "preferred", "none"}


def test_about_half_of_all_leave_and_who_does_depends_on_nobody_else() -> None:
    scenario = drawn(5)
    leaving = [name for name in map(str, range(1000)) if scenario.leaves(name, 1)]
    assert 400 < len(leaving) < 600
    assert leaving != [name for name in map(str, range(1000)) if scenario.leaves(name, 2)]


def test_a_gang_that_keeps_all_promises_runs_until_it_leaves() -> None:
    here = ground()
    here.bind(gang(3), {"g-0": "a1", "g-1": "a1", "g-2": "a2"})
    assert here.slots(1) == {"a": [6, 3], "b": [6, 1]}
    assert here.remove(["g"]) == ["g-0", "g-1", "g-2"]
    assert here.slots(1) == {"a": [8, 4], "b": [6, 1]}


@pytest.mark.parametrize(
    ("wish", "nodes", "message"),
    [
        pytest.param("required", {"x": "a1"}, "1 of 2", id="a part of a gang"),
        pytest.param("required", {"x": "a1", "y": "b1"}, "more than one rack", id="two racks where one is required"),
        pytest.param("none", {"x": "b2", "y": "b2"}, "over-committed", id="more than a node has"),
    ],
)
def test_the_referee_sees_every_broken_promise(wish: Wish, nodes: Mapping[str, str], message: str) -> None:
    with pytest.raises(BrokenPromiseError, match=message):
        ground().bind(gang(2, wish), nodes)


def test_other_pods_take_room_and_leave_too() -> None:
    here = ground(Filler("f", 7, "a1"))
    assert here.slots(2) == {"a": [2], "b": [3]}
    here.remove(["f"])
    assert here.slots(2) == {"a": [4, 2], "b": [3]}


SLOTS = {"a": [8, 4], "b": [6, 1]}


@pytest.mark.parametrize(
    ("size", "racks", "nodes", "nodes_in_a_rack"),
    [
        (1, 1, 1, 1),
        (8, 1, 1, 1),
        (9, 1, 2, 2),
        (12, 1, 2, 2),
        (13, 2, 2, None),
        (19, 2, 4, None),
        (20, None, None, None),
    ],
)
def test_the_fewest_racks_and_nodes_of_one_gang(
    size: int, racks: int | None, nodes: int | None, nodes_in_a_rack: int | None
) -> None:
    assert fewest_racks(SLOTS, size) == racks
    assert fewest_nodes(SLOTS, size) == nodes
    assert fewest_nodes_in_a_rack(SLOTS, size) == nodes_in_a_rack


def test_nothing_is_enough_of_nothing() -> None:
    assert fewest([], 1) is None


@pytest.mark.parametrize(
    ("rooms", "sizes", "most"),
    [
        pytest.param([10], [4, 5, 6], 10, id="the two that fill a room, not the first two"),
        pytest.param([5, 5], [5, 4, 3, 2], 10, id="several rooms"),
        pytest.param([3], [4], 0, id="a gang that is too large"),
        pytest.param([], [1], 0, id="no room"),
        pytest.param([7], [], 0, id="no gang"),
        pytest.param([6, 6], [4, 4, 4], 8, id="what does not divide stays empty"),
    ],
)
def test_the_most_members_of_a_known_row_of_gangs(rooms: list[int], sizes: list[int], most: int) -> None:
    assert most_members(rooms, sizes) == most


def test_first_fit_takes_the_first_rack_and_nodes_in_their_order() -> None:
    assert place(first_fit, 6) == {"a1": 6}
    assert place(first_fit, 9) == {"a1": 8, "a2": 1}


def test_best_fit_takes_the_tightest_rack_and_the_tightest_nodes() -> None:
    assert place(best_fit, 6) == {"b2": 1, "b1": 5}
    assert place(best_fit, 8) == {"a2": 4, "a1": 4}


def test_worst_fit_takes_the_roomiest_of_both() -> None:
    assert place(combine(roomiest, roomiest), 5) == {"a1": 5}


def test_without_a_key_all_nodes_are_one_domain() -> None:
    assert place(best_fit, 13, None) == {"b2": 1, "a2": 4, "b1": 6, "a1": 2}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_refuses_what_no_rack_holds_and_keeps_its_promises(name: str) -> None:
    assert place(RULES[name], 13) is None
    waves = asyncio.run(play(drawn(6), Offline(RULES[name])))
    assert len(waves) == 2
    outcomes = [outcome for wave in waves for outcome in wave.outcomes]
    assert any(outcome.placed for outcome in outcomes)
    assert not any(outcome.possible and not outcome.placed for outcome in outcomes)
    assert all(outcome.racks >= outcome.fewest_racks and outcome.nodes >= outcome.fewest_nodes for outcome in outcomes)


def outcome(size: int, wish: Wish = "preferred", racks: int = 1, nodes: int = 1) -> Outcome:
    return Outcome(gang(size, wish), True, racks, min(racks, 1), nodes, min(nodes, 1))  # noqa: FBT003


def result(rule: str, *outcomes: Outcome, seed: int = 0, optimum: int | None = None) -> Result:
    return summarize_wave("s", seed, 0, rule, Wave(tuple(outcomes), {1: 5, 8: 2}), optimum)


def test_a_wave_is_summed_up() -> None:
    found = result("mine", outcome(4, racks=2, nodes=3), outcome(6, "required", nodes=1), outcome(9, racks=0, nodes=0))
    assert (found.gangs, found.placed, found.missed, found.members) == (3, 2, 1, 10)
    assert (found.racks, found.nodes) == (2.0, 2.0)


def test_nothing_placed_has_no_ratios() -> None:
    found = result("mine", outcome(4, racks=0, nodes=0))
    assert (found.racks, found.nodes, found.members) == (None, None, 0)


def test_means_are_over_the_seeds() -> None:
    rows = average([result("mine", outcome(4), optimum=8), result("mine", outcome(8), seed=1, optimum=8)])
    assert [(row["CPUs placed"], row["of the optimum"], row["seeds"]) for row in rows] == [(6, 0.75, 2)]
    assert "| s | 1 | mine |" in render_averages(rows)


def find_duel(results: Sequence[Result], figure: str) -> tuple[int, int, tuple[int, ...]]:
    duel = next(duel for duel in compare(results, "mine") if duel.figure == figure)
    return duel.better, duel.equal, duel.lost


def test_rules_are_compared_seed_by_seed_and_less_is_better_of_racks() -> None:
    mine = [result("mine", outcome(size, racks=2), seed=seed) for seed, size in enumerate([4, 4, 4])]
    other = [result("other", outcome(size), seed=seed) for seed, size in enumerate([3, 4, 5])]
    assert find_duel([*mine, *other], "CPUs placed") == (1, 1, (2,))
    assert find_duel([*mine, *other], "racks / fewest") == (0, 0, (0, 1, 2))
    assert "| other |" in render_duels(compare([*mine, *other], "mine"), "mine")


def test_misses_are_the_same_for_the_same_seed() -> None:
    found = measure_misses(50, seed=2)
    assert found == measure_misses(50, seed=2)
    assert 0 < found.solvable <= found.tried == 50
