"""A fake API server for commands that only list pods and send requests to them through its proxy."""

import json
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import httpx

from tests.support.threaded_server import ThreadedServer

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "{url}"}}}}, {{name: away, cluster: {{server: "http://127.0.0.1:1"}}}}]
users: [{{name: me, user: {{token: of-the-kubeconfig}}}}]
contexts:
- {{name: here, context: {{cluster: here, user: me, namespace: team}}}}
- {{name: away, context: {{cluster: away, user: me}}}}
"""

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

Answer = tuple[int, Any]
"""A reply: the status, and a JSON document or bytes."""


def extender_pod(name: str, port: int = 8912, phase: str = "Running") -> dict[str, Any]:
    """Return a pod of the shipped Deployment, in the namespace serried-system."""
    ports = [{"name": "ops", "containerPort": port}]
    return {
        "metadata": {"name": name, "namespace": "serried-system"},
        "spec": {"containers": [{"name": "scheduler"}, {"name": "extender", "ports": ports}]},
        "status": {"phase": phase},
    }


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """The backlog of connections, as large as on a real server: with the default of 5, further ones are reset."""


class PodProxy(ThreadedServer):
    """The fake API server: a request gets the reply that ``answers`` has for its path.

    ``forwards`` maps the begin of a path to a URL: a request below that path is forwarded there, with the rest of its
    path.
    """

    def __init__(self, pods: list[dict[str, Any]], forwards: Mapping[str, str] | None = None) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        """The requests so far, each as path and query."""
        self.bodies: list[bytes] = []
        """The bodies of the requests."""
        self.headers: list[tuple[str, dict[str, str]]] = []
        """The requests, each with its headers under lower-case names."""
        self.answers["/api/v1/namespaces/serried-system/pods"] = (
            200,
            {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods},
        )
        self.listable: frozenset[str] | None = None
        """The namespaces whose pods the user may list; None for all, and for all other rights."""
        self._forwards = dict(forwards or {})
        super().__init__(_Server(("127.0.0.1", 0), self._make_handler()))

    def answer(self, path: str, document: Any, status: int = 200) -> None:
        """Answer all requests for ``path`` with this; if it has a query, only requests with exactly that query."""
        self.answers[path] = (status, document)

    def answer_debug(self, pod: str, path: str, document: Any, status: int = 200) -> None:
        """Answer requests for ``/debug`` of a pod (NAME:PORT) with this."""
        self.answer(f"/api/v1/namespaces/serried-system/pods/https:{pod}/proxy/debug/{path}", document, status)

    def reply(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the reply to one request."""
        self.asked.append(target)
        self.bodies.append(body)
        path = unquote(target)
        if path not in self.answers:
            path, _, _ = path.partition("?")
        if path == _REVIEWS and path not in self.answers:
            return 200, json.dumps({"status": {"allowed": self._allows(body)}}).encode()
        if path in self.answers:
            status, document = self.answers[path]
            return status, document if isinstance(document, bytes) else json.dumps(document).encode()
        for prefix, url in self._forwards.items():
            if target.startswith(prefix):
                answer = httpx.request(method, url + target.removeprefix(prefix), content=body, timeout=30)
                return answer.status_code, answer.content
        return 404, json.dumps({"kind": "Status", "code": 404, "reason": "NotFound", "message": f"no {path}"}).encode()

    def _allows(self, review: bytes) -> bool:
        asked = json.loads(review)["spec"]["resourceAttributes"]
        return self.listable is None or asked.get("namespace") in self.listable

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.headers.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                status, body = proxy.reply(self.command, self.path, self._read())
                with suppress(ConnectionError):  # of who has not waited for the answer
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the server looks for this name

            def _read(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))

            def log_message(self, *told: object) -> None:
                pass

        return Handler
