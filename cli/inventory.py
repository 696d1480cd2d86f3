"""The objects of an installation of Serried, found by the label set by `serried install`, kubectl and Helm.

`read_inventory` lists the labelled objects of every kind. `find_foreign` lists the other objects in Serried's
namespace: the namespace may be deleted only if there are none.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cli.access import describe_failure
from cli.output import CommandError, ExitCode
from serried.api.names import INSTALLATION
from serried.api.parent import MANAGED_BY, MANAGER
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import JSON, LEASES, Resource, Selection

Found = tuple[Resource, JSON]

_SKIPPED = frozenset({"events", "endpoints", "customresourcedefinitions"})
"""Kinds that are left out: events expire, Endpoints end with their Service, CRDs are found by their API group."""

_MADE_BY_KUBERNETES = frozenset({("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")})
"""Plural and name of the objects that kube-controller-manager creates in each namespace."""

_METHOD_NOT_ALLOWED = 405


@dataclass(frozen=True, slots=True)
class Inventory:
    """The objects of one installation, and facts about the cluster. Read once per run of the command."""

    kinds: Sequence[Resource]
    """The kinds whose objects can be listed and deleted, in the version that their API group prefers."""

    own: Sequence[Found]
    """The objects of the installation, without CRDs and without objects that are deleted together with their owners."""

    others: Collection[str]
    """The namespaces of other installations."""

    unlisted: Sequence[str]
    """The kinds that could not be listed, with the reason. Missing rights are no such reason: they end the command."""


async def read_inventory(client: ApiClient, home: str) -> Inventory:
    """Read the inventory of the installation in namespace ``home``. Raises CommandError if rights are missing."""
    kinds, unlisted = await discover(client)
    found, failures = await _list(client, kinds, Selection(labels=INSTALLATION))
    own = [(kind, each) for kind, each in found if _read_home(each) == home and not _list_owners(each)]
    others = {_read_home(each) for _, each in found} - {home, ""}
    if own and LEASES in kinds:  # the Lease of kube-scheduler has no label
        leases, more = await _list(client, [LEASES], Selection(namespace=home))
        own += [(kind, each) for kind, each in leases if _is_own_lease(each) and not _read_home(each)]
        failures += more
    return Inventory(kinds, own, others, [*unlisted, *failures])


async def find_foreign(client: ApiClient, inventory: Inventory, home: str) -> tuple[list[str], list[str]]:
    """Return the objects in the namespace that are not Serried's, and the kinds that could not be listed."""
    kinds = [each for each in inventory.kinds if each.namespaced]
    found, failures = await _list(client, kinds, Selection(namespace=home))
    ours = {each["metadata"].get("uid") for _, each in inventory.own}
    while more := {each["metadata"]["uid"] for _, each in found if _list_owners(each) & ours} - ours:
        ours |= more
    foreign = [
        f"{kind} {each['metadata']['name']}"
        for kind, each in found
        if each["metadata"]["uid"] not in ours and not _is_expected(kind, each, home)
    ]
    return foreign, [*inventory.unlisted, *failures]


def _is_expected(kind: Resource, obj: JSON, home: str) -> bool:
    """Return whether an object in Serried's namespace is one of Serried's or of Kubernetes itself."""
    is_record = (obj["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER
    is_lease = kind == LEASES and _is_own_lease(obj)
    is_made = (kind.plural, obj["metadata"]["name"]) in _MADE_BY_KUBERNETES
    return _read_home(obj) == home or is_record or is_lease or is_made


def _is_own_lease(lease: JSON) -> bool:
    name = lease["metadata"]["name"]
    return bool(name == MANAGER or name.startswith(f"{MANAGER}-"))


def _read_home(obj: JSON) -> str:
    return str((obj["metadata"].get("labels") or {}).get(INSTALLATION, ""))


def _list_owners(obj: JSON) -> set[str]:
    return {each["uid"] for each in obj["metadata"].get("ownerReferences") or ()}


async def discover(client: ApiClient) -> tuple[list[Resource], list[str]]:
    """Return the kinds that can be listed and deleted, and the API versions that do not answer, with the reason."""
    groups = (await client.read("/apis"))["groups"]
    versions = [each["groupVersion"] for group in groups for each in (group["preferredVersion"], *group["versions"])]
    roots = list(dict.fromkeys(["/api/v1", *(f"/apis/{version}" for version in versions)]))
    answers = await asyncio.gather(*(_attempt(client, root) for root in roots))
    kinds: dict[tuple[str, str], Resource] = {}
    silent: list[str] = []
    for root, answer in zip(roots, answers, strict=True):
        if isinstance(answer, ApiError):
            silent.append(f"{root}: {describe_failure(answer)}")
            continue
        group, _, version = root.removeprefix("/apis/").removeprefix("/api/").rpartition("/")
        for each in answer.get("resources") or ():
            plural = each["name"]
            if {"list", "delete"} <= set(each.get("verbs") or ()) and plural not in _SKIPPED and "/" not in plural:
                kind = Resource(group, version, plural, namespaced=each["namespaced"])
                kinds.setdefault((group, plural), kind)
    return list(kinds.values()), silent


async def _attempt(client: ApiClient, path: str) -> JSON | ApiError:
    try:
        return await client.read(path)
    except ApiError as error:
        return error


async def _list(client: ApiClient, kinds: Sequence[Resource], selection: Selection) -> tuple[list[Found], list[str]]:
    """Return the selected objects of these kinds, and the kinds that could not be listed, with the reason.

    Raises CommandError if the user lacks the right to list one of them.
    """

    async def ask(kind: Resource) -> list[Found] | ApiError:
        try:
            return [(kind, each) async for each in client.items(kind, selection)]
        except ApiError as error:
            return error

    answers = dict(zip(kinds, await asyncio.gather(*map(ask, kinds)), strict=True))
    if forbidden := [str(kind) for kind, answer in answers.items() if isinstance(answer, Forbidden)]:
        raise missing_rights_error(f"list {', '.join(forbidden)}")
    silent = {
        kind: answer
        for kind, answer in answers.items()
        if isinstance(answer, ApiError)
        and not isinstance(answer, NotFound)  # a CRD that was deleted meanwhile
        and answer.status != _METHOD_NOT_ALLOWED
    }
    found = [each for answer in answers.values() if not isinstance(answer, ApiError) for each in answer]
    return found, [f"{kind}: {describe_failure(answer)}" for kind, answer in silent.items()]


def missing_rights_error(missing: str) -> CommandError:
    """Return the error for missing rights."""
    return CommandError(ExitCode.NO, f"nothing was done: you may not {missing}; run it as an administrator")
