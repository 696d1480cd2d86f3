"""``serried page``: the page at ``/debug/`` in a browser, without a port-forward.

A listener on this machine passes requests on to the extender that leads, as all commands reach it: through the API
server, with the user's credentials and a token for the extender. The path begins with a secret: others on this machine
do not know it, and neither do web pages elsewhere that the browser may have open.
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

from cli.access import DebugApi, find_extender, tell_failure
from cli.output import CommandError, ExitCode, note
from cli.target import Target, find_credentials, reaching
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

_FOUND_SECONDS = 60.0
"""For how long the same extender is asked: another one may lead by then. A token for it is good for ten minutes."""

_MOST_BYTES = 2**20
"""How much a request may bring: the page sends manifests of gangs that do not exist."""

_HEADERS = (
    "cache-control",
    "content-security-policy",
    "content-type",
    "referrer-policy",
    "retry-after",
    "x-content-type-options",
    "x-left-off",
)
"""The headers of an answer that are passed on."""

_GONE = {401, 404, 502, 503, 504}
"""After an answer of these the extender is looked for anew: its pod may be gone, or its token."""

_BAD_REQUEST, _NOT_FOUND, _BAD_GATEWAY = 400, 404, 502


class _Request(NamedTuple):
    """A request of the browser."""

    method: str
    path: str
    """With its query."""
    content_type: str
    body: bytes


Port = Annotated[
    int,
    typer.Option(
        min=0, max=65535, metavar="NUMBER", show_default=False, help="The port on this machine. Default: a free one."
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address, and open no browser.")]


@reaching
def show_page(port: Port = 0, *, no_browser: NoBrowser = False, target: Target) -> None:
    """Open the page with the map of nodes, the gangs and the decisions, until you press Ctrl-C.

    It is served on this machine alone, at an address that nobody can guess. No port-forward is needed.
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(target, port, browser=not no_browser and _has_screen()))


def _has_screen() -> bool:
    """Return whether a browser would have a window: one without would take the terminal."""
    return sys.platform in {"darwin", "win32"} or not {"DISPLAY", "WAYLAND_DISPLAY"}.isdisjoint(os.environ)


async def _serve(target: Target, port: int, *, browser: bool) -> None:
    async with serving(target, port) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        note("press Ctrl-C to end it")
        with TemporaryDirectory(prefix="serried-page-") as folder:  # of this user alone
            if browser:
                await asyncio.to_thread(_open, url, Path(folder, "page.html"))
            await asyncio.sleep(math.inf)  # until Ctrl-C


def _open(url: str, file: Path) -> None:
    """Open the address by a file that leads to it: the arguments of processes are seen by all on this machine."""
    file.touch(mode=0o600)
    file.write_text(f'<meta http-equiv="refresh" content="0;url={url}">\n')
    webbrowser.open(file.as_uri())


@asynccontextmanager
async def serving(target: Target, port: int = 0) -> AsyncIterator[str]:
    """The address of the page, for as long as the body runs; raises CommandError if no extender answers."""
    from cli.transport import HttpxTransport, open_client  # noqa: PLC0415 - the help needs no HTTP

    credentials = find_credentials(target)
    transport = HttpxTransport(credentials)
    async with open_client(credentials) as client:
        relay = Relay(transport, lambda: find_extender(client, target, credentials))
        await (await relay.find()).get("selfcheck")
        try:
            server = await asyncio.start_server(relay.take, "127.0.0.1", port)
        except OSError as error:
            raise CommandError(ExitCode.USAGE, f"--port {port}: {os.strerror(error.errno or 0)}") from error
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{relay.root}/debug/"
        finally:
            server.close()
            await transport.close()


class Relay:
    """Passes requests on to the extender that leads; each connection brings one."""

    def __init__(self, transport: "HttpxTransport", look: Callable[[], Awaitable[DebugApi]]) -> None:
        self.root = f"/{secrets.token_urlsafe(16)}"
        """What the path of every request begins with."""

        self._transport = transport
        self._look = look
        """Looks for the extender that leads; raises CommandError."""
        self._debug: DebugApi | None = None
        self._until = 0.0
        """The monotonic time from which on the extender is looked for anew."""
        self._looking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self) -> DebugApi:
        """Return the extender that leads; raises CommandError."""
        async with self._looking:
            if self._debug is None or time.monotonic() >= self._until:
                self._debug = await self._look()
                self._until = time.monotonic() + _FOUND_SECONDS
            return self._debug

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one connection, for as long as the browser reads."""
        # A server that makes the task itself prints a traceback for each connection that Ctrl-C ends.
        task = asyncio.create_task(self._take(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What is no request, or is cut off, gets no answer.
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
            return _refuse(writer, _NOT_FOUND, "this is not the address that serried page has printed")
        # Nothing but the pages of the extender, whatever a script asks for: the user may do more at the API server.
        if ".." in unquote(request.path.partition("?")[0]) or request.method not in {"GET", "POST"}:
            return _refuse(writer, _BAD_REQUEST, "this is no request of the page")
        try:
            await self._pass_on(request, await self.find(), writer)
        except (CommandError, ApiError) as error:
            self._until = 0.0
            _refuse(writer, _BAD_GATEWAY, tell_failure(error) if isinstance(error, ApiError) else str(error))

    async def _pass_on(self, request: _Request, debug: DebugApi, writer: asyncio.StreamWriter) -> None:
        call = Call(
            request.method,
            debug.prefix + request.path.removeprefix(self.root),
            body=request.body or None,
            content_type=request.content_type,
            headers=debug.headers,
        )
        async with self._transport.relay(call) as answer:
            if answer.status in _GONE:
                self._until = 0.0
            kept = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
            _write_head(writer, answer.status, kept | {"Transfer-Encoding": "chunked"})
            with suppress(ApiError):  # the browser misses the end, and comes again
                async for chunk in answer.chunks:
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    """Return the next request; raises ValueError for anything else."""
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


def _refuse(writer: asyncio.StreamWriter, status: int, sentence: str) -> None:
    body = json.dumps({"detail": f"serried page: {sentence}"}).encode()
    _write_head(writer, status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
    writer.write(body)
