"""Label and field selectors as the API server reads them, for the fake one."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Match = Callable[[Mapping[str, Any]], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_EQUALITY = re.compile(r"^([^!=\s]+)\s*(!=|==|=)\s*(\S*)$")


def match_selectors(labels: str, fields: str) -> Match:
    """Return a test of objects by both selectors. Raises ValueError for a text that is no selector."""
    by_label = [_label_test(term) for term in _split(labels)]
    by_field = [_field_test(term) for term in _split(fields)]

    def match(obj: Mapping[str, Any]) -> bool:
        held = obj.get("metadata", {}).get("labels") or {}
        return all(test(held) for test in by_label) and all(test(obj) for test in by_field)

    return match


def _split(selector: str) -> list[str]:
    """Split a selector into its terms. A comma inside parentheses does not separate."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label_test(term: str) -> Match:
    if found := _SET.match(term):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUALITY.match(term):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if " " in term:
        raise ValueError(f"unable to parse requirement: {term!r}")
    key = term.removeprefix("!")
    if term.startswith("!"):
        return lambda labels: key not in labels
    return lambda labels: key in labels


def _field_test(term: str) -> Match:
    found = _EQUALITY.match(term)
    if not found:
        raise ValueError(f"invalid field selector: {term!r}")
    path, operator, value = found.groups()
    if operator == "!=":
        return lambda obj: _field(obj, path) != value
    return lambda obj: _field(obj, path) == value


def _field(obj: Mapping[str, Any], path: str) -> str:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if path == "source" and isinstance(value, Mapping):  # of an event; it is its component that is selected
        value = value.get("component")
    return "" if value is None else str(value)
