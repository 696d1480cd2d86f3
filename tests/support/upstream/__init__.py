"""Evaluate quantities and selectors with Kubernetes' own libraries, through the small Go program beside this file.

It is built against the modules of the control plane that the end-to-end tests run, which Go has in its cache by then.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.build import COMPILED
from bench.cluster.build import environment as build_environment

_HERE = Path(__file__).parent
_MODULES = _HERE.parents[2] / "bench" / "cluster" / "modules" / "kubernetes-1.37.1"


def build(directory: Path) -> Path:
    """Build the Go program, and return its path. Skip the test without Go or the modules."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go to ask Kubernetes' own libraries")
    for file in (*_MODULES.iterdir(), _HERE / "main.go"):
        shutil.copy(file, directory)
    # As the control plane is built: what both need is in Go's cache.
    environment = build_environment() | {"GOFLAGS": "-mod=mod -buildvcs=false", "GOPROXY": "off"}
    command = [go, "build", *COMPILED, "-o", "upstream", "."]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if "module lookup disabled" in done.stderr:
        pytest.skip("the modules of Kubernetes are not in Go's cache; make control-plane brings them")
    assert done.returncode == 0, done.stderr
    return directory / "upstream"


def ask(program: Path, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the program's answers, in the order of the questions."""
    lines = "\n".join(map(json.dumps, questions))
    done = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
