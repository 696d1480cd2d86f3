"""``/debug/``: the page for people, its files, and the stream from which it lives."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from extender.debug.broadcast import MAX_READERS, Broadcast
from serried.callers.guard import read_seconds

_FOLDER = Path(__file__).with_name("page")
_INDEX = "index.html"

_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_SCRIPT = "text/javascript; charset=utf-8"

_POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Nothing on the page comes from elsewhere, and names of objects can never become code."""

_EXAMPLE = """\
data: {"reset":true,"columns":{"nodes":["number","name","place","used","planned","marks"]},"now":1785585600}

data: {"places":[[0,["zone-a","rack-7"]]]}

data: {"nodes":[[0,"node-1",0,62,25,0]]}

data: {"order":[],"head":null,"complete":true}

data: {"nodes":[[0,"node-1",0,87,0,0]],"now":1785585601}

"""

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"example": _EXAMPLE}}},
    503: {"description": f"{MAX_READERS} readers follow already."},
}
"""How the stream stands in the OpenAPI."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    tag: str
    media_type: str


def live_routes(broadcast: Broadcast) -> APIRouter:
    """The routes. The files are read once, now: they are part of the program."""
    files = _read_files()
    router = APIRouter(prefix="/debug", tags=["debug"])

    @router.get("/", include_in_schema=False)
    async def show_page(request: Request) -> Response:
        return _answer(files[_INDEX], request)

    @router.get("/page/{name}", include_in_schema=False)
    async def show_file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, f"the page has no file {name[:100]!r}")
        return _answer(files[name], request)

    @router.get("/stream", response_class=Response, responses=_STREAM)
    async def follow(request: Request) -> Response:
        """The state of `/debug/` as server-sent events: the whole once, in parts, then what changes.

        Each event is a JSON object. `columns` names the columns of the rows, whose first one is their number; a row of
        a known number takes the place of the one before. Rows whose numbers are in `nodesGone` or `gangsGone` are gone.
        Every other field is whole. `reset` comes first, `complete` ends the first state.

        For a reader who has shown a token it ends after `--ops-auth-cache`, with the event `renew`. Whoever asks again
        is let in again if the token is still good.
        """
        if broadcast.readers >= MAX_READERS:
            raise HTTPException(503, f"{MAX_READERS} readers follow already", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = broadcast.follow(read_seconds(request.scope))
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    return router


def _read_files() -> Mapping[str, _File]:
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.is_file()}


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, f'"{hashlib.sha256(body).hexdigest()[:16]}"', _TYPES.get(path.suffix, _SCRIPT))


def _answer(file: _File, request: Request) -> Response:
    headers = {**_POLICY, "ETag": file.tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
