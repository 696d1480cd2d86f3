from collections.abc import Sequence

import pytest

from serried.kube.discovery import discover
from serried.kube.errors import ApiError
from serried.kube.wire import Resource, pod_groups
from serried.model.level import FALLBACK, NATIVE, ApiLevel
from serried.testing.apiserver import NATIVE_SERVED, SERVED, FakeApiServer
from serried.testing.faults import calls

GROUPS = pod_groups("scheduling.k8s.io", "v1beta1")


@pytest.mark.parametrize(
    ("served", "listed_only", "expected"),
    [
        pytest.param([*SERVED, *NATIVE_SERVED], [], NATIVE, id="native served"),
        pytest.param(SERVED, [], FALLBACK, id="stock cluster"),
        pytest.param([*SERVED, GROUPS], [], FALLBACK, id="only PodGroups served"),
        pytest.param(SERVED, NATIVE_SERVED, FALLBACK, id="CRDs in the reserved group: listed, but 404"),
    ],
)
async def test_what_is_served_decides(
    served: Sequence[Resource], listed_only: Sequence[Resource], expected: ApiLevel
) -> None:
    async with FakeApiServer(tuple(served)) as server, server.client() as client:
        server.listed_only.update(listed_only)
        assert await discover(client) == expected


@pytest.mark.parametrize("level", [NATIVE, FALLBACK])
async def test_a_forced_level_is_taken_unasked(level: ApiLevel) -> None:
    async with FakeApiServer() as server, server.client() as client:
        assert await discover(client, level.name) == level
        assert server.requests == []


async def test_an_unknown_level_is_refused() -> None:
    async with FakeApiServer() as server, server.client() as client:
        with pytest.raises(ValueError, match="one of auto, native, fallback"):
            await discover(client, "v1beta2")


async def test_a_server_that_cannot_answer_is_not_taken_for_a_stock_cluster() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.refuse(calls(), times=99, status=503)
        with pytest.raises(ApiError):
            await discover(client)


async def test_lack_of_rights_is_not_lack_of_service() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.refuse(calls("GET", "podgroups"), status=403)
        assert await discover(client) == NATIVE
