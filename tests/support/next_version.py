"""A real API server as one of the next minor may look: what it serves as v1beta1 it serves as v1, and as nothing else.

The proxy stands before the real API server and rewrites paths, discovery, schemas and bodies both ways.
"""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.support.schemas import GROUP
from tests.support.threaded_server import ThreadedServer

NEXT = "v1"
SERVED = "v1beta1"

_ROOT = f"/apis/{GROUP}"
_SCHEMAS = "/openapi/v3"
_STABLE_ALREADY = "priorityclasses"
_TIMEOUT_SECONDS = 600.0
_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding", "host"}


class NextVersion(ThreadedServer):
    """A proxy that serves such an API; ``asked`` holds the method and path of each request so far."""

    def __init__(self, port: int, renamed: Mapping[str, str] | None = None) -> None:
        """``port`` is where the real API server listens on loopback; ``renamed`` are fields whose schemas it alters."""
        self.asked: list[tuple[str, str]] = []
        super().__init__(_Front(port, self.asked, renamed or {}))

    def write_kubeconfig(self, theirs: Path, directory: Path) -> Path:
        """Write a kubeconfig with the credentials of ``theirs`` and the address of this proxy; return its path."""
        config = yaml.safe_load(theirs.read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        path = directory / theirs.name
        path.write_text(json.dumps(config))
        return path


class _Front(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, asked: list[tuple[str, str]], renamed: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = asked
        self.renamed = renamed
        self._port = port
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    def handle_error(self, *args: Any) -> None:
        """Log no errors: clients may end their watches at any time."""

    def connect(self) -> http.client.HTTPSConnection:
        """Open a connection to the real API server."""
        return http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls, timeout=_TIMEOUT_SECONDS)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.server, _Front)
        self._front = self.server
        self._far = self._front.connect()

    def finish(self) -> None:
        self._far.close()
        super().finish()

    def handle_any(self) -> None:
        path, _, query = self.path.partition("?")
        self._front.asked.append((self.command, path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if f"{path}/".startswith(f"{_ROOT}/{SERVED}/"):
            self._answer(404, json.dumps(_NOT_FOUND).encode())
        elif path in {_ROOT, f"{_ROOT}/{NEXT}", _SCHEMAS}:
            self._answer(200, json.dumps(self._discover(path)).encode())
        else:
            self._pass_on(f"{_restore_path(path)}?{query}", body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - names of the base class

    def log_message(self, *args: Any) -> None:
        """Log no requests."""

    def _discover(self, path: str) -> Any:
        found = self._read(path)
        if path == _ROOT:
            found["versions"] = [each for each in found["versions"] if each["version"] != SERVED]
        elif path == _SCHEMAS:
            older = found["paths"].pop(f"apis/{GROUP}/{SERVED}")["serverRelativeURL"]
            found["paths"][f"apis/{GROUP}/{NEXT}"] = {"serverRelativeURL": older.replace(SERVED, NEXT)}
        else:
            found["resources"] += self._read(f"{_ROOT}/{SERVED}")["resources"]
        return found

    def _read(self, path: str) -> Any:
        self._far.request("GET", path, headers=self._headers())
        return json.loads(self._far.getresponse().read())

    def _headers(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION}

    def _pass_on(self, target: str, body: bytes) -> None:
        self._far.request(self.command, target, _rewrite(body, NEXT, SERVED) or None, self._headers())
        answer = self._far.getresponse()
        if "watch=true" in target:
            self._stream(answer)
        elif target.startswith(_SCHEMAS):
            self._answer(answer.status, self._publish(answer.read()))
        else:
            self._answer(answer.status, _rewrite(answer.read(), SERVED, NEXT))

    def _publish(self, schemas: bytes) -> bytes:
        for old, new in self._front.renamed.items():
            schemas = schemas.replace(f'"{old}"'.encode(), f'"{new}"'.encode())
        return schemas.replace(SERVED.encode(), NEXT.encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in _lines(answer):
            told = _rewrite(line, SERVED, NEXT)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(told), told))
        self.wfile.write(b"0\r\n\r\n")


_NOT_FOUND = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "reason": "NotFound",
    "message": "the server could not find the requested resource",
    "code": 404,
}


def _restore_path(path: str) -> str:
    """Return the path of the same objects on the real API server."""
    for root in (f"{_ROOT}/{NEXT}/", f"{_SCHEMAS}{_ROOT}/{NEXT}"):
        if path.startswith(root) and _STABLE_ALREADY not in path:
            return root.replace(NEXT, SERVED) + path.removeprefix(root)
    return path


def _rewrite(body: bytes, old: str, new: str) -> bytes:
    """Replace every apiVersion of the group in a body, also in references."""
    return body.replace(f'{GROUP}/{old}"'.encode(), f'{GROUP}/{new}"'.encode())


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while line := answer.readline():
            yield line
    except OSError:
        return
