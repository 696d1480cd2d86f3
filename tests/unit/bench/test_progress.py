"""Progress lines show that work goes on while a cluster or a benchmark takes its time."""

import re

import pytest

from bench.cluster.progress import stderr_report, ticking


def test_a_line_says_when_it_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_report()("nodes are made")
    said = capsys.readouterr()
    assert re.fullmatch(r"\[ +\d+\.\ds\] nodes are made\n", said.err)
    assert said.out == "", "programs read standard output"


def test_a_log_has_no_line_that_is_rewritten(capsys: pytest.CaptureFixture[str]) -> None:
    with ticking(stderr_report(), "compiling kubelet"):
        pass
    assert capsys.readouterr().err == ""


def test_at_a_terminal_one_line_is_rewritten_with_the_elapsed_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    lines: list[str] = []
    with ticking(lines.append, "compiling kubelet"):
        pass
    said = capsys.readouterr().err
    assert re.search(r"compiling kubelet.*0:00:00", said)
    assert "\x1b[2K" in said, "the line is taken away in the end"
    assert lines == []
