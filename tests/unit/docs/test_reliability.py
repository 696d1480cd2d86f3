"""The page on reliability is the one that the newest soak has."""

import json
from pathlib import Path

from bench import reliability
from bench.quotes.results import Results


def test_the_page_is_made_from_the_newest_result() -> None:
    assert reliability.PAGE.read_text() == reliability.render()


def test_the_page_names_every_violation(tmp_path: Path) -> None:
    found = Results(reliability.RESULTS).read(reliability.NAME)
    changed = {**found, "violations": ["half bound: chaos/g"], "totals": {**found["totals"], "violations": 1}}
    (tmp_path / "soak-2026-01-01.json").write_text(json.dumps(changed))
    assert "- `half bound: chaos/g`" in reliability.render(tmp_path)
    assert "| violations | 1 |" in reliability.render(tmp_path)
