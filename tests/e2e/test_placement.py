"""The placement bench on real control planes, small: both contenders play, keep their promises and leave nothing."""

import json
from pathlib import Path

import pytest

from bench.cluster import state
from bench.contenders import NATIVE, SERRIED
from bench.placement.__main__ import main

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_a_quick_run_plays_both_contenders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(state.STATE, str(tmp_path / "state"))

    code = main(["--quick", "--only", "live", "--results", str(tmp_path), "--date", "2026-01-01"])

    result = json.loads((tmp_path / "placement-2026-01-01.json").read_text())
    rows = {row["rule"]: row for row in result["averages"]}
    assert code == 0
    assert rows[NATIVE.title]["gangs placed"] > 0
    assert rows[SERRIED.title]["gangs placed"] == rows["Serried's planner"]["gangs placed"]
    assert rows[SERRIED.title]["missed"] == 0
    assert result["broken"] == {"native": [], "serried": []}
    assert SERRIED.title in capsys.readouterr().out
    assert state.places() == []
