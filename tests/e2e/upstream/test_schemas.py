"""The schemas that Kubernetes publishes of itself, against the shapes that Serried knows."""

import json
from typing import Any

import pytest

from serried.api.level import explain_unusable_composites, find_shape, read_schemas
from tests.support.go_modules import locate

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def read_document(kubernetes: str, version: str) -> dict[str, Any]:
    """The document of one version of the group in the sources of a release."""
    folder = locate("k8s.io/kubernetes", kubernetes) / "api" / "openapi-spec" / "v3"
    found: dict[str, Any] = json.loads((folder / f"apis__scheduling.k8s.io__{version}_openapi.json").read_text())
    return found


@pytest.mark.parametrize(
    ("kubernetes", "version"),
    [("v1.37.1", "v1beta1"), ("v1.37.1", "v1alpha3"), ("v1.36.4", "v1alpha2"), ("v1.35.4", "v1alpha1")],
)
def test_each_version_has_the_shape_of_its_name(kubernetes: str, version: str) -> None:
    assert find_shape(read_schemas(read_document(kubernetes, version)), version) == version


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3"])
def test_what_1_37_serves_would_be_understood_as_v1(version: str) -> None:
    text = json.dumps(read_document("v1.37.1", version)).replace(version, "v1")
    assert find_shape(read_schemas(json.loads(text)), "v1") == "v1beta1"


def test_composite_groups_are_in_v1alpha3_alone() -> None:
    assert not explain_unusable_composites(read_schemas(read_document("v1.37.1", "v1alpha3")), "v1alpha3")
    assert "no schema" in explain_unusable_composites(read_schemas(read_document("v1.37.1", "v1beta1")), "v1beta1")


def test_priority_classes_alone_are_no_shape() -> None:
    assert find_shape(read_schemas(read_document("v1.37.1", "v1")), "v1") is None
