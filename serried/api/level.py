"""API levels: the API group and version at which Workloads and PodGroups are read and written.

There are two levels: ``native`` (scheduling.k8s.io) and ``fallback`` (Serried's own CRDs). `serried.kube.discovery`
chooses one.

Serried uses a version of the native API only if its schema is known. To find out, it compares the schema that the API
server publishes (OpenAPI v3) with the fields that Serried reads and writes, and with their types. All fields that
Serried does not use may differ, unless they are required. So Serried can use a version that is newer than itself, if
that has the same fields as a known version.
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
"""The newest minor version of kube-scheduler that the tests run.

It may be newer than NEWEST_MINOR: the tests then run this kube-scheduler with an API server of NEWEST_MINOR.
"""

_STABILITY = {"alpha": 0, "beta": 1, "": 2}


def read_versions(group: Raw) -> list[str]:
    """Return the versions in an APIGroup, the document at ``/apis/GROUP``; for instance v1beta1, v1alpha3.

    The version that the API server prefers comes first. The others are in the order of Kubernetes: stable, beta, alpha,
    newer ones first. Raises ValueError if the document is no APIGroup.
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
    """Return the URL path of the OpenAPI schema for an ``api_version`` (group/version); None if none is published.

    ``index`` is the document at ``/openapi/v3``, which lists the URLs of all schemas. A URL contains a hash of its
    schema, so a changed schema has another URL. Raises ValueError if the document has no list of schemas.
    """
    paths = read_map(index, "paths")
    if not paths:
        raise ValueError(f"no index of schemas: {str(index)[:80]}")
    return read_text(read_map(paths, f"apis/{api_version}"), "serverRelativeURL") or None


class ResizeRule(Enum):
    """The rule by which kube-scheduler counts the requests of a pod that is being resized in place.

    For each resource there are three amounts: desired (spec), granted (allocatedResources) and in effect (resources).
    CONTAINERS takes the largest of the three for each container, and adds up. SUMS adds up each of the three over all
    containers, and takes the largest sum. LARGEST is the larger result of both.
    """

    CONTAINERS = "containers"
    """For each container take the largest of desired, granted and in effect; then add up. Kubernetes 1.35 and 1.36."""

    SUMS = "sums"
    """Add up desired, granted and in effect over all containers; then take the largest sum. Since Kubernetes 1.37."""

    LARGEST = "largest"
    """The larger result of CONTAINERS and SUMS: used if the version of kube-scheduler is not known."""


@dataclass(frozen=True, slots=True)
class ApiLevel:
    """The API group and version at which Serried reads and writes Workloads and PodGroups in this cluster.

    ``name`` is ``native`` (scheduling.k8s.io) or ``fallback`` (Serried's own CRDs).
    """

    name: str
    group: str
    version: str

    like: str = ""
    """The known version that has the same fields, if ``version`` is one that Serried does not know by name; else ""."""

    composite_version: str = ""
    """The version at which the API server serves CompositePodGroups, as discovery found it.

    "" if it is the one in `names.composite_api_version`.
    """

    refused: tuple[str, ...] = field(default=(), compare=False)
    """A sentence for each version that the API server serves and Serried cannot use, because its fields are unknown."""

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of Workloads and PodGroups at this level."""
        return f"{self.group}/{self.version}"

    @property
    def composite_api_version(self) -> str:
        """The ``apiVersion`` of CompositePodGroups, which may have another version than PodGroups (1.37: v1alpha3)."""
        found = f"{self.group}/{self.composite_version}" if self.composite_version else ""
        return found or composite_api_version(self.api_version)

    def level_of(self, api: str) -> "ApiLevel":
        """Return the level at which a PodGroup or Workload was read, by its field `PodGroup.api` or `Workload.api`.

        That is this level if ``api`` is "", else `second_level`.
        """
        return self.second_level or self if api else self

    @property
    def second_level(self) -> "ApiLevel | None":
        """The other level whose objects Serried reads as well; None for none.

        At the native level (scheduling.k8s.io) it is the fallback level (Serried's CRDs): gangs that were created as
        Serried's CRDs still run after the cluster has switched to the native API. At the fallback level it is None,
        because the API server then serves no native objects.
        """
        return None if self.name == FALLBACK.name else FALLBACK

    @property
    def readable_versions(self) -> frozenset[str]:
        """The apiVersions of all PodGroups and Workloads that Serried reads while the cluster is at this level.

        They are the apiVersion of this level and that of `second_level`; and the native versions in which the API
        server shows the same stored objects as in this level's version. A bound pod has an annotation with the
        apiVersion of its gang (`names.GANG`): if it is not among these, Serried cannot read the pod's gang any more.
        """
        apis = {self.api_version} | ({self.second_level.api_version} if self.second_level is not None else set())
        if self.group == NATIVE_GROUP and self.known_version in _ONE_STORAGE:
            apis.update(f"{NATIVE_GROUP}/{version}" for version in _ONE_STORAGE)
        return frozenset(apis)

    @property
    def known_version(self) -> str:
        """The version that Serried knows by name and whose fields the objects at this level have.

        It is ``version`` itself, or `like` for a newer version with the same fields. Code that depends on the version
        compares this property, for instance with V1ALPHA2.
        """
        return self.like or self.version

    @property
    def native_problem(self) -> str:
        """The reason why Serried's own CRDs are used although the API server serves scheduling.k8s.io; else "".

        The reason is the sentences in ``refused``, joined.
        """
        return "" if self.name == NATIVE.name else "; ".join(self.refused)

    @property
    def inline(self) -> bool:
        """Return whether PodGroups are entries in a Workload instead of objects of their own (v1alpha1).

        A pod then names both: the Workload, and the entry.
        """
        return self.known_version == V1ALPHA1

    @property
    def count_mutable(self) -> bool:
        """Return whether the API server accepts a changed minCount in existing Workloads and PodGroups."""
        return self.known_version not in {V1ALPHA1, V1ALPHA2}

    @property
    def resize_rule(self) -> ResizeRule:
        """The rule by which the cluster's kube-scheduler counts a pod that is being resized in place.

        The version of the native API tells which release of Kubernetes it is: CONTAINERS for 1.35 and 1.36, SUMS for
        later ones. At the fallback level (Serried's own CRDs) the release is not known. The result is LARGEST then,
        which never counts less than the other two.
        """
        if self.group != NATIVE_GROUP:
            return ResizeRule.LARGEST
        return ResizeRule.CONTAINERS if self.known_version in {V1ALPHA1, V1ALPHA2} else ResizeRule.SUMS

    @property
    def has_composites(self) -> bool:
        """Return whether this version of the API has the kind CompositePodGroup. The cluster need not serve it."""
        return self.known_version not in {V1ALPHA1, V1ALPHA2}

    @property
    def has_preemption(self) -> bool:
        """Return whether PodGroups may have ``preemptionPolicy``, as in 1.37 with the gate PodGroupPreemptionPolicy."""
        return self.group == NATIVE_GROUP and self.known_version not in {V1ALPHA1, V1ALPHA2}

    @property
    def condition(self) -> str:
        """The type of the condition of a PodGroup that is True once the gang has been scheduled, by version."""
        return "PodGroupScheduled" if self.known_version == V1ALPHA2 else "PodGroupInitiallyScheduled"


COMPOSITE_CONDITION = "CompositePodGroupInitiallyScheduled"
"""The type of the condition of a CompositePodGroup that is True once its gang has been scheduled."""

READY = "Ready"
"""The type of a condition that only Serried's CRDs have, at the fallback level.

Its reason and message say why the gang waits, and how many members of its quorum have a node.
"""

FIRST_QUORUM = "scheduling.serried.dev/FirstQuorum"
"""The type of a condition that Serried writes to the PodGroup of a waiting gang, so that a restart keeps its place.

Its message is the time at which the gang first had its quorum (`group.FirstQuorum`).
"""

V1ALPHA1 = "v1alpha1"
"""Served by 1.35 only: Workloads contain their PodGroups."""

V1ALPHA2 = "v1alpha2"
"""Served by 1.36 only: a PodGroup names its Workload by ``podGroupTemplateRef`` there."""

V1ALPHA3 = "v1alpha3"
"""Served by 1.37 beside v1beta1, with the same fields, and with CompositePodGroups."""

V1BETA1 = "v1beta1"

V1ALPHA2_DISRUPTION = {Disruption.SINGLE: "Pod", Disruption.ALL: "PodGroup"}
"""The values of ``disruptionMode`` in v1alpha2, where it is a string.

Other versions have an object there, either ``single: {}`` or ``all: {}``.
"""

NATIVE_GROUP = "scheduling.k8s.io"

_ONE_STORAGE = frozenset({"v1", V1BETA1, V1ALPHA3})
"""Native versions of the same stored objects: an object created in one of them can be read in the others, too."""

NATIVE_LEVELS = tuple(ApiLevel("native", NATIVE_GROUP, version) for version in (V1BETA1, V1ALPHA3, V1ALPHA2, V1ALPHA1))
"""The versions of scheduling.k8s.io that Serried knows by name, the preferred one first (gate GenericWorkload).

Kubernetes 1.37 serves the first two.
"""

NATIVE = NATIVE_LEVELS[0]

FALLBACK = ApiLevel("fallback", "scheduling.serried.dev", V1BETA1)
"""The level of Serried's CRDs, which have the fields of the native v1beta1. Reservations are always in this group."""


_MAX_REFERENCES = 8
"""The maximum number of ``$ref`` that are followed one after the other, so that a circle of them ends."""


@dataclass(frozen=True, slots=True)
class _Field:
    type: str
    """The type of the field in OpenAPI: string, integer, object or array."""

    inner: Mapping[str, "_Field"] = field(default_factory=lambda: MappingProxyType({}))
    """The fields of an object, or of each object in an array; empty for other types."""

    optional: bool = False
    """True if a schema may lack the field, because it is behind a feature gate. If present, its type must agree."""


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
    """Return the fields that PodGroups, CompositePodGroups and the templates in Workloads have in common.

    ``policy`` and ``disruption`` are the types of schedulingPolicy and disruptionMode, which differ between versions.
    """
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
"""The fields that Serried uses, by kind, for each version that introduced different ones.

The schema of an unknown version is compared with these entries in order, and the first one that agrees is taken.
"""

_COMPOSITE_SHAPE = {
    "CompositePodGroup": _object(
        spec=_object(workloadRef=_REFERENCE, **_scheduling(_policy("minGroupCount"), _UNION), **_PREEMPTING, **_PARENT),
        status=_STATUS,
    )
}

_SAME_SHAPE = {V1ALPHA3: V1BETA1}

_COMMON_FIELDS = frozenset({"apiVersion", "kind", "metadata"})
"""The fields that every object has. They are no difference between two versions, even if a schema requires them."""


def read_schemas(document: Raw) -> Raw:
    """Return the schemas in an OpenAPI v3 document (``components.schemas``) by their names.

    Raises ValueError if there are none.
    """
    schemas = read_map(read_map(document, "components"), "schemas")
    if not schemas:
        raise ValueError(f"no schemas: {str(document)[:80]}")
    return schemas


def find_shape(schemas: Raw, version: str) -> str | None:
    """Return the known version whose fields a ``version`` of the native API has, by its published ``schemas``.

    For a version that Serried knows by name, that is normally ``version`` itself. Return None if the fields agree with
    no known version: Serried cannot use it. Raises ValueError for malformed schemas.
    """
    known = _SAME_SHAPE.get(version, version)
    order = sorted(_SHAPES, key=lambda shape: shape != known)
    found = next((each for each in order if not any(_differences(schemas, version, _SHAPES[each]))), None)
    return version if found == known else found


def describe_difference(schemas: Raw, version: str) -> str:
    """Return a sentence about the first field of ``version`` that differs, for a version that Serried cannot use.

    Its published ``schemas`` are compared with the fields that Serried knows for this version. If Serried does not know
    the version by name, they are compared with the fields of v1beta1. Raises ValueError for malformed schemas.
    """
    known = _SAME_SHAPE.get(version, version)
    nearest = known if known in _SHAPES else V1BETA1
    return _write_sentence(version, nearest, [*_differences(schemas, version, _SHAPES[nearest])])


def explain_unusable_composites(schemas: Raw, version: str) -> str:
    """Return a sentence why Serried cannot read CompositePodGroups of a version; "" if it can.

    The reason is a field that is missing in ``schemas`` or has another type. Raises ValueError for malformed schemas.
    """
    differences = [*_differences(schemas, version, _COMPOSITE_SHAPE)]
    return _write_sentence(version, V1ALPHA3, differences) if differences else ""


def _write_sentence(version: str, nearest: str, differences: list[str]) -> str:
    one_of = f" (one of {len(differences)} differences)" if len(differences) > 1 else ""
    return f"{NATIVE_GROUP}/{version} has a shape that is not known: compared with {nearest}, {differences[0]}{one_of}"


def _differences(schemas: Raw, version: str, kinds: Mapping[str, _Field]) -> Iterator[str]:
    """Yield a clause for each field in which a version differs from the fields that Serried uses, given in ``kinds``.

    A field differs if it is missing, has another type, or is unknown to Serried and required. A kind without a schema
    gets one clause, too.
    """
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
    """Return the schema that ``raw`` refers to by ``$ref`` (alone or in ``allOf``), or ``raw`` if it has no ``$ref``.

    Return {} if the reference leads to no schema.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(raw, dict):
            return {}
        target = next((each["$ref"] for each in (raw, *read_objects(raw, "allOf")) if "$ref" in each), None)
        if target is None:
            return raw
        raw = schemas.get(str(target).rpartition("/")[2])
    return {}
