"""Read private fields of an object, for the tests that check that it forgets what it no longer needs."""

from typing import Any


def read_memory(part: object) -> dict[str, Any]:
    """Return the object's fields by name, without the leading underscore of private ones."""
    slots = {name: getattr(part, name) for name in getattr(part, "__slots__", ())}
    return {name.removeprefix("_"): value for name, value in (slots or vars(part)).items()}
