from typing import Any

import pytest

from serried.api.level import find_schema, read_versions


def group(*versions: str, preferred: str = "") -> dict[str, Any]:
    listed = [{"groupVersion": f"scheduling.k8s.io/{each}", "version": each} for each in versions]
    found: dict[str, Any] = {"kind": "APIGroup", "name": "scheduling.k8s.io", "versions": listed}
    return found | ({"preferredVersion": {"version": preferred}} if preferred else {})


@pytest.mark.parametrize(
    ("listed", "preferred", "order"),
    [
        pytest.param(["v1alpha3", "v1beta1", "v1"], "", ["v1", "v1beta1", "v1alpha3"], id="stable, beta, alpha"),
        pytest.param(["v1", "v2alpha1", "v2beta1", "v2"], "", ["v2", "v1", "v2beta1", "v2alpha1"], id="majors"),
        pytest.param(["v1beta9", "v1beta10"], "", ["v1beta10", "v1beta9"], id="by number, not by the alphabet"),
        pytest.param(["v1", "v2"], "v1", ["v1", "v2"], id="what the server prefers is first"),
        pytest.param(["experiment", "v1alpha1", "a1"], "", ["v1alpha1", "a1", "experiment"], id="no versions of ours"),
        pytest.param(["v1"], "v7", ["v1"], id="a preferred one that is not served"),
        pytest.param([], "", [], id="none"),
    ],
)
def test_versions_are_preferred_as_kubernetes_orders_them(listed: list[str], preferred: str, order: list[str]) -> None:
    assert read_versions(group(*listed, preferred=preferred)) == order


@pytest.mark.parametrize("document", [{}, {"kind": "Status"}, {"kind": "APIGroup", "versions": {}}])
def test_another_document_is_no_group_without_versions(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"APIGroup|versions"):
        read_versions(document)


def test_the_place_of_a_schema_is_in_the_index() -> None:
    index = {"paths": {"apis/scheduling.k8s.io/v1": {"serverRelativeURL": "/openapi/v3/apis/x?hash=1"}}}
    assert find_schema(index, "scheduling.k8s.io/v1") == "/openapi/v3/apis/x?hash=1"
    assert find_schema(index, "scheduling.k8s.io/v2") is None


@pytest.mark.parametrize("document", [{}, {"paths": {}}, {"paths": []}])
def test_another_document_is_no_index_without_schemas(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"index|paths"):
        find_schema(document, "scheduling.k8s.io/v1")
