"""`make demo` where nobody watches: it tells its story, ends by itself and leaves nothing, whatever ends it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.cluster import installation, state

pytestmark = [pytest.mark.e2e, pytest.mark.tools]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv(state.STATE, str(tmp_path / "state"))
    return dict(os.environ)


def start(environment: dict[str, str], output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.demo", *arguments]
    with output.open("wb") as file:
        return subprocess.Popen(
            command, cwd=installation.REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )


def processes_below(directory: Path) -> list[str]:
    """The command lines of all processes that mention the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


def test_the_demo_keeps_its_promises_and_cleans_up(environment: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "output"

    code = start(environment, output, "--cast", str(tmp_path / "demo.cast")).wait(timeout=240)

    text = output.read_text()
    assert code == 0, text
    page = re.search(r"^The live page: (http://127.0.0.1:\d+/debug/)$", text, re.MULTILINE)
    assert page is not None
    assert page.start() < text.index("gang Jobs and")
    assert "no gang started in part, and no gang that asked for one rack ran in two" in text
    assert "too-large waited whole: NoDomainFits" in text
    assert "patient ran whole" in text
    assert "patient ran whole" in (tmp_path / "demo.cast").read_text()
    assert state.places() == []
    assert processes_below(tmp_path / "state") == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["starting Kubernetes", "plain pods arrive"])
def test_an_interrupted_demo_cleans_up(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    output = tmp_path / "output"
    demo = start(environment, output)
    deadline = time.monotonic() + 120
    while moment not in output.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)

    demo.send_signal(number)

    assert demo.wait(timeout=60) == 130, output.read_text()
    assert "Traceback" not in output.read_text()
    assert state.places() == []
    assert processes_below(tmp_path / "state") == []
