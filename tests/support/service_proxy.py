"""A TCP proxy that imitates a Service: it sends each new connection to an instance that is ready at that moment."""

import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self


class ServiceProxy:
    """Forwards connections from its ``port`` to a ready instance's port, and closes them if none is ready.

    Like kube-proxy, it keeps established connections when readiness changes. A context manager.
    """

    def __init__(self, find_ready: Callable[[], Sequence[int]]) -> None:
        self._find_ready = find_ready
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._connections: set[socket.socket] = set()
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A close alone does not wake the thread that accepts.
        _shut(self._listener)
        self._threads[0].join()
        self._listener.close()
        for end in tuple(self._connections):
            _shut(end)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._connect()
            if far is None:
                near.close()
                continue
            thread = threading.Thread(target=self._pass_on, args=(near, far), daemon=True)
            self._threads.append(thread)
            self._connections |= {near, far}
            thread.start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        """Copy bytes in both directions until one end closes, then close both."""
        with near, far:
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()
            self._connections -= {near, far}

    def _connect(self) -> socket.socket | None:
        for port in self._find_ready():
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=1.0)
            except OSError:
                continue
        return None


def _pump(source: socket.socket, sink: socket.socket) -> None:
    source.settimeout(None)
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    """Shut the socket down, which also wakes any thread that waits on it."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
