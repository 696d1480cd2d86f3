"""Download official builds, and check them against their published checksums."""

import hashlib
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO, cast

from bench.cluster.progress import Report, ticking
from bench.cluster.release import Binary, Download, download_of

CONNECT_TIMEOUT = 4.0
_CHUNK = 1 << 20


class DownloadError(Exception):
    """A download failed. The binary is built instead."""


class UnreachableError(DownloadError):
    """The host does not answer, so that further downloads are not tried."""


def fetch(binaries: Mapping[Path, Binary], report: Report) -> dict[Path, Binary]:
    """Download each binary to its path. Return those that are still missing.

    Every failure is reported in one line. After the first host that cannot be reached no other download is tried,
    because the machine is probably offline.
    """
    missing = dict(binaries)
    for path, binary in binaries.items():
        try:
            with ticking(report, f"downloading {binary.label}"):
                _fetch_one(download_of(binary), path)
            report(f"downloaded {binary.label}")
            del missing[path]
        except UnreachableError as error:
            report(f"no downloads: {error}; building instead")
            break
        except DownloadError as error:
            report(f"no download of {binary.label}: {error}; building instead")
    return missing


def _fetch_one(download: Download, target: Path) -> None:
    wanted = _checksum(download)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as scratch:
        part = Path(scratch) / "part"
        with part.open("wb") as sink:
            found = _copy(download.url, sink)
        if found != wanted:
            raise DownloadError(f"checksum of {download.url} is {found[:12]}..., published is {wanted[:12]}...")
        if download.member:
            part = _extract(part, download.member, Path(scratch) / "member")
        part.chmod(0o755)
        part.replace(target)


def _checksum(download: Download) -> str:
    """Return the published SHA-256 of a download.

    The checksum file has either that digest alone, or a list of the release's files.
    """
    with _open(download.checksums) as answer:
        text = answer.read(_CHUNK).decode(errors="replace")
    name = download.url.rpartition("/")[2]
    for line in text.splitlines():
        digest, _, file = line.strip().partition(" ")
        if len(digest) == 64 and file.strip().lstrip("*") in {"", name}:
            return digest.lower()
    raise DownloadError(f"no checksum of {name} in {download.checksums}")


def _copy(url: str, sink: IO[bytes]) -> str:
    digest = hashlib.sha256()
    try:
        with _open(url) as answer:
            while chunk := answer.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
    except (OSError, HTTPException) as error:
        raise DownloadError(f"{url} broke off: {error}") from None
    return digest.hexdigest()


def _open(url: str) -> IO[bytes]:
    try:
        answer: IO[bytes] = urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{url} answers {error.code}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UnreachableError(f"{url} cannot be reached ({reason})") from None
    return answer


def _extract(archive: Path, member: str, target: Path) -> Path:
    try:
        with tarfile.open(archive) as tar, target.open("wb") as sink:
            shutil.copyfileobj(cast("IO[bytes]", tar.extractfile(member)), sink)
    except (tarfile.TarError, KeyError, AttributeError):
        raise DownloadError(f"no {member} in the archive") from None
    return target
