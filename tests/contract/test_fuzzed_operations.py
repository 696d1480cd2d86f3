"""The operations listener under bytes that are hardly HTTP: before the guard, behind it, and on the pages.

Whatever comes, the answers are whole or the connection ends, others are answered meanwhile, no error is logged, and the
state is as it was.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serried.ops.access import OPEN_PATHS, Guard, Reviews, TokenDemand
from serried.ops.metrics import ExtenderMetrics
from serried.ops.server import Server, make_server, ops_routes
from serried.ops.slices import Pace, Paced
from tests.support.access_reviews import FakeReviews
from tests.support.debug_stage import DebugStage
from tests.support.logged_errors import collect_errors
from tests.support.malformed_http import RawConnection, repeat_some, requests, streams

TOKEN = "a-good-token"
READER = "reader"

PAGES = ("/metrics", "/debug/queue", "/debug/groups/default/g", "/debug/whatif", "/debug/cache/diff", "/debug/stream")
OTHERS = (
    *("/livez", "/readyz", "/debug/", "/debug/nothing", "/debug/groups/%2e%2e/%00"),
    *("//livez", "*", "/livez?x#y", "/"),
)

STATUSES = {100, 200, 307, 400, 401, 403, 404, 405, 413, 414, 422, 429, 431, 503}
"""The statuses that may be answered: no 500, which is a fault of Serried."""


class Operations(DebugStage):
    """The pages on a socket, behind their guard, which asks everybody for a token."""

    async def _open(self) -> None:
        await super()._open()
        self.app.include_router(ops_routes(dict, ExtenderMetrics().render))
        fake_reviews = FakeReviews()
        fake_reviews.users[TOKEN] = READER
        fake_reviews.grants |= {(READER, verb, path) for verb in ("get", "post") for path in (*PAGES, *OTHERS)}
        pace = Pace()
        guard = Guard(self.app, TokenDemand.ALWAYS, Reviews(fake_reviews.client(), 30.0), pace.throttle)
        self.server: Server = make_server(Paced(guard, pace, OPEN_PATHS), "127.0.0.1", 0)
        serving = asyncio.create_task(self.server.serve())
        while not self.server.started:  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.001)
        self.port = int(self.server.servers[0].sockets[0].getsockname()[1])
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20.0, trust_env=False)

        async def end() -> None:
            await self.http.aclose()
            self.server.should_exit = True
            await serving

        self._left.push_async_callback(end)


@pytest.fixture(scope="module")
def operations() -> Iterator[Operations]:
    made = Operations()
    yield made
    made.close()


ASKED = st.tuples(
    st.sampled_from([b"GET", b"GET", b"POST"]),
    st.sampled_from([path.encode() for path in (*PAGES, *OTHERS)]),
    st.sampled_from([b"", b"{", b"[]", b"\x00" * 40, b"kind: Job\nmetadata: {name: j}"]),
)
SHOWN = (
    f"Authorization: Bearer {TOKEN}".encode(),
    f"X-Serried-Token: {TOKEN}".encode(),
    b"Authorization: Bearer invented",
    b"Authorization: \xff",
    b"X-Forwarded-For: 127.0.0.1",
)

GOOD = f"GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
BAD = GOOD.replace(TOKEN.encode(), b"invented")
"""A request that the guard refuses. Of two hundred random requests hardly one is let in, and some have no refusal."""


def list_statuses(heard: bytes) -> Iterator[int]:
    """Return the statuses of the answers on a connection. Only the last may be cut: then the client has hung up."""
    while heard:
        head, found, heard = heard.partition(b"\r\n\r\n")
        line = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        assert line, head
        yield int(line[1])
        if not found:
            return
        if length := re.search(rb"(?i)content-length: (\d+)", head):
            heard = heard[int(length[1]) :]
        elif b"chunked" in head.lower():
            heard = skip_chunks(heard)
        else:
            heard = b""  # the end of the connection is that of the answer


def skip_chunks(heard: bytes) -> bytes:
    """Return the bytes that follow an answer in chunks."""
    while heard:
        size, _, heard = heard.partition(b"\r\n")
        assert re.fullmatch(rb"[0-9a-f]+", size), size
        heard = heard[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            break
    return heard


@pytest.mark.parametrize("examples", [80, pytest.param(2_000, marks=pytest.mark.full)])
def test_any_bytes_get_whole_answers_or_an_end_and_others_are_served_meanwhile(
    operations: Operations, examples: int
) -> None:
    seen: set[int] = set()

    async def talk(pieces: list[bytes]) -> None:
        line = RawConnection()
        await line.send(operations.port, pieces)
        other = await operations.http.get("/debug/queue", headers={"Authorization": f"Bearer {TOKEN}"})
        assert other.status_code == 200
        seen.update(list_statuses(await line.read_all()))

    @settings(max_examples=examples)
    @given(pieces=repeat_some(streams(requests(ASKED, *SHOWN))))
    @example(pieces=[GOOD])
    @example(pieces=[BAD])
    def fuzz(pieces: list[bytes]) -> None:
        operations.run(talk(pieces))

    with collect_errors() as errors:
        fuzz()
    assert errors == []
    assert seen <= STATUSES
    # The guard has refused, and has let somebody in.
    assert seen >= {200, 400, 401}
    operations.extender.assert_untouched()


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_reached_behind_the_guard(operations: Operations, path: str) -> None:
    async def ask(token: str) -> int:
        method = "POST" if path == "/debug/whatif" else "GET"
        headers: dict[str, Any] = {"Authorization": f"Bearer {token}"}
        async with operations.http.stream(method, path, headers=headers) as answer:
            return answer.status_code

    async def story() -> None:
        assert await ask("invented") == 401
        assert await ask(TOKEN) in {200, 400}

    operations.run(story())
