"""An HTTP server in its own thread, so that the code under test can run an event loop."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any, Self


class ThreadedServer:
    """A context manager; ``url`` is where it listens."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class JsonHandler(BaseHTTPRequestHandler):
    """Answers each POST of JSON with what ``answer`` makes of it."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second one of two waits 40 ms

    def answer(self, asked: Any) -> Any:
        """Return the JSON answer to a request with the JSON body ``asked``."""
        raise NotImplementedError

    def do_POST(self) -> None:
        """Answer a POST request; the base class prescribes the name."""
        data = json.dumps(self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Log no requests."""
