"""Builds from pinned Go modules: slow the first time, but they need nothing but Go."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cluster.errors import ClusterError
from bench.cluster.processes import tail
from bench.cluster.progress import Report, ticking
from bench.cluster.release import Binary

GO_NEEDED = "1.26"


def build(binaries: Sequence[Binary], directory: Path, report: Report) -> None:
    """Build binaries into `directory`, one after the other: a build takes all cores."""
    go = _find_go(binaries)
    for position, binary in enumerate(binaries, start=1):
        text = f"building {binary.label} ({position} of {len(binaries)}, minutes when Go's cache is cold)"
        report(text)
        start = time.monotonic()
        with ticking(report, text):
            _build_one(go, binary, directory / binary.name)
        report(f"built {binary.label} in {time.monotonic() - start:.0f} s")


def _find_go(binaries: Sequence[Binary]) -> str:
    go = shutil.which("go")
    names = ", ".join(binary.label for binary in binaries)
    if go is None:
        raise ClusterError(
            f"{names}: neither found nor downloadable, and there is no 'go' in PATH to build them. "
            f"Install Go {GO_NEEDED} or newer (https://go.dev/doc/install), or point SERRIED_KUBERNETES_BIN at a "
            "directory that holds them"
        )
    missing = sorted({str(b.module) for b in binaries if not (b.module / "go.sum").is_file()})
    if missing:
        raise ClusterError(
            f"{names}: no go.mod and go.sum in {', '.join(missing)}. Use a version that has a directory there, or "
            "point SERRIED_KUBERNETES_BIN at a directory that holds the binaries"
        )
    return go


def _build_one(go: str, binary: Binary, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        output, log = Path(scratch) / binary.name, Path(scratch) / "log"
        with log.open("wb") as sink:
            code = subprocess.call(
                command(go, binary, output), cwd=binary.module, env=environment(), stdout=sink, stderr=sink
            )
        if code != 0:
            raise ClusterError(
                f"go build of {binary.label} in {binary.module} ended with {code}:\n{tail(log)}\n"
                f"It needs Go {GO_NEEDED} or newer and a module proxy that it can reach"
            )
        output.replace(target)


def command(go: str, binary: Binary, output: Path) -> list[str]:
    """The go build of one binary, without a trace of the place where it was built."""
    stamps = " ".join(f"-X {key}={value}" for key, value in binary.stamps)
    return [go, "build", "-mod=readonly", "-trimpath", "-ldflags", f"-s -w {stamps}".strip(),
            "-o", str(output), binary.package]  # fmt: skip


def environment() -> dict[str, str]:
    """The user's environment without the settings that would change what is built."""
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
