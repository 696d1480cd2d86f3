"""Builds from pinned Go modules: slow the first time, but they need nothing but Go."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from bench.cluster.errors import ClusterError
from bench.cluster.processes import tail
from bench.cluster.progress import Report, ticking
from bench.cluster.release import Binary

GO_NEEDED = "1.26"


def build(binaries: Sequence[Binary], directory: Path, report: Report) -> None:
    """Build binaries into `directory`: those of one module at once, so that one is linked while others are compiled."""
    go = _find_go(binaries)
    for _, found in groupby(binaries, key=lambda binary: binary.stamps):
        group = list(found)
        names = _name_all(group)
        start = time.monotonic()
        report(f"building {names}: minutes when Go's cache is cold")
        with ticking(report, "compiling"):
            _build_together(go, group, directory)
        report(f"built {names} in {time.monotonic() - start:.0f} s")


def _name_all(binaries: Sequence[Binary]) -> str:
    return f"{', '.join(binary.name for binary in binaries)} {binaries[0].version}"


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


def _build_together(go: str, binaries: Sequence[Binary], directory: Path) -> None:
    module = binaries[0].module
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as sink:
            code = subprocess.call(
                command(go, binaries, Path(scratch)), cwd=module, env=environment(), stdout=sink, stderr=sink
            )
        if code != 0:
            raise ClusterError(
                f"go build of {_name_all(binaries)} in {module} ended with {code}:\n{tail(log)}\n"
                f"It needs Go {GO_NEEDED} or newer and a module proxy that it can reach"
            )
        for binary in binaries:
            (Path(scratch) / binary.program).replace(directory / binary.name)


def command(go: str, binaries: Sequence[Binary], directory: Path) -> list[str]:
    """The go build of binaries of one module, without a trace of the place where it was built.

    What only a debugger reads is left out, from the compiler on: making it is work, too.
    """
    stamps = " ".join(f"-X {key}={value}" for key, value in binaries[0].stamps)
    return [go, "build", "-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false",
            "-ldflags", f"-s -w {stamps}".strip(),
            "-o", f"{directory}/", *(binary.package for binary in binaries)]  # fmt: skip


def environment() -> dict[str, str]:
    """The user's environment without the settings that would change what is built.

    The compiler does not collect its garbage: it ends soon, and collecting takes time.
    """
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off", "GOGC": "off"}
