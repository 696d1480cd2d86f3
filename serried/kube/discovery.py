"""Which API level the cluster serves.

No version is taken for granted: the group says which there are, and each one's schema whether it can be used.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import orjson

from serried.decode.versions import read_versions
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound, TooMany, Unavailable, is_unreadable, misread
from serried.kube.schemas import Schemas
from serried.kube.wire import JSON, POD_TEMPLATES, Resource, composites, pod_groups, workloads
from serried.model.level import FALLBACK, NATIVE, NATIVE_GROUP, V1ALPHA3, ApiLevel

__all__ = ["ApiLevel", "Discovery", "keeps_group"]

log = logging.getLogger(__name__)

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
