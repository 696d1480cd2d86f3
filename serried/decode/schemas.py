"""Which known shape a version of ``scheduling.k8s.io`` has, by the schema that the API server publishes (OpenAPI v3).

A shape is what Serried reads and writes of Workloads and PodGroups: the fields and their types. Descriptions and limits
may differ, and so may fields that it neither reads nor writes, unless the server requires them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from serried.decode.fields import Raw, read_map, read_objects, read_texts
from serried.model.level import NATIVE_GROUP, V1ALPHA1, V1ALPHA2, V1ALPHA3, V1BETA1

_MOST_REFERENCES = 8
"""How many schemas may refer to one another before a type is found."""


@dataclass(frozen=True, slots=True)
class _Field:
    type: str
    """As OpenAPI names it."""

    inner: Mapping[str, "_Field"] = field(default_factory=lambda: MappingProxyType({}))
    """The fields of the object, or of each object in the list."""

    optional: bool = False
    """Whether a version may lack it: what is behind a gate need not come into every version."""


def _object(**inner: _Field) -> _Field:
    return _Field("object", inner)


def _list(**inner: _Field) -> _Field:
    return _Field("array", inner)


def _gated(**fields: _Field) -> dict[str, _Field]:
    return {name: replace(each, optional=True) for name, each in fields.items()}


_TEXT = _Field("string")
_NUMBER = _Field("integer")
_UNION = _object(single=_object(), all=_object())
_CLAIMS = _list(name=_TEXT, resourceClaimName=_TEXT, resourceClaimTemplateName=_TEXT)
_CONSTRAINTS = _object(topology=_list(key=_TEXT))
_CONTROLLER = _object(apiGroup=_TEXT, kind=_TEXT, name=_TEXT)
_STATUS = _object(
    conditions=_list(
        type=_TEXT, status=_TEXT, reason=_TEXT, message=_TEXT, lastTransitionTime=_TEXT, observedGeneration=_NUMBER
    )
)


def _policy(count: str) -> _Field:
    return _object(basic=_object(), gang=_object(**{count: _NUMBER}))


def _scheduling(policy: _Field, disruption: _Field) -> dict[str, _Field]:
    """What groups, and the templates from which they are made, have in common."""
    return {
        "schedulingPolicy": policy,
        **_gated(
            schedulingConstraints=_CONSTRAINTS, disruptionMode=disruption, priorityClassName=_TEXT, priority=_NUMBER
        ),
    }


_CLAIMING = _gated(resourceClaims=_CLAIMS)
_PREEMPTING = _gated(preemptionPolicy=_TEXT)
_REFERENCE = _object(workloadName=_TEXT, templateName=_TEXT)
_OLDER_REFERENCE = _object(workload=_object(workloadName=_TEXT, podGroupTemplateName=_TEXT))
_GROUP = _scheduling(_policy("minCount"), _UNION) | _CLAIMING | _PREEMPTING
_OLDER_GROUP = _scheduling(_policy("minCount"), _TEXT) | _CLAIMING
_PARENT = _gated(parentCompositePodGroupName=_TEXT)

_SHAPES: dict[str, dict[str, _Field]] = {
    V1BETA1: {
        "Workload": _object(spec=_object(controllerRef=_CONTROLLER, podGroupTemplates=_list(name=_TEXT, **_GROUP))),
        "PodGroup": _object(spec=_object(workloadRef=_REFERENCE, **_GROUP, **_PARENT), status=_STATUS),
    },
    V1ALPHA2: {
        "Workload": _object(
            spec=_object(controllerRef=_CONTROLLER, podGroupTemplates=_list(name=_TEXT, **_OLDER_GROUP))
        ),
        "PodGroup": _object(spec=_object(podGroupTemplateRef=_OLDER_REFERENCE, **_OLDER_GROUP), status=_STATUS),
    },
    V1ALPHA1: {
        "Workload": _object(
            spec=_object(controllerRef=_CONTROLLER, podGroups=_list(name=_TEXT, policy=_policy("minCount")))
        ),
    },
}
"""By the version that has had the shape first; what a newer version is like is looked for in this order."""

_COMPOSITE_SHAPE = {
    "CompositePodGroup": _object(
        spec=_object(workloadRef=_REFERENCE, **_scheduling(_policy("minGroupCount"), _UNION), **_PREEMPTING, **_PARENT),
        status=_STATUS,
    )
}

_SAME_SHAPE = {V1ALPHA3: V1BETA1}

_OUR_OWN = frozenset({"apiVersion", "kind", "metadata"})
"""What every object has."""


def read_schemas(document: Raw) -> Raw:
    """The schemas of a document of OpenAPI v3, by name. Raises ValueError for any other document."""
    schemas = read_map(read_map(document, "components"), "schemas")
    if not schemas:
        raise ValueError(f"no schemas: {str(document)[:80]}")
    return schemas


def find_shape(schemas: Raw, version: str) -> str | None:
    """The known version whose shape this version has, its own name if it is known; None for an unknown shape.

    Here and below, raises ValueError for schemas that are none.
    """
    known = _SAME_SHAPE.get(version, version)
    order = sorted(_SHAPES, key=lambda shape: shape != known)
    found = next((each for each in order if not any(_differences(schemas, version, _SHAPES[each]))), None)
    return version if found == known else found


def describe_difference(schemas: Raw, version: str) -> str:
    """Why this version has no known shape, a sentence."""
    known = _SAME_SHAPE.get(version, version)
    nearest = known if known in _SHAPES else V1BETA1
    return _describe(version, nearest, [*_differences(schemas, version, _SHAPES[nearest])])


def refuse_composites(schemas: Raw, version: str) -> str:
    """Why CompositePodGroups of this version cannot be read, a sentence; "" if they can."""
    differences = [*_differences(schemas, version, _COMPOSITE_SHAPE)]
    return _describe(version, V1ALPHA3, differences) if differences else ""


def _describe(version: str, nearest: str, differences: list[str]) -> str:
    one_of = f" (one of {len(differences)} differences)" if len(differences) > 1 else ""
    return f"{NATIVE_GROUP}/{version} has a shape that is not known: compared with {nearest}, {differences[0]}{one_of}"


def _differences(schemas: Raw, version: str, kinds: Mapping[str, _Field]) -> Iterator[str]:
    """What of these kinds is missing or otherwise, a clause each."""
    for kind, wanted in kinds.items():
        schema = next((each for each in schemas.values() if _is_of(each, kind, version)), None)
        if schema is None:
            yield f"{kind} has no schema"
        else:
            yield from _compare(schemas, schema, wanted, kind)


def _is_of(schema: Any, kind: str, version: str) -> bool:
    meant = {"group": NATIVE_GROUP, "version": version, "kind": kind}
    named = schema.get("x-kubernetes-group-version-kind") if isinstance(schema, dict) else None
    return isinstance(named, list) and meant in named


def _compare(schemas: Raw, raw: Any, wanted: _Field, path: str) -> Iterator[str]:
    schema = _resolve(schemas, raw)
    if schema.get("type") != wanted.type:
        yield f"{path} is no {wanted.type}"
        return
    if wanted.type == "array" and wanted.inner:
        yield from _compare(schemas, schema.get("items"), _Field("object", wanted.inner), f"{path}[]")
        return
    properties = read_map(schema, "properties")
    for name, inner in wanted.inner.items():
        if name in properties:
            yield from _compare(schemas, properties[name], inner, f"{path}.{name}")
        elif not inner.optional:
            yield f"{path}.{name} is missing"
    if wanted.inner:
        for name in sorted({*read_texts(schema, "required")} - wanted.inner.keys() - _OUR_OWN):
            yield f"{path}.{name} is required"


def _resolve(schemas: Raw, raw: Any) -> Raw:
    """The schema that is meant: it may refer to another one, alone or among ``allOf``."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(raw, dict):
            return {}
        target = next((each["$ref"] for each in (raw, *read_objects(raw, "allOf")) if "$ref" in each), None)
        if target is None:
            return raw
        raw = schemas.get(str(target).rpartition("/")[2])
    return {}
