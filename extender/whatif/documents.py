"""Manifests as people write them: YAML or JSON, one document or several. Read in steps, for YAML takes its time."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import yaml

from serried.plan.steps import Work

_EVENTS_PER_STEP = 50
_MAX_DEPTH = 64

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


class _Builder:
    """Makes values of the parser's events. Aliases are refused: a few lines of them can mean millions of values."""

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self._open: list[tuple[Any, str | None]] = []
        """Maps and lists that have not ended, each map with the key whose value is next."""

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ValueError(f"line {_find_line(event)}: anchors and aliases are not read; write it out")
        if isinstance(event, yaml.ScalarEvent):
            self._put_scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(self._open) >= _MAX_DEPTH:
                raise ValueError(f"line {_find_line(event)}: more than {_MAX_DEPTH} levels are not read")
            self._open.append(({} if isinstance(event, yaml.MappingStartEvent) else [], None))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._put(self._open.pop()[0])

    def _put_scalar(self, event: Any) -> None:
        if self._open and isinstance(self._open[-1][0], dict) and self._open[-1][1] is None:
            self._open[-1] = (self._open[-1][0], str(event.value))
        else:
            self._put(_read_scalar(event))

    def _put(self, value: Any) -> None:
        if not self._open:
            self.documents.append(value)
            return
        into, key = self._open[-1]
        if isinstance(into, list):
            into.append(value)
        elif key is None:
            raise ValueError("a key of a map is no text")
        else:
            into[key] = value
            self._open[-1] = (into, None)


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
