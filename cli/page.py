"""``serried page``: opens the extender's page ``/debug/`` in a browser, without a port-forward.

A listener on this machine forwards each request of the browser to the extender that leads, as all commands do: through
the API server, with the user's credentials and a token for the extender. Each path begins with a secret, so that
neither other users of this machine nor other web pages in the browser can use the listener.
"""

import asyncio
import json
import math
import os
import secrets
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import unquote

import typer

from cli.access import DebugApi, describe_failure, find_extender
from cli.output import CommandError, ExitCode, print_note
from cli.target import Target, find_credentials, with_target_options
from serried.kube.calls import Call
from serried.kube.errors import ApiError

if TYPE_CHECKING:
    from cli.transport import HttpxTransport

PAGE_EXAMPLES = """
Open the page in the browser, until you press Ctrl-C:
  serried page

Print its address alone, for example to forward the port by ssh:
  serried page --no-browser --port 8912
"""

_LEADER_SECONDS = 60.0
"""Seconds for which requests go to the same extender, before the leader is looked for again.

A new token is then made, too; it is valid for ten minutes.
"""

_MOST_BYTES = 2**20
"""The largest body of a request that is forwarded, in bytes.

The page sends manifests, to ask whether they would fit.
"""

_HEADERS = (
    "cache-control",
    "content-security-policy",
    "content-type",
    "referrer-policy",
    "retry-after",
    "x-content-type-options",
    "x-left-off",
)
"""The headers of the extender's answer that the browser gets. All others are dropped."""

_RETRY_STATUSES = {401, 404, 502, 503, 504}
"""Statuses of an answer after which the next request looks for the leader again: pod or token may be invalid."""

_BAD_REQUEST, _NOT_FOUND, _BAD_GATEWAY = 400, 404, 502


class _Request(NamedTuple):
    """A request from the browser; ``content_type`` is "" if it has none."""

    method: str
    path: str
    """The path with the query, as the browser sent it: beginning with the secret."""
    content_type: str
    body: bytes


Port = Annotated[
    int,
    typer.Option(
        min=0, max=65535, metavar="NUMBER", show_default=False, help="The port on this machine. Default: a free one."
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address, and open no browser.")]


@with_target_options
def show_page(port: Port = 0, *, no_browser: NoBrowser = False, target: Target) -> None:
    """Open the page with the map of nodes, the gangs and the decisions, until you press Ctrl-C.

    The page is served on this machine only, at a secret address. No port-forward is needed.
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(target, port, browser=not no_browser and _has_screen()))


def _has_screen() -> bool:
    """Return whether a window can be opened. If not, a text browser might start and take over the terminal."""
    return sys.platform in {"darwin", "win32"} or not {"DISPLAY", "WAYLAND_DISPLAY"}.isdisjoint(os.environ)


async def _serve(target: Target, port: int, *, browser: bool) -> None:
    async with serving(target, port) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        print_note("press Ctrl-C to end it")
        with TemporaryDirectory(prefix="serried-page-") as folder:  # readable by this user only
            if browser:
                await asyncio.to_thread(_open_browser, url, Path(folder, "page.html"))
            await asyncio.sleep(math.inf)  # until Ctrl-C


def _open_browser(url: str, file: Path) -> None:
    """Open ``url`` in the browser, through ``file``, which redirects to it.

    A command line with the secret address would be visible to other users of this machine; the file is not.
    """
    file.touch(mode=0o600)
    file.write_text(f'<meta http-equiv="refresh" content="0;url={url}">\n')
    webbrowser.open(file.as_uri())


@asynccontextmanager
async def serving(target: Target, port: int = 0) -> AsyncIterator[str]:
    """Serve the page while the block runs, and yield its address with the secret.

    ``port`` is the port on this machine, 0 for a free one. Raises CommandError if no extender answers, or if the port
    is in use.
    """
    from cli.transport import HttpxTransport, open_client  # noqa: PLC0415 - the help needs no HTTP

    credentials = find_credentials(target)
    transport = HttpxTransport(credentials)
    async with open_client(credentials) as client:
        relay = Relay(transport, lambda: find_extender(client, target, credentials))
        await (await relay.find()).get("selfcheck")
        try:
            server = await asyncio.start_server(relay.accept, "127.0.0.1", port)
        except OSError as error:
            raise CommandError(ExitCode.USAGE, f"--port {port}: {os.strerror(error.errno or 0)}") from error
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{relay.root}/debug/"
        finally:
            server.close()
            await transport.close()


class Relay:
    """The listener on this machine: forwards the request of each connection to the extender that leads.

    Each connection has one request.
    """

    def __init__(self, transport: "HttpxTransport", find_leader: Callable[[], Awaitable[DebugApi]]) -> None:
        self.root = f"/{secrets.token_urlsafe(16)}"
        """The secret beginning of every request's path."""

        self._transport = transport
        self._find_leader = find_leader
        """Finds the extender that leads. Raises CommandError."""
        self._debug: DebugApi | None = None
        self._until = 0.0
        """Monotonic time from which on the extender is looked for again."""
        self._finding = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self) -> DebugApi:
        """Return a client of the extender that leads, or of one that does not lead if none leads.

        It is looked for if the last search is older than `_LEADER_SECONDS`, or if a request has failed since. Raises
        CommandError if no extender answers.
        """
        async with self._finding:
            if self._debug is None or time.monotonic() >= self._until:
                self._debug = await self._find_leader()
                self._until = time.monotonic() + _LEADER_SECONDS
            return self._debug

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start the task that answers the request of one connection. The task ends early if the browser disconnects."""
        # If asyncio's server created the task, it would print a traceback for each connection that Ctrl-C ends.
        task = asyncio.create_task(self._handle(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Anything else than a complete request gets no answer.
        with closing(writer), suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            request = await _read_request(reader)
            answering = asyncio.create_task(self._answer(request, writer))
            gone = asyncio.create_task(reader.read())
            try:
                await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    answering.result()
            finally:
                answering.cancel()
                gone.cancel()

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        if not request.path.startswith(f"{self.root}/debug/"):
            return _write_error(writer, _NOT_FOUND, "use the address that serried page has printed")
        # Only /debug is forwarded: other paths would give a script in the browser the user's rights at the API server.
        if ".." in unquote(request.path.partition("?")[0]) or request.method not in {"GET", "POST"}:
            return _write_error(writer, _BAD_REQUEST, "only the page itself may send this request")
        try:
            await self._forward(request, await self.find(), writer)
        except (CommandError, ApiError) as error:
            self._until = 0.0
            _write_error(writer, _BAD_GATEWAY, describe_failure(error) if isinstance(error, ApiError) else str(error))

    async def _forward(self, request: _Request, debug: DebugApi, writer: asyncio.StreamWriter) -> None:
        call = Call(
            request.method,
            debug.prefix + request.path.removeprefix(self.root),
            body=request.body or None,
            content_type=request.content_type,
            headers=debug.headers,
        )
        async with self._transport.relay(call) as answer:
            if answer.status in _RETRY_STATUSES:
                self._until = 0.0
            kept = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
            _write_head(writer, answer.status, kept | {"Transfer-Encoding": "chunked"})
            with suppress(ApiError):  # the browser sees that the end is missing, and asks again
                async for chunk in answer.chunks:
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    """Read one HTTP request from the connection.

    Raises ValueError, EOFError, OSError or asyncio.LimitOverrunError if the connection sends no complete and valid
    request.
    """
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    length = int(headers.get("content-length", "0"))
    if length > _MOST_BYTES:
        raise ValueError(f"{length} bytes")
    return _Request(method, path, headers.get("content-type", ""), await reader.readexactly(length))


def _write_head(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} ", *(f"{name}: {value}" for name, value in headers.items()), "Connection: close"]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def _write_error(writer: asyncio.StreamWriter, status: int, sentence: str) -> None:
    body = json.dumps({"detail": f"serried page: {sentence}"}).encode()
    _write_head(writer, status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
    writer.write(body)
