"""Discovery: find the version of Workloads and PodGroups that the cluster serves and Serried can read.

`Discovery.find` returns an `ApiLevel`. It asks the API server for the versions of scheduling.k8s.io, and compares the
published schema of each (OpenAPI v3) with the fields of the versions that Serried knows. Without a usable version,
Serried's own CRDs are used (the fallback level).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import orjson

from serried.api.level import (
    FALLBACK,
    NATIVE,
    NATIVE_GROUP,
    NATIVE_LEVELS,
    V1ALPHA3,
    ApiLevel,
    describe_difference,
    explain_unusable_composites,
    find_schema,
    find_shape,
    read_schemas,
    read_versions,
)
from serried.api.names import Raw
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound, TooMany, Unavailable, is_unreadable, misread
from serried.kube.wire import JSON, POD_TEMPLATES, Failure, Resource, composites, pod_groups, workloads

log = logging.getLogger(__name__)

_INDEX = "/openapi/v3"

_KNOWN = frozenset(level.version for level in NATIVE_LEVELS)
"""The versions that Serried knows by name: their fields are known even if the API server does not show the schema."""


@dataclass(frozen=True, slots=True)
class SchemaResult:
    """The result of comparing the published schema of one version of scheduling.k8s.io with Serried's own fields."""

    known_version: str
    """A version that Serried knows by name and that has the same fields, maybe this version itself; "" for none."""

    problem: str = ""
    """A sentence that says why Serried cannot read Workloads and PodGroups of the version; "" if it can."""

    composite_problem: str = ""
    """A sentence that says why Serried cannot read CompositePodGroups of the version; "" if it can."""


class Schemas:
    """Reads the published schemas of scheduling.k8s.io, and caches the results.

    A schema has 300 KB. It is read again only if its URL, which contains a hash of it, has changed.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._results: dict[str, SchemaResult] = {}
        """The results by URL of the schema; the URL contains a hash of the schema."""
        self._latest: dict[str, SchemaResult] = {}
        """The last result for each version, used while its schema cannot be read."""

    async def check(self, version: str) -> SchemaResult:
        """Return whether Serried can read the objects of ``version`` of scheduling.k8s.io, by its published schema.

        If the schema cannot be read at the moment, return the last result. If there is none, a version that Serried
        knows by name counts as readable, and any other one does not. Raises ApiError if the version is not known by
        name and the API server does not answer.
        """
        try:
            self._latest[version] = await self._check_by_schema(version)
            return self._latest[version]
        except ApiError as error:
            if version not in self._latest:
                return self._check_by_name(version, error)
            log.info(
                "cannot read the schema of an API version; its last known schema is used",
                extra={"version": version, "err": str(error)},
            )
            return self._latest[version]

    def _check_by_name(self, version: str, error: ApiError) -> SchemaResult:
        if version in _KNOWN:
            log.info(
                "cannot read the schema of an API version; the version is checked by its name",
                extra={"version": version, "err": str(error)},
            )
            return SchemaResult(version)
        if not isinstance(error, Forbidden | NotFound):
            raise error
        problem = f"{NATIVE_GROUP}/{version} is unknown, and Serried cannot read its schema: {error}"
        return SchemaResult("", problem, problem)

    async def _check_by_schema(self, version: str) -> SchemaResult:
        index = await self._client.read(_INDEX)
        try:
            place = find_schema(index, f"{NATIVE_GROUP}/{version}")
        except ValueError as error:
            raise misread(f"GET {_INDEX}", 200, str(error)) from error
        if place is None:
            raise NotFound(f"GET {_INDEX}", Failure(404, "NotFound", f"it names no schema of {version}"))
        if place not in self._results:
            self._results[place] = await self._read(place, version)
        return self._results[place]

    async def _read(self, place: str, version: str) -> SchemaResult:
        parts = urlsplit(place)
        document = await self._client.read(parts.path, dict(parse_qsl(parts.query)))
        try:
            return _compare_schemas(read_schemas(document), version)
        except ValueError as error:
            raise misread(f"GET {parts.path}", 200, str(error)) from error


def _compare_schemas(schemas: Raw, version: str) -> SchemaResult:
    known_version = find_shape(schemas, version)
    problem = "" if known_version else describe_difference(schemas, version)
    return SchemaResult(known_version or "", problem, explain_unusable_composites(schemas, version))


__all__ = ["ApiLevel", "Discovery", "stores_pod_group"]

_DEFAULTS = {"auto": FALLBACK, NATIVE.name: NATIVE, FALLBACK.name: FALLBACK}
"""The level to use if no native version can be used, by the value of ``--api``."""

_GROUP_PATH = f"/apis/{NATIVE_GROUP}"

_NOT_FOUND_RETRY_SECONDS = 5.0
"""The pause before a request of discovery that was answered with 404 is repeated once."""

T = TypeVar("T")

_Served = Mapping[str, set[str]]
"""The versions of scheduling.k8s.io that the API server serves, each with the plurals of its resources.

The API server's preferred version is first.
"""


class Discovery:
    """Finds the API group and version in which one cluster serves PodGroups. One instance lives as long as the process.

    The process calls `find` repeatedly, because an upgrade of the cluster may change the result.
    """

    def __init__(self, client: ApiClient, wanted: str = "auto") -> None:
        """Create a discovery for the value of ``--api``: "auto", or the name of the level that `find` must return.

        Raises ValueError for another value. If the cluster does not serve the named level, `find` returns it
        nevertheless, and the reflectors report that it is not served.
        """
        if wanted not in _DEFAULTS:
            raise ValueError(f"API level {wanted!r}: one of {', '.join(_DEFAULTS)} is needed")
        self._client = client
        self._wanted = wanted
        self._schemas = Schemas(client)
        self._logged_problems: tuple[str, ...] = ()
        """The messages about unusable versions that `find` logged last, so that it logs the same ones only once."""

    async def find(self) -> ApiLevel:
        """Return the first version of scheduling.k8s.io that the cluster serves and Serried can read.

        The API server's preferred version is tried first. If none can be read, return the fallback level, i.e.
        Serried's own CRDs. With ``--api=fallback`` always return the fallback level. With ``--api=native`` never
        return it: if no version of scheduling.k8s.io can be read, return v1beta1 of it.

        Raises ApiError if the API server does not answer: one that is still starting must not count as one that does
        not serve the API.
        """
        if self._wanted == FALLBACK.name:
            return FALLBACK
        served = await self._list_served()
        refused: list[str] = []
        level = await self._choose(served, refused) or _DEFAULTS[self._wanted]
        if level.name == NATIVE.name and level.has_composites:
            level = replace(level, composite_version=await self._choose_composites(served, refused))
        self._log_problems(tuple(refused))
        return replace(level, refused=tuple(refused))

    async def _list_served(self) -> _Served:
        group = await _retry_not_found(lambda: self._client.read(_GROUP_PATH))
        if group is None:
            return {}
        try:
            versions = read_versions(group)
        except ValueError as error:
            raise misread(f"GET {_GROUP_PATH}", 200, str(error)) from error
        return {version: await self._list_plurals(f"{_GROUP_PATH}/{version}") for version in versions}

    async def _list_plurals(self, path: str) -> set[str]:
        document = await _retry_not_found(lambda: self._client.read(path))
        return _read_plurals(path, document) if document is not None else set()

    async def _choose(self, served: _Served, refused: list[str]) -> ApiLevel | None:
        for version, plurals in served.items():
            workload = workloads(NATIVE_GROUP, version)
            # A CRD in a group that the server keeps to itself shows in discovery and answers 404 to every request.
            if workload.plural not in plurals or not await _is_served(self._client, workload):
                continue
            checked = await self._schemas.check(version)
            if checked.problem:
                refused.append(checked.problem)
                continue
            like = "" if checked.known_version == version else checked.known_version
            level = ApiLevel(NATIVE.name, NATIVE_GROUP, version, like)
            if level.inline or await self._has_groups(version, plurals):
                return level
        return None

    async def _has_groups(self, version: str, plurals: set[str]) -> bool:
        resource = pod_groups(NATIVE_GROUP, version)
        return resource.plural in plurals and await _is_served(self._client, resource)

    async def _choose_composites(self, served: _Served, refused: list[str]) -> str:
        """Return the version in which Serried reads CompositePodGroups, for `ApiLevel.composite_version`.

        "" stands for the default v1alpha3, and is returned also if Serried can read none of the versions ``served``.
        For each version that it cannot read, append the reason to ``refused``.
        """
        for version, plurals in served.items():
            if composites(NATIVE).plural not in plurals:
                continue
            problem = (await self._schemas.check(version)).composite_problem
            if not problem:
                return "" if version == V1ALPHA3 else version
            refused.append(problem)
        return ""

    def _log_problems(self, refused: tuple[str, ...]) -> None:
        for problem in refused if refused != self._logged_problems else ():
            log.error("Serried cannot use a version of the API for PodGroups", extra={"err": problem})
        self._logged_problems = refused


async def stores_pod_group(client: ApiClient, level: ApiLevel, namespace: str) -> bool | None:
    """Return whether the API server stores the field of a pod that names its PodGroup; None if that is not known.

    If the feature gate is off, the API server silently drops the field from new pods, and a gang would be scheduled pod
    by pod. The test is a dry-run create of a PodTemplate in ``namespace``, with the field that pods have at
    this ``level``. A PodTemplate loses the field as a pod does, but needs no right to create pods. None means that the
    API server has rejected the test, has not answered, or has not answered with a PodTemplate.
    """
    names = {"name": "probe", "podGroup": "probe"} if level.inline else {"podGroupName": "probe"}
    field = "workloadRef" if level.inline else "schedulingGroup"
    body = {
        "apiVersion": POD_TEMPLATES.api_version,
        "kind": "PodTemplate",
        "metadata": {"name": "serried-probe", "namespace": namespace},
        "template": {"spec": {"containers": [{"name": "probe", "image": "none"}], field: names}},
    }
    path = POD_TEMPLATES.path(namespace)
    try:
        answer = await client.ask("POST", path, params={"dryRun": "All"}, body=orjson.dumps(body))
    except ApiError as error:
        log.info(
            "cannot find out whether the API server keeps the field of pods that names their group",
            extra={"err": str(error)},
        )
        return None
    try:
        return field in answer["template"]["spec"]
    except (KeyError, TypeError):
        log.info(
            "cannot find out whether the API server keeps the field of pods that names their group",
            extra={"err": f"no PodTemplate: {answer}"[:200]},
        )
        return None


def _read_plurals(path: str, document: JSON) -> set[str]:
    """Return the plurals of the resources in a discovery document; raise Unavailable for any other document.

    ``path`` is the path of the document, for the error message.
    """
    entries = document.get("resources")
    if document.get("kind") != "APIResourceList" or not isinstance(entries, list):
        raise misread(f"GET {path}", 200, f"no discovery document: {str(document)[:80]}")
    return {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}


async def _retry_not_found(ask: Callable[[], Awaitable[T]]) -> T | None:
    """Call ``ask`` and return its answer. If the answer is 404 twice, some seconds apart, return None.

    A single 404 may come from one API server of several that does not serve the API yet (during an upgrade).
    """
    try:
        return await ask()
    except NotFound:
        await asyncio.sleep(_NOT_FOUND_RETRY_SECONDS)
    try:
        return await ask()
    except NotFound:
        return None


async def _is_served(client: ApiClient, resource: Resource) -> bool:
    try:
        return await _retry_not_found(lambda: client.page(resource.path(), {"limit": "1"})) is not None
    except Forbidden:
        # The API server checks rights before it looks for the resource. The reflector will report what RBAC lacks.
        return True
    except (Unavailable, TooMany) as error:
        if not is_unreadable(error):
            raise
        log.error(
            "the API server cannot read stored objects of this API; this API is not used", extra={"err": str(error)}
        )
        return False
