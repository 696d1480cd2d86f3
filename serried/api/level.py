"""API levels: the API group and version at which Workloads and PodGroups are read and written.

There are two levels: ``native`` (scheduling.k8s.io) and ``fallback`` (Serried's own CRDs). `serried.kube.discovery`
chooses one.

A version is usable if it has a known shape: the fields that Serried reads and writes, with their types, in the schema
that the API server publishes (OpenAPI v3). Other fields may differ, unless they are required.
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
"""The oldest supported minor version of Kubernetes 1."""

NEWEST_MINOR = 37
"""The newest minor version that the tests run on. A newer one is accepted, but untested."""

NEWEST_SCHEDULER_MINOR = 38
"""The newest minor version of kube-scheduler that the tests run, with an API server of NEWEST_MINOR or newer."""

_STABILITY = {"alpha": 0, "beta": 1, "": 2}


def read_versions(group: Raw) -> list[str]:
    """Return the versions in an APIGroup: the server's preferred one first, the others by Kubernetes' version priority.

    Raises ValueError if the document is no APIGroup.
    """
    if group.get("kind") != "APIGroup":
        raise ValueError(f"no APIGroup: {str(group)[:80]}")
    served = {read_text(each, "version") for each in read_objects(group, "versions")} - {""}
    preferred = read_text(read_map(group, "preferredVersion"), "version")
    return sorted(served, key=lambda version: (version != preferred, *_version_sort_key(version)))


def _version_sort_key(version: str) -> tuple[Any, ...]:
    """Return a sort key for this order: v2, v1, v1beta2, v1beta1, v1alpha1, then all other names alphabetically."""
    matched = _VERSION.fullmatch(version)
    if matched is None:
        return 1, version
    major, stability, minor = matched.groups("")
    return 0, *(-each for each in (_STABILITY[stability], int(major), int(minor or 0)))


def find_schema(index: Raw, api_version: str) -> str | None:
    """Return the URL path of the schema of a group and version; None if none is published.

    ``index`` is the document at /openapi/v3. The URL contains a hash of the schema, so a changed schema has a new URL.
    Raises ValueError if the document is no such index.
    """
    paths = read_map(index, "paths")
    if not paths:
        raise ValueError(f"no index of schemas: {str(index)[:80]}")
    return read_text(read_map(paths, f"apis/{api_version}"), "serverRelativeURL") or None


class ResizeRule(Enum):
    """The rule by which kube-scheduler counts the requests of a pod that is being resized in place.

    For each resource there are three amounts: desired (spec), granted (allocatedResources) and in effect (resources).
    """

    CONTAINERS = "containers"
    """The largest of the three for each container, summed up: 1.35 and 1.36."""

    SUMS = "sums"
    """The largest of the three sums over all containers: since 1.37."""

    LARGEST = "largest"
    """The larger result of both rules, if the version is not known."""


@dataclass(frozen=True, slots=True)
class ApiLevel:
    """An API group and version that serves Workloads and PodGroups. ``name`` is ``native`` or ``fallback``."""

    name: str
    group: str
    version: str

    like: str = ""
    """The known version that has the same shape; "" if the version itself is known."""

    composite_version: str = ""
    """The version of CompositePodGroups in the same group, as discovery found it; "" for the usual one."""

    refused: tuple[str, ...] = field(default=(), compare=False)
    """One sentence for each served version that cannot be used because its shape is unknown."""

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of Workloads and PodGroups at this level."""
        return f"{self.group}/{self.version}"

    @property
    def composite_api_version(self) -> str:
        """The ``apiVersion`` of CompositePodGroups, whose version in the API may differ."""
        found = f"{self.group}/{self.composite_version}" if self.composite_version else ""
        return found or composite_api_version(self.api_version)

    def of(self, api: str) -> "ApiLevel":
        """Return the level of an object with this `PodGroup.api`: this level if "", else the level `beside`."""
        return self.beside or self if api else self

    @property
    def beside(self) -> "ApiLevel | None":
        """The second level whose objects are read: gangs created there before the cluster switched to this level.

        For a native level it is the fallback. For the fallback it is None: native objects cannot be read any more when
        the API server has stopped serving them.
        """
        return None if self.name == FALLBACK.name else FALLBACK

    @property
    def read(self) -> frozenset[str]:
        """The apiVersions whose groups are read: of this level, of `beside`, and of versions with the same storage."""
        apis = {self.api_version} | ({self.beside.api_version} if self.beside is not None else set())
        if self.group == NATIVE_GROUP and self.shape in _ONE_STORAGE:
            apis.update(f"{NATIVE_GROUP}/{version}" for version in _ONE_STORAGE)
        return frozenset(apis)

    @property
    def shape(self) -> str:
        """The known version whose fields its objects have. Code that depends on the version compares this."""
        return self.like or self.version

    @property
    def obstacle(self) -> str:
        """The sentences why native PodGroups cannot be read; "" if they can, or if none are served."""
        return "" if self.name == NATIVE.name else "; ".join(self.refused)

    @property
    def inline(self) -> bool:
        """Return whether PodGroups are parts of a Workload instead of objects (v1alpha1). Pods name both then."""
        return self.shape == V1ALPHA1

    @property
    def count_mutable(self) -> bool:
        """Return whether minCount can be changed in a Workload and a PodGroup."""
        return self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def resize_rule(self) -> ResizeRule:
        """The rule by which the cluster's kube-scheduler counts resized pods, derived from the version of the API."""
        if self.group != NATIVE_GROUP:
            return ResizeRule.LARGEST
        return ResizeRule.CONTAINERS if self.shape in {V1ALPHA1, V1ALPHA2} else ResizeRule.SUMS

    @property
    def nests(self) -> bool:
        """Return whether the level has CompositePodGroups beside its PodGroups."""
        return self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def has_preemption(self) -> bool:
        """Return whether PodGroups may have ``preemptionPolicy``, as in 1.37 with the gate PodGroupPreemptionPolicy."""
        return self.group == NATIVE_GROUP and self.shape not in {V1ALPHA1, V1ALPHA2}

    @property
    def condition(self) -> str:
        """The type of the PodGroup's condition that says whether the gang has been scheduled."""
        return "PodGroupScheduled" if self.shape == V1ALPHA2 else "PodGroupInitiallyScheduled"


COMPOSITE_CONDITION = "CompositePodGroupInitiallyScheduled"
"""The type of the condition of a CompositePodGroup that says whether its gang has been scheduled."""

READY = "Ready"
"""The type of a condition at the fallback level: why the gang waits, and how much of its quorum is placed."""

FIRST_QUORUM = "scheduling.serried.dev/FirstQuorum"
"""The type of a condition of a gang that waits: its message is the date of its first quorum (`group.FirstQuorum`)."""

V1ALPHA1 = "v1alpha1"
"""Served by 1.35 only: Workloads contain their PodGroups."""

V1ALPHA2 = "v1alpha2"
"""Served by 1.36 only: a PodGroup names its Workload by ``podGroupTemplateRef`` there."""

V1ALPHA3 = "v1alpha3"
"""Served by 1.37 beside v1beta1, with the same fields, and with CompositePodGroups."""

V1BETA1 = "v1beta1"

V1ALPHA2_DISRUPTION = {Disruption.SINGLE: "Pod", Disruption.ALL: "PodGroup"}
"""The words for disruption modes in v1alpha2. Other versions have a union of empty objects instead."""

NATIVE_GROUP = "scheduling.k8s.io"

_ONE_STORAGE = frozenset({"v1", V1BETA1, V1ALPHA3})
"""Versions that share their stored objects: an object created in one of them is served in the others, too."""

NATIVE_LEVELS = tuple(ApiLevel("native", NATIVE_GROUP, version) for version in (V1BETA1, V1ALPHA3, V1ALPHA2, V1ALPHA1))
"""The known versions of the native API (gate GenericWorkload). Kubernetes 1.37 serves the first two."""

NATIVE = NATIVE_LEVELS[0]

FALLBACK = ApiLevel("fallback", "scheduling.serried.dev", V1BETA1)
"""Serried's CRDs, which have the shape of v1beta1. Reservations are always in this group."""


_MAX_REFERENCES = 8
"""The longest chain of ``$ref`` that is followed in a schema."""


@dataclass(frozen=True, slots=True)
class _Field:
    type: str
    """The type in OpenAPI: string, integer, object or array."""

    inner: Mapping[str, "_Field"] = field(default_factory=lambda: MappingProxyType({}))
    """The fields of the object, or of each object in the list."""

    optional: bool = False
    """True if a version may lack the field, because it is behind a feature gate."""


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
    """Return the fields that groups and their templates have in common."""
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
"""The known shapes, by the first version that had each. A newer version is compared with them in this order."""

_COMPOSITE_SHAPE = {
    "CompositePodGroup": _object(
        spec=_object(workloadRef=_REFERENCE, **_scheduling(_policy("minGroupCount"), _UNION), **_PREEMPTING, **_PARENT),
        status=_STATUS,
    )
}

_SAME_SHAPE = {V1ALPHA3: V1BETA1}

_COMMON_FIELDS = frozenset({"apiVersion", "kind", "metadata"})
"""The fields that every object has."""


def read_schemas(document: Raw) -> Raw:
    """Return the schemas of a document of OpenAPI v3, by name. Raises ValueError for any other document."""
    schemas = read_map(read_map(document, "components"), "schemas")
    if not schemas:
        raise ValueError(f"no schemas: {str(document)[:80]}")
    return schemas


def find_shape(schemas: Raw, version: str) -> str | None:
    """Return the known version that has the same shape as ``version``; ``version`` itself if it is known by name.

    Return None if no known version has that shape. Here and below, malformed schemas raise ValueError.
    """
    known = _SAME_SHAPE.get(version, version)
    order = sorted(_SHAPES, key=lambda shape: shape != known)
    found = next((each for each in order if not any(_differences(schemas, version, _SHAPES[each]))), None)
    return version if found == known else found


def describe_difference(schemas: Raw, version: str) -> str:
    """Return a sentence that says how the shape of a version differs from the nearest known one."""
    known = _SAME_SHAPE.get(version, version)
    nearest = known if known in _SHAPES else V1BETA1
    return _write_sentence(version, nearest, [*_differences(schemas, version, _SHAPES[nearest])])


def refuse_composites(schemas: Raw, version: str) -> str:
    """Return a sentence why CompositePodGroups of a version cannot be read; "" if they can."""
    differences = [*_differences(schemas, version, _COMPOSITE_SHAPE)]
    return _write_sentence(version, V1ALPHA3, differences) if differences else ""


def _write_sentence(version: str, nearest: str, differences: list[str]) -> str:
    one_of = f" (one of {len(differences)} differences)" if len(differences) > 1 else ""
    return f"{NATIVE_GROUP}/{version} has a shape that is not known: compared with {nearest}, {differences[0]}{one_of}"


def _differences(schemas: Raw, version: str, kinds: Mapping[str, _Field]) -> Iterator[str]:
    """Yield a clause for each field of these kinds that is missing or has another type than wanted."""
    for kind, wanted in kinds.items():
        schema = next((each for each in schemas.values() if _has_kind(each, kind, version)), None)
        if schema is None:
            yield f"{kind} has no schema"
        else:
            yield from _compare(schemas, schema, wanted, kind)


def _has_kind(schema: Any, kind: str, version: str) -> bool:
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
        for name in sorted({*read_texts(schema, "required")} - wanted.inner.keys() - _COMMON_FIELDS):
            yield f"{path}.{name} is required"


def _resolve(schemas: Raw, raw: Any) -> Raw:
    """Follow the ``$ref`` of a schema, alone or in ``allOf``. Return the schema at its end; {} if there is none."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(raw, dict):
            return {}
        target = next((each["$ref"] for each in (raw, *read_objects(raw, "allOf")) if "$ref" in each), None)
        if target is None:
            return raw
        raw = schemas.get(str(target).rpartition("/")[2])
    return {}
