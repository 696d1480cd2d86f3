"""The measurement itself, small: it runs, counts victims natively and by Serried, and leaves nothing behind."""

import json
from pathlib import Path

import pytest

from bench.cluster import state
from bench.preemption.__main__ import main

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_a_quick_run_measures_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(state.STATE, str(tmp_path / "state"))

    code = main(["--quick", "--results", str(tmp_path), "--date", "2026-01-01"])

    result = json.loads((tmp_path / "preemption-2026-01-01.json").read_text())
    evicted = {row["contender"]: row["evicted"]["median"] for row in result["summary"]}
    assert code == 0
    assert evicted.keys() == {"native", "serried", "serried-gate"}
    assert evicted["serried"] == evicted["serried-gate"] == result["summary"][0]["least"] <= evicted["native"]
    assert all(row["unbound"] == row["torn"] == 0 for row in result["summary"])
    assert "a gang of 4 | serried |" in capsys.readouterr().out
    assert state.places() == []
