"""Which API level the cluster serves.

No version is taken for granted: the group says which there are, and each one's published schema whether it can be used.
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
    find_schema,
    find_shape,
    read_schemas,
    read_versions,
    refuse_composites,
)
from serried.api.names import Raw
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound, TooMany, Unavailable, is_unreadable, misread
from serried.kube.wire import JSON, POD_TEMPLATES, Failure, Resource, composites, pod_groups, workloads

log = logging.getLogger(__name__)

_INDEX = "/openapi/v3"

_KNOWN = frozenset(level.version for level in NATIVE_LEVELS)
"""The versions that are taken by their names while their schemas cannot be read."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of a version."""

    shape: str
    """The known version that it is like, maybe itself; "" if there is none."""

    refusal: str = ""
    """Why its Workloads and PodGroups are not read, a sentence; "" if they are."""

    composite_refusal: str = ""
    """The same of its CompositePodGroups, if it has some."""


class Schemas:
    """Judges versions by their schemas. A document is some 300 KB, and is read again only when its hash changes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._judgements: dict[str, Judgement] = {}
        """By the place of the schema, which names its hash."""
        self._latest: dict[str, Judgement] = {}
        """The last one of each version."""

    async def judge(self, version: str) -> Judgement:
        """What is thought of a version of the native group.

        While its schema cannot be read, what was thought of it last counts; before that, its name. Raises ApiError if
        the API server does not answer, and there is neither.
        """
        try:
            self._latest[version] = await self._judge(version)
            return self._latest[version]
        except ApiError as error:
            if version not in self._latest:
                return self._judge_name(version, error)
            log.info("cannot read a schema again", extra={"version": version, "err": str(error)})
            return self._latest[version]

    def _judge_name(self, version: str, error: ApiError) -> Judgement:
        if version in _KNOWN:
            log.info("cannot read a schema", extra={"version": version, "err": str(error)})
            return Judgement(version)
        if not isinstance(error, Forbidden | NotFound):
            raise error
        refusal = f"{NATIVE_GROUP}/{version} is not known, and its schema cannot be read: {error}"
        return Judgement("", refusal, refusal)

    async def _judge(self, version: str) -> Judgement:
        index = await self._client.read(_INDEX)
        try:
            place = find_schema(index, f"{NATIVE_GROUP}/{version}")
        except ValueError as error:
            raise misread(f"GET {_INDEX}", 200, str(error)) from error
        if place is None:
            raise NotFound(f"GET {_INDEX}", Failure(404, "NotFound", f"it names no schema of {version}"))
        if place not in self._judgements:
            self._judgements[place] = await self._read(place, version)
        return self._judgements[place]

    async def _read(self, place: str, version: str) -> Judgement:
        parts = urlsplit(place)
        document = await self._client.read(parts.path, dict(parse_qsl(parts.query)))
        try:
            return _judge_schemas(read_schemas(document), version)
        except ValueError as error:
            raise misread(f"GET {parts.path}", 200, str(error)) from error


def _judge_schemas(schemas: Raw, version: str) -> Judgement:
    shape = find_shape(schemas, version)
    refusal = "" if shape else describe_difference(schemas, version)
    return Judgement(shape or "", refusal, refuse_composites(schemas, version))


__all__ = ["ApiLevel", "Discovery", "keeps_group"]

_DEFAULTS = {"auto": FALLBACK, NATIVE.name: NATIVE, FALLBACK.name: FALLBACK}
"""The level by the value of ``--api``, where no native version can be used."""

_GROUP_PATH = f"/apis/{NATIVE_GROUP}"

_AGAIN_SECONDS = 5.0
"""The pause before what was answered with 404 is asked for again."""

T = TypeVar("T")

_Served = Mapping[str, set[str]]
"""The plurals that each version of the native group serves, the version to be preferred first."""


class Discovery:
    """Finds the API level, as often as it is asked."""

    def __init__(self, client: ApiClient, wanted: str = "auto") -> None:
        """``wanted`` forces a level; the reflectors report if the cluster does not serve it."""
        if wanted not in _DEFAULTS:
            raise ValueError(f"API level {wanted!r}: one of {', '.join(_DEFAULTS)} is needed")
        self._client = client
        self._wanted = wanted
        self._schemas = Schemas(client)
        self._told: tuple[str, ...] = ()
        """The refusals that are in the log."""

    async def find(self) -> ApiLevel:
        """The best native version that the cluster serves and whose shape is known, else the fallback.

        Raises ApiError if the server cannot be asked, so that a server that is starting is never taken for one that
        does not serve the API.
        """
        if self._wanted == FALLBACK.name:
            return FALLBACK
        served = await self._list_served()
        refused: list[str] = []
        level = await self._choose(served, refused) or _DEFAULTS[self._wanted]
        if level.name == NATIVE.name and level.nests:
            level = replace(level, composite_version=await self._choose_composites(served, refused))
        self._tell(tuple(refused))
        return replace(level, refused=tuple(refused))

    async def _list_served(self) -> _Served:
        group = await _ask_again(lambda: self._client.read(_GROUP_PATH))
        if group is None:
            return {}
        try:
            versions = read_versions(group)
        except ValueError as error:
            raise misread(f"GET {_GROUP_PATH}", 200, str(error)) from error
        return {version: await self._list_plurals(f"{_GROUP_PATH}/{version}") for version in versions}

    async def _list_plurals(self, path: str) -> set[str]:
        document = await _ask_again(lambda: self._client.read(path))
        return _read_names(path, document) if document is not None else set()

    async def _choose(self, served: _Served, refused: list[str]) -> ApiLevel | None:
        for version, plurals in served.items():
            workload = workloads(NATIVE_GROUP, version)
            # A CRD in a group that the server keeps to itself shows in discovery and answers 404 to every request.
            if workload.plural not in plurals or not await _answers(self._client, workload):
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
        return resource.plural in plurals and await _answers(self._client, resource)

    async def _choose_composites(self, served: _Served, refused: list[str]) -> str:
        """The version of CompositePodGroups, as `ApiLevel` names it."""
        for version, plurals in served.items():
            if composites(NATIVE).plural not in plurals:
                continue
            refusal = (await self._schemas.judge(version)).composite_refusal
            if not refusal:
                return "" if version == V1ALPHA3 else version
            refused.append(refusal)
        return ""

    def _tell(self, refused: tuple[str, ...]) -> None:
        for refusal in refused if refused != self._told else ():
            log.error("a version of the API cannot be used", extra={"err": refusal})
        self._told = refused


async def keeps_group(client: ApiClient, level: ApiLevel, namespace: str) -> bool | None:
    """Whether pods keep the field that names their group; None if the API server will not say.

    Where its gate is off the API server drops the field without a word, and a gang would be scheduled pod by pod. A
    dry-run create of a PodTemplate, which loses the field as pods do, finds out without the right to create pods.
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


def _read_names(path: str, document: JSON) -> set[str]:
    """The plurals in a discovery document; raises Unavailable for any other document."""
    entries = document.get("resources")
    if document.get("kind") != "APIResourceList" or not isinstance(entries, list):
        raise misread(f"GET {path}", 200, f"no discovery document: {str(document)[:80]}")
    return {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}


async def _ask_again(ask: Callable[[], Awaitable[T]]) -> T | None:
    """What is answered; None for 404 twice, some seconds apart.

    A single one may be that of one API server of several, which does not serve the API yet, or any more.
    """
    try:
        return await ask()
    except NotFound:
        await asyncio.sleep(_AGAIN_SECONDS)
    try:
        return await ask()
    except NotFound:
        return None


async def _answers(client: ApiClient, resource: Resource) -> bool:
    try:
        return await _ask_again(lambda: client.page(resource.path(), {"limit": "1"})) is not None
    except Forbidden:
        # The API server checks rights before it looks for the resource. The reflector will report what RBAC lacks.
        return True
    except (Unavailable, TooMany) as error:
        if not is_unreadable(error):
            raise
        log.error("the API server cannot read what is stored of this API", extra={"err": str(error)})
        return False
