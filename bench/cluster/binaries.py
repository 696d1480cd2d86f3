"""Where the binaries come from: a directory of the user's, the cache, the official release, a build.

`SERRIED_KUBERNETES_BIN` names a directory with `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`,
`kubectl`, `kwok` and `kwokctl`, or with one directory per Kubernetes version that holds them (`1.37.1/kubectl`); what
is missing there comes from the next place. The cache is `$XDG_CACHE_HOME/serried/kubernetes/<version>/`,
`$XDG_CACHE_HOME/serried/kwok/<version>/` and `$XDG_CACHE_HOME/serried/helm/<version>/`.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import build, download, release
from bench.cluster.errors import ClusterError
from bench.cluster.locks import exclusive
from bench.cluster.progress import Report
from bench.cluster.release import Binary

BIN = "SERRIED_KUBERNETES_BIN"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The path of every binary of a cluster."""

    paths: dict[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def locate(version: str, report: Report) -> Binaries:
    """Every binary for a Kubernetes version, fetched or built if need be."""
    control_plane = _locate_set(release.control_plane(version), cache() / "kubernetes" / version, version, report)
    nodes = _locate_set(release.nodes(), cache() / "kwok" / release.KWOK_VERSION, version, report)
    return Binaries(control_plane | nodes)


def locate_helm(version: str, report: Report) -> Path:
    """Helm of a version, fetched or built if need be."""
    return _locate_set([release.helm(version)], cache() / "helm" / version, version, report)["helm"]


def find_helm(version: str) -> Path | None:
    """Helm of a version if it is there without a download or a build."""
    wanted, directory = release.helm(version), cache() / "helm" / version
    return _given(wanted, version) or (None if _missing([wanted], directory) else directory / wanted.name)


def are_at_hand(version: str) -> bool:
    """Whether a cluster of a Kubernetes version starts without a download or a build."""
    sets = {"kubernetes": (release.control_plane(version), version), "kwok": (release.nodes(), release.KWOK_VERSION)}
    return not any(
        _missing([binary for binary in wanted if _given(binary, version) is None], cache() / kind / directory)
        for kind, (wanted, directory) in sets.items()
    )


def cache() -> Path:
    """The cache of all versions."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "serried"


def _locate_set(binaries: Sequence[Binary], directory: Path, version: str, report: Report) -> dict[str, Path]:
    given = {b.name: path for b in binaries if (path := _given(b, version)) is not None}
    wanted = [binary for binary in binaries if binary.name not in given]
    if _missing(wanted, directory):
        _fill(wanted, directory, report)
    return {binary.name: given.get(binary.name, directory / binary.name) for binary in binaries}


def _fill(binaries: Sequence[Binary], directory: Path, report: Report) -> None:
    with exclusive(directory / ".lock", report, f"waiting for another process that fills {directory}"):
        missing = _missing(binaries, directory)
        if missing and release.downloads_enabled():
            missing = download.fetch(missing, directory, report)
        if missing:
            build.build(missing, directory, report)


def _missing(binaries: Sequence[Binary], directory: Path) -> list[Binary]:
    return [binary for binary in binaries if not _is_program(directory / binary.name)]


def _given(binary: Binary, version: str) -> Path | None:
    home = os.environ.get(BIN)
    if not home:
        return None
    if not Path(home).is_dir():
        raise ClusterError(f"{BIN}={home} is no directory: correct it, or unset it to use the cache")
    for path in (Path(home) / version / binary.name, Path(home) / binary.name):
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
