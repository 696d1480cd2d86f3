"""Completion in a shell: the gangs, namespaces and topology keys that it proposes for a command line.

Somebody who presses Tab waits for it, and reads no error: what is not found in a moment is not proposed.
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
"""How long the cluster may take."""

_MOST_GROUPS = "500"


def complete_gangs(ctx: typer.Context, incomplete: str) -> list[str]:
    """As people call them: ``job/train``, of the namespace; mere names where these fit, and behind a kind."""
    target = read_target(ctx)
    namespace = "" if ctx.params.get("every") else find_namespace(target, ctx.params.get("namespace") or "")

    async def list_names(debug: "DebugApi") -> list[str]:
        groups = await debug.get("groups", {"limit": _MOST_GROUPS, "namespace": namespace})
        return [each.get("owner") or f"podgroup/{each['name']}" for each in groups]

    names = _ask(target, list_names)
    bare = [name.partition("/")[2] for name in names]
    said = ctx.params.get("what") or ()
    if said and read_kind(said[0]):
        kind = read_kind(said[0])
        return _choose((name.partition("/")[2] for name in names if name.startswith(f"{kind}/")), incomplete)
    return _choose(names, incomplete) or _choose(bare, incomplete)


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topology keys that gangs ask for, and the one that is shown where none do."""

    async def list_keys(debug: "DebugApi") -> list[str]:
        found = await debug.get("domains")
        return [*found["keys"], found["key"]]

    return _choose(_ask(read_target(ctx), list_keys), incomplete)


def complete_namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of the cluster; where nobody may list them, or an address is asked, those that have gangs."""

    async def list_homes(debug: "DebugApi") -> list[str]:
        return [each["namespace"] for each in await debug.get("groups", {"limit": _MOST_GROUPS})]

    target = read_target(ctx)
    found = [] if target.server else _list_namespaces(target)
    return _choose(found or _ask(target, list_homes), incomplete)


def _choose(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _ask(target: Target, work: Callable[["DebugApi"], Awaitable[list[str]]]) -> list[str]:
    """What the extender says; nothing where it does not in time, whatever the reason."""
    from cli.access import reach  # noqa: PLC0415 - the help of a command needs no HTTP

    async def ask() -> list[str]:
        async with asyncio.timeout(_SECONDS), reach(target) as debug:
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
