"""Official builds from a local server: taken, refused, unreachable."""

import hashlib
import io
import platform
import tarfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.cluster import download, release
from bench.cluster.release import Binary, download_of, kubernetes
from tests.support.threaded_server import ThreadedServer

KUBECTL = Binary("kubectl", "kubernetes", "1.37.1", "unused", Path("unused"))
ETCD = Binary("etcd", "etcd", "3.7.0", "unused", Path("unused"))
PROGRAM = b"#!/bin/sh\necho hello\n"


class Mirror:
    """A server on loopback that answers from a dictionary."""

    def __init__(self, url: str, files: dict[str, bytes], asked: list[str]) -> None:
        self.url = url
        self.files = files
        self.asked = asked

    def publish(self, url: str, content: bytes) -> None:
        self.files[url.removeprefix(self.url)] = content


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    files: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = files.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadedServer(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        monkeypatch.setenv(release.DOWNLOADS, server.url)
        yield Mirror(server.url, files, asked)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def fetch(tmp_path: Path, lines: list[str]) -> Callable[..., list[Binary]]:
    return lambda *wanted: [*download.fetch({tmp_path / each.name: each for each in wanted}, lines.append).values()]


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def test_a_download_with_the_right_checksum_is_installed(
    mirror: Mirror, fetch: Callable[..., list[Binary]], tmp_path: Path, lines: list[str]
) -> None:
    where = download_of(KUBECTL)
    mirror.publish(where.url, PROGRAM)
    mirror.publish(where.checksums, sha256(PROGRAM))

    assert fetch(KUBECTL) == []
    assert (tmp_path / "kubectl").read_bytes() == PROGRAM
    assert (tmp_path / "kubectl").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl"]
    assert lines == ["downloaded kubectl 1.37.1"]


def test_etcd_is_taken_out_of_its_archive(mirror: Mirror, fetch: Callable[..., list[Binary]], tmp_path: Path) -> None:
    where = download_of(ETCD)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo(where.member)
        member.size = len(PROGRAM)
        tar.addfile(member, io.BytesIO(PROGRAM))
    name = where.url.rpartition("/")[2].encode()
    mirror.publish(where.url, archive.getvalue())
    mirror.publish(where.checksums, b"0" * 64 + b"  other.tar.gz\n" + sha256(archive.getvalue()) + b"  " + name + b"\n")

    assert fetch(ETCD) == []
    assert (tmp_path / "etcd").read_bytes() == PROGRAM


def test_a_wrong_checksum_is_one_line_and_leaves_the_binary_to_the_build(
    mirror: Mirror, fetch: Callable[..., list[Binary]], tmp_path: Path, lines: list[str]
) -> None:
    where = download_of(KUBECTL)
    mirror.publish(where.url, PROGRAM + b"tampered")
    mirror.publish(where.checksums, sha256(PROGRAM))

    assert fetch(KUBECTL) == [KUBECTL]
    assert list(tmp_path.iterdir()) == []
    assert len(lines) == 1
    assert "checksum" in lines[0]
    assert lines[0].endswith("building instead")
    assert "\n" not in lines[0]


@pytest.mark.parametrize("published", [b"", b"no digest here", b"0" * 64 + b"  another-file"])
def test_no_checksum_means_no_download(
    mirror: Mirror, fetch: Callable[..., list[Binary]], lines: list[str], published: bytes
) -> None:
    where = download_of(KUBECTL)
    mirror.publish(where.url, PROGRAM)
    mirror.publish(where.checksums, published)

    assert fetch(KUBECTL) == [KUBECTL]
    assert "no checksum" in lines[0]
    assert mirror.asked == [where.checksums.removeprefix(mirror.url)]


def test_a_missing_file_does_not_stop_the_others(
    mirror: Mirror, fetch: Callable[..., list[Binary]], tmp_path: Path, lines: list[str]
) -> None:
    where = download_of(KUBECTL)
    mirror.publish(where.url, PROGRAM)
    mirror.publish(where.checksums, sha256(PROGRAM))

    assert fetch(ETCD, KUBECTL) == [ETCD]
    assert (tmp_path / "kubectl").exists()
    assert "404" in lines[0]


def test_an_unreachable_host_is_asked_once_and_said_once(
    monkeypatch: pytest.MonkeyPatch, fetch: Callable[..., list[Binary]], lines: list[str]
) -> None:
    monkeypatch.setenv(release.DOWNLOADS, "http://127.0.0.1:1")

    assert fetch(ETCD, KUBECTL) == [ETCD, KUBECTL]
    assert len(lines) == 1
    assert lines[0].startswith("no downloads: http://127.0.0.1:1/etcd/")
    assert "Connection refused" in lines[0]


def test_official_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(release.DOWNLOADS, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    assert download_of(KUBECTL).url == "https://dl.k8s.io/v1.37.1/bin/linux/arm64/kubectl"
    beta = kubernetes("kube-scheduler", "1.38.0-beta.0")
    assert download_of(beta).url == "https://dl.k8s.io/v1.38.0-beta.0/bin/linux/arm64/kube-scheduler"
    assert download_of(ETCD).member == "etcd-v3.7.0-linux-arm64/etcd"
    helm = download_of(release.helm("4.3.1"))
    assert helm.url == "https://get.helm.sh/helm-v4.3.1-linux-arm64.tar.gz"
    assert (helm.checksums, helm.member) == (f"{helm.url}.sha256sum", "linux-arm64/helm")
