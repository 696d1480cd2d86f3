"""Build binaries from pinned Go modules. A first build takes minutes; it needs Go and a module proxy only."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.cluster import release
from bench.cluster.errors import ClusterError
from bench.cluster.processes import tail
from bench.cluster.progress import Report, ticking
from bench.cluster.release import Binary

GO_NEEDED = "1.26"

COMPILED = ("-trimpath", "-gcflags=all=-dwarf=false")
"""Compiler flags: without paths of this machine, and without debug information. Go's cache is keyed by these flags."""


def build(binaries: Mapping[Path, Binary], report: Report) -> None:
    """Build each binary to its path. Raise ClusterError if that fails.

    The binaries of one module are built by one command, so that Go compiles shared packages once.
    """
    go = _find_go(tuple(binaries.values()))
    for module in dict.fromkeys(binary.module for binary in binaries.values()):
        group = {path: binary for path, binary in binaries.items() if binary.module == module}
        names = _name_all(group.values())
        start = time.monotonic()
        report(f"building {names}: minutes when Go's cache is cold")
        with ticking(report, "compiling"):
            _build_together(go, module, group)
        report(f"built {names} in {time.monotonic() - start:.0f} s")


def _name_all(binaries: Iterable[Binary]) -> str:
    return ", ".join(binary.label for binary in binaries)


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


def _build_together(go: str, module: Path, binaries: Mapping[Path, Binary]) -> None:
    directory = next(iter(binaries)).parent
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
        log = Path(scratch) / "log"
        wanted = tuple(binaries.values())
        with log.open("wb") as sink:
            code = subprocess.call(
                command(go, wanted, Path(scratch)), cwd=module, env=environment(), stdout=sink, stderr=sink
            )
        if code != 0:
            raise ClusterError(
                f"go build of {_name_all(wanted)} in {module} ended with {code}:\n{tail(log)}\n"
                f"It needs Go {release.go_version(module)}, which Go {GO_NEEDED} or newer fetches by itself, "
                "and a module proxy that it can reach"
            )
        for path, binary in binaries.items():
            (Path(scratch) / binary.program).replace(path)


def command(go: str, binaries: Sequence[Binary], directory: Path) -> list[str]:
    """Return the ``go build`` command for binaries of one module."""
    stamps = " ".join(f"-X {key}={value}" for key, value in dict.fromkeys(s for b in binaries for s in b.stamps))
    return [go, "build", "-mod=readonly", *COMPILED,
            "-ldflags", f"-s -w {stamps}".strip(),
            "-o", f"{directory}/", *(binary.package for binary in binaries)]  # fmt: skip


def environment() -> dict[str, str]:
    """Return the user's environment, with fixed values for settings that would change the build.

    The compiler's garbage collection is off, because a compiler process is short-lived. Go may fetch the newer version
    that a go.mod needs, even if the user's settings forbid that: without it the build would fail.
    """
    settings = {"GOFLAGS": "-buildvcs=false", "GOWORK": "off", "GOGC": "off", "GOTOOLCHAIN": "auto"}
    return os.environ | {"CGO_ENABLED": "0"} | settings
