"""The base class of the JSON documents of the pages of ``/debug``, and functions to write and describe them."""

import json
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from serried.ops.slices import pause_if_due

EXAMPLES: dict[str, Any] = json.loads(Path(__file__).with_name("examples.json").read_text())
"""An example of each page's answer, for the OpenAPI, by the path of its route below ``/debug``."""


class View(BaseModel):
    """The base class of the documents of ``/debug``. The OpenAPI shows the docstrings of the fields as descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=True)


async def write_list(views: Iterable[View]) -> Response:
    """Return the documents as one JSON list.

    ``views`` may create them one by one; filter calls are answered in between.
    """
    return Response(await _write_all(views), media_type="application/json")


async def write_long(view: View, field: str, views: Iterable[View]) -> Response:
    """Return ``view`` as JSON with ``views`` as the list ``field``, which is empty in ``view``.

    The list is long, so ``views`` may create its items one by one; filter calls are answered in between.
    """
    rest = view.model_dump_json(exclude={field}).encode()
    body = b'%b,"%b":%b}' % (rest.removesuffix(b"}"), field.encode(), await _write_all(views))
    return Response(body, media_type="application/json")


async def _write_all(views: Iterable[View]) -> bytes:
    parts = []
    for view in views:
        parts.append(view.model_dump_json().encode())
        await pause_if_due()
    return b"[%b]" % b",".join(parts)


def describe_responses(example: object, **refusals: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI ``responses`` of a route: an example of the answer, and descriptions of the errors.

    ``example`` is a `View`, a list of them, or JSON. ``refusals`` are descriptions by the name of the HTTP status, such
    as ``not_found="The group is not known."``.
    """
    responses: dict[int | str, dict[str, Any]] = {
        HTTPStatus[name.upper()].value: {"description": said} for name, said in refusals.items()
    }
    responses[200] = {"content": {"application/json": {"example": to_jsonable_python(example)}}}
    return responses


def add_page(
    router: APIRouter, path: str, answer: Callable[..., Awaitable[Any]], model: Any = None, **refusals: str
) -> None:
    """Add the route ``path`` to the router, with the example that `EXAMPLES` has for this path.

    ``answer`` handles the requests; its docstring is the description in the OpenAPI. ``model`` is the type of the
    answer where ``answer`` itself returns a Response. ``refusals`` describe the route's errors, by the name of the HTTP
    status: ``not_found="The group is not known."``.
    """
    shape = {} if model is None else {"response_model": model}
    router.add_api_route(path, answer, responses=describe_responses(EXAMPLES[path], **refusals), **shape)
