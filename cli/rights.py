"""The rights of a command's user, as the API server reports them (SelfSubjectAccessReview).

`has_right` and `list_missing` ask about given rights, `list_unreadable` about the pods of namespaces.
"""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from serried.kube.errors import ApiError
from serried.kube.wire import PODS, Resource, write_json

if TYPE_CHECKING:
    from serried.kube.client import ApiClient

_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)


class Right(NamedTuple):
    """The right to use a verb on the objects of a kind. If ``namespace`` is "", in all namespaces."""

    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{self.subresource and f'/{self.subresource}'}"


async def has_right(client: "ApiClient", right: Right) -> bool:
    """Ask the API server whether the user has the right. Raises ApiError if it does not answer."""
    attributes = {"verb": right.verb, "group": right.resource.group, "resource": right.resource.plural}
    optional = {"subresource": right.subresource, "namespace": right.namespace}
    body = {
        "apiVersion": _REVIEWS.api_version,
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | {name: value for name, value in optional.items() if value}},
    }
    answer = await client.ask("POST", _REVIEWS.path(), body=write_json(body))
    return bool((answer.get("status") or {}).get("allowed"))


async def list_missing(client: "ApiClient", rights: Collection[Right]) -> list[Right]:
    """Return those of ``rights`` that the user lacks, in the given order.

    Raises ApiError if the API server does not answer.
    """
    granted = await asyncio.gather(*(has_right(client, each) for each in rights))
    return [right for right, has in zip(rights, granted, strict=True) if not has]


async def list_unreadable(client: "ApiClient", namespaces: Collection[str]) -> set[str]:
    """Return those of ``namespaces`` whose pods the user may not list.

    Return all of them if the API server does not answer.
    """
    try:
        if not namespaces or await has_right(client, Right("list", PODS)):
            return set()
        missing = await list_missing(client, [Right("list", PODS, namespace=each) for each in sorted(namespaces)])
    except ApiError:
        return set(namespaces)
    return {right.namespace for right in missing}
