"""The invariant checker as the harness has it: a process that is told what is done, and tells what it finds."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from bench.cluster import Cluster
from bench.cluster.installation import REPOSITORY

_END_SECONDS = 30.0


class CheckerProcess:
    """The invariant checker, started and spoken to. ``directory`` is for its report and its log."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._report = directory / "checker.json"
        self._report.unlink(missing_ok=True)  # one of an earlier run would pass for that of a checker that died
        command = [
            sys.executable, "-m", "tests.chaos.checker", "--server", cluster.server, "--pki", str(cluster.pki),
            "--ops", cluster.ops_url, "--api-version", cluster.spec.api_version, "--report", str(self._report),
        ]  # fmt: skip
        self._log = (directory / "checker.log").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=REPOSITORY
        )
        self._lock = threading.Lock()
        self.found: list[dict[str, Any]] = []
        """The violations so far: rule, subject, text, second."""

        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def note(self, what: str, about: str) -> None:
        """Tell it what is being done."""
        assert self._process.stdin is not None
        with self._lock:
            if self._process.stdin.closed:
                return
            self._process.stdin.write(json.dumps({"note": what, "about": about}) + "\n")
            self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """End the checker and return its report. Raises RuntimeError if it died without one: nothing was checked."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.close()
        code = self._process.wait(_END_SECONDS)
        if not self._report.exists():
            raise RuntimeError(f"the checker has ended with {code} and left no report; see {self._log.name}")
        report: dict[str, Any] = json.loads(self._report.read_text())
        return report

    def close(self) -> None:
        """End it, if it is there still."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.found.append(json.loads(line))
            print(f"VIOLATION {line.strip()}", file=sys.stderr, flush=True)
