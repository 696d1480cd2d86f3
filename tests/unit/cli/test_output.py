"""Output of commands for people: text is written as it is."""

import re
from collections.abc import Callable

import pytest

from cli.output import OutputFormat, Part, format_amount, format_time, format_times, lay_out, make_table, write

Draw = Callable[[str], Part]

TEXTS = [
    pytest.param("denied the request: [need-owner] owner is missing", id="brackets of a webhook's refusal"),
    pytest.param("[/spec/x] is missing", id="what a markup would take for the end of a style"),
    pytest.param("image :100: of [bold]main", id="names that a markup knows"),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda text: text, id="a sentence"),
        pytest.param(lambda text: make_table((text,), [("a cell that is wider than the title" * 3,)]), id="a heading"),
        pytest.param(
            lambda text: make_table(("A",), [("a cell that is wider than the title" * 3,)], title=text), id="a title"
        ),
        pytest.param(lambda text: make_table(("A",), [(text,)]), id="a cell"),
    ],
)
def test_text_is_written_as_it_is(capsys: pytest.CaptureFixture[str], text: str, draw: Draw) -> None:
    write({}, OutputFormat.TABLE, lambda: [draw(text)], list)
    assert text in capsys.readouterr().out


TEXT = "14 members do not fit into any domain of rack, and none has so many nodes"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 1000])
@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(("1", "team", "job/train", TEXT), id="a long sentence"),
        pytest.param(("1", "team", "g" * 60, TEXT), id="a long name"),
        pytest.param(("1", "t" * 60, "g" * 60, TEXT), id="two long names"),
        pytest.param(("1", "team", "job/train", ""), id="no sentence"),
    ],
)
def test_a_table_fits_its_width_and_no_word_is_lost(width: int, cells: tuple[str, ...]) -> None:
    table = make_table(("#TURN", "NAMESPACE", "GANG", "REASON"), [cells, ("12", "a", "b", "c")])
    lines = list(lay_out([table], width))
    assert max(map(len, lines)) <= width
    written = re.sub(r"\s+", "", "".join(lines))
    assert all(written.count(letter) >= "".join(cells).count(letter) for letter in "tgi")
    # A sentence is never written word by word.
    assert len(lines) <= 4 + sum(map(len, cells)) // 20


def test_a_table_without_rows_is_none() -> None:
    assert list(lay_out(["before", make_table(("A",), []), "after"], 80)) == ["before", "after"]


@pytest.mark.parametrize(
    ("name", "amount", "said"),
    [
        ("memory", 12_800 * 2**30, "12.5Ti"),
        ("memory", 12_799 * 2**30, "12.4Ti"),
        ("memory", 255 * 2**30 + 1, "255Gi"),
        ("memory", 512 * 2**20, "512Mi"),
        ("memory", 0, "0"),
        ("cpu", 62_500, "62.5"),
        ("cpu", 12_800_000, "12800"),
        ("cpu", 250, "0.25"),
        ("nvidia.com/gpu", 8, "8"),
    ],
)
def test_amounts_are_in_units_that_people_write(name: str, amount: int, said: str) -> None:
    assert format_amount(name, amount) == said


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("2026-01-01T09:45:10Z", "in 15 min (10:45:10)"),
        ("2026-01-01T09:30:40Z", "in 40 s (10:30:40)"),
        ("2026-01-01T09:30:00Z", "0 s ago (10:30:00)"),
        ("2026-01-01T12:42:00.5Z", "in 3 h 12 min (13:42:00)"),
        ("2026-01-01T09:00:00Z", "30 min ago (10:00:00)"),
        ("2026-01-03T13:30:00Z", "in 2 d 4 h (Jan 3 14:30)"),
        ("", ""),
    ],
)
def test_times_are_told_from_now_and_by_the_own_clock(time: str, said: str) -> None:
    assert format_time(time) == said
    assert format_times(f"BehindHead: it begins {time}, later") == f"BehindHead: it begins {said}, later"


def test_a_time_in_a_sentence_loses_its_at() -> None:
    assert format_times("room at 2026-01-01T09:45:10Z, that 09:00") == "room in 15 min (10:45:10), that 09:00"
