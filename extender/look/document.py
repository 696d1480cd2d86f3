"""The documents of ``/debug``: their fields are described where they are declared, examples are in `examples.json`."""

import json
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from serried.ops.slices import yield_turn

EXAMPLES: dict[str, Any] = json.loads(Path(__file__).with_name("examples.json").read_text())
"""An answer of each page, by the path of its route."""


class View(BaseModel):
    """A document of ``/debug``; what stands below a field describes it in the OpenAPI, too."""

    model_config = ConfigDict(use_attribute_docstrings=True)


async def write_list(views: Iterable[View]) -> Response:
    """The documents as one JSON list, made one by one: between them filter gets its turn."""
    return Response(await _write_all(views), media_type="application/json")


async def write_long(view: View, field: str, views: Iterable[View]) -> Response:
    """A document of which the list ``field`` is long: it comes last, and its documents are made one by one."""
    rest = view.model_dump_json(exclude={field}).encode()
    body = b'%b,"%b":%b}' % (rest.removesuffix(b"}"), field.encode(), await _write_all(views))
    return Response(body, media_type="application/json")


async def _write_all(views: Iterable[View]) -> bytes:
    parts = []
    for view in views:
        parts.append(view.model_dump_json().encode())
        await yield_turn()
    return b"[%b]" % b",".join(parts)


def exemplify(example: object, **refusals: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route whose answer may look like this: a View, or a list of them.

    ``refusals`` are by the name of their status: ``not_found="The group is not known."``
    """
    responses: dict[int | str, dict[str, Any]] = {
        HTTPStatus[name.upper()].value: {"description": said} for name, said in refusals.items()
    }
    responses[200] = {"content": {"application/json": {"example": to_jsonable_python(example)}}}
    return responses


def add_page(
    router: APIRouter, path: str, answer: Callable[..., Awaitable[Any]], model: Any = None, **refusals: str
) -> None:
    """Route a page that has an example to ``answer``, whose docstring describes it; ``refusals`` as of `exemplify`.

    ``model`` is that of the answer, where ``answer`` writes a Response of its own.
    """
    shape = {} if model is None else {"response_model": model}
    router.add_api_route(path, answer, responses=exemplify(EXAMPLES[path], **refusals), **shape)
