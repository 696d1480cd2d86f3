"""Patches as the API server applies them, for the fake one. Values are never changed in place."""

from collections.abc import Mapping, Sequence
from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """Return ``target`` after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(target: Any, intent: Any) -> Any:
    """Return ``target`` after server-side apply by its only field manager: maps merge, lists merge by ``type``.

    Fields that the manager applied earlier and now leaves out stay: ownership is not tracked.
    """
    if isinstance(intent, Mapping):
        result = dict(target) if isinstance(target, Mapping) else {}
        return result | {key: apply(result.get(key), value) for key, value in intent.items()}
    if isinstance(intent, list) and isinstance(target, list) and all(_is_typed(entry) for entry in intent + target):
        merged = {entry["type"]: entry for entry in target}
        for entry in intent:
            merged[entry["type"]] = apply(merged.get(entry["type"]), entry)
        return list(merged.values())
    return intent


def merge_strategically(target: Any, patch: Any) -> Any:
    """Return ``target`` after a strategic merge patch: lists merge by ``type``, entries may be deletion directives."""
    if isinstance(patch, Mapping):
        result = dict(target) if isinstance(target, Mapping) else {}
        merged = {key: merge_strategically(result.get(key), value) for key, value in patch.items()}
        return {key: value for key, value in (result | merged).items() if value is not None}
    if isinstance(patch, list) and patch and all(_is_typed(entry) for entry in patch):
        entries = {entry["type"]: entry for entry in target or ()}
        for entry in patch:
            before = entries.pop(entry["type"], None)
            if entry.get("$patch") != "delete":
                entries[entry["type"]] = merge_strategically(before, entry)
        return list(entries.values())
    return patch


def _is_typed(entry: Any) -> bool:
    return isinstance(entry, Mapping) and "type" in entry


def step_through(target: Any, steps: Sequence[Mapping[str, Any]]) -> Any:
    """Return ``target`` after a JSON patch (RFC 6902) of test, add, replace and remove steps.

    Raise ValueError for a step that does not apply.
    """
    for step in steps:
        path = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        target = _step(target, path, step)
    return target


def _step(target: Any, path: Sequence[str], step: Mapping[str, Any]) -> Any:
    if not path:
        return _at_leaf(target, step)
    head, *rest = path
    if isinstance(target, Mapping):
        if rest and head not in target:
            raise ValueError(f"{step['op']} {step['path']}: no such path")
        return _in_map(target, head, rest, step)
    if isinstance(target, list):
        return _in_list(target, head, rest, step)
    raise ValueError(f"{step['op']} {step['path']}: no such path")


def _at_leaf(target: Any, step: Mapping[str, Any]) -> Any:
    if step["op"] != "test":
        return step.get("value")
    if target != step.get("value"):
        raise ValueError(f"testing value {step['path']} failed: the server rejected our request due to an error")
    return target


def _in_map(target: Mapping[str, Any], head: str, rest: Sequence[str], step: Mapping[str, Any]) -> Any:
    result = dict(target)
    if not rest and step["op"] == "remove":
        if head not in result:
            raise ValueError(f"remove {step['path']}: no such path")
        del result[head]
    else:
        result[head] = _step(result.get(head), rest, step)
    return result


def _in_list(target: list[Any], head: str, rest: Sequence[str], step: Mapping[str, Any]) -> Any:
    result = list(target)
    index = len(result) if head == "-" else int(head)
    if not rest and step["op"] == "add":
        result.insert(index, step.get("value"))
        return result
    if index >= len(result):
        raise ValueError(f"{step['op']} {step['path']}: no such path")
    if not rest and step["op"] == "remove":
        del result[index]
    else:
        result[index] = _step(result[index], rest, step)
    return result
