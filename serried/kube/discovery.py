"""Discovery: find the version of Workloads and PodGroups that the cluster serves and Serried can read.

`Discovery.find` returns an `ApiLevel`. It asks the API server for the versions of scheduling.k8s.io, and compares the
published schema of each (OpenAPI v3) with the shapes that Serried knows. Without a usable version, Serried's own CRDs
are used (the fallback level).
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
"""Versions whose shape is known by their name, in case the API server does not show their schema."""


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """The result of reading the published schema of one API version: known, or refused with a reason."""

    shape: str
    """The known version that has the same fields, maybe the version itself; "" if no known version has them."""

    refusal: str = ""
    """The sentence why Workloads and PodGroups of the version cannot be read; "" if they can."""

    composite_refusal: str = ""
    """The sentence why CompositePodGroups of the version cannot be read; "" if they can."""


class Schemas:
    """The published schemas of scheduling.k8s.io, cached: one is 300 KB, and is read again only if its hash changes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._verdicts: dict[str, SchemaVerdict] = {}
        """One for each URL of a schema; the URL contains the hash of the schema."""
        self._latest: dict[str, SchemaVerdict] = {}
        """The last verdict on each version, used while its schema cannot be read."""

    async def judge(self, version: str) -> SchemaVerdict:
        """Return whether Serried can read a version of the native group.

        While the schema cannot be read, the last verdict is returned. Without one, the version is judged by its name.
        Raises ApiError if the API server does not answer and the name is not known either.
        """
        try:
            self._latest[version] = await self._judge_by_schema(version)
            return self._latest[version]
        except ApiError as error:
            if version not in self._latest:
                return self._judge_by_name(version, error)
            log.info("cannot read a schema again", extra={"version": version, "err": str(error)})
            return self._latest[version]

    def _judge_by_name(self, version: str, error: ApiError) -> SchemaVerdict:
        if version in _KNOWN:
            log.info("cannot read a schema", extra={"version": version, "err": str(error)})
            return SchemaVerdict(version)
        if not isinstance(error, Forbidden | NotFound):
            raise error
        refusal = f"{NATIVE_GROUP}/{version} is not known, and its schema cannot be read: {error}"
        return SchemaVerdict("", refusal, refusal)

    async def _judge_by_schema(self, version: str) -> SchemaVerdict:
        index = await self._client.read(_INDEX)
        try:
            place = find_schema(index, f"{NATIVE_GROUP}/{version}")
        except ValueError as error:
            raise misread(f"GET {_INDEX}", 200, str(error)) from error
        if place is None:
            raise NotFound(f"GET {_INDEX}", Failure(404, "NotFound", f"it names no schema of {version}"))
        if place not in self._verdicts:
            self._verdicts[place] = await self._read(place, version)
        return self._verdicts[place]

    async def _read(self, place: str, version: str) -> SchemaVerdict:
        parts = urlsplit(place)
        document = await self._client.read(parts.path, dict(parse_qsl(parts.query)))
        try:
            return _compare_schemas(read_schemas(document), version)
        except ValueError as error:
            raise misread(f"GET {parts.path}", 200, str(error)) from error


def _compare_schemas(schemas: Raw, version: str) -> SchemaVerdict:
    shape = find_shape(schemas, version)
    refusal = "" if shape else describe_difference(schemas, version)
    return SchemaVerdict(shape or "", refusal, explain_unusable_composites(schemas, version))


__all__ = ["ApiLevel", "Discovery", "keeps_group"]

_DEFAULTS = {"auto": FALLBACK, NATIVE.name: NATIVE, FALLBACK.name: FALLBACK}
"""The level to use if no native version can be used, by the value of ``--api``."""

_GROUP_PATH = f"/apis/{NATIVE_GROUP}"

_NOT_FOUND_RETRY_SECONDS = 5.0
"""The pause before a request that was answered with 404 is repeated."""

T = TypeVar("T")

_Served = Mapping[str, set[str]]
"""The resources (plurals) of each version of the native group, the preferred version first."""


class Discovery:
    """Finds the API level of one cluster. One instance lives as long as the process, which calls `find` repeatedly."""

    def __init__(self, client: ApiClient, wanted: str = "auto") -> None:
        """Create a discovery for the value of ``--api``: "auto", or the name of a level to use in any case.

        Raises ValueError for another value. If the cluster does not serve a forced level, the reflectors report it.
        """
        if wanted not in _DEFAULTS:
            raise ValueError(f"API level {wanted!r}: one of {', '.join(_DEFAULTS)} is needed")
        self._client = client
        self._wanted = wanted
        self._schemas = Schemas(client)
        self._logged_refusals: tuple[str, ...] = ()
        """The refusals that `find` logged last; the same ones are not logged again."""

    async def find(self) -> ApiLevel:
        """Return the best native version that the cluster serves and whose shape is known, else the fallback level.

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
        self._log_refusals(tuple(refused))
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
            judged = await self._schemas.judge(version)
            if judged.refusal:
                refused.append(judged.refusal)
                continue
            level = ApiLevel(NATIVE.name, NATIVE_GROUP, version, "" if judged.shape == version else judged.shape)
            if level.inline or await self._has_groups(version, plurals):
                return level
        return None

    async def _has_groups(self, version: str, plurals: set[str]) -> bool:
        resource = pod_groups(NATIVE_GROUP, version)
        return resource.plural in plurals and await _is_served(self._client, resource)

    async def _choose_composites(self, served: _Served, refused: list[str]) -> str:
        """Return the version for `ApiLevel.composite_version`: "" for v1alpha3, or if no version can be read."""
        for version, plurals in served.items():
            if composites(NATIVE).plural not in plurals:
                continue
            refusal = (await self._schemas.judge(version)).composite_refusal
            if not refusal:
                return "" if version == V1ALPHA3 else version
            refused.append(refusal)
        return ""

    def _log_refusals(self, refused: tuple[str, ...]) -> None:
        for refusal in refused if refused != self._logged_refusals else ():
            log.error("a version of the API cannot be used", extra={"err": refusal})
        self._logged_refusals = refused


async def keeps_group(client: ApiClient, level: ApiLevel, namespace: str) -> bool | None:
    """Return whether the API server stores the field of a pod that names its group; None if that cannot be found out.

    With its feature gate off, the API server silently drops the field, and a gang would be scheduled pod by pod. The
    test is a dry-run create of a PodTemplate: it loses the field as a pod does, but needs no right to create pods.
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
        log.info("cannot find out whether pods keep their group", extra={"err": str(error)})
        return None
    try:
        return field in answer["template"]["spec"]
    except (KeyError, TypeError):
        log.info("cannot find out whether pods keep their group", extra={"err": f"no PodTemplate: {answer}"[:200]})
        return None


def _read_plurals(path: str, document: JSON) -> set[str]:
    """Return the plurals in a discovery document; raise Unavailable for any other document."""
    entries = document.get("resources")
    if document.get("kind") != "APIResourceList" or not isinstance(entries, list):
        raise misread(f"GET {path}", 200, f"no discovery document: {str(document)[:80]}")
    return {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}


async def _retry_not_found(ask: Callable[[], Awaitable[T]]) -> T | None:
    """Return the answer, or None if it is 404 twice, some seconds apart.

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
        log.error("the API server cannot read what is stored of this API", extra={"err": str(error)})
        return False
