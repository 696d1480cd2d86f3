"""Documents of OpenAPI v3 for the native group, as kube-apiserver 1.35, 1.36 and 1.37 publish them, and others.

What a version's kinds look like is a tree: a text is a type, a dictionary an object, a list of one dictionary a list of
such objects. A name that ends in ``!`` is required. Fields that Serried does not look at are there as well.

    openapi("v1", change(V1BETA1_KINDS, "PodGroup.spec.workloadRef", None))
"""

from collections.abc import Iterator, Mapping
from typing import Any

from serried.api.level import V1ALPHA1, V1ALPHA2, V1ALPHA3, V1BETA1
from serried.kube.wire import JSON

GROUP = "scheduling.k8s.io"

Kinds = Mapping[str, Any]

_CONTROLLER = {"apiGroup": "string", "kind!": "string", "name!": "string"}
_CONDITION = {
    "type!": "string",
    "status!": "string",
    "reason!": "string",
    "message!": "string",
    "lastTransitionTime!": "string",
    "observedGeneration": "integer",
}
_STATUS = {
    "conditions": [_CONDITION],
    "resourceClaimStatuses": [{"name!": "string", "resourceClaimName": "string"}],
}
_POLICY = {"basic": {}, "gang": {"minCount!": "integer"}}
_CLAIM = {"name!": "string", "resourceClaimName": "string", "resourceClaimTemplateName": "string"}
_OLDER = {
    "schedulingPolicy!": _POLICY,
    "schedulingConstraints": {"topology": [{"key!": "string"}]},
    "resourceClaims": [_CLAIM],
    "disruptionMode": "string",
    "priorityClassName": "string",
    "priority": "integer",
}
_NEWER = _OLDER | {"disruptionMode": {"single": {}, "all": {}}, "preemptionPolicy": "string"}
_REFERENCE = {"workloadName!": "string", "templateName!": "string"}
_PARENT = {"parentCompositePodGroupName": "string"}
_OLDER_REFERENCE = {"workload": {"workloadName!": "string", "podGroupTemplateName!": "string"}}
_COMPOSITE = {name: field for name, field in _NEWER.items() if name != "resourceClaims"} | {
    "schedulingPolicy!": {"basic": {}, "gang": {"minGroupCount!": "integer"}}
}

V1BETA1_KINDS: Kinds = {
    "Workload": {"spec!": {"controllerRef": _CONTROLLER, "podGroupTemplates": [{"name!": "string"} | _NEWER]}},
    "PodGroup": {"spec!": {"workloadRef": _REFERENCE} | _NEWER | _PARENT, "status": _STATUS},
}

V1ALPHA3_KINDS: Kinds = dict(V1BETA1_KINDS) | {
    "CompositePodGroup": {"spec!": {"workloadRef!": _REFERENCE} | _COMPOSITE | _PARENT, "status": _STATUS},
}

V1ALPHA2_KINDS: Kinds = {
    "Workload": {"spec!": {"controllerRef": _CONTROLLER, "podGroupTemplates!": [{"name!": "string"} | _OLDER]}},
    "PodGroup": {"spec!": {"podGroupTemplateRef": _OLDER_REFERENCE} | _OLDER, "status": _STATUS},
}

V1ALPHA1_KINDS: Kinds = {
    "Workload": {
        "spec!": {"controllerRef": _CONTROLLER, "podGroups!": [{"name!": "string", "policy!": _POLICY}]},
    },
}

KINDS = {V1BETA1: V1BETA1_KINDS, V1ALPHA3: V1ALPHA3_KINDS, V1ALPHA2: V1ALPHA2_KINDS, V1ALPHA1: V1ALPHA1_KINDS}


def change(kinds: Kinds, path: str, field: Any) -> Kinds:
    """Return the kinds with ``field`` at this path of names (without ``!``); None removes what is there."""
    changed: Kinds = _copy(kinds)
    *above, last = path.split(".")
    place: Any = changed
    for name in above:
        place = place[_find(place, name)]
        place = place[0] if isinstance(place, list) else place
    place.pop(_find(place, last), None)
    if field is not None:
        place[last] = field
    return changed


def openapi(version: str, kinds: Kinds) -> JSON:
    """Return the OpenAPI document of an API version that serves these kinds."""
    schemas: JSON = {}
    for kind, tree in kinds.items():
        schema = schemas[_refer(schemas, kind, dict(tree) | {"apiVersion": "string", "kind": "string"})]
        schema["x-kubernetes-group-version-kind"] = [{"group": GROUP, "kind": kind, "version": version}]
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes"}, "paths": {}, "components": {"schemas": schemas}}


def _refer(schemas: JSON, name: str, tree: Mapping[str, Any]) -> str:
    """Add an object's schema under a name of its own, as in the real documents. Return the name."""
    place = f"io.k8s.api.scheduling.{name}"
    required = [_bare(each) for each in tree if each.endswith("!")]
    properties = {_bare(each): dict(_describe(schemas, f"{name}.{_bare(each)}", field)) for each, field in tree.items()}
    schemas[place] = {"type": "object", "description": f"The {name}."}
    schemas[place] |= {"properties": properties} if properties else {}
    schemas[place] |= {"required": required} if required else {}
    return place


def _describe(schemas: JSON, name: str, field: Any) -> Iterator[tuple[str, Any]]:
    yield "description", f"The {name}."
    if isinstance(field, str):
        yield "type", field
    elif isinstance(field, list):
        yield "type", "array"
        yield "items", {"$ref": f"#/components/schemas/{_refer(schemas, name, field[0])}"}
    else:
        yield "default", {}
        yield "allOf", [{"$ref": f"#/components/schemas/{_refer(schemas, name, field)}"}]


def _copy(tree: Any) -> Any:
    """Copy deeply without keeping shared references, so that each change affects one place only."""
    if isinstance(tree, list):
        return [_copy(each) for each in tree]
    return {name: _copy(each) for name, each in tree.items()} if isinstance(tree, Mapping) else tree


def _find(tree: Mapping[str, Any], name: str) -> str:
    return next((each for each in tree if _bare(each) == name), name)


def _bare(name: str) -> str:
    return name.removesuffix("!")
