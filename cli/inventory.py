"""Finds the objects of an installation of Serried by the label that `serried install`, kubectl and Helm set.

`read_inventory` lists the labelled objects of every kind. `find_foreign` lists the other objects in Serried's
namespace: `serried uninstall` deletes the namespace only if there are none.
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
"""Kinds that are not listed: events expire, Endpoints end with their Service, CRDs are found by their API group."""

_MADE_BY_KUBERNETES = frozenset({("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")})
"""The objects that kube-controller-manager creates in each namespace, as plural and name."""

_METHOD_NOT_ALLOWED = 405


@dataclass(frozen=True, slots=True)
class Inventory:
    """The objects of one installation, and facts about the cluster. Read once by each `serried uninstall`."""

    kinds: Sequence[Resource]
    """All kinds of the cluster whose objects can be listed and deleted, each in its API group's preferred version."""

    own: Sequence[Found]
    """The objects of the installation that must be deleted one by one, each with its kind.

    It has neither CRDs, nor objects that the garbage collector deletes with their owner.
    """

    others: Collection[str]
    """The namespaces of other installations of Serried in the cluster."""

    unlisted: Sequence[str]
    """The kinds that could not be listed, each with the reason."""


async def read_inventory(client: ApiClient, home: str) -> Inventory:
    """Read the inventory of the installation in the namespace ``home``.

    Raises CommandError if the user lacks the right to list a kind.
    """
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
    """Return the objects in the namespace ``home`` that are not Serried's, and the kinds that could not be listed.

    An object counts as Serried's if the inventory has it or one of its owners. The objects of `_is_expected` are not
    returned either. Raises CommandError as `read_inventory`.
    """
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
    """Return whether an object in the namespace ``home`` was made by Serried, or by Kubernetes in each namespace."""
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
    """Return the kinds that can be listed and deleted, and the API versions that do not answer, with the reason.

    An APIService whose server is down does not answer. Raises ApiError if the API server does not answer.
    """
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
    """Return the objects of these kinds that match ``selection`` (a namespace or a label), each with its kind.

    The second list has the kinds that could not be listed, with the reason. Raises CommandError if the user lacks the
    right to list one of the kinds.
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
    """Return the error that ends the command because the user lacks rights. ``missing`` lists them as text."""
    return CommandError(ExitCode.NO, f"nothing was done: you may not {missing}; run the command as an administrator")
