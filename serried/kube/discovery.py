"""Which API level the cluster serves."""

import logging

import orjson

from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound, Unavailable, is_unreadable, misread
from serried.kube.wire import JSON, POD_TEMPLATES, Resource, pod_groups, workloads
from serried.model.level import FALLBACK, NATIVE, NATIVE_LEVELS, ApiLevel

__all__ = ["ApiLevel", "discover", "keeps_group"]

log = logging.getLogger(__name__)

_DEFAULTS = {"auto": FALLBACK, NATIVE.name: NATIVE, FALLBACK.name: FALLBACK}
"""The level by the value of ``--api``, where no native version is served."""


async def discover(client: ApiClient, wanted: str = "auto") -> ApiLevel:
    """The best native version that the cluster serves, else the fallback.

    ``wanted`` forces one of them; the reflectors report if the cluster does not serve it. Raises ApiError if the server
    cannot be asked, so that a server that is starting is never taken for one that does not serve the API.
    """
    if wanted not in _DEFAULTS:
        raise ValueError(f"API level {wanted!r}: one of {', '.join(_DEFAULTS)} is needed")
    if wanted != FALLBACK.name:
        for level in NATIVE_LEVELS:
            if await _is_served(client, level):
                return level
    return _DEFAULTS[wanted]


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


async def _is_served(client: ApiClient, level: ApiLevel) -> bool:
    needed = [workloads(level.group, level.version)]
    if not level.inline:
        needed.append(pod_groups(level.group, level.version))
    try:
        document = await client.read(needed[0].root)
    except NotFound:
        return False
    named = _read_names(needed[0].root, document)
    if not all(resource.plural in named for resource in needed):
        return False
    # A CRD in a group that the server keeps to itself shows in discovery and answers 404 to every request.
    return all([await _answers(client, resource) for resource in needed])


def _read_names(path: str, document: JSON) -> set[str]:
    """The plurals in a discovery document; raises Unavailable for any other document."""
    entries = document.get("resources")
    if document.get("kind") != "APIResourceList" or not isinstance(entries, list):
        raise misread(f"GET {path}", 200, f"no discovery document: {str(document)[:80]}")
    return {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}


async def _answers(client: ApiClient, resource: Resource) -> bool:
    try:
        await client.page(resource.path(), {"limit": "1"})
    except NotFound:
        return False
    except Forbidden:
        # The API server checks rights before it looks for the resource. The reflector will report what RBAC lacks.
        return True
    except Unavailable as error:
        if not is_unreadable(error):
            raise
        log.error("the API server cannot read what is stored of this API", extra={"err": str(error)})
        return False
    return True
