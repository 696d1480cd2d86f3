"""Runs side by side: spreads, ratios, defects, the README's table."""

from dataclasses import replace
from typing import Any

import pytest

from bench.comparison import (
    BEGIN,
    END,
    TARGETS,
    WAITING,
    Run,
    Spread,
    compute_targets,
    find_defects,
    find_disturbances,
    ratios,
    ratios_to_plain,
    render_table,
    replace_table,
    shares,
    spread,
    summarize,
)
from bench.contenders import (
    ALL,
    ASKED,
    BESIDE,
    CEILING,
    FALLBACK,
    FULL,
    ISOLATED,
    NATIVE,
    ON_REQUEST,
    PLAIN,
    QUICK,
    SERRIED,
    interleave,
)

FIGURES = {
    "pods": 100,
    "bound": 100,
    "seconds": 2.0,
    "pods_per_second": 50.0,
    "p50": 0.5,
    "p95": 0.9,
    "p99": 1.0,
    "longest_burst": 0.2,
    "partial_gang_seconds": 0.3,
    "split_gangs": 0,
}


def run(contender: str, rate: float, repetition: int = 0, others: float = 0.0, **figures: Any) -> Run:
    return Run(
        contender,
        "gangs",
        repetition,
        FIGURES | {"pods_per_second": rate} | figures,
        2.0,
        {"etcd": 1.0},
        others,
        2,
        {"POST pods": 250},
        30.0,
    )


def test_repetitions_become_median_and_spread() -> None:
    [row] = summarize([run("serried", 50.0), run("serried", 90.0, 1), run("serried", 60.0, 2)])

    assert row["pods_per_second"] == {"median": 60.0, "min": 50.0, "max": 90.0}
    assert (row["runs"], row["unbound"], row["split_gangs"]) == (3, 0, 0)
    assert row["writes_per_pod"]["median"] == 2.5


def test_the_ratio_is_of_medians() -> None:
    rows = summarize([run("native", 40.0), run("serried", 90.0), run("serried", 110.0), run("serried", 100.0)])

    assert ratios(rows) == {"gangs": 2.5}
    assert find_defects(rows) == []


def test_less_than_promised_is_a_defect() -> None:
    rows = summarize([run("native", 40.0), run("serried", 50.0)])

    assert find_defects(rows) == ["gangs: Serried is 1.25 times as fast as native gangs, promised is 2"]


def test_what_plain_pods_keep_is_measured_against_the_stock_scheduler() -> None:
    rows = summarize([run("plain", 100.0), run("plain-isolated", 96.0), run("plain-asked", 70.0)])

    assert shares(rows) == {"gangs": {"plain-isolated": 0.96, "plain-asked": 0.7}}
    assert find_defects(rows) == ["gangs, plain-asked: 0.7 of the stock scheduler's pods per second, promised is 0.8"]
    assert [line.split(" | ")[6] for line in render_table(rows).splitlines()[2:]] == ["", "0.96", "0.7"]


def test_gangs_are_compared_with_plain_pods_that_came_as_they_did() -> None:
    live = [run("plain", 100.0), run("serried", 80.0)]
    waiting = [replace(each, workload=f"gangs{WAITING}") for each in (run("plain", 50.0), run("serried", 80.0))]

    assert ratios_to_plain(summarize([*live, *waiting])) == {
        "gangs": {"serried": 0.8},
        f"gangs{WAITING}": {"serried": 1.6},
    }


def test_without_the_stock_scheduler_beside_it_nothing_is_said_of_plain_pods() -> None:
    assert shares(summarize([run("plain-asked", 70.0)])) == {}


def test_unbound_pods_and_split_gangs_are_defects() -> None:
    rows = summarize([run("serried", 50.0, bound=98, split_gangs=1)])

    assert find_defects(rows) == [
        "gangs, serried: 2 pods were not bound in time",
        "gangs, serried: 1 gangs in more than one domain",
    ]


def test_a_contender_alone_has_no_ratio() -> None:
    assert ratios(summarize([run("serried", 50.0)])) == {}
    assert ratios(summarize([run("serried", 50.0), run("native", 0.0)])) == {}


def test_a_run_in_which_no_pod_was_bound_still_has_a_row() -> None:
    rows = summarize([run("serried", 0.0, bound=0, p50=None, p95=None, p99=None)])

    assert "p99" not in rows[0]
    assert render_table(rows).splitlines()[2] == "| gangs | serried | 0.0 | 2.0 |  | 0.2 |  |  | 30.0 |"


def test_disturbed_runs_are_named() -> None:
    runs = [run("serried", 50.0, others=0.2), run("serried", 50.0, 1, others=2.0)]

    assert find_disturbances(runs, tolerated=0.15) == [
        "gangs, serried, repetition 2: disturbed, other work took 50% of the machine"
    ]


def test_the_table_has_a_line_for_every_row_and_one_ratio() -> None:
    table = render_table(summarize([run("native", 40.0), run("serried", 100.0), run("serried", 120.0, 1)]))

    assert table.splitlines()[2:] == [
        "| gangs | native | 40.0 | 2.0 | 1.0 | 0.2 |  |  | 30.0 |",
        "| gangs | serried | 110 (100 to 120) | 2.0 | 1.0 | 0.2 | 2.75 |  | 30.0 |",
    ]


@pytest.mark.parametrize(
    ("values", "text"), [([1.0], "1.0"), ([120.0, 120.0], "120"), ([99.0, 100.0, 123.4], "100 (99.0 to 123)")]
)
def test_spreads_are_short(values: list[float], text: str) -> None:
    assert str(spread(values)) == text


def test_an_even_number_of_values_has_the_middle_as_median() -> None:
    assert spread([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)


def test_the_table_is_replaced_between_its_markers() -> None:
    document = f"# Title\n{BEGIN}\nold\n{END}\nrest\n"

    once = replace_table(document, "| new |")

    assert once == f"# Title\n{BEGIN}\n| new |\n{END}\nrest\n"
    assert replace_table(once, "| new |") == once


@pytest.mark.parametrize("document", ["", BEGIN, END, f"{END}\n{BEGIN}"])
def test_a_document_without_markers_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="bench:begin"):
        replace_table(document, "table")


def test_everybody_is_first_once() -> None:
    names = [contender.name for contender in ALL]
    turns = [contender.name for _, contender in interleave(ALL, len(ALL))]

    assert turns[:: len(ALL)] == names
    assert sorted(turns) == sorted(names * len(ALL))


def test_contenders_differ_in_gates_and_our_processes_only() -> None:
    plain, native, serried = (contender.make_spec(1000) for contender in (PLAIN, NATIVE, SERRIED))

    assert (plain.gates, native.gates, serried.gates) == ("off", "on", "off")
    assert (plain.serried, native.serried, serried.serried) == (False, False, True)
    assert {(spec.nodes, spec.racks, spec.qps, spec.api) for spec in (plain, native, serried)} == {
        (1000, 10, 5000, "native")
    }


def test_beside_native_gangs_our_scheduler_has_the_same_gates_as_theirs() -> None:
    native, beside, serried = (contender.make_spec(1000) for contender in (NATIVE, BESIDE, SERRIED))

    assert (native.api_server_gates, native.gates) == (beside.api_server_gates, beside.gates)
    assert set(beside.scheduler_gates) <= set(native.stock_gates.split(","))
    assert (beside.scheduler_gates != (), serried.scheduler_gates, beside.serried) == (True, (), True)


def test_plain_pods_go_by_the_stock_scheduler_or_by_ours_isolated_or_not() -> None:
    plain, isolated, asked = (contender.make_spec(1000) for contender in (PLAIN, ISOLATED, ASKED))

    assert [spec.serried for spec in (plain, isolated, asked)] == [False, True, True]
    assert [spec.isolated for spec in (plain, isolated, asked)] == [False, True, False]
    assert (ISOLATED.scheduler, ASKED.scheduler) == ("serried", "serried")


@pytest.mark.parametrize("workloads", [FULL, QUICK])
def test_those_who_are_compared_get_the_same_loads(workloads: tuple[Any, ...]) -> None:
    compared = [workload for workload in workloads if not workload.beside]
    takes = {contender.name: [contender.accepts(workload) for workload in compared] for contender in ALL}
    assert takes["native"] == takes["serried"]
    assert takes["plain"] == takes["plain-isolated"] == takes["plain-asked"]
    assert all(plain != gang for plain, gang in zip(takes["plain"], takes["serried"], strict=True))


@pytest.mark.parametrize("workloads", [FULL, QUICK])
def test_plain_pods_beside_gangs_are_for_all_who_schedule_both(workloads: tuple[Any, ...]) -> None:
    beside = [workload for workload in workloads if workload.beside]
    takers = {one.name for one in (*ALL, *ON_REQUEST) if all(one.accepts(workload) for workload in beside)}
    assert takers == {one.name for one in (NATIVE, SERRIED, BESIDE, FALLBACK, ISOLATED)}


@pytest.mark.parametrize("workloads", [FULL, QUICK])
def test_bindings_alone_are_of_plain_pods_that_all_wait_and_everybody_watches(workloads: tuple[Any, ...]) -> None:
    assert [one.name.endswith(WAITING) for one in workloads if CEILING.accepts(one)] == [True]
    assert CEILING.make_spec(1000).serried
    assert CEILING.scheduler not in {PLAIN.scheduler, SERRIED.scheduler}


def test_with_crds_a_member_names_its_group_by_label() -> None:
    gangs = next(one for one in FULL if one.part == "gangs")

    assert (FALLBACK.make_spec(1000).api, FALLBACK.make_load(gangs, "r").link) == ("fallback", "fallback")
    assert SERRIED.make_load(gangs, "r").link == "native"


GANGS, RACKS, PLAIN_PODS = (
    f"{name}{WAITING}" for name in ("50 gangs of 20", "50 gangs of 20, each in one rack", "1,000 plain pods")
)


def result(nodes: int, filled: int, *rows: tuple[str, str, float], figure: str = "pods_per_second") -> dict[str, Any]:
    summary = [{"workload": name, "contender": who, figure: {"median": value}} for name, who, value in rows]
    return {"nodes": nodes, "filled": filled, "summary": summary}


def values(*results: dict[str, Any]) -> dict[tuple[str, str, int, int], tuple[float, bool]]:
    return {
        (each["target"], each["contender"], each["nodes"], each["filled"]): (each["value"], each["met"])
        for each in compute_targets(results)
    }


def test_each_way_of_scheduling_gangs_is_compared_with_plain_pods_native_gangs_and_bindings() -> None:
    rows = [(GANGS, "serried", 200.0), (GANGS, "serried-fallback", 300.0), (GANGS, "native", 100.0)]
    rows += [(PLAIN_PODS, "plain", 250.0), (PLAIN_PODS, "bindings", 400.0), (PLAIN_PODS, "plain-isolated", 240.0)]

    assert values(result(5000, 0, *rows)) == {
        ("gangs to native gangs", "serried", 5000, 0): (2.0, True),
        ("gangs to native gangs", "serried-fallback", 5000, 0): (3.0, True),
        ("gangs to plain pods", "serried", 5000, 0): (0.8, False),
        ("gangs to plain pods", "serried-fallback", 5000, 0): (1.2, True),
        ("gangs to Bindings alone", "serried", 5000, 0): (0.5, False),
        ("gangs to Bindings alone", "serried-fallback", 5000, 0): (0.75, True),
        ("plain pods, isolated to stock", "plain-isolated", 5000, 0): (0.96, True),
    }


def test_a_filled_cluster_is_compared_with_an_empty_one_and_a_large_one_with_a_small_one() -> None:
    small, large = result(1000, 0, (RACKS, "serried", 200.0)), result(5000, 0, (RACKS, "serried", 190.0))
    filled = result(5000, 70, (RACKS, "serried", 95.0))

    assert values(small, large, filled) == {
        ("gangs in racks, filled to empty", "serried", 5000, 70): (0.5, False),
        ("gangs in racks, more nodes to 1,000", "serried", 5000, 0): (0.95, True),
    }


def test_times_have_an_upper_bound() -> None:
    rows = [("20 plain pods a second, 50 gangs of 20", "plain-isolated", 0.5)]
    rows += [("20 plain pods a second", "plain-isolated", 0.1)]

    assert values(
        result(1000, 0, *rows, figure="plain_p99"),
        result(5000, 0, ("1 gang of 1,000", "serried", 2.4), figure="last_create_to_last_bind"),
    ) == {
        ("plain pods' p99 while 50 gangs start, isolated", "plain-isolated", 1000, 0): (0.4, False),
        ("one gang of 1,000, last create to last bind", "serried", 5000, 0): (2.4, True),
    }


def test_every_target_is_about_loads_that_there_are() -> None:
    names = {workload.name for workload in FULL}
    sides = [side for target in TARGETS for side in (target.of, target.to) if side is not None]

    assert {side.workload for side in sides} <= names
    assert {side.contender for side in sides} <= {"", *(one.name for one in (*ALL, *ON_REQUEST))}
