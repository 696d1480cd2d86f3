"""Recording of the demo: its output is kept with the times of the lines."""

import io
import json
import sys
from itertools import count
from pathlib import Path

import pytest

from bench.demo.recording import COLUMNS, Line, Tee, draw, record, write_cast

LINES = [Line(0.5, "train-a  <Binding> & more"), Line(2.0, "x" * 200)]


def test_each_line_has_the_time_at_which_it_ended() -> None:
    out, seconds = io.StringIO(), count()
    tee = Tee(out, lambda: float(next(seconds)))
    for text in ("one\ntw", "o\n", "three"):
        tee.write(text)
    assert out.getvalue() == "one\ntwo\nthree"
    assert tee.lines == [Line(1, "one"), Line(2, "two")]
    assert not tee.isatty()


def test_a_cast_is_a_head_and_a_line_for_each_event() -> None:
    head, *events = map(json.loads, write_cast(LINES).splitlines())
    assert (head["version"], head["width"]) == (2, COLUMNS)
    assert events == [[0.5, "o", "train-a  <Binding> & more\r\n"], [2.0, "o", "x" * 200 + "\r\n"]]


def test_the_picture_has_each_line_at_its_time_and_cuts_long_ones() -> None:
    picture = draw(LINES)
    assert 'style="animation-delay:0.5s">train-a  &lt;Binding&gt; &amp; more</text>' in picture
    assert f'style="animation-delay:2.0s">{"x" * (COLUMNS - 1)}…</text>' in picture


def test_what_is_printed_is_kept_if_it_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record(tmp_path / "demo.cast"):
        sys.stdout.write("told\n")
    assert capsys.readouterr().out == "told\n"
    assert '"told\\r\\n"' in (tmp_path / "demo.cast").read_text()
    assert ">told</text>" in (tmp_path / "demo.svg").read_text()
    with pytest.raises(RuntimeError), record(tmp_path / "other.cast"):
        raise RuntimeError
    assert not (tmp_path / "other.cast").exists()


def test_the_docs_show_what_was_recorded() -> None:
    images = Path(__file__).resolve().parents[3] / "docs" / "images"
    events = [json.loads(line) for line in (images / "demo.cast").read_text().splitlines()[1:]]
    lines = [Line(at, text.removesuffix("\r\n")) for at, _, text in events]
    assert (images / "demo.svg").read_text() == draw(lines)
    assert any("no gang started in part" in line.text for line in lines)
