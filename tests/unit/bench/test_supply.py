"""The audit says what it found, and that it was skipped where nobody could be asked."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.supply import Ended, audit, write_sbom

CLEAN = {"name": "yarl", "version": "1.23.0", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.1"]}]}
WORSE = {"name": "older", "version": "0.1", "vulns": [{"id": "PYSEC-2026-2", "fix_versions": []}]}
NO_NETWORK = "Traceback ...\nrequests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded"


def found(*dependencies: object, code: int = 0) -> Ended:
    return Ended(code, json.dumps({"dependencies": dependencies, "fixes": []}), "")


@pytest.mark.parametrize(
    ("ended", "code", "said"),
    [
        pytest.param(found(CLEAN), 0, "no known vulnerability in 1 locked dependencies", id="nothing is known"),
        pytest.param(found(CLEAN, BAD, code=1), 1, "old 1.0: PYSEC-2026-1, fixed in 1.1", id="one is vulnerable"),
        pytest.param(found(WORSE, code=1), 1, "older 0.1: PYSEC-2026-2, fixed in no version", id="it cannot be fixed"),
        pytest.param(Ended(1, "", NO_NETWORK), 0, "audit skipped: the advisory service cannot be reached", id="no way"),
        pytest.param(Ended(1, "", "ERROR:no such file"), 2, "audit failed: ERROR:no such file", id="another mistake"),
    ],
)
def test_the_audit(ended: Ended, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(lambda _: ended) == code
    assert said in capsys.readouterr().out


def test_the_audit_is_about_what_the_image_installs() -> None:
    asked: list[Sequence[str]] = []

    def note(command: Sequence[str]) -> Ended:
        asked.append(command)
        return found(CLEAN)

    audit(note)
    (command,) = asked
    assert command[command.index("--requirement") + 1].endswith("locks/runtime.txt")


def test_a_bill_that_cannot_be_written_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_sbom(tmp_path / "sbom.json", lambda _: Ended(2, "", "no such option")) == 2
    assert "no such option" in capsys.readouterr().out
