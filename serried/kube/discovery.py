"""Which API level the cluster serves."""

from serried.kube.client import ApiClient
from serried.kube.errors import Forbidden, NotFound
from serried.kube.wire import Resource, pod_groups, workloads
from serried.model.level import FALLBACK, NATIVE, NATIVE_LEVELS, ApiLevel

__all__ = ["ApiLevel", "discover"]

_DEFAULTS = {"auto": FALLBACK, NATIVE.name: NATIVE, FALLBACK.name: FALLBACK}
"""What each wish comes to where no native version is served."""


async def discover(client: ApiClient, wanted: str = "auto") -> ApiLevel:
    """The best native version that the cluster serves, else the fallback; ``wanted`` native or fallback forces one.

    A forced level need not be served: the reflectors say if it is not. Raises ApiError if the server cannot be asked,
    so that a server that is starting is never taken for one that does not serve the API.
    """
    if wanted not in _DEFAULTS:
        raise ValueError(f"API level {wanted!r}: one of {', '.join(_DEFAULTS)} is needed")
    if wanted != FALLBACK.name:
        for level in NATIVE_LEVELS:
            if await _is_served(client, level):
                return level
    return _DEFAULTS[wanted]


async def _is_served(client: ApiClient, level: ApiLevel) -> bool:
    needed = [workloads(level.group, level.version)]
    if not level.inline:
        needed.append(pod_groups(level.group, level.version))
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
