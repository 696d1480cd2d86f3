"""Where the binaries come from: a directory of the user's, the cache, the official release, a build.

`SERRIED_KUBERNETES_BIN` names a directory with `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`,
`kubectl`, `kwok` and `kwokctl`, or with one directory per Kubernetes version that holds them (`1.37.1/kubectl`); what
is missing there comes from the next place. The cache is `$XDG_CACHE_HOME/serried/kubernetes/<version>/`,
`$XDG_CACHE_HOME/serried/kwok/<version>/` and `$XDG_CACHE_HOME/serried/helm/<version>/`.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import build, download, release
from bench.cluster.errors import ClusterError
from bench.cluster.locks import exclusive
from bench.cluster.progress import Report
from bench.cluster.release import Binary

BIN = "SERRIED_KUBERNETES_BIN"

_SCHEDULER = "kube-scheduler"

Parts = Mapping[Path, Sequence[Binary]]
"""Binaries by the directory of the cache in which they lie."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The path of every binary of a cluster."""

    paths: dict[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def locate(version: str, report: Report, scheduler: str = "") -> Binaries:
    """Every binary for a Kubernetes version, fetched or built if need be.

    ``scheduler`` is the version of kube-scheduler, empty for that of the others.
    """
    return Binaries(_locate_all(_list_parts(version, scheduler), version, report))


def locate_helm(version: str, report: Report) -> Path:
    """Helm of a version, fetched or built if need be."""
    return _locate_all({cache() / "helm" / version: [release.helm(version)]}, version, report)["helm"]


def find_helm(version: str) -> Path | None:
    """Helm of a version if it is there without a download or a build."""
    wanted, directory = release.helm(version), cache() / "helm" / version
    return _given(wanted, version) or (None if _missing([wanted], directory) else directory / wanted.name)


def are_at_hand(version: str, scheduler: str = "") -> bool:
    """Whether `locate` finds every binary without a download or a build."""
    return not any(
        _missing([binary for binary in wanted if _given(binary, version) is None], directory)
        for directory, wanted in _list_parts(version, scheduler).items()
    )


def cache() -> Path:
    """The cache of all versions."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "serried"


def _list_parts(version: str, scheduler: str) -> Parts:
    control_plane, of_kwok = release.control_plane(version), cache() / "kwok" / release.KWOK_VERSION
    if scheduler in {"", version}:
        return {cache() / "kubernetes" / version: control_plane, of_kwok: release.nodes()}
    return {
        cache() / "kubernetes" / version: [binary for binary in control_plane if binary.name != _SCHEDULER],
        of_kwok: release.nodes(),
        cache() / "kubernetes" / scheduler: [release.kubernetes(_SCHEDULER, scheduler)],
    }


def _locate_all(parts: Parts, version: str, report: Report) -> dict[str, Path]:
    given = {b.name: path for binaries in parts.values() for b in binaries if (path := _given(b, version)) is not None}
    wanted = {directory: [b for b in binaries if b.name not in given] for directory, binaries in parts.items()}
    if any(_missing(binaries, directory) for directory, binaries in wanted.items()):
        _fill(wanted, report)
    return given | {b.name: directory / b.name for directory, binaries in wanted.items() for b in binaries}


def _fill(parts: Parts, report: Report) -> None:
    """Fetch or build what is missing; the locks are taken in the order of their names, which is the same everywhere."""
    with ExitStack() as locks:
        missing: dict[Path, Binary] = {}
        for directory, binaries in sorted(parts.items()):
            if _missing(binaries, directory):
                waiting = f"waiting for another process that fills {directory}"
                locks.enter_context(exclusive(directory / ".lock", report, waiting))
                missing |= _missing(binaries, directory)
        if missing and release.downloads_enabled():
            missing = download.fetch(missing, report)
        if missing:
            build.build(missing, report)


def _missing(binaries: Iterable[Binary], directory: Path) -> dict[Path, Binary]:
    return {directory / b.name: b for b in binaries if not _is_program(directory / b.name)}


def _given(binary: Binary, version: str) -> Path | None:
    home = os.environ.get(BIN)
    if not home:
        return None
    if not Path(home).is_dir():
        raise ClusterError(f"{BIN}={home} is no directory: correct it, or unset it to use the cache")
    own = binary.version if binary.origin == "kubernetes" else version
    for path in (Path(home) / own / binary.name, Path(home) / binary.name):
        if _is_program(path):
            _check_version(binary, path.resolve())
            return path.resolve()
    return None


def _check_version(binary: Binary, path: Path) -> None:
    if binary.origin != "kubernetes" or binary.name == "kubectl":
        return
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if answer.split()[-1:] != [f"v{binary.version}"]:
        raise ClusterError(
            f"{path} ({BIN}) says {answer or 'nothing'!r}, but {binary.version} was asked for: "
            f"put that version into {path.parent.name}/{binary.version}/ or ask for the other"
        )


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
