"""What a part remembers, for the tests that hold it to forgetting: the one look that they take behind a public face."""

from typing import Any


def read_memory(part: object) -> dict[str, Any]:
    """The fields of a part by name, without the underscore of those that are its own affair."""
    slots = {name: getattr(part, name) for name in getattr(part, "__slots__", ())}
    return {name.removeprefix("_"): value for name, value in (slots or vars(part)).items()}
