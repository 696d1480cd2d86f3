"""Writes of uvicorn after its client has hung up: uvloop's transport raises then."""

import asyncio
from typing import cast

import pytest

from serried.ops.server import _WriteGuard


class Transport:
    """A transport that raises after its end, as uvloop's does."""

    def __init__(self) -> None:
        self.closed = False
        self.written = b""

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.written += data

    def abort(self) -> None:
        self.closed = True


@pytest.fixture
def transport() -> Transport:
    return Transport()


def test_everything_is_written_until_then(transport: Transport) -> None:
    _WriteGuard(cast("asyncio.Transport", transport)).write(b"whole")
    assert transport.written == b"whole"


def test_what_comes_later_is_dropped(transport: Transport) -> None:
    patient = _WriteGuard(cast("asyncio.Transport", transport))
    patient.abort()
    patient.write(b"late")
    assert (patient.is_closing(), transport.written) == (True, b"")
