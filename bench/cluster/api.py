"""The few requests that bringing a cluster up needs, as its administrator."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cluster.ports import LOOPBACK

_TIMEOUT = 30.0


class ApiError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Session:
    """JSON over one kept connection; for one thread."""

    def __init__(self, connection: http.client.HTTPSConnection) -> None:
        self._connection = connection

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """One request: the decoded object, or text where the answer is none."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        payload = answer.read()
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, _message(payload))
        return json.loads(payload) if payload.startswith(b"{") else payload.decode()

    def post(self, path: str, body: object) -> Any:
        """Create an object."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: object) -> Any:
        """Change an object by a merge patch."""
        return self.request("PATCH", path, body, "application/merge-patch+json")


class Api:
    """The API server of one cluster."""

    def __init__(self, port: int, pki: Path) -> None:
        self._port = port
        self._pki = pki
        self._tls: ssl.SSLContext | None = None

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A connection that is closed after the body."""
        connection = http.client.HTTPSConnection(LOOPBACK, self._port, context=self._context(), timeout=_TIMEOUT)
        try:
            yield Session(connection)
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The object or list at a path."""
        with self.session() as session:
            return session.request("GET", path)

    def post(self, path: str, body: object) -> Any:
        """Create an object."""
        with self.session() as session:
            return session.post(path, body)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            tls = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
            tls.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
            self._tls = tls
        return self._tls


def _message(payload: bytes) -> str:
    try:
        return str(json.loads(payload)["message"])
    except (ValueError, KeyError, TypeError):
        return payload[:200].decode(errors="replace")
