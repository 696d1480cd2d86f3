"""``/debug/snapshot``: the planner's whole input as one file, from which ``serried replay`` decides again."""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict

from extender.core import Core
from extender.debug.slices import Slices, TooLongError, join
from extender.debug.view import View, exemplify
from extender.replay.taking import take_parts
from serried.decode.snapshots import compress, write_snapshot
from serried.model.group import GroupKey, decode_group_key
from serried.model.level import ApiLevel
from serried.plan.steps import Work

_PIECE_BYTES = 1 << 16
_LIMIT_SECONDS = 60.0
_PAUSE_SECONDS = "5"

_BUSY = "another snapshot is being made; try again in some seconds"


class Form(StrEnum):
    """How the file is written."""

    JSON = "json"
    GZIP = "gzip"


class SnapshotView(View):
    """The file; what else is in it has the fields of `serried.model.capture.Capture`."""

    model_config = ConfigDict(extra="allow")

    version: int
    """The version of the format."""

    serried: str
    """The version of Serried that has written it."""

    nodes: list[dict[str, Any]]

    used: dict[str, dict[str, int]]
    """What is used on each node."""

    pods: list[dict[str, Any]]
    """Those that run, and the members of groups."""

    groups: list[dict[str, Any]]


_EXAMPLE = SnapshotView(
    version=1,
    serried="0.1.0",
    nodes=[{"name": "node-7", "allocatable": {"cpu": 8000, "pods": 110}, "labels": {"example.com/rack": "rack-2"}}],
    used={"node-7": {"cpu": 4000, "pods": 1}},
    pods=[{"namespace": "team", "name": "web-0", "uid": "5f6c", "shape": 0, "node": "node-7"}],
    groups=[{"key": ["team", "train", "PodGroup", "", ""], "uid": "9a0d", "policy": {"min_count": 4}}],
)

_TYPES = {Form.JSON: ("application/json", "json"), Form.GZIP: ("application/gzip", "json.gz")}


def _describe_answer() -> dict[int | str, dict[str, Any]]:
    responses = exemplify(_EXAMPLE)
    responses[200]["content"][_TYPES[Form.GZIP][0]] = {"schema": {"type": "string", "format": "binary"}}
    return responses


def snapshot_routes(core: Core, level: ApiLevel, slices: Slices | None = None) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()
    turn = asyncio.Lock()
    work = slices or Slices()

    @router.get(
        "/snapshot",
        response_model=SnapshotView,
        responses={
            **_describe_answer(),
            400: {"description": "The answer says how a group is named."},
            404: {"description": "The group is not known."},
            503: {"description": f"It took more than {_LIMIT_SECONDS:.0f} s of work."},
            429: {"description": "Another snapshot is being made."},
        },
    )
    async def show_snapshot(group: str = "", form: Form = Form.JSON) -> StreamingResponse:
        """The planner's whole input at one instant: nodes, what is used, groups, reservations, settings.

        Environment variables, annotations and tokens are not in it, and of labels only those that decide. ``group``
        (NAMESPACE/NAME) is the group whose decision ``serried replay`` makes again.
        """
        key = _find_group(core, group)
        if turn.locked():
            raise HTTPException(429, _BUSY, headers={"Retry-After": _PAUSE_SECONDS})
        async with turn:
            try:
                pieces = await work.finish(_write(core, level, key, form), _LIMIT_SECONDS)
            except TooLongError:
                raise HTTPException(503, f"the snapshot took more than {_LIMIT_SECONDS:.0f} s of work") from None
        media_type, ending = _TYPES[form]
        headers = {
            "Content-Disposition": f'attachment; filename="serried-snapshot.{ending}"',
            "X-Longest-Slice-Milliseconds": f"{work.longest * 1000:.1f}",
            "X-Work-Milliseconds": f"{work.spent * 1000:.0f}",
        }
        return StreamingResponse(_stream(pieces), media_type=media_type, headers=headers)

    return router


def _find_group(core: Core, text: str) -> GroupKey | None:
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise HTTPException(400, f"group is NAMESPACE/NAME, as /debug/groups gives them, not {text[:100]!r}")
    key = core.store.forest.lift(decode_group_key(namespace, name))
    if key not in core.store.groups and key not in core.store.members:
        raise HTTPException(404, f"no PodGroup {key} is known, and no pod names it; see /debug/groups")
    return key


def _write(core: Core, level: ApiLevel, key: GroupKey | None, form: Form) -> Work[list[bytes]]:
    capture, pods = yield from take_parts(core, level, key)
    chunks = write_snapshot(capture, pods)
    return (yield from join(compress(chunks) if form is Form.GZIP else chunks, _PIECE_BYTES))


async def _stream(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
