from typing import Any

import pytest

from serried.api.level import (
    V1ALPHA1,
    V1ALPHA2,
    V1ALPHA3,
    V1BETA1,
    describe_difference,
    explain_unusable_composites,
    find_shape,
    read_schemas,
)
from tests.support.schemas import (
    KINDS,
    V1ALPHA1_KINDS,
    V1ALPHA2_KINDS,
    V1ALPHA3_KINDS,
    V1BETA1_KINDS,
    Kinds,
    change,
    openapi,
)

POLICY = {"basic": {}, "gang": {"minCount!": "integer"}}


@pytest.mark.parametrize("version", KINDS)
def test_each_known_version_has_the_shape_of_its_name(version: str) -> None:
    assert find_shape(read_schemas(openapi(version, KINDS[version])), version) == version


@pytest.mark.parametrize(
    ("kinds", "like"),
    [
        pytest.param(V1BETA1_KINDS, V1BETA1, id="v1beta1"),
        pytest.param(V1ALPHA3_KINDS, V1BETA1, id="v1alpha3, which has the fields of v1beta1"),
        pytest.param(V1ALPHA2_KINDS, V1ALPHA2, id="v1alpha2"),
        pytest.param(V1ALPHA1_KINDS, V1ALPHA1, id="v1alpha1"),
    ],
)
def test_the_next_version_is_known_by_what_it_is_like(kinds: Kinds, like: str) -> None:
    assert find_shape(read_schemas(openapi("v1", kinds)), "v1") == like


def test_a_known_name_does_not_hide_another_shape() -> None:
    assert find_shape(read_schemas(openapi(V1BETA1, V1ALPHA2_KINDS)), V1BETA1) == V1ALPHA2


@pytest.mark.parametrize(
    ("path", "field"),
    [
        pytest.param("PodGroup.spec.preemptionPolicy", None, id="a field behind a gate has not come along"),
        pytest.param("PodGroup.spec.schedulingConstraints", None, id="nor has the topology"),
        pytest.param("Workload.spec.podGroupTemplates.disruptionMode", None, id="nor has the disruption mode"),
        pytest.param("PodGroup.spec.tolerance", {"level": "string"}, id="a field that nobody has to write"),
        pytest.param("PodGroup.status.phase", "string", id="more status"),
        pytest.param("PodGroup.spec.schedulingPolicy.elastic", {"min": "integer"}, id="a third policy"),
    ],
)
def test_a_difference_that_does_not_matter_does_not_matter(path: str, field: Any) -> None:
    assert find_shape(read_schemas(openapi("v1", change(V1BETA1_KINDS, path, field))), "v1") == V1BETA1


@pytest.mark.parametrize(
    ("path", "field", "said"),
    [
        pytest.param("PodGroup", None, "PodGroup has no schema", id="no PodGroups"),
        pytest.param(
            "PodGroup.spec.schedulingPolicy.gang.minCount",
            None,
            "PodGroup.spec.schedulingPolicy.gang.minCount is missing",
            id="a field that is gone",
        ),
        pytest.param(
            "PodGroup.spec.schedulingPolicy.gang.minCount",
            "string",
            "PodGroup.spec.schedulingPolicy.gang.minCount is no integer",
            id="another type",
        ),
        pytest.param(
            "PodGroup.spec.disruptionMode",
            "string",
            "PodGroup.spec.disruptionMode is no object",
            id="another type of a field that may be missing",
        ),
        pytest.param(
            "Workload.spec.podGroupTemplates",
            {"name!": "string", "schedulingPolicy!": POLICY},
            "Workload.spec.podGroupTemplates is no array",
            id="one where there was a list",
        ),
        pytest.param(
            "Workload.spec.podGroupTemplates.schedulingPolicy",
            None,
            "Workload.spec.podGroupTemplates[].schedulingPolicy is missing",
            id="a field of each in a list",
        ),
        pytest.param(
            "PodGroup.spec.queueName!",
            "string",
            "PodGroup.spec.queueName is required",
            id="a field that must be written",
        ),
        pytest.param(
            "PodGroup.status.conditions.severity!",
            "string",
            "PodGroup.status.conditions[].severity is required",
            id="conditions that ours would not be",
        ),
    ],
)
def test_an_unknown_shape_is_refused_with_a_sentence(path: str, field: Any, said: str) -> None:
    schemas = read_schemas(openapi("v1", change(V1BETA1_KINDS, path, field)))
    assert find_shape(schemas, "v1") is None
    sentence = f"scheduling.k8s.io/v1 has a shape that is not known: compared with v1beta1, {said}"
    assert describe_difference(schemas, "v1") == sentence


def test_of_many_differences_the_first_is_told_and_how_many_there_are() -> None:
    kinds = change(change(V1ALPHA2_KINDS, "PodGroup.spec.priority", "string"), "Workload.spec.controllerRef", None)
    sentence = describe_difference(read_schemas(openapi(V1ALPHA2, kinds)), V1ALPHA2)
    assert "compared with v1alpha2, Workload.spec.controllerRef is missing (one of 2 differences)" in sentence


def test_composite_groups_are_judged_by_themselves() -> None:
    schemas = read_schemas(openapi(V1ALPHA3, V1ALPHA3_KINDS))
    assert not explain_unusable_composites(schemas, V1ALPHA3)

    changed = change(V1ALPHA3_KINDS, "CompositePodGroup.spec.schedulingPolicy.gang.minGroupCount", None)
    schemas = read_schemas(openapi("v1beta2", changed))
    assert find_shape(schemas, "v1beta2") == V1BETA1
    said = "CompositePodGroup.spec.schedulingPolicy.gang.minGroupCount is missing"
    assert explain_unusable_composites(schemas, "v1beta2").endswith(f"compared with v1alpha3, {said}")


@pytest.mark.parametrize("document", [{}, {"openapi": "3.0.0"}, {"components": []}, {"components": {"schemas": {}}}])
def test_another_document_is_no_schema(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"schemas|components"):
        read_schemas(document)


def test_schemas_that_refer_to_one_another_in_a_ring_are_an_unknown_shape() -> None:
    document = openapi("v1", V1BETA1_KINDS)
    schemas = document["components"]["schemas"]
    place = "io.k8s.api.scheduling.PodGroup.spec"
    schemas[place] |= {"allOf": [{"$ref": f"#/components/schemas/{place}"}]}
    assert find_shape(schemas, "v1") is None
