"""The binaries of a cluster: their versions, the Go modules that build them, and the URLs of official releases."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Origin = Literal["kubernetes", "etcd", "kwok", "helm"]

KWOK_VERSION = "0.8.0"
KWOK_MODULE = "kubernetes-1.37.1"
"""The module that also builds kwok, so that Go compiles packages that kwok shares with this Kubernetes once."""

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
KWOK = ("kwok", "kwokctl")
HELM_VERSIONS = ("4.3.1", "3.22.0")
MODULES = Path(__file__).parent / "modules"

# The environment variable with the URL of a mirror, which has one directory for each origin. "off" skips downloads.
DOWNLOADS = "SERRIED_DOWNLOAD_URL"
_BASES: dict[Origin, str] = {
    "kubernetes": "https://dl.k8s.io",
    "etcd": "https://github.com/etcd-io/etcd/releases/download",
    "kwok": "https://github.com/kubernetes-sigs/kwok/releases/download",
    "helm": "https://get.helm.sh",
}
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True, slots=True)
class Binary:
    """One program in one version."""

    name: str
    origin: Origin
    version: str
    package: str
    """The Go package to build."""

    module: Path
    """The directory with the go.mod that pins all dependencies."""

    stamps: tuple[tuple[str, str], ...] = ()
    """Go variables for the linker to set, with their values. Those of packages that the program lacks are ignored."""

    @property
    def label(self) -> str:
        """Name and version for messages."""
        return f"{self.name} {self.version}"

    @property
    def program(self) -> str:
        """File name that ``go build`` gives the program: the package's last part that is no version of a module."""
        *_, last = (word for word in self.package.split("/") if not re.fullmatch(r"v\d+", word))
        return last


@dataclass(frozen=True, slots=True)
class Download:
    """The official build of a binary."""

    url: str
    checksums: str
    """URL of the file with the SHA-256 of the download."""

    member: str = ""
    """Path of the binary in the downloaded archive, "" if the download is the binary."""


def control_plane(version: str) -> tuple[Binary, ...]:
    """Return the Kubernetes binaries of a version, and the etcd that belongs to it."""
    module = MODULES / f"kubernetes-{version}"
    etcd = Binary("etcd", "etcd", etcd_version(module), "go.etcd.io/etcd/server/v3", module)
    return (etcd, *(kubernetes(name, version) for name in KUBERNETES))


def kubernetes(name: str, version: str) -> Binary:
    """Return one of the Kubernetes binaries of a version. Of a pre-release, only kube-scheduler has pinned modules."""
    major, minor, *_ = version.split(".")
    stamps = (("gitVersion", f"v{version}"), ("gitMajor", major), ("gitMinor", minor))
    stamped = tuple((f"k8s.io/component-base/version.{key}", value) for key, value in stamps)
    module = MODULES / f"kubernetes-{version}"
    return Binary(name, "kubernetes", version, f"k8s.io/kubernetes/cmd/{name}", module, stamped)


def nodes() -> tuple[Binary, ...]:
    """Return kwok, which simulates the kubelets, and kwokctl, which starts the cluster."""
    module = MODULES / KWOK_MODULE
    return tuple(Binary(name, "kwok", KWOK_VERSION, f"sigs.k8s.io/kwok/cmd/{name}", module) for name in KWOK)


def helm(version: str) -> Binary:
    """Return Helm, which tests use to install the chart; clusters do not need it."""
    module = f"helm.sh/helm/v{version.split('.', 1)[0]}"
    stamps = ((f"{module}/internal/version.version", f"v{version}"),)
    return Binary("helm", "helm", version, f"{module}/cmd/helm", MODULES / f"helm-{version}", stamps)


def etcd_version(module: Path) -> str:
    """Return the version of etcd that a module pins; 'unknown' without a go.mod."""
    try:
        text = (module / "go.mod").read_text()
    except OSError:
        return "unknown"
    words = (line.split() for line in text.splitlines() if "go.etcd.io/etcd/server/v3 v" in line)
    return next((line[-1].removeprefix("v") for line in words), "unknown")


def go_version(module: Path) -> str:
    """Return the version of Go that builds a module: from the `toolchain` line of its go.mod, or the `go` line.

    Raise OSError without a go.mod, and KeyError if it has neither line.
    """
    lines = (line.split() for line in (module / "go.mod").read_text().splitlines())
    versions = {words[0]: words[1] for words in lines if len(words) > 1 and words[0] in {"go", "toolchain"}}
    return versions["toolchain"].removeprefix("go") if "toolchain" in versions else versions["go"]


def download_of(binary: Binary) -> Download:
    """Return the official download of a binary for this machine's architecture."""
    arch = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    base = f"{_base(binary.origin)}/v{binary.version}"
    if binary.origin == "kubernetes":
        url = f"{base}/bin/linux/{arch}/{binary.name}"
        return Download(url, f"{url}.sha256")
    if binary.origin == "kwok":
        url = f"{base}/{binary.name}-linux-{arch}"
        return Download(url, f"{url}.sha256")
    if binary.origin == "helm":
        url = f"{_base(binary.origin)}/helm-v{binary.version}-linux-{arch}.tar.gz"
        return Download(url, f"{url}.sha256sum", f"linux-{arch}/helm")
    directory = f"etcd-v{binary.version}-linux-{arch}"
    return Download(f"{base}/{directory}.tar.gz", f"{base}/SHA256SUMS", f"{directory}/etcd")


def downloads_enabled() -> bool:
    """Return whether downloads may be tried (`SERRIED_DOWNLOAD_URL` is not ``off``)."""
    return os.environ.get(DOWNLOADS, "") != "off"


def _base(origin: Origin) -> str:
    mirror = os.environ.get(DOWNLOADS, "").rstrip("/")
    return f"{mirror}/{origin}" if mirror else _BASES[origin]
