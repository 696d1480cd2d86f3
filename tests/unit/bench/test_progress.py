"""Whoever waits for a cluster, or for a benchmark, sees that work goes on."""

import re
import threading

import pytest

from bench.cluster.progress import stderr_report, ticking

PATIENCE = 10.0


def test_a_line_says_when_it_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_report()("nodes are made")
    said = capsys.readouterr()
    assert re.fullmatch(r"\[ +\d+\.\ds\] nodes are made\n", said.err)
    assert said.out == "", "programs read standard output"


def test_work_without_news_says_again_and_again_how_long_it_takes() -> None:
    lines: list[str] = []
    thrice = threading.Event()

    def report(text: str) -> None:
        lines.append(text)
        if len(lines) == 3:
            thrice.set()

    with ticking(report, "compiling kubelet", every=0.01):
        assert thrice.wait(PATIENCE)
    assert all(re.fullmatch(r"compiling kubelet: \d+ s so far", line) for line in lines)


def test_work_that_is_over_says_nothing_more() -> None:
    lines: list[str] = []
    with ticking(lines.append, "compiling", every=PATIENCE):
        pass
    assert lines == []
