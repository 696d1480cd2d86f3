"""What the commands read, without a socket: ``/debug`` of an extender in this process."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
from rich.console import Console, RenderableType

from serried.cli.access import DebugApi


class Pages(DebugApi):
    """``/debug`` of an extender in this process."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The document of a page, which has to be there."""
        answer = await self._http.get(f"/debug/{path}", params=dict(params or {}))
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()


def show(parts: Iterable[RenderableType]) -> str:
    """What a person reads."""
    written = io.StringIO()
    console = Console(file=written, width=300)
    for part in parts:
        console.print(part)
    return written.getvalue()
