"""Run kube-scheduler's filter plugins without a cluster, by a Go program beside this file (the oracle).

Tests compare Serried's rules with its findings. `build` makes the program, and `Oracle` runs it. README.md says what
the program does, and what it leaves out.
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
"""The version of the kube-scheduler in the program."""

Raw = dict[str, Any]

_HERE = Path(__file__).parent
_MODULE = MODULES / f"kubernetes-{KUBERNETES}"
_SOURCES = (_HERE / "go.mod", *sorted(_HERE.glob("*.go")), _MODULE / "go.mod")


class OracleError(Exception):
    """The program cannot be built, or gave no answer. The message says why."""


@dataclass(frozen=True)
class Finding:
    """The result of kube-scheduler's filter plugins for one pod."""

    invalid: str
    """The reason why the API server would reject the pod; "" if it is valid."""

    failed: str
    """The error of a plugin that ends the scheduling attempt for all nodes; "" if there is none."""

    rejected: Mapping[str, str]
    """By name of each rejected node: the plugin that rejects it, and the reason."""


def find() -> Path | None:
    """Return the path of the program; None if it was not built from the present sources."""
    program = _locate()
    return program if program.is_file() else None


def build(report: Report = silent) -> Path:
    """Return the path of the program, which is built first if needed.

    Raise OracleError if Go is missing or the build fails.
    """
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
    # The same flags as for the control plane, so that Go's cache already has most of the packages.
    command = [go, "build", "-mod=readonly", f"-modfile={_MODULE / 'go.mod'}", *COMPILED, "-ldflags", "-s -w"]
    done = subprocess.run(
        [*command, "-o", str(scratch), "."], cwd=_HERE, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OracleError(f"go build of the oracle failed:\n{done.stderr.strip()}")
    scratch.replace(program)


class Oracle:
    """The running program, to be used as a context manager. It keeps no state between two calls of `ask`."""

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
        """Run the filter plugins for some pods, one after the other, and return a finding for each.

        ``objects`` are all objects of the cluster. A step is a pod, and the node to which it is assumed to be bound in
        later steps; with None it is not bound. There are no findings after a step whose node is rejected. Raise
        OracleError if the program cannot answer.
        """
        requests = [{"pod": pod} | ({} if node is None else {"node": node}) for pod, node in steps]
        self._questions.write(json.dumps({"objects": [*objects], "steps": requests}) + "\n")
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
