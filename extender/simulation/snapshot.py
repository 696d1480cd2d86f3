"""Captures as documents: the file that ``/debug/snapshot`` gives and ``serried replay`` reads.

One JSON object, maybe compressed by gzip. ``version`` is that of the format: it grows when an older reader would
understand something else, not when a field comes that has a default.

Values of `serried.api` as JSON, and back: every dataclass and NamedTuple by its own fields.

A field that has its default is left out, so a field that comes later has its default in an older document. Values of a
shared type stand once in a table, and where they are used there is their place in it.

The planner's whole input at one instant, as a value: what a decision can be made from again, elsewhere.
"""

import math
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any, TypeAlias, TypeVar, get_origin, get_type_hints

import orjson

from serried import __version__
from serried.api.budget import DisruptionBudget
from serried.api.group import Composite, PodGroup, Tree, Workload
from serried.api.job import Job
from serried.api.level import ApiLevel
from serried.api.names import GroupKey, Malformed
from serried.api.node import Node
from serried.api.parent import Parent
from serried.api.pod import Pod, Shape
from serried.api.priority import PriorityClass
from serried.api.reservation import Slot, Victim
from serried.api.resources import Resources
from serried.api.verdict import Verdict

Write: TypeAlias = Callable[[Any], Any]
Read: TypeAlias = Callable[[Any, str], Any]
"""Reads a value; the text says where in the document it stands, for the error."""

V = TypeVar("V")


def same(value: Any) -> Any:
    """The value as it is: what JSON has, too."""
    return value


class Codec:
    """Writes and reads values. ``shared`` are the types whose values stand in tables."""

    def __init__(self, shared: Sequence[type] = ()) -> None:
        self._tables: dict[type, dict[Any, int]] = {kind: {} for kind in shared}
        self._read_tables: dict[type, list[Any]] = {kind: [] for kind in shared}
        self._writers: dict[Any, Write] = {}
        self._readers: dict[Any, Read] = {}

    # --- tables ------------------------------------------------------------------------------------------------

    def write_table(self, kind: type) -> list[Any]:
        """The values of a shared type that were written so far, each at its place."""
        write = self._build_writer(kind)
        return [write(value) for value in self._tables[kind]]

    def read_table(self, kind: type, raw: Any, where: str) -> None:
        """The values of a shared type, before any value that uses them is read. Raises ValueError."""
        read = self._build_reader(kind)
        self._read_tables[kind] = [read(each, f"{where}[{place}]") for place, each in enumerate(_list(raw, where))]

    # --- writing -----------------------------------------------------------------------------------------------

    def writer(self, kind: Any) -> Write:
        """What writes values of a type, as an annotation says it."""
        if kind not in self._writers:
            self._writers[kind] = self._write_later(kind)  # while it is built: it may contain itself
            self._writers[kind] = self._share(kind) if kind in self._tables else self._build_writer(kind)
        return self._writers[kind]

    def _write_later(self, kind: Any) -> Write:
        def write(value: Any) -> Any:
            return self._writers[kind](value)

        return write

    def _share(self, kind: type) -> Write:
        table = self._tables[kind]
        return lambda value: table.setdefault(value, len(table))

    def _build_writer(self, kind: Any) -> Write:
        options = _list_options(kind)
        if len(options) > 1:
            return self._write_one_of(options)
        kind = options[0]
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is float:
            return _write_float
        if origin is tuple or origin is frozenset or _is_sequence(origin):
            return self._write_items(origin, arguments)
        if origin is not None and issubclass(origin, Mapping):
            return self._write_mapping(arguments)
        if issubclass(kind, Enum):
            return lambda value: value.value
        return self._write_fields(kind) if _has_fields(kind) else same

    def _write_one_of(self, options: Sequence[type]) -> Write:
        writers = {kind: self.writer(kind) for kind in options}
        return lambda value: {"type": type(value).__name__, **writers[type(value)](value)}

    def _write_items(self, origin: Any, arguments: tuple[Any, ...]) -> Write:
        if origin is tuple and arguments[-1] is not Ellipsis:
            writers = [_optional(self.writer(each), each) for each in arguments]
            return lambda value: [write(each) for write, each in zip(writers, value, strict=True)]
        write = self.writer(arguments[0])
        if origin is frozenset:
            return lambda value: sorted(map(write, value))
        return list if write is same else lambda value: [write(each) for each in value]

    def _write_mapping(self, arguments: tuple[Any, ...]) -> Write:
        key_kind, value_kind = arguments
        write = self.writer(value_kind)
        if key_kind is str:
            return dict if write is same else lambda value: {name: write(each) for name, each in value.items()}
        write_key = self.writer(key_kind)
        return lambda value: [[write_key(key), write(each)] for key, each in value.items()]

    def _write_fields(self, kind: type) -> Write:
        hints = typing.get_type_hints(kind)
        if issubclass(kind, tuple):
            writers = [_optional(self.writer(_strip(hints[name])), hints[name]) for name in _names(kind)]
            return lambda value: [write(each) for write, each in zip(writers, value, strict=True)]
        parts = [(each.name, _default(each), self.writer(_strip(hints[each.name]))) for each in _fields(kind)]

        def write_fields(value: Any) -> dict[str, Any]:
            said = {}
            for name, default, write in parts:
                each = getattr(value, name)
                if each is not default and each != default:
                    said[name] = None if each is None else write(each)
            return said

        return write_fields

    # --- reading -----------------------------------------------------------------------------------------------

    def reader(self, kind: Any) -> Read:
        """What reads values of a type; it raises ValueError, with the place, for what is none."""
        if kind not in self._readers:
            self._readers[kind] = self._read_later(kind)
            self._readers[kind] = self._look_up(kind) if kind in self._tables else self._build_reader(kind)
        return self._readers[kind]

    def _read_later(self, kind: Any) -> Read:
        def read(raw: Any, where: str) -> Any:
            return self._readers[kind](raw, where)

        return read

    def _look_up(self, kind: type) -> Read:
        def look_up(raw: Any, where: str) -> Any:
            table = self._read_tables[kind]
            if not isinstance(raw, int) or not 0 <= raw < len(table):
                raise ValueError(f"{where} is no place in the table of {kind.__name__}")
            return table[raw]

        return look_up

    def _build_reader(self, kind: Any) -> Read:
        options = _list_options(kind)
        if len(options) > 1:
            return self._read_one_of(options)
        kind = options[0]
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple or origin is frozenset or _is_sequence(origin):
            return self._read_items(origin, arguments)
        if origin is not None and issubclass(origin, Mapping):
            return self._read_mapping(arguments)
        return _read_enum(kind) if issubclass(kind, Enum) else self._read_fields(kind)

    def _read_one_of(self, options: Sequence[type]) -> Read:
        readers = {kind.__name__: self.reader(kind) for kind in options}

        def read_one_of(raw: Any, where: str) -> Any:
            name = _map(raw, where).get("type")
            if name not in readers:
                raise ValueError(f"{where}.type is none of {', '.join(readers)}")
            return readers[name]({key: each for key, each in raw.items() if key != "type"}, where)

        return read_one_of

    def _read_items(self, origin: Any, arguments: tuple[Any, ...]) -> Read:
        if origin is tuple and arguments[-1] is not Ellipsis:
            readers = [_or_none(self.reader(_strip(each)), each) for each in arguments]
            return lambda raw, where: tuple(_read_row(readers, raw, where))
        read = self.reader(arguments[0])
        make: Callable[[Any], Any] = frozenset if origin is frozenset else tuple
        return lambda raw, where: make(read(each, f"{where}[{at}]") for at, each in enumerate(_list(raw, where)))

    def _read_mapping(self, arguments: tuple[Any, ...]) -> Read:
        key_kind, value_kind = arguments
        read = self.reader(value_kind)
        if key_kind is str:
            return lambda raw, where: {name: read(each, f"{where}.{name}") for name, each in _map(raw, where).items()}
        readers = [self.reader(key_kind), read]
        return lambda raw, where: dict(
            _read_row(readers, each, f"{where}[{at}]") for at, each in enumerate(_list(raw, where))
        )

    def _read_fields(self, kind: type) -> Read:
        hints = typing.get_type_hints(kind)
        if issubclass(kind, tuple):
            readers = [_or_none(self.reader(_strip(hints[name])), hints[name]) for name in _names(kind)]
            return lambda raw, where: kind(*_read_row(readers, raw, where))
        by_name = {
            each.name: _or_none(self.reader(_strip(hints[each.name])), hints[each.name]) for each in _fields(kind)
        }
        required = [each.name for each in _fields(kind) if _default(each) is MISSING]

        def read_fields(raw: Any, where: str) -> Any:
            said = _map(raw, where)
            missing = next((name for name in required if name not in said), None)
            if missing is not None:
                raise ValueError(f"{where}.{missing} is missing")
            # What a later version has beside these is left alone.
            return kind(
                **{name: by_name[name](each, f"{where}.{name}") for name, each in said.items() if name in by_name}
            )

        return read_fields


def _list_options(kind: Any) -> list[Any]:
    """The types that a value may have, but for None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [each for each in typing.get_args(kind) if each is not types.NoneType]
    return [kind]


def _strip(kind: Any) -> Any:
    """A type without None, where it is one; else as it is."""
    options = _list_options(kind)
    return options[0] if len(options) == 1 else kind


def _optional(write: Write, kind: Any) -> Write:
    return write if _strip(kind) is kind else lambda value: None if value is None else write(value)


def _or_none(read: Read, kind: Any) -> Read:
    if types.NoneType not in typing.get_args(kind):
        return read
    return lambda raw, where: None if raw is None else read(raw, where)


def _read_row(readers: Sequence[Read], raw: Any, where: str) -> list[Any]:
    items = _list(raw, where)
    if len(items) != len(readers):
        raise ValueError(f"{where} has {len(items)} items, not {len(readers)}")
    return [read(each, f"{where}[{at}]") for at, (read, each) in enumerate(zip(readers, items, strict=True))]


def _read_plain(kind: type) -> Read:
    def read_plain(raw: Any, where: str) -> Any:
        if type(raw) is not kind:
            raise ValueError(f"{where} is no {kind.__name__}")
        return raw

    return read_plain


def _read_enum(kind: type) -> Read:
    values = {each.value: each for each in typing.cast("type[Enum]", kind)}

    def read_enum(raw: Any, where: str) -> Any:
        if not isinstance(raw, str | int) or raw not in values:
            raise ValueError(f"{where} is none of {', '.join(map(str, values))}")
        return values[raw]

    return read_enum


def _read_anything(raw: Any, _: str) -> Any:
    return raw


def _write_float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _read_float(raw: Any, where: str) -> float:
    if raw in ("inf", "-inf") or (isinstance(raw, int | float) and not isinstance(raw, bool)):
        return float(raw)
    raise ValueError(f"{where} is no number")


def _is_sequence(origin: Any) -> bool:
    return origin is not None and isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple


def _has_fields(kind: type) -> bool:
    return is_dataclass(kind) or hasattr(kind, "_fields")


def _fields(kind: type) -> list[Field[Any]]:
    return [each for each in fields(typing.cast("Any", kind)) if each.init]


def _names(kind: type) -> Sequence[str]:
    return typing.cast("Sequence[str]", getattr(kind, "_fields"))  # noqa: B009 - a NamedTuple's, which no type has


def _default(found: Field[Any]) -> Any:
    return found.default if found.default_factory is MISSING else found.default_factory()


def _map(raw: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{where} is no object")  # noqa: TRY004 - one kind of error for what cannot be read
    return raw


def _list(raw: Any, where: str) -> Sequence[Any]:
    if not isinstance(raw, list):
        raise ValueError(f"{where} is no list")  # noqa: TRY004 - as above
    return raw


_PLAIN: dict[Any, Read] = {
    str: _read_plain(str),
    int: _read_plain(int),
    bool: _read_plain(bool),
    float: _read_float,
    Any: _read_anything,
}


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation, with the fields of `Reservation`."""

    group: GroupKey
    group_uid: str
    domain: str
    need: int
    slots: tuple[Slot, ...]
    committed: frozenset[str] = frozenset()
    parts: Mapping[str, int] = field(default_factory=dict)
    victims: tuple[Victim, ...] = ()

    since: float | None = None
    """When its binding cycle began, on the loop's clock; None without one."""


@dataclass(frozen=True, slots=True)
class VacantSlot:
    """The slot of a member that has ended, with the fields of `Vacancy`."""

    group: GroupKey
    pod: Pod
    leaf: str = ""
    refusal: str = ""
    since: float | None = None
    replacement: str = ""


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node that members of one shape were refused, until a time on the loop's clock."""

    shape: Shape
    node: str
    until: float


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The nodes that the scheduler has offered to members of one shape, until a time on the loop's clock."""

    shape: Shape
    nodes: frozenset[str]
    until: float


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """What is remembered of a group, as far as it decides. Times are on the loop's clock."""

    group: GroupKey
    first_seen: float = 0.0
    quorum_since: float | None = None
    broken_since: float | None = None
    started: bool = False
    stood: Tree | None = None
    home: str = ""
    refusals: tuple[NodeRefusal, ...] = ()
    offers: tuple[NodeOffer, ...] = ()

    verdict: Verdict | None = None
    """What was said of it last."""

    preempted: bool = False
    """Whether others were to go for its binding cycle."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """The room that is kept for the head of the queue. Times are on the loop's clock."""

    group: GroupKey
    priority: int
    since: float
    domain: str
    nodes: frozenset[str]
    at: float | None
    made: float
    until: float
    text: str
    exclusive_in: str | None = None
    broken: bool = False
    late: bool = False
    missed: float | None = None
    passed: Mapping[GroupKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    """The input. Of pods it has those that run, and the members of groups, each with the group that it is in."""

    level: ApiLevel
    schedulers: frozenset[str]

    wall: float
    """When it was taken, in seconds since 1970."""

    clock: float
    """The same on the clock of the loop."""

    settings: Mapping[str, Any]
    """The options of the core, as JSON."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    used: Mapping[str, Resources]
    """What is used on each node, by whomever."""

    groups: tuple[PodGroup, ...] = ()
    composites: tuple[Composite, ...] = ()
    workloads: tuple[Workload, ...] = ()
    jobs: tuple[Job, ...] = ()
    parents: tuple[Parent, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    reservations: tuple[Reserved, ...] = ()
    vacancies: tuple[VacantSlot, ...] = ()

    on_their_way: frozenset[str] = frozenset()
    """The UIDs of nominated pods that are no longer counted as such, because their room is used already."""

    memories: tuple[GroupMemory, ...] = ()
    kept: KeptNodes | None = None

    profiles: frozenset[str] = frozenset()
    """The schedulerNames of the same kube-scheduler, with those of ours."""

    group: GroupKey | None = None
    """The group whose decision is asked about; None if no one was chosen."""


VERSION = 1

_ITEMS_PER_CHUNK = 25

_GZIP = 31
"""The window bits of zlib by which it writes and reads gzip."""

_GZIP_LEVEL = 1
"""The fastest: each higher one costs more time than it saves bytes."""

_MAX_BYTES = 1 << 30
"""No document is larger; what unpacks to more is none."""

_MAGIC = b"\x1f\x8b"

_SHARED = (Shape,)
"""What stands in tables: thousands of pods have one shape."""


def write_snapshot(capture: Capture, pods: Iterable[Pod] | None = None) -> Iterator[bytes]:
    """The document, in pieces of some 25 objects each; with these ``pods`` if they are not among the rest."""
    codec = Codec(_SHARED)
    about = {"version": VERSION, "serried": __version__}
    yield orjson.dumps(about)[:-1]
    for each, kind in _list_fields():
        value = pods if pods is not None and each.name == "pods" else getattr(capture, each.name)
        if each.default is not MISSING and value == each.default:
            continue
        yield b"," + orjson.dumps(each.name) + b":"
        write = codec.writer(kind)
        if get_origin(kind) is tuple:
            yield from _write_items(codec, kind, value)
        else:
            yield orjson.dumps(None if value is None else write(value))
    for shared in _SHARED:  # at the end, for now all are known
        yield b"," + orjson.dumps(_name_table(shared)) + b":" + orjson.dumps(codec.write_table(shared))
    yield b"}"


def _write_items(codec: Codec, kind: Any, items: Iterable[Any]) -> Iterator[bytes]:
    write = codec.writer(kind.__args__[0])
    rest = iter(items)
    mark = b"["
    while batch := [write(item) for item in islice(rest, _ITEMS_PER_CHUNK)]:
        yield mark + orjson.dumps(batch)[1:-1]
        mark = b","
    yield b"[]" if mark == b"[" else b"]"


def compress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same pieces by gzip; some are empty."""
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()


def read_snapshot(data: bytes) -> Capture | Malformed:
    """The capture in a document. Never raises."""
    try:
        return _read(_unpack(data))
    except ValueError as problem:
        return Malformed("snapshot", "", str(problem))
    except RecursionError:
        return Malformed("snapshot", "", "its values are nested too deep")


def _unpack(data: bytes) -> bytes:
    if not data.startswith(_MAGIC):
        return data
    unpacker = zlib.decompressobj(_GZIP)
    try:
        plain = unpacker.decompress(data, _MAX_BYTES)
    except zlib.error as problem:
        raise ValueError(f"it is no whole gzip file: {problem}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
    if not unpacker.eof:
        raise ValueError("it is no whole gzip file: its end is missing")
    return plain


def _read(data: bytes) -> Capture:
    raw = orjson.loads(data)
    if not isinstance(raw, dict) or "version" not in raw:
        raise ValueError("it is no snapshot: it has no version")
    if raw["version"] != VERSION:
        raise ValueError(f"it has version {raw['version']!r} of the format; serried {__version__} reads {VERSION}")
    codec = Codec(_SHARED)
    for shared in _SHARED:
        name = _name_table(shared)
        codec.read_table(shared, raw.get(name, []), name)
    found: Capture = codec.reader(Capture)(raw, "snapshot")
    return found


def _list_fields() -> list[tuple[Any, Any]]:
    hints = get_type_hints(Capture)
    return [(each, hints[each.name]) for each in fields(Capture)]


def _name_table(shared: type) -> str:
    return f"{shared.__name__.lower()}s"
