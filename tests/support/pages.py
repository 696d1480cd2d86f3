"""Serve ``/debug`` of an extender in this process to the commands, without a socket."""

from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from cli.access import DebugApi
from cli.output import Part, lay_out


class Pages(DebugApi):
    """``/debug`` of an extender in this process."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.pod = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The document of a page, which has to be there."""
        answer = await self._http.get(f"/debug/{path}", params=dict(params or {}))
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()


def show(parts: Iterable[Part]) -> str:
    """The text output."""
    return "\n".join(lay_out(parts, 300))
