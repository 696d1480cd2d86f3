"""The numbers of README and docs: which look measured, where they come from, and what is said when they disagree."""

import json
import re
from pathlib import Path

import pytest

from bench.comparison import BEGIN, END, render_table
from bench.headline import RESULTS, draw_plot
from bench.quotes.__main__ import PLOT, check, check_plot, write
from bench.quotes.expressions import Names, QuoteError, evaluate, evaluate_numbers
from bench.quotes.numbers import Figure, find_phrases, hide
from bench.quotes.pages import examine
from bench.quotes.results import Results

LATENCY = {
    "rows": [
        {"pod": "plain", "names": 1, "p50_ms": 0.143},
        {"pod": "plain", "names": 1000, "p50_ms": 0.253},
        {"pod": "held", "names": 1, "p50_ms": 0.2},
    ],
    "cpu": {"etcd": 1.5, "extender": 2.0},
}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    (tmp_path / "latency-2026-11-21.json").write_text(json.dumps(LATENCY))
    (tmp_path / "latency-2026-11-20.json").write_text(json.dumps({"rows": []}))
    (tmp_path / "latency-loop-2026-11-22.json").write_text(json.dumps({"rows": []}))
    return Results(tmp_path)


def problems(document: str, results: Results) -> list[tuple[int, str]]:
    return [(problem.line, problem.text) for problem in examine(document, results).problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p50 0.14 ms at 1 node name", ["0.14 ms"]),
        ("so the last is 4 or 17 s late", ["4 or 17 s"]),
        ("about 94 gang Jobs/s, 98 to 139 pods/s", ["94 gang Jobs/s", "98 to 139 pods/s"]),
        ("1.7 to 2.1 times as many, 92 % of them", ["1.7 to 2.1 times", "92 %"]),
        ("it takes 17 of the\n20 ms of CPU", ["17 of the 20 ms"]),
        ("49 MB, 13 to 15 CPU seconds, 50 a second", ["49 MB", "13 to 15 CPU seconds", "50 a second"]),
        ("a 5-minute wait in 40ms", ["5-minute", "40ms"]),
        ("Kubernetes 1.37.1 on 2026-11-21, 4 racks, p99, KEP-5547, 1,000 nodes, v0.8.0", []),
        ("`--idle 60 s` and [30](x-20 s) and\n```\n5 s\n```\n<!-- 7 s -->", []),
    ],
)
def test_a_number_with_a_unit_looks_measured(text: str, expected: list[str]) -> None:
    assert [phrase.text for phrase in find_phrases(hide(text))] == expected


def test_a_cell_of_numbers_looks_measured_and_the_first_column_does_not() -> None:
    table = "| held | pods/s | said |\n|---|---|---|\n| 250 | 113, 169 | of 4 nodes |\n| 500 | 12 (10 to 15) | `64` |\n"

    assert [phrase.text for phrase in find_phrases(hide(table))] == ["113, 169", "12 (10 to 15)"]


@pytest.mark.parametrize(
    ("shown", "value", "agrees", "rewritten"),
    [
        ("0.14", 0.143, True, "0.14"),
        ("0.14", 0.146, False, "0.15"),
        ("94", 78.26, False, "78"),
        ("9,659", 9658.7, True, "9,659"),
        ("86400", 86500.0, False, "86500"),
        ("839", 1370.2, False, "1,370"),
        ("92", 91.5, True, "92"),
    ],
)
def test_a_number_is_right_if_the_value_rounds_to_it(shown: str, value: float, *, agrees: bool, rewritten: str) -> None:
    figure = Figure(shown, 0)

    assert figure.shows(value) is agrees
    assert figure.rewrite(value) == rewritten


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('rows(pod="plain", names=1).p50_ms', [0.143]),
        ('1000 * rows(pod="held")["p50_ms"]', [200.0]),
        ('max(rows(pod="plain").p50_ms) - rows[2].p50_ms, 2', [0.053, 2]),
        ("sum(cpu) / len(rows)", [3.5 / 3]),
        ("median(1, 9, 2)", [2]),
        ("double.p50_ms", [0.253]),
    ],
)
def test_an_expression_finds_its_numbers(source: str, expected: list[float]) -> None:
    names = Names(LATENCY, [("wanted", "1000"), ("double", 'rows(pod="plain", names=wanted)')])

    assert evaluate_numbers(source, names) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("lines(pod=1)", "the result has no 'lines', but cpu, rows"),
        ('rows(pod="none").p50_ms', "no entry has pod='none'"),
        ('rows(names=1, pod="plain").p51', "there is no 'p51'"),
        ("rows.p50_ms", "is no number"),
        ("cpu.etcd / 0", "division by zero"),
        ("rows[", "cannot read the expression"),
        ("__import__('os')", "the result has no '__import__'"),
        ("[x for x in rows]", "is none of the forms"),
    ],
)
def test_an_expression_that_gives_no_number_says_why(source: str, said: str) -> None:
    with pytest.raises(QuoteError, match=said.replace("(", r"\(")):
        evaluate_numbers(source, Names(LATENCY))


def test_later_names_know_earlier_ones_and_none_itself() -> None:
    assert evaluate("b", Names({}, [("a", "2"), ("b", "a + 1")])) == 3
    with pytest.raises(QuoteError, match="no 'a'"):
        evaluate("a", Names({}, [("a", "a + 1")]))


def test_the_newest_result_of_a_name_counts(results: Results) -> None:
    assert results.find("latency").name == "latency-2026-11-21.json"
    assert results.find("latency-2026-11-20").name == "latency-2026-11-20.json"
    with pytest.raises(QuoteError, match="no result is called jobs"):
        results.find("jobs")


SENTENCE = """Filter takes 0.14 ms at 1 name, 0.25 ms at 1,000.
<!-- measured: latency
plain = rows(pod="plain")
0.14, 0.25 = plain(names=1).p50_ms, plain(names=1000).p50_ms
-->
"""


def test_numbers_with_a_source_are_compared_with_it(results: Results) -> None:
    assert problems(SENTENCE, results) == []
    assert problems(SENTENCE.replace("0.25", "0.52"), results) == [(1, "0.52 is 0.253 in latency-2026-11-21.json")]


def test_a_number_without_a_source_is_a_problem_unless_it_is_listed(results: Results) -> None:
    document = "It waits 30 s, then\n5 to 10 minutes.\n"

    assert problems(document, results) == [
        (1, "'30 s' looks measured and has no source"),
        (2, "'5 to 10 minutes' looks measured and has no source"),
    ]
    assert problems(f"{document}\n<!-- not measured: 30 s, 5 to 10 minutes -->\n", results) == []
    assert problems(f"{document}\n<!-- not measured: 30 s, 5 to 10 minutes, 64 -->\n", results) == [
        (4, "'64' is listed as not measured, but does not stand on this page")
    ]


def test_a_source_is_for_the_text_between_it_and_the_last_blank_line(results: Results) -> None:
    document = "It takes 0.14 ms.\n\nAnd here.\n<!-- measured: latency; 0.14 = rows(names=1000).p50_ms -->\n"

    assert problems(document, results) == [
        (1, "'0.14 ms' looks measured and has no source"),
        (4, "latency-2026-11-21.json: 0.14 does not stand in the text above (so often)"),
    ]


def test_a_number_that_stands_twice_needs_two_sources(results: Results) -> None:
    once = "0.25 ms, and 0.25 ms\n<!-- measured: latency; 0.25 = rows(names=1000).p50_ms -->\n"

    assert problems(once, results) == [(1, "'0.25 ms' looks measured and has no source")]
    assert problems(once.replace("; 0.25", "\n0.25 = rows(names=1000).p50_ms; 0.25"), results) == []


def test_a_source_in_a_block_of_code_is_an_example(results: Results) -> None:
    assert problems(f"```\n{SENTENCE.replace('0.25', '7')}\n```\n", results) == []


def test_a_source_that_is_missing_or_unreadable_is_a_problem(results: Results) -> None:
    assert problems("4 ms\n<!-- measured: jobs; 4 = a -->\n", results) == [
        (1, "'4 ms' looks measured and has no source"),
        (2, "no result is called jobs"),
    ]
    assert problems("4 nodes\n<!-- measured: latency; what is it -->\n", results) == [
        (2, "latency-2026-11-21.json: 'what is it' is no statement of a source")
    ]
    assert problems("4 or 5 ms\n<!-- measured: latency; 4 or 5 = rows -->\n", results)
    assert problems("4, 5 ms\n<!-- measured: latency; 4, 5 = cpu.etcd -->\n", results) == [
        (1, "latency-2026-11-21.json: 'cpu.etcd' gives 1 numbers for 2 in the text")
    ]


TABLE = """| pod | at one name, ms | nodes |
|---|---|---|
| **plain** | 0.14, 2 | 7 nodes |
| held | 0.20, 1 | many |
<!-- measured: latency
found = rows(pod=row, names=1)
| found.p50_ms, 0.5 * len(rows(pod=row)) + 1 | |
-->
"""


def test_one_line_of_cells_is_the_source_of_a_whole_table(results: Results) -> None:
    single = TABLE.replace("0.5 * len(rows(pod=row)) + 1", "4 * cpu.extender - 6")

    assert problems(single.replace("0.20, 1", "0.20, 2"), results) == []
    assert problems(single, results) == [(4, "1 is 2 in latency-2026-11-21.json")]
    assert problems(single.replace("| held", "| lost"), results)[0] == (
        4,
        "latency-2026-11-21.json: no entry has pod='lost', names=1",
    )
    assert problems(single.replace("| |\n-->", "|\n-->"), results)[-1][1].endswith(
        "has 2 cells behind the first, the source 1"
    )


def test_writing_brings_text_and_comment_up_to_date(results: Results) -> None:
    page = examine(SENTENCE.replace("0.14", "0.99").replace("0.25", "12"), results)

    assert page.rewrite() == SENTENCE.replace("0.25", "0")
    assert [edit.figure.text for edit in page.edits if edit.quoted] == ["0.99", "12"]


WAITING_GANGS = "50 gangs of 20, all waiting"
SUMMARY = [
    {"workload": WAITING_GANGS, "contender": who, "pods_per_second": {"median": rate, "min": 40.0, "max": 60.0}}
    for who, rate in (("serried", 50.0), ("native", 40.0))
]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Results of two clusters, one of them of two days."""
    monkeypatch.setattr("bench.quotes.__main__.ROOT", tmp_path)
    for name, nodes, filled in (
        ("throughput-2026-11-20", 100, 0),
        ("throughput-2026-11-21", 1000, 0),
        ("throughput-filled-5000-2026-11-21", 5000, 70),
    ):
        result = {"nodes": nodes, "filled": filled, "summary": SUMMARY}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    return Results(tmp_path)


def test_a_generated_table_is_that_of_the_newest_results(tmp_path: Path, measured: Results) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n")

    assert [(found.line, found.text) for found in check(page, measured).problems] == [
        (3, "the table is not that of the newest results")
    ]
    write(page, measured)
    table = render_table(SUMMARY)
    assert page.read_text() == (
        f"# Title\n\n{BEGIN}\n**1,000 nodes**\n\n{table}\n\n**5,000 nodes, 70 % used**\n\n{table}\n{END}\n"
    )
    assert check(page, measured).problems == []


def test_ratios_have_a_column_for_each_cluster_and_targets_a_line(tmp_path: Path, measured: Results) -> None:
    page = tmp_path / "README.md"
    page.write_text("".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("ratios", "targets")))

    write(page, measured)

    assert page.read_text().splitlines() == [
        "<!-- ratios:begin -->",
        "| pods/s of | 1,000 nodes | 5,000 nodes, 70 % used |",
        "|---|---|---|",
        "| gangs of 20, to native gangs | 1.25 | 1.25 |",
        "<!-- ratios:end -->",
        "<!-- targets:begin -->",
        "| target | scheduled by | cluster | measured | wanted |",
        "|---|---|---|---|---|",
        "| gangs to native gangs | serried | 1,000 nodes | 1.25 | at least 2 |",
        "| gangs to native gangs | serried | 5,000 nodes, 70 % used | 1.25 | at least 2 |",
        "<!-- targets:end -->",
    ]


def test_the_plot_is_that_of_the_newest_results(tmp_path: Path, measured: Results) -> None:
    plot = tmp_path / PLOT
    plot.parent.mkdir(parents=True)
    plot.write_text("<svg/>")

    assert [problem.text for problem in check_plot(measured)] == ["the plot is not that of the newest results"]
    plot.write_text(draw_plot(measured.read_all(RESULTS)))
    assert check_plot(measured) == []


def test_the_plot_has_a_bar_for_each_that_was_measured_all_to_one_scale(measured: Results) -> None:
    bars = re.findall(r'<rect class="(\w+)" x="270" y="\d+" width="(\d+)"', draw_plot(measured.read_all(RESULTS)))

    assert bars == [("other", "344"), ("ours", "430")] * 2


def test_without_any_result_nothing_can_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(QuoteError, match="no result is called throughput or"):
        Results(tmp_path).read_all(RESULTS)
