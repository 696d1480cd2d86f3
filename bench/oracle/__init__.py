"""kube-scheduler's filters without a cluster: a Go program beside this file, which is asked about small clusters.

`build` makes the program, and `Oracle` runs it. README.md says what the program does, and what it leaves out.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from bench.cluster.binaries import cache
from bench.cluster.build import COMPILED, environment
from bench.cluster.locks import exclusive
from bench.cluster.progress import Report, silent
from bench.cluster.release import MODULES

KUBERNETES = "1.37.1"
"""The version whose kube-scheduler answers."""

Raw = dict[str, Any]

_HERE = Path(__file__).parent
_MODULE = MODULES / f"kubernetes-{KUBERNETES}"
_SOURCES = (_HERE / "go.mod", *sorted(_HERE.glob("*.go")), _MODULE / "go.mod")


class OracleError(Exception):
    """Why there is no program, or no answer."""


@dataclass(frozen=True)
class Finding:
    """What kube-scheduler's filters say about one pod."""

    invalid: str
    """Why the API server would refuse the pod; empty if it would take it."""

    failed: str
    """The error of a plugin that ends the attempt, whatever other nodes say; empty without one."""

    rejected: Mapping[str, str]
    """By the name of each node that does not pass, the plugin that rejects it and the reason."""


def find() -> Path | None:
    """Return the program if it has been built from these sources."""
    program = _locate()
    return program if program.is_file() else None


def build(report: Report = silent) -> Path:
    """Return the program, and build it if it is not there. Raise OracleError without Go, or if the build fails."""
    program = _locate()
    with exclusive(program.parent / ".lock", report, "waiting for another process that builds the oracle"):
        if not program.is_file():
            _build(program)
    return program


def _locate() -> Path:
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()
    return cache() / "oracle" / f"{KUBERNETES}-{digest[:16]}" / "oracle"


def _build(program: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise OracleError("the oracle is built with Go, and there is no 'go' in PATH: https://go.dev/doc/install")
    scratch = program.with_suffix(".new")
    # As the control plane is built: most of what both need is in Go's cache then.
    command = [go, "build", "-mod=readonly", f"-modfile={_MODULE / 'go.mod'}", *COMPILED, "-ldflags", "-s -w"]
    done = subprocess.run(
        [*command, "-o", str(scratch), "."], cwd=_HERE, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OracleError(f"go build of the oracle failed:\n{done.stderr.strip()}")
    scratch.replace(program)


class Oracle:
    """A running program. It keeps nothing between two cases."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._questions = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def ask(self, objects: Sequence[Raw], steps: Sequence[tuple[Raw, str | None]]) -> list[Finding]:
        """Ask about pods, one after the other.

        ``objects`` is all that the API server has. A step is a pod, and the node on which later steps see it; None
        leaves everything as it is. Return a finding for each step, none after a step whose node does not pass. Raise
        OracleError if the program cannot answer.
        """
        asked = [{"pod": pod} | ({} if node is None else {"node": node}) for pod, node in steps]
        self._questions.write(json.dumps({"objects": [*objects], "steps": asked}) + "\n")
        self._questions.flush()
        line = self._answers.readline()
        if not line:
            raise OracleError(f"the oracle ended with {self._process.wait()}")
        answer = json.loads(line)
        if answer.get("error"):
            raise OracleError(answer["error"])
        return [_read(each) for each in answer["steps"]]


def _read(found: Raw) -> Finding:
    rejected = {node: f"{why['plugin']}: {why['reason']}" for node, why in (found["rejected"] or {}).items()}
    return Finding(found.get("invalid", ""), found.get("failed", ""), rejected)
