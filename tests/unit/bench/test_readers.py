"""The readers of the benchmark come as readers of the product do: through the guard, with a token, also by TLS."""

import asyncio

import pytest
from fastapi import FastAPI

from bench.readers import CASES, Case, Credential, Scheme, connect, fetch_status, serving

PAGE = "/debug/nodes?limit=2"


def make_app() -> FastAPI:
    app = FastAPI()
    for path in ("/debug/nodes", "/debug/secret"):
        app.get(path)(lambda: "answered")
    return app


async def ask_once(scheme: Scheme, path: str, shown: Credential) -> int:
    """The status of what one reader is answered."""

    def read(port: int) -> int:
        connection = connect(port, scheme)
        try:
            return fetch_status(connection, path, shown)
        finally:
            connection.close()

    async with serving(make_app(), Case((PAGE,), scheme)) as port:
        return await asyncio.to_thread(read, port)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("path", "shown", "status"),
    [
        pytest.param(PAGE, "good", 200, id="a reader"),
        pytest.param(PAGE, "invented", 401, id="somebody with a token of nobody"),
        pytest.param(PAGE, "none", 401, id="somebody without one"),
        pytest.param("/debug/secret", "good", 403, id="a reader of what the case does not name"),
    ],
)
async def test_readers_pass_the_guard_and_nobody_else_does(
    scheme: Scheme, path: str, shown: Credential, status: int
) -> None:
    assert await ask_once(scheme, path, shown) == status


def test_one_case_is_by_tls_and_the_same_without_it() -> None:
    by_tls = [case for case in CASES.values() if case.scheme == "https"]
    plain = [case.paths for case in CASES.values() if case.scheme == "http"]
    assert len(by_tls) == 1
    assert by_tls[0].paths in plain
