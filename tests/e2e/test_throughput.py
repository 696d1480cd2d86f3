"""The measurement itself, small: it runs, keeps its promises about gangs, and leaves nothing behind."""

import json
from pathlib import Path

import pytest

from bench import throughput
from bench.cluster import state
from bench.contenders import ALL

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_a_quick_run_measures_all_contenders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(state.STATE, str(tmp_path / "state"))

    code = throughput.main(["--quick", "--results", str(tmp_path), "--date", "2026-01-01"])

    result = json.loads((tmp_path / "throughput-2026-01-01.json").read_text())
    assert code == 0
    assert {row["contender"] for row in result["summary"]} == {contender.name for contender in ALL}
    assert all(row["unbound"] == row["split_gangs"] == 0 for row in result["summary"])
    assert len(result["ratios"]) == 4
    assert [sorted(shares) for shares in result["shares"].values()] == [["plain-asked", "plain-isolated"]] * 2
    assert "| 5 gangs of 20 | serried |" in capsys.readouterr().out
    assert state.places() == []
