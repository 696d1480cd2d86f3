"""Reads the fields of a raw JSON object.

All functions follow one rule: a field that is absent or null has its default, a field of the wrong type raises
ValueError with the field's name (``serried.decode.malformed.attempt`` turns it into a value). A guess would be worse: a
node selector that is taken for absent places pods where they must not run.
"""

from collections.abc import Mapping
from sys import intern
from typing import Any

Raw = Mapping[str, Any]

_NOTHING: dict[str, Any] = {}
_MAX_INDEX_DIGITS = 9


def read_map(obj: Raw, name: str) -> Raw:
    """The object at ``name``; empty if absent."""
    value = obj.get(name)
    if value is None:
        return _NOTHING
    if isinstance(value, dict):
        return value
    raise ValueError(f"{name} is not an object")


def read_objects(obj: Raw, name: str) -> list[Raw]:
    """The list of objects at ``name``; empty if absent."""
    value = obj.get(name)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise ValueError(f"{name} is not a list of objects")


def read_texts(obj: Raw, name: str) -> tuple[str, ...]:
    """The list of strings at ``name``, interned; empty if absent."""
    value = obj.get(name)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(map(intern, value))
    raise ValueError(f"{name} is not a list of strings")


def read_text(obj: Raw, name: str, default: str = "") -> str:
    """The string at ``name``; ``default`` if absent or empty."""
    value = obj.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value
    raise ValueError(f"{name} is not a string")


def read_name(obj: Raw, name: str, default: str = "") -> str:
    """As ``read_text``, interned: for strings that many objects have in common."""
    return intern(read_text(obj, name, default))


def read_required(obj: Raw, name: str) -> str:
    """The string at ``name``. ValueError if it is absent or empty."""
    value = read_text(obj, name)
    if not value:
        raise ValueError(f"{name} is missing")
    return value


def read_int(obj: Raw, name: str, default: int = 0) -> int:
    """The integer at ``name``; ``default`` if absent."""
    value = obj.get(name)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not an integer")


def read_index(obj: Raw, name: str) -> int | None:
    """The index in the string at ``name``; None if it is absent, or is anything but a plain small number."""
    text = read_text(obj, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_INDEX_DIGITS else None


def read_flag(obj: Raw, name: str) -> bool:
    """The boolean at ``name``; False if absent."""
    value = obj.get(name)
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not a boolean")


def read_labels(obj: Raw, name: str) -> dict[str, str]:
    """The map of strings at ``name``, keys and values interned; empty if absent."""
    labels: dict[str, str] = {}
    for key, value in read_map(obj, name).items():
        if not isinstance(value, str):
            raise ValueError(f"{name}[{key}] is not a string")  # noqa: TRY004  # one kind of error reaches attempt
        labels[intern(key)] = intern(value)
    return labels
