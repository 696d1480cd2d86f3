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
        """Return the document of a page. Fail if the page does not exist."""
        answer = await self._http.get(f"/debug/{path}", params=dict(params or {}))
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()


def render_parts(parts: Iterable[Part]) -> str:
    """Return the text output of these parts, as a command prints it."""
    return "\n".join(lay_out(parts, 300))
