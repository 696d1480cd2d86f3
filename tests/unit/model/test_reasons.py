"""What an operator reads of a gang stands in the manual, with what helps."""

from pathlib import Path

import pytest

from serried.api.verdict import Reason, Verdict, render

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md"


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_its_line_in_the_manual(reason: Reason) -> None:
    lines = [line for line in MANUAL.read_text().splitlines() if line.startswith(f"| {reason.value} |")]
    (line,) = lines
    _, meaning, helps = (cell.strip() for cell in line.strip("|").split("|"))
    assert meaning
    assert helps


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_a_sentence(reason: Reason) -> None:
    assert render(Verdict(reason)).removeprefix(f"{reason.value}: ")
