"""Objects that cannot be decoded, and the function that runs every decoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Malformed:
    """An object that could not be decoded."""

    kind: str
    """The kind that it should have been."""

    key: str
    """``namespace/name``, as far as it was readable."""

    problem: str
    """One phrase that names the field."""


def attempt(kind: str, decode: Callable[[dict[str, Any]], Value], obj: object) -> Value | Malformed:
    """``decode(obj)``, or a Malformed where ``obj`` is no JSON object or ``decode`` raises ValueError."""
    if not isinstance(obj, dict):
        return Malformed(kind, "", "not a JSON object")
    try:
        return decode(obj)
    except ValueError as problem:
        return Malformed(kind, _key_of(obj), str(problem))


def _key_of(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    parts = (metadata.get("namespace"), metadata.get("name"))
    return "/".join(part for part in parts if isinstance(part, str) and part)
