"""Strategies for malformed HTTP, and a raw connection that sends it."""

import asyncio
import socket

from hypothesis import strategies as st

_SECONDS = 5.0
"""The longest time in seconds until the server must close the connection."""

METHODS = st.sampled_from([b"PUT", b"CONNECT", b"PRI", b"post", b""])
"""Methods that no route has."""

VERSIONS = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b""])
HEADERS = st.lists(
    st.sampled_from(
        [
            b"Host: x", b"Expect: 100-continue", b"Connection: close", b"Connection: upgrade\r\nUpgrade: websocket",
            b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
            b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding : chunked",
            b"X: " + b"x" * 9000, b"X\x00: y", b": no name", b" folded: y", b"X: \xff\xfe", b"no colon",
        ]
    ),
    max_size=4,
)  # fmt: skip


def frame(body: bytes, framing: str) -> tuple[bytes, bytes]:
    """Return the header for the body's length, which may be wrong, and the body as sent."""
    if framing == "chunked":
        half = len(body) // 2
        chunks = [part for part in (body[:half], body[half:]) if part]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunks)
        return b"Transfer-Encoding: chunked\r\n", sent + b"0\r\n\r\n"
    if framing == "bad chunks":
        return b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffffff\r\n" + body + b"\r\nzz\r\n"
    length = len(body) + {"exact": 0, "short": -1, "long": 7}[framing]
    return b"Content-Length: %d\r\n" % length, body


@st.composite
def requests(draw: st.DrawFn, asked: st.SearchStrategy[tuple[bytes, bytes, bytes]], *headers: bytes) -> bytes:
    """Draw one request, well-formed or not. ``asked`` draws method, target and body; ``headers`` may be added."""
    framing = draw(st.sampled_from(["exact", "exact", "exact", "chunked", "chunked", "bad chunks", "short", "long"]))
    known, target, content = draw(asked)
    length, body = frame(content, framing)
    line = b" ".join([draw(st.just(known) | st.just(known) | METHODS), target, draw(VERSIONS)])
    drawn = draw(HEADERS) + [each for each in headers if draw(st.booleans())]
    return line + b"\r\n" + b"".join(each + b"\r\n" for each in drawn) + length + b"\r\n" + body


@st.composite
def streams(draw: st.DrawFn, asked: st.SearchStrategy[bytes]) -> list[bytes]:
    """Draw the bytes of one connection, in pieces: requests with some bytes replaced, added or removed."""
    sent = bytearray(b"".join(draw(st.lists(asked, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(sent) - 1)))
        cut = draw(st.integers(0, 3) | st.integers(0, 400))
        sent[at : at + cut] = draw(st.binary(max_size=4) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"\n", b": "]))
    places = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return [bytes(sent[begin:end]) for begin, end in zip([0, *places], [*places, len(sent)], strict=True)]


def repeat_some(sent: st.SearchStrategy[list[bytes]]) -> st.SearchStrategy[list[bytes]]:
    """Let one in twenty connections send all of its bytes a thousand times, in one piece."""
    return st.tuples(sent, st.integers(0, 19)).map(lambda drawn: drawn[0] if drawn[1] else [b"".join(drawn[0]) * 1_000])


class RawConnection:
    """A raw TCP connection, which ignores errors of the other side."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.settimeout(0)

    async def send(self, port: int, pieces: list[bytes]) -> None:
        """Connect and send all pieces, or as many as the server accepts."""
        await self._loop.sock_connect(self._socket, ("127.0.0.1", port))
        try:
            for piece in pieces:
                await self._loop.sock_sendall(self._socket, piece)
                await asyncio.sleep(0)
        except ConnectionError:
            pass  # the server has closed the connection

    async def read_all(self) -> bytes:
        """Read until the server closes the connection, and return the bytes. Raise TimeoutError if it does not."""
        heard = b""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_SECONDS):
                while chunk := await self._loop.sock_recv(self._socket, 65536):
                    heard += chunk
        except TimeoutError:
            raise  # before OSError, of which it is a subclass
        except OSError:
            pass  # a reset: the server had not read all bytes
        finally:
            self._socket.close()
        return heard
