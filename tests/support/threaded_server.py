"""An HTTP server in a thread of its own, so that what is tested may have an event loop."""

import threading
from http.server import HTTPServer
from types import TracebackType
from typing import Self


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
