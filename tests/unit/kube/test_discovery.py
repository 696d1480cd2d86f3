from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from serried.api.level import FALLBACK, NATIVE, ApiLevel
from serried.kube import discovery as discovery_room
from serried.kube.discovery import Discovery, stores_pod_group
from serried.kube.errors import ApiError
from serried.kube.wire import POD_TEMPLATES, PRIORITY_CLASSES, Resource, composites, pod_groups, workloads
from tests.support.apiserver import NATIVE_SERVED, SERVED, FakeApiServer
from tests.support.faults import calls
from tests.support.schemas import (
    GROUP,
    V1ALPHA1_KINDS,
    V1ALPHA2_KINDS,
    V1ALPHA3_KINDS,
    V1BETA1_KINDS,
    Kinds,
    change,
)

GROUPS = pod_groups("scheduling.k8s.io", "v1beta1")
V1ALPHA1_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1alpha1")
V1ALPHA2_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1alpha2")
V1ALPHA3_LEVEL = ApiLevel("native", "scheduling.k8s.io", "v1alpha3")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the pause before discovery repeats a request after a 404 to zero."""
    monkeypatch.setattr(discovery_room, "_NOT_FOUND_RETRY_SECONDS", 0.0)


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
        assert await Discovery(client).find() == expected


async def test_the_fallback_can_be_forced_and_nobody_is_asked() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        assert await Discovery(client, "fallback").find() == FALLBACK
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
        assert await Discovery(client, "native").find() == expected


@pytest.mark.parametrize("level", [FALLBACK, V1ALPHA1_LEVEL], ids=lambda level: level.api_version)
async def test_a_pod_template_that_comes_back_whole_shows_that_the_field_is_kept(level: ApiLevel) -> None:
    async with FakeApiServer((*SERVED, POD_TEMPLATES)) as server, server.client() as client:
        assert await stores_pod_group(client, level, "serried-system") is True
        assert server.requests[0].params["dryRun"] == "All"


async def test_an_api_server_that_will_not_say_leaves_it_open() -> None:
    async with FakeApiServer((*SERVED, POD_TEMPLATES)) as server, server.client() as client:
        server.reject(calls("POST"), status=403)
        assert await stores_pod_group(client, FALLBACK, "serried-system") is None


async def test_an_unknown_level_is_refused() -> None:
    async with FakeApiServer() as server, server.client() as client:
        with pytest.raises(ValueError, match="one of auto, native, fallback"):
            await Discovery(client, "v1beta2").find()


async def test_a_server_that_cannot_answer_is_not_taken_for_a_stock_cluster() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.reject(calls(), times=99, status=503)
        with pytest.raises(ApiError):
            await Discovery(client).find()


DISCOVERED = ("/apis/scheduling.k8s.io", "/v1beta1", "/workloads", "/podgroups")
"""The ends of the paths that discovery requests."""


@pytest.mark.parametrize("part", DISCOVERED)
async def test_one_404_of_one_api_server_of_several_says_nothing(part: str) -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        order = server.reject(lambda request: request.path.endswith(part), status=404, reason="NotFound")
        assert await Discovery(client).find() == NATIVE
        assert not order.left


@pytest.mark.parametrize("part", DISCOVERED)
async def test_404_again_says_that_the_api_is_not_served(part: str) -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.reject(lambda request: request.path.endswith(part), times=2, status=404, reason="NotFound")
        assert await Discovery(client).find() == FALLBACK


@pytest.mark.parametrize("part", DISCOVERED)
async def test_a_404_of_a_proxy_is_not_taken_for_a_stock_cluster(part: str) -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.intercept(lambda request: request.path.endswith(part), times=99, status=404)
        with pytest.raises(ApiError, match="404 NoAnswer"):
            await Discovery(client).find()


@pytest.mark.parametrize("page", ["<html>a proxy</html>", "{}", '{"kind":"APIResourceList"}', '{"resources":[]}'])
@pytest.mark.parametrize("part", ["/v1beta1", "/workloads"])
async def test_a_page_of_a_proxy_is_not_taken_for_a_stock_cluster(part: str, page: str) -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.garble(lambda request: request.path.endswith(part), times=99, page=page)
        with pytest.raises(ApiError, match="not an answer of an API server"):
            await Discovery(client).find()


@pytest.mark.parametrize("page", ["<html>a proxy</html>", "{}", '{"template":"x"}', '{"template":{"spec":null}}'])
async def test_a_page_of_a_proxy_does_not_say_what_pods_keep(page: str) -> None:
    async with FakeApiServer((*SERVED, POD_TEMPLATES)) as server, server.client() as client:
        server.garble(calls("POST"), page=page)
        assert await stores_pod_group(client, FALLBACK, "serried-system") is None


async def test_lack_of_rights_is_not_lack_of_service() -> None:
    async with FakeApiServer(SERVED + NATIVE_SERVED) as server, server.client() as client:
        server.reject(calls("GET", "podgroups"), status=403)
        assert await Discovery(client).find() == NATIVE


ODD_KINDS = change(V1BETA1_KINDS, "PodGroup.spec.workloadRef", None)
REFUSAL = (
    "scheduling.k8s.io/v1 has a shape that is not known: compared with v1beta1, PodGroup.spec.workloadRef is missing"
)


@dataclass(frozen=True)
class Next:
    """A cluster of the next minor: which versions it serves, what they look like, what Serried makes of it."""

    versions: Mapping[str, Kinds]
    level: ApiLevel
    refused: tuple[str, ...] = ()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Next({"v1": V1BETA1_KINDS}, ApiLevel("native", GROUP, "v1", like="v1beta1")), id="v1, shaped as v1beta1"
        ),
        pytest.param(
            Next({"v1": V1BETA1_KINDS, "v1beta1": V1BETA1_KINDS}, ApiLevel("native", GROUP, "v1", like="v1beta1")),
            id="the newest of two",
        ),
        pytest.param(
            Next({"v1": ODD_KINDS, "v1beta1": V1BETA1_KINDS}, NATIVE, (REFUSAL,)),
            id="an unknown shape: the next version is taken",
        ),
        pytest.param(Next({"v1": ODD_KINDS}, FALLBACK, (REFUSAL,)), id="only an unknown shape: the fallback"),
        pytest.param(
            Next({"v1beta1": V1ALPHA2_KINDS}, ApiLevel("native", GROUP, "v1beta1", like="v1alpha2")),
            id="a known name with another known shape",
        ),
        pytest.param(
            Next({"v1beta1": change(V1BETA1_KINDS, "PodGroup.spec.workloadRef", None)}, FALLBACK,
                 (REFUSAL.replace("k8s.io/v1 ", "k8s.io/v1beta1 "),)),
            id="a known name with an unknown shape",
        ),
        pytest.param(
            Next({"v2": V1ALPHA1_KINDS}, ApiLevel("native", GROUP, "v2", like="v1alpha1")),
            id="a version whose Workloads contain their groups",
        ),
    ],
)  # fmt: skip
async def test_the_next_version_is_found_by_its_schema(case: Next) -> None:
    served_kinds = [resource for version in case.versions for resource in served(version)]
    async with FakeApiServer((*SERVED, *served_kinds)) as server, server.client() as client:
        server.schemas = dict(case.versions)
        found = await Discovery(client).find()
    assert (found, found.refused) == (case.level, case.refused)


async def test_priority_classes_in_v1_do_not_make_v1_the_version_of_workloads() -> None:
    async with FakeApiServer((*SERVED, *NATIVE_SERVED)) as server, server.client() as client:
        assert PRIORITY_CLASSES in server.served
        assert await Discovery(client).find() == NATIVE


@pytest.mark.parametrize(
    ("versions", "composites_in", "expected"),
    [
        pytest.param(["v1beta1"], [], "v1alpha3", id="not served: the known version is looked for later"),
        pytest.param(["v1beta1", "v1alpha3"], ["v1alpha3"], "v1alpha3", id="1.37"),
        pytest.param(["v1", "v1beta2"], ["v1beta2"], "v1beta2", id="another version than that of PodGroups"),
        pytest.param(["v1beta1", "v2"], ["v1beta1", "v2"], "v2", id="the newest"),
    ],
)
async def test_composite_groups_have_a_version_of_their_own(
    versions: Sequence[str], composites_in: Sequence[str], expected: str
) -> None:
    kinds = [resource for version in versions for resource in served(version)]
    composite = [Resource(GROUP, version, "compositepodgroups") for version in composites_in]
    async with FakeApiServer((*SERVED, *kinds, *composite)) as server, server.client() as client:
        server.schemas = dict.fromkeys([*versions, *composites_in], V1ALPHA3_KINDS)
        found = await Discovery(client).find()
    assert (found.composite_api_version, found.refused) == (f"{GROUP}/{expected}", ())
    assert composites(found).version == expected


async def test_composite_groups_of_an_unknown_shape_are_refused_and_the_rest_works() -> None:
    composite = Resource(GROUP, "v1", "compositepodgroups")
    async with FakeApiServer((*SERVED, *served("v1"), composite)) as server, server.client() as client:
        server.schemas = {"v1": change(V1ALPHA3_KINDS, "CompositePodGroup.spec.workloadRef", None)}
        found = await Discovery(client).find()
    assert (found.api_version, found.composite_api_version) == (f"{GROUP}/v1", f"{GROUP}/v1alpha3")
    assert "compared with v1alpha3, CompositePodGroup.spec.workloadRef is missing" in found.refused[0]


async def test_a_schema_is_read_once_as_long_as_it_stays_the_same() -> None:
    async with FakeApiServer((*SERVED, *served("v1"))) as server, server.client() as client:
        server.schemas = {"v1": V1BETA1_KINDS}
        discovery = Discovery(client)
        found = [await discovery.find() for _ in range(3)]
        documents = server.list_requests(lambda request: request.path == f"/openapi/v3/apis/{GROUP}/v1")
        assert len(documents) == 1

        server.schemas = {"v1": ODD_KINDS}
        assert found == [ApiLevel("native", GROUP, "v1", like="v1beta1")] * 3
        assert await discovery.find() == FALLBACK


@pytest.mark.parametrize("status", [403, 404])
async def test_where_schemas_are_not_shown_known_names_are_taken_and_others_refused(status: int) -> None:
    async with FakeApiServer((*SERVED, *served("v1"), *NATIVE_SERVED)) as server, server.client() as client:
        reason = "NotFound" if status == 404 else ""
        server.reject(lambda request: request.path.startswith("/openapi"), times=99, status=status, reason=reason)
        found = await Discovery(client).find()
    assert found == NATIVE
    assert len(found.refused) == 1
    assert found.refused[0].startswith("scheduling.k8s.io/v1 is unknown, and Serried cannot read its schema: ")


async def test_a_version_without_a_schema_is_taken_by_its_name_or_refused() -> None:
    async with FakeApiServer((*SERVED, *served("v1"), *NATIVE_SERVED)) as server, server.client() as client:
        server.schemas = {}
        found = await Discovery(client).find()
    assert (found, len(found.refused)) == (NATIVE, 1)


async def test_while_schemas_cannot_be_had_an_unknown_name_is_neither_taken_nor_refused() -> None:
    async with FakeApiServer((*SERVED, *served("v1"), *NATIVE_SERVED)) as server, server.client() as client:
        server.reject(lambda request: request.path.startswith("/openapi"), times=99, status=503)
        with pytest.raises(ApiError):
            await Discovery(client).find()
        server.served.difference_update(served("v1"))
        assert await Discovery(client).find() == NATIVE


@pytest.mark.parametrize("status", [403, 404, 503])
async def test_a_version_that_was_refused_by_its_schema_stays_refused_while_that_cannot_be_read(status: int) -> None:
    async with FakeApiServer((*SERVED, *NATIVE_SERVED)) as server, server.client() as client:
        server.schemas = {"v1beta1": ODD_KINDS}
        discovery = Discovery(client)
        before = await discovery.find()
        reason = "NotFound" if status == 404 else ""
        server.reject(lambda request: request.path.startswith("/openapi"), times=99, status=status, reason=reason)
        after = await discovery.find()
    assert (before, after) == (FALLBACK, FALLBACK)
    assert after.refused == before.refused


@pytest.mark.parametrize("path", ["/openapi/v3", f"/openapi/v3/apis/{GROUP}/v1", f"/apis/{GROUP}"])
@pytest.mark.parametrize("page", ["<html>a proxy</html>", "{}", '{"paths":{}}', '{"components":{}}'])
async def test_a_page_of_a_proxy_is_not_taken_for_a_schema(path: str, page: str) -> None:
    async with FakeApiServer((*SERVED, *served("v1"))) as server, server.client() as client:
        server.schemas = {"v1": V1BETA1_KINDS}
        server.garble(lambda request: request.path == path, times=99, page=page)
        with pytest.raises(ApiError, match="not an answer of an API server"):
            await Discovery(client).find()
