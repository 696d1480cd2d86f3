"""Shell completion: the gangs, namespaces and topology keys that a shell proposes when the user presses Tab.

A user who presses Tab waits and reads no error. So failures are silent, and a request that takes longer than `_SECONDS`
is given up: then nothing is proposed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import TYPE_CHECKING

import typer

from cli.names import read_kind
from cli.target import Target, find_credentials, find_namespace, read_target
from serried.kube.wire import Resource

if TYPE_CHECKING:
    from cli.access import DebugApi

_SECONDS = 2.0
"""Seconds after which a request of the completion is given up."""

_MOST_GROUPS = "500"


def complete_gangs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the gangs whose name begins with ``incomplete``, in the namespace typed so far.

    They are written with their kind, such as ``job/train``. They are written without it (``train``) if a kind such as
    ``job`` comes before on the command line, or if ``incomplete`` matches no name with a kind.
    """
    target = read_target(ctx)
    namespace = "" if ctx.params.get("every") else find_namespace(target, ctx.params.get("namespace") or "")

    async def list_names(debug: "DebugApi") -> list[str]:
        groups = await debug.get("groups", {"limit": _MOST_GROUPS, "namespace": namespace})
        return [each.get("owner") or f"podgroup/{each['name']}" for each in groups]

    names = _ask_extender(target, list_names)
    bare = [name.partition("/")[2] for name in names]
    said = ctx.params.get("what") or ()
    if said and read_kind(said[0]):
        kind = read_kind(said[0])
        return _filter((name.partition("/")[2] for name in names if name.startswith(f"{kind}/")), incomplete)
    return _filter(names, incomplete) or _filter(bare, incomplete)


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topology keys that begin with ``incomplete``.

    Known are the keys that gangs require or prefer, and the one that ``serried top`` shows by default.
    """

    async def list_keys(debug: "DebugApi") -> list[str]:
        found = await debug.get("domains")
        return [*found["keys"], found["key"]]

    return _filter(_ask_extender(read_target(ctx), list_keys), incomplete)


def complete_namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces whose name begins with ``incomplete``.

    If the user may not list namespaces, or names the extender's address by ``--server``, only those with gangs are
    known.
    """

    async def list_homes(debug: "DebugApi") -> list[str]:
        return [each["namespace"] for each in await debug.get("groups", {"limit": _MOST_GROUPS})]

    target = read_target(ctx)
    found = [] if target.server else _list_namespaces(target)
    return _filter(found or _ask_extender(target, list_homes), incomplete)


def _filter(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _ask_extender(target: Target, work: Callable[["DebugApi"], Awaitable[list[str]]]) -> list[str]:
    """Return what ``work`` returns for a client of the extender; an empty list if that fails or takes too long."""
    from cli.access import connect_to_extender  # noqa: PLC0415 - the help of a command needs no HTTP

    async def ask() -> list[str]:
        async with asyncio.timeout(_SECONDS), connect_to_extender(target) as debug:
            return await work(debug)

    with suppress(Exception), redirect_stderr(StringIO()):
        return asyncio.run(ask())
    return []


def _list_namespaces(target: Target) -> list[str]:
    from cli.transport import open_client  # noqa: PLC0415 - the help of a command needs no HTTP

    async def ask() -> list[str]:
        resource = Resource("", "v1", "namespaces", namespaced=False)
        async with (
            asyncio.timeout(_SECONDS),
            open_client(find_credentials(target)) as client,
        ):
            return [str(each["metadata"]["name"]) for each in await client.list_all(resource)]

    with suppress(Exception), redirect_stderr(StringIO()):
        return asyncio.run(ask())
    return []
