"""Where Workloads and PodGroups live: the API levels, and the versions of an API group in order of preference.

Which known shape a version has is told by the schema that the API server publishes (OpenAPI v3): the fields that
Serried reads and writes, and their types. Descriptions, limits and other fields may differ, unless they are required.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from serried.api.names import Disruption, Raw, composite_api_version, read_map, read_objects, read_text, read_texts

_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")

OLDEST_MINOR = 35
"""The oldest minor version of Kubernetes 1 that has what Serried needs of the API server."""

NEWEST_MINOR = 37
"""The newest minor version that the tests have run on. A newer one is no error, but nobody has tried it."""

NEWEST_SCHEDULER_MINOR = 38
"""The newest minor version whose kube-scheduler the tests have run, beside an API server of NEWEST_MINOR if older."""

_STABILITY = {"alpha": 0, "beta": 1, "": 2}


def read_versions(group: Raw) -> list[str]:
    """The versions in an APIGroup, the server's preferred one first, then as Kubernetes orders them.

    Raises ValueError for any other document.
    """
    if group.get("kind") != "APIGroup":
        raise ValueError(f"no APIGroup: {str(group)[:80]}")
    served = {read_text(each, "version") for each in read_objects(group, "versions")} - {""}
    preferred = read_text(read_map(group, "preferredVersion"), "version")
    return sorted(served, key=lambda version: (version != preferred, *_rank(version)))


def _rank(version: str) -> tuple[Any, ...]:
    """What sorts v2, v1, v1beta2, v1beta1, v1alpha1, and then names that are none of these, by the alphabet."""
    matched = _VERSION.fullmatch(version)
    if matched is None:
        return 1, version
    major, stability, minor = matched.groups("")
    return 0, *(-each for each in (_STABILITY[stability], int(major), int(minor or 0)))


def find_schema(index: Raw, api_version: str) -> str | None:
    """Where the schema of a group and version is; None if none is published. ``index`` is that of OpenAPI v3.

    The place names a hash: another place is another schema. Raises ValueError for any other document.
    """
    paths = read_map(index, "paths")
    if not paths:
        raise ValueError(f"no index of schemas: {str(index)[:80]}")
    return read_text(read_map(paths, f"apis/{api_version}"), "serverRelativeURL") or None


class ResizeRule(Enum):
    """How kube-scheduler counts a running pod of which other amounts are granted, or in effect, than are desired."""

    CONTAINERS = "containers"
    """What is the largest for each container, added up: 1.35 and 1.36."""

    SUMS = "sums"
    """The largest of the sums: since 1.37."""

    LARGEST = "largest"
    """The larger of both, where the version is not known."""


@dataclass(frozen=True, slots=True)
class ApiLevel:
    """An API group and version that serves Workloads and PodGroups; ``name`` is ``native`` or ``fallback``."""

    name: str
    group: str
    version: str

    like: str = ""
    """The version whose shape it has; "" for that of its own name."""

    composite_version: str = ""
    """The version of the group in which CompositePodGroups are read; "" for the one that is known."""

    refused: tuple[str, ...] = field(default=(), compare=False)
    """A sentence for each version that the cluster serves, too, and whose shape is unknown."""

    @property
    def api_version(self) -> str:
        """What stands in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}"

    @property
    def composite_api_version(self) -> str:
        """The same of CompositePodGroups: upstream has a version of its own for them."""
        found = f"{self.group}/{self.composite_version}" if self.composite_version else ""
        return found or composite_api_version(self.api_version)

    def of(self, api: str) -> "ApiLevel":
        """Where an object with this ``api`` lives (`PodGroup.api`): here, or beside it."""
        return self.beside or self if api else self

    @property
    def beside(self) -> "ApiLevel | None":
        """The level whose objects are read, too: gangs may have begun there before the cluster turned to this one.

        Beside a native level that is the fallback. What was native cannot be read any more once the API server does not
        serve it.
        """
        return None if self.name == FALLBACK.name else FALLBACK

    @property
    def read(self) -> frozenset[str]:
        """The apiVersions at which groups are read, those among them whose objects are served at another one by now."""
        apis = {self.api_version} | ({self.beside.api_version} if self.beside is not None else set())
        if self.group == NATIVE_GROUP and self.shape in _ONE_STORAGE:
            apis.update(f"{NATIVE_GROUP}/{version}" for version in _ONE_STORAGE)
        return frozenset(apis)

    @property
    def shape(self) -> str:
        """The known version whose fields its objects have; whatever depends on the version asks for this."""
        return self.like or self.version

    @property
    def obstacle(self) -> str:
        """Why the cluster's own PodGroups cannot be read; "" where they can, or none are served."""
        return "" if self.name == NATIVE.name else "; ".join(self.refused)

    @property
    def inline(self) -> bool:
        """Whether PodGroups are no objects but parts of a Workload, and pods name both."""
        return self.shape == V1ALPHA1

    @property
    def count_mutable(self) -> bool:
        """Whether minCount can be changed in a Workload and a PodGroup."""
        return self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def resize_rule(self) -> ResizeRule:
        """How the cluster's kube-scheduler counts a pod that is being resized, as far as the API tells its version."""
        if self.group != NATIVE_GROUP:
            return ResizeRule.LARGEST
        return ResizeRule.CONTAINERS if self.shape in {V1ALPHA1, V1ALPHA2} else ResizeRule.SUMS

    @property
    def nests(self) -> bool:
        """Whether there are CompositePodGroups beside its PodGroups."""
        return self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def has_preemption(self) -> bool:
        """Whether its PodGroups may say ``preemptionPolicy``, as in 1.37 with the gate PodGroupPreemptionPolicy."""
        return self.group == NATIVE_GROUP and self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def condition(self) -> str:
        """The type of the PodGroup's condition that says whether the gang has been scheduled."""
        return "PodGroupScheduled" if self.shape == V1ALPHA2 else "PodGroupInitiallyScheduled"


COMPOSITE_CONDITION = "CompositePodGroupInitiallyScheduled"
"""The same of a CompositePodGroup."""

READY = "Ready"
"""The condition of a gang at the fallback level: Serried's own reason, and how much of the quorum is placed."""

V1ALPHA1 = "v1alpha1"
"""Served by 1.35 only: Workloads contain their PodGroups."""

V1ALPHA2 = "v1alpha2"
"""Served by 1.36 only: a PodGroup names its Workload by ``podGroupTemplateRef`` there."""

V1ALPHA3 = "v1alpha3"
"""Served by 1.37 beside v1beta1, with the same fields, and with CompositePodGroups."""

V1BETA1 = "v1beta1"

V1ALPHA2_DISRUPTION = {Disruption.SINGLE: "Pod", Disruption.ALL: "PodGroup"}
"""What is a union of empty objects elsewhere is a word there."""

NATIVE_GROUP = "scheduling.k8s.io"

_ONE_STORAGE = frozenset({"v1", V1BETA1, V1ALPHA3})
"""Versions of one and the same stored objects: what was created as one of them is served as any other."""

NATIVE_LEVELS = tuple(ApiLevel("native", NATIVE_GROUP, version) for version in (V1BETA1, V1ALPHA3, V1ALPHA2, V1ALPHA1))
"""The versions of the cluster's own API (gate GenericWorkload) that are known by name. 1.37 has the first two."""

NATIVE = NATIVE_LEVELS[0]

FALLBACK = ApiLevel("fallback", "scheduling.serried.dev", V1BETA1)
"""Serried's CRDs of the shape of v1beta1. Reservations live here at either level."""


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
