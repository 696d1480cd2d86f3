"""Locate the binaries of a cluster: in a directory of the user, in the cache, by download, or by a build.

`SERRIED_KUBERNETES_BIN` names the user's directory. It has `etcd`, `kube-apiserver`, `kube-controller-manager`,
`kube-scheduler`, `kubectl`, `kwok` and `kwokctl`, or a directory with them for each Kubernetes version
(`1.37.1/kubectl`). Binaries that are missing there are searched in the cache: `$XDG_CACHE_HOME/serried/kubernetes/
<version>/`, `$XDG_CACHE_HOME/serried/kwok/<version>/` and `$XDG_CACHE_HOME/serried/helm/<version>/`. Others are
downloaded to the cache from the official release, or built if that fails.
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
"""The binaries in each directory of the cache."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The paths of a cluster's binaries, by name of the binary."""

    paths: dict[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def locate(version: str, report: Report, scheduler: str = "") -> Binaries:
    """Return the binaries of a Kubernetes version. Missing ones are downloaded or built first.

    ``scheduler`` is the version of kube-scheduler, "" for the same version. Raise ClusterError if a build fails.
    """
    return Binaries(_locate_all(_list_parts(version, scheduler), version, report))


def locate_helm(version: str, report: Report) -> Path:
    """Return the path of a version of Helm, which is downloaded or built first if it is missing."""
    return _locate_all({cache() / "helm" / version: [release.helm(version)]}, version, report)["helm"]


def find_helm(version: str) -> Path | None:
    """Return the path of a version of Helm, None if it would have to be downloaded or built."""
    wanted, directory = release.helm(version), cache() / "helm" / version
    return _given(wanted, version) or (None if _missing([wanted], directory) else directory / wanted.name)


def are_at_hand(version: str, scheduler: str = "") -> bool:
    """Return whether `locate` finds every binary without a download or a build."""
    return not any(
        _missing([binary for binary in wanted if _given(binary, version) is None], directory)
        for directory, wanted in _list_parts(version, scheduler).items()
    )


def cache() -> Path:
    """Return the directory of the cache."""
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
    """Download or build the missing binaries.

    Each directory has a lock. All processes acquire the locks in the order of their names, so that none deadlocks.
    """
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
