"""The base of all documents of ``/debug``, and helpers to write them. Examples are in ``examples.json``."""

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
"""An example answer of each page, by the path of its route."""


class View(BaseModel):
    """A document of ``/debug``. The docstrings of its fields are their descriptions in the OpenAPI, too."""

    model_config = ConfigDict(use_attribute_docstrings=True)


async def write_list(views: Iterable[View]) -> Response:
    """Return the documents as one JSON list. They are made one by one, so that filter is served in between."""
    return Response(await _write_all(views), media_type="application/json")


async def write_long(view: View, field: str, views: Iterable[View]) -> Response:
    """Return a document whose list ``field`` is long: it comes last, and its items are made one by one."""
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
    """Return the OpenAPI ``responses`` of a route with an example of its answer, a View or a list of them.

    ``refusals`` are descriptions by the name of the status: ``not_found="The group is not known."``
    """
    responses: dict[int | str, dict[str, Any]] = {
        HTTPStatus[name.upper()].value: {"description": said} for name, said in refusals.items()
    }
    responses[200] = {"content": {"application/json": {"example": to_jsonable_python(example)}}}
    return responses


def add_page(
    router: APIRouter, path: str, answer: Callable[..., Awaitable[Any]], model: Any = None, **refusals: str
) -> None:
    """Add the route of a page to ``answer``, whose docstring becomes the description; ``refusals`` as in `exemplify`.

    ``model`` is the model of the answer where ``answer`` returns a Response.
    """
    shape = {} if model is None else {"response_model": model}
    router.add_api_route(path, answer, responses=exemplify(EXAMPLES[path], **refusals), **shape)
