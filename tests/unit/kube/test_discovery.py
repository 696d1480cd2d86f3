from collections.abc import Sequence

import pytest

from serried.kube.discovery import discover, keeps_group
from serried.kube.errors import ApiError
from serried.kube.wire import POD_TEMPLATES, Resource, pod_groups, workloads
from serried.model.level import FALLBACK, NATIVE, ApiLevel
from tests.support.apiserver import NATIVE_SERVED, SERVED, FakeApiServer
from tests.support.faults import calls

GROUPS = pod_groups("scheduling.k8s.io", "v1beta1")
V1ALPHA1_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1alpha1")
V1ALPHA2_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1alpha2")
V1ALPHA3_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1alpha3")


def served(version: str) -> tuple[Resource, Resource]:
    """Both kinds in one version of the native group."""
    return pod_groups("scheduling.k8s.io", version), workloads("scheduling.k8s.io", version)


@pytest.mark.parametrize(
    ("served", "listed_only", "expected"),
    [
        pytest.param([*SERVED, *NATIVE_SERVED], [], NATIVE, id="native served"),
        pytest.param(SERVED, [], FALLBACK, id="stock cluster"),
        pytest.param([*SERVED, GROUPS], [], FALLBACK, id="only PodGroups served"),
        pytest.param(SERVED, NATIVE_SERVED, FALLBACK, id="CRDs in the reserved group: listed, but 404"),
        pytest.param([*SERVED, served("v1alpha1")[1]], [], V1ALPHA1_LEVEL, id="1.35: it has no PodGroups"),
        pytest.param([*SERVED, *served("v1alpha2")], [], V1ALPHA2_LEVEL, id="1.36"),
        pytest.param([*SERVED, *served("v1alpha3")], [], V1ALPHA3_LEVEL, id="1.37 with the alpha version only"),
        pytest.param([*SERVED, *NATIVE_SERVED, *served("v1alpha3")], [], NATIVE, id="1.37 with both versions"),
    ],
)
async def test_what_is_served_decides(
    served: Sequence[Resource], listed_only: Sequence[Resource], expected: ApiLevel
) -> None:
    async with FakeApiServer(tuple(served)) as server, server.client() as client:
        server.listed_only.update(listed_only)
        assert await discover(client) == expected


async def test_the_fallback_can_be_forced_and_nobody_is_asked() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        assert await discover(client, "fallback") == FALLBACK
        assert server.requests == []


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        pytest.param(SERVED, NATIVE, id="not served: the newest version is waited for"),
        pytest.param([*SERVED, *served("v1alpha2")], V1ALPHA2_LEVEL, id="the version that is served"),
    ],
)
async def test_the_native_level_can_be_forced(served: Sequence[Resource], expected: ApiLevel) -> None:
    async with FakeApiServer(tuple(served)) as server, server.client() as client:
        assert await discover(client, "native") == expected


@pytest.mark.parametrize("level", [FALLBACK, V1ALPHA1_LEVEL], ids=lambda level: level.api_version)
async def test_a_pod_template_that_comes_back_whole_shows_that_the_field_is_kept(level: ApiLevel) -> None:
    async with FakeApiServer((*SERVED, POD_TEMPLATES)) as server, server.client() as client:
        assert await keeps_group(client, level, "serried-system") is True
        assert server.requests[0].params["dryRun"] == "All"


async def test_an_api_server_that_will_not_say_leaves_it_open() -> None:
    async with FakeApiServer((*SERVED, POD_TEMPLATES)) as server, server.client() as client:
        server.refuse(calls("POST"), status=403)
        assert await keeps_group(client, FALLBACK, "serried-system") is None


async def test_an_unknown_level_is_refused() -> None:
    async with FakeApiServer() as server, server.client() as client:
        with pytest.raises(ValueError, match="one of auto, native, fallback"):
            await discover(client, "v1beta2")


async def test_a_server_that_cannot_answer_is_not_taken_for_a_stock_cluster() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.refuse(calls(), times=99, status=503)
        with pytest.raises(ApiError):
            await discover(client)


@pytest.mark.parametrize("page", ["<html>a proxy</html>", "{}", '{"kind":"APIResourceList"}', '{"resources":[]}'])
@pytest.mark.parametrize("part", ["/v1beta1", "/workloads"])
async def test_a_page_of_a_proxy_is_not_taken_for_a_stock_cluster(part: str, page: str) -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.garble(lambda request: request.path.endswith(part), times=99, page=page)
        with pytest.raises(ApiError, match="not an answer of an API server"):
            await discover(client)


@pytest.mark.parametrize("page", ["<html>a proxy</html>", "{}", '{"template":"x"}', '{"template":{"spec":null}}'])
async def test_a_page_of_a_proxy_does_not_say_what_pods_keep(page: str) -> None:
    async with FakeApiServer((*SERVED, POD_TEMPLATES)) as server, server.client() as client:
        server.garble(calls("POST"), page=page)
        assert await keeps_group(client, FALLBACK, "serried-system") is None


async def test_lack_of_rights_is_not_lack_of_service() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.refuse(calls("GET", "podgroups"), status=403)
        assert await discover(client) == NATIVE
