"""The requests of a cluster's administrator: connections are kept for as long as both sides want them."""

import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from threading import Barrier, Event, Thread
from typing import ClassVar

import pytest

from bench.cluster.api import Api, ApiError
from tests.support.certificates import Authority


class Handler(BaseHTTPRequestHandler):
    """Answers each path with the number of the connection that it came by."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[list[str]] = []
    both = Barrier(2)

    def setup(self) -> None:
        super().setup()
        self.connections.append("")
        self.number = len(self.connections)

    def do_GET(self) -> None:
        """Answer 404 for /missing. Close the connection after the answer to /last, and before one to /silent."""
        self.close_connection = self.path in {"/last", "/silent"}
        if self.path == "/silent":
            return
        if self.path == "/together":
            self.both.wait(10)
        body = f'{{"connection": {self.number}, "message": "none"}}'.encode()
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """Tells when it has closed a connection."""

    daemon_threads = True
    closed = Event()

    def shutdown_request(self, request: socket | tuple[bytes, socket]) -> None:
        super().shutdown_request(request)
        self.closed.set()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    authority = Authority(tmp_path, "ca")
    authority.sign("admin")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "admin.crt", tmp_path / "admin.key")
    Handler.connections.clear()
    Server.closed.clear()
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield Api(server.server_port, tmp_path)
        server.shutdown()
        thread.join()


def connection_of(api: Api, path: str = "/") -> int:
    """The number of the connection by which a path was asked for."""
    return int(api.get(path)["connection"])


def test_one_request_after_the_other_goes_by_the_same_connection(api: Api) -> None:
    assert [connection_of(api) for _ in range(3)] == [1, 1, 1]


def test_so_it_does_after_a_refusal(api: Api) -> None:
    with pytest.raises(ApiError, match="404: none"):
        api.get("/missing")
    assert connection_of(api) == 1


def test_a_connection_that_the_server_has_closed_is_replaced(api: Api) -> None:
    assert connection_of(api, "/last") == 1
    assert Server.closed.wait(10)
    assert connection_of(api) == 2


def test_a_server_that_is_gone_is_an_error_of_the_connection(api: Api) -> None:
    connection_of(api)
    with pytest.raises(ConnectionError, match="GET /silent"):
        api.get("/silent")
    assert connection_of(api) == 2


def test_two_at_a_time_go_by_two(api: Api) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(connection_of, [api, api], ["/together", "/together"])) == {1, 2}
