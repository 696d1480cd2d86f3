"""Every file in ``tests/snapshots`` is decided as it says: a bug report becomes a test by being put there.

What a file says is what was decided when it was made. If that was the mistake, correct it in the file first: then the
test fails until the mistake is gone.
"""

from pathlib import Path

import pytest

from extender.look.decide import Match, compare, decide, find_recorded, list_waiting
from extender.look.snapshot import Capture, read_snapshot

_FOLDER = Path(__file__).parents[3] / "snapshots"
_FILES = sorted(path for path in _FOLDER.iterdir() if path.name.endswith((".json", ".json.gz")))


def test_there_are_files() -> None:
    assert _FILES


@pytest.mark.parametrize("path", _FILES, ids=[path.name for path in _FILES])
def test_the_recorded_decision_is_made_again(path: Path) -> None:
    capture = read_snapshot(path.read_bytes())
    assert isinstance(capture, Capture), capture
    for group in [capture.group] if capture.group is not None else list_waiting(capture):
        recorded = find_recorded(capture, group)
        found = decide(capture, group)
        assert recorded is not None, f"{group} has no recorded decision"
        assert compare(recorded, found) is Match.EQUAL, f"{group}: {found.describe()}, not {recorded.describe()}"
