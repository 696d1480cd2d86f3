"""Manifests as people write them: YAML or JSON, one document or several. Read in steps, for YAML takes its time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson
import yaml

from serried.plan.steps import Work

_EVENTS_PER_STEP = 50
_MAX_DEPTH = 64

_MAX_REPEATED = 1 << 16
"""How many values aliases may stand for, in all documents."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C where there is one."""

_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_PREFIX = "tag:yaml.org,2002:"


def read_documents(text: str) -> Work[list[Any]]:
    """The documents. Raises ValueError, with the line, for what cannot be read."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = orjson.loads(text)
        except ValueError:
            pass  # YAML may begin so, too
        else:
            _check_depth(document)
            return [document]
    builder = _Builder()
    events = iter(yaml.parse(text, _LOADER))
    while True:
        try:
            for _ in range(_EVENTS_PER_STEP):
                builder.take(next(events))
        except StopIteration:
            return builder.documents
        except yaml.YAMLError as problem:
            raise ValueError(f"it is no YAML{_tell_place(problem)}") from None
        yield


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [each for value in level for each in _list_below(value)]
        if not level:
            return
    raise ValueError(f"more than {_MAX_DEPTH} levels are not read")


def _list_below(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@dataclass(slots=True)
class _Part:
    """A value that is read, with all that is in it."""

    value: Any

    anchor: str | None = None
    """The name by which it can be repeated."""

    size: int = 1
    """How many values it is, repeated ones included."""

    depth: int = 0
    """How many levels are below it."""

    key: str | None = None
    """The key whose value is next; of a map that has not ended."""

    merges: bool = False
    """Whether that key is the one that adds another map."""


class _Builder:
    """Makes values of the parser's events. What aliases repeat is counted: a few lines can mean millions of values."""

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self._repeated = 0
        self._open: list[_Part] = []
        """Maps and lists that have not ended."""

        self._anchored: dict[str, _Part] = {}
        """What can be repeated in this document."""

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._anchored.clear()
        elif isinstance(event, yaml.AliasEvent):
            self._put(self._repeat(event), event)
        elif isinstance(event, yaml.ScalarEvent):
            self._put_scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._check_depth(len(self._open), event)
            self._open.append(_Part({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._put(self._open.pop(), event)

    def _check_depth(self, levels: int, event: Any) -> None:
        if levels >= _MAX_DEPTH:
            raise ValueError(f"line {_find_line(event)}: more than {_MAX_DEPTH} levels are not read")

    def _repeat(self, event: Any) -> _Part:
        found = self._anchored.get(event.anchor)
        if found is None:
            raise ValueError(f"line {_find_line(event)}: nothing that has ended before it is called {event.anchor}")
        self._check_depth(len(self._open) + found.depth, event)
        self._repeated += found.size
        if self._repeated > _MAX_REPEATED:
            raise ValueError(f"line {_find_line(event)}: aliases repeat more than {_MAX_REPEATED} values; write less")
        return replace(found, anchor=None)

    def _put_scalar(self, event: Any) -> None:
        within = self._open[-1] if self._open else None
        if within is not None and isinstance(within.value, dict) and within.key is None:
            within.key = str(event.value)
            within.merges = event.value == "<<" and event.implicit[0]
        else:
            self._put(_Part(_read_scalar(event), event.anchor), event)

    def _put(self, part: _Part, event: Any) -> None:
        if part.anchor is not None:
            self._anchored[part.anchor] = part
        if not self._open:
            self.documents.append(part.value)
            return
        within = self._open[-1]
        within.size += part.size
        within.depth = max(within.depth, part.depth + 1)
        if isinstance(within.value, list):
            within.value.append(part.value)
        elif within.key is None:
            raise ValueError("a key of a map is no text")
        elif within.merges:
            _merge(within.value, part.value, event)
        else:
            within.value[within.key] = part.value
        within.key = None


def _merge(into: dict[str, Any], value: Any, event: Any) -> None:
    """Add what a map, or each of a list of maps, says and nothing before it."""
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            raise ValueError(f"line {_find_line(event)}: << takes maps only")  # noqa: TRY004 - what people have sent
        for key, said in each.items():
            into.setdefault(key, said)


def _find_line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _read_scalar(event: Any) -> Any:
    """A value as Kubernetes reads it: times stay texts."""
    tag = event.tag or _resolve(event)
    node = yaml.ScalarNode(tag, event.value)
    try:
        match tag.removeprefix(_PREFIX):
            case "null":
                return None
            case "bool":
                return _CONSTRUCTOR.construct_yaml_bool(node)
            case "int":
                return _CONSTRUCTOR.construct_yaml_int(node)
            case "float":
                return _CONSTRUCTOR.construct_yaml_float(node)
    except ValueError:
        raise ValueError(f"line {_find_line(event)}: {event.value[:50]!r} cannot be read") from None
    return event.value


_RESOLVER: Any = yaml.resolver.Resolver()


def _resolve(event: Any) -> str:
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, event.value, event.implicit)
    return tag


def _tell_place(problem: yaml.YAMLError) -> str:
    mark: Any = getattr(problem, "problem_mark", None)
    said = getattr(problem, "problem", "") or ""
    return f": line {mark.line + 1}: {said}" if mark is not None else ""


def flatten(documents: list[Any], where: str = "document") -> Iterator[tuple[str, Any]]:
    """Every object, with where it stands: the items of lists, and of ``manifests``, one by one."""
    for number, document in enumerate(documents, 1):
        place = f"{where} {number}"
        items = _list_items(document)
        if items is not None:
            yield from flatten(items, f"{place}, item")
        elif document is not None:
            yield place, document


def _list_items(document: Any) -> list[Any] | None:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    items = document.get("manifests") if "kind" not in document else document.get("items")
    is_list = "kind" not in document or str(document["kind"]).endswith("List")
    return items if is_list and isinstance(items, list) else None
