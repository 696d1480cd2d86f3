from collections.abc import AsyncIterator

import pytest

from serried.kube.wire import PODS
from tests.support.apiserver import FakeApiServer
from tests.support.reflector_harness import pod


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        for name in ("a", "b"):
            server.add(PODS, pod(name))
        yield server


@pytest.fixture(params=["streaming", "paged"])
def either(request: pytest.FixtureRequest, server: FakeApiServer) -> FakeApiServer:
    server.streaming = request.param == "streaming"
    return server
