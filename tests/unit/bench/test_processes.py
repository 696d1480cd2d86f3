"""Ending processes: gone means gone, with their files and ports."""

import signal
from pathlib import Path

from bench.cluster import processes

_LINGERING = 'trap "exec sleep 0.3" TERM; echo ready; while :; do sleep 0.02; done'


def test_a_process_that_no_longer_shows_its_command_line_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = processes.spawn(["/bin/sh", "-c", _LINGERING], log, tmp_path)
    while "ready" not in log.read_text():
        processes.reap(process.pid)

    processes.stop([process], signal.SIGTERM)

    assert processes.start_time(process.pid) is None
