"""Map request paths to resources and discovery documents, for the fake API server."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from serried.kube.wire import JSON, Resource
from tests.support.storage import ObjectKey, RefusedError


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a path: objects of a resource or, if ``resource`` is None, a discovery document."""

    resource: Resource | None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    document: JSON = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        """Namespace and name of the object; "" if the path has none."""
        return self.namespace, self.name


def find_route(path: str, served: Collection[Resource]) -> Route:
    """Return the route of a path. Raise RefusedError 404 if the resource is not served."""
    if path == "/version":
        return Route(None, document={"major": "1", "minor": "37", "gitVersion": "v1.37.1"})
    if path == "/apis":
        names = sorted({resource.group for resource in served} - {""})
        groups = [_describe_group([each for each in served if each.group == name]) for name in names]
        return Route(None, document={"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    if peers := [resource for resource in served if path == f"/apis/{resource.group}"]:
        return Route(None, document=_describe_group(peers))
    for resource in served:
        if path.rstrip("/") == resource.root:
            return Route(None, document=_describe(resource, served))
        if route := _match(path, resource):
            return route
    raise RefusedError(404, "NotFound", "the server could not find the requested resource")


def _match(path: str, resource: Resource) -> Route | None:
    if not path.startswith(resource.root + "/"):
        return None
    parts = path.removeprefix(resource.root + "/").split("/")
    namespace = ""
    if resource.namespaced and len(parts) > 2 and parts[0] == "namespaces":
        _, namespace, *parts = parts
    name, subresource = [*parts[1:], "", ""][:2]
    # /namespaces/NAME/RESOURCE is no subresource of a namespace.
    if parts[0] != resource.plural or len(parts) > 3 or (parts[0] == "namespaces" and subresource):
        return None
    return Route(resource, namespace, name, subresource)


def _rank(version: str) -> tuple[int, int, int]:
    """Order versions by an API server's default priority: v2, v1, v1beta2, v1beta1, v1alpha1."""
    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    return (["alpha", "beta", None].index(found[2]), int(found[1]), int(found[3] or 0)) if found else (-1, 0, 0)


def _describe_group(resources: Collection[Resource]) -> JSON:
    group = next(iter(resources)).group
    versions = [{"groupVersion": f"{group}/{each}", "version": each} for each in sorted({r.version for r in resources})]
    preferred = max(versions, key=lambda each: _rank(each["version"]))
    return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions, "preferredVersion": preferred}


def _describe(one: Resource, served: Collection[Resource]) -> JSON:
    peers = sorted((r for r in served if r.root == one.root), key=lambda resource: resource.plural)
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [{"name": r.plural, "namespaced": r.namespaced, "verbs": verbs} for r in peers]
    return {"kind": "APIResourceList", "groupVersion": one.api_version, "resources": resources}
