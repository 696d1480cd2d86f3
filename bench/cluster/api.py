"""The few requests that bringing a cluster up needs, as its administrator."""

import http.client
import json
import ssl
import threading
from pathlib import Path
from typing import Any

from bench.cluster.ports import LOOPBACK

_TIMEOUT = 30.0


class ApiError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """JSON over one kept connection per thread."""

    def __init__(self, port: int, pki: Path) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._local = threading.local()

    def get(self, path: str) -> Any:
        """The object or list at a path."""
        return self.request("GET", path)

    def post(self, path: str, body: object) -> Any:
        """Create an object."""
        return self.request("POST", path, body)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """One request; a connection that the server has closed in between is opened again once."""
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._exchange(method, path, data)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            return self._exchange(method, path, data)

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _exchange(self, method: str, path: str, data: bytes | None) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(LOOPBACK, self._port, context=self._tls, timeout=_TIMEOUT)
            self._local.connection = connection
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", "Accept": "application/json"})
            answer = connection.getresponse()
            payload = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, _message(payload))
        return json.loads(payload) if payload.startswith(b"{") else payload.decode()


def _message(payload: bytes) -> str:
    try:
        return str(json.loads(payload)["message"])
    except (ValueError, KeyError, TypeError):
        return payload[:200].decode(errors="replace")
