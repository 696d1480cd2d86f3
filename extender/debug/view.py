"""What ``/debug`` shows, as documents of the OpenAPI: fields described where they are declared, and an example."""

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python


class View(BaseModel):
    """A document of ``/debug``; what stands below a field describes it in the OpenAPI, too."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def exemplify(example: object, **refusals: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route whose answer may look like this: a View, or a list of them.

    ``refusals`` are by the name of their status: ``not_found="The group is not known."``
    """
    responses: dict[int | str, dict[str, Any]] = {
        HTTPStatus[name.upper()].value: {"description": said} for name, said in refusals.items()
    }
    responses[200] = {"content": {"application/json": {"example": to_jsonable_python(example)}}}
    return responses
