"""A small blocking client of a local cluster's API server, with the administrator's certificate."""

import json
import ssl
import weakref
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from bench.cluster.ports import LOOPBACK

_TIMEOUT = 30.0
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0)


class ApiError(Exception):
    """The API server answered with a status other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Client of one cluster's API server. Any number of threads may use it.

    Connections are kept open for further requests. Every method raises ApiError for an answer other than 2xx, and
    ConnectionError if there is no answer.
    """

    def __init__(self, port: int, pki: Path) -> None:
        self._port = port
        self._pki = pki

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """Send one request. Return the decoded JSON object, or the text if the answer is no object."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            answer = self._client.request(method, path, content=data, headers=headers)
        except httpx.TransportError as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        if not answer.is_success:
            raise ApiError(answer.status_code, _message(answer))
        return answer.json() if answer.content.startswith(b"{") else answer.text

    def get(self, path: str) -> Any:
        """Return the object or list at a path."""
        return self.request("GET", path)

    def post(self, path: str, body: object) -> Any:
        """Create an object and return it as stored."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: object) -> Any:
        """Change an object by a merge patch and return it."""
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, propagation: str = "Background", *, fine: Collection[int] = (404,)) -> None:
        """Delete an object without a grace period. A status in ``fine`` is no error: by default 404."""
        try:
            self.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": propagation})
        except ApiError as error:
            if error.status not in fine:
                raise

    @cached_property
    def _client(self) -> httpx.Client:
        tls = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        tls.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        base = f"https://{LOOPBACK}:{self._port}"
        client = httpx.Client(base_url=base, verify=tls, timeout=_TIMEOUT, limits=_LIMITS, trust_env=False)
        weakref.finalize(self, client.close)
        return client


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
