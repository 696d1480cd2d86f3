"""Which API level the cluster serves."""

from serried.kube.client import ApiClient
from serried.kube.errors import Forbidden, NotFound
from serried.kube.wire import Resource, pod_groups, workloads
from serried.model.level import FALLBACK, NATIVE, ApiLevel

__all__ = ["ApiLevel", "discover"]

AUTO = "auto"
_BY_NAME = {level.name: level for level in (NATIVE, FALLBACK)}


async def discover(client: ApiClient, wanted: str = AUTO) -> ApiLevel:
    """The native level if the cluster serves it, else the fallback; ``wanted`` native or fallback forces one.

    A forced level is not checked: the reflectors say if it is not served. Raises ApiError if the server cannot be
    asked, so that a server that is starting is never taken for one that does not serve the API.
    """
    if wanted != AUTO:
        if wanted not in _BY_NAME:
            raise ValueError(f"API level {wanted!r}: one of {AUTO}, {', '.join(_BY_NAME)} is needed")
        return _BY_NAME[wanted]
    return NATIVE if await _is_served(client, NATIVE) else FALLBACK


async def _is_served(client: ApiClient, level: ApiLevel) -> bool:
    needed = (pod_groups(level.group, level.version), workloads(level.group, level.version))
    try:
        document = await client.read(needed[0].root)
    except NotFound:
        return False
    named = {entry.get("name") for entry in document.get("resources") or ()}
    if not all(resource.plural in named for resource in needed):
        return False
    # A CRD in a group that the server keeps to itself shows in discovery and answers 404 to every request.
    return all([await _answers(client, resource) for resource in needed])


async def _answers(client: ApiClient, resource: Resource) -> bool:
    try:
        await client.read(resource.path(), {"limit": "1"})
    except NotFound:
        return False
    except Forbidden:
        # Authorization stands before the resource: the reflector will say what RBAC lacks.
        return True
    return True
