"""Captures as documents: the file that ``/debug/snapshot`` gives and ``serried replay`` reads.

One JSON object, maybe compressed by gzip. ``version`` is that of the format: it grows when an older reader would
understand something else, not when a field comes that has a default.

Every dataclass is an object with its own fields, every NamedTuple a list. A field that has its default is left out, so
a field that comes later has its default in an older document.

The planner's whole input at one instant, as a value: what a decision can be made from again, elsewhere.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from itertools import islice
from typing import Any, get_args, get_origin, get_type_hints

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from serried import __version__
from serried.api.budget import DisruptionBudget
from serried.api.group import Composite, PodGroup, Workload
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
from serried.api.volume import Pool
from serried.plan.forecast import Share


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
    started: bool = False
    home: str = ""
    refusals: tuple[NodeRefusal, ...] = ()
    offers: tuple[NodeOffer, ...] = ()

    rejection: tuple[float, str, str] | None = None
    """Until when it keeps no room and nobody goes for it, why, and the UID of the member that the scheduler refuses."""

    verdict: Verdict | None = None
    """What was said of it last."""

    preempted: bool = False
    """Whether others were to go for its binding cycle."""

    features: Mapping[str, Any] = field(default_factory=dict)
    """What features remember of it, by the name of each memory, as JSON (`extender.core.feature.Memory`)."""


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
    beyond_share: bool = False
    late: bool = False
    missed: float | None = None
    passed: tuple[tuple[GroupKey, float], ...] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)


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

    pools: tuple[Pool, ...] = ()
    """The volumes that claims choose from; the shapes of pods only name their pools."""

    profiles: frozenset[str] = frozenset()
    """The schedulerNames of the same kube-scheduler, with those of ours."""

    group: GroupKey | None = None
    """The group whose decision is asked about; None if no one was chosen."""


VERSION = 3
"""In version 1 the shapes of pods stood in a table, and pods had their places in it.

In version 2 what features remember of a group stood among what the core does.
"""

_OF_REPAIR = ("broken_since", "stood")
"""The fields of a group's memory that stood among the others up to version 2."""

_ITEMS_PER_CHUNK = 25

_GZIP = 31
"""The window bits of zlib by which it writes and reads gzip."""

_GZIP_LEVEL = 1
"""The fastest: each higher one costs more time than it saves bytes."""

_MAX_BYTES = 1 << 30
"""No document is larger; what unpacks to more is none."""

_MAGIC = b"\x1f\x8b"


@cache
def _items_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(tuple[kind, ...], config=ConfigDict(ser_json_inf_nan="strings"))


@cache
def list_writers() -> tuple[tuple[Any, bool, TypeAdapter[Any]], ...]:
    """The fields, whether each is a tuple, and what writes its items. To make these takes 50 ms, once."""
    kinds = get_type_hints(Capture)
    many = {name for name, kind in kinds.items() if get_origin(kind) is tuple}
    items = {name: get_args(kind)[0] if name in many else kind for name, kind in kinds.items()}
    return tuple((each, each.name in many, _items_of(items[each.name])) for each in fields(Capture))


def write_snapshot(capture: Capture, pods: Iterable[Pod] | None = None) -> Iterator[bytes]:
    """The document, in pieces of some 25 objects each; with these ``pods`` if they are not among the rest."""
    yield orjson.dumps({"version": VERSION, "serried": __version__})[:-1]
    for each, is_tuple, adapter in list_writers():
        value = pods if pods is not None and each.name == "pods" else getattr(capture, each.name)
        if each.default is not MISSING and value == each.default:
            continue
        yield b"," + orjson.dumps(each.name) + b":"
        if is_tuple:
            yield from _write_items(adapter, value)
        else:
            yield adapter.dump_json((value,), exclude_defaults=True)[1:-1]
    yield b"}"


def _write_items(adapter: TypeAdapter[Any], items: Iterable[Any]) -> Iterator[bytes]:
    rest = iter(items)
    mark = b"["
    while batch := tuple(islice(rest, _ITEMS_PER_CHUNK)):
        yield mark + adapter.dump_json(batch, exclude_defaults=True)[1:-1]
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
    if raw["version"] == 1:
        raw = _place_shapes(raw, raw.get("shapes"))
    if raw["version"] == 1 or raw["version"] == 2:
        raw = _part_memories(raw)
    elif raw["version"] != VERSION:
        raise ValueError(f"it has version {raw['version']!r} of the format; serried {__version__} reads 1 to {VERSION}")
    try:
        (found,) = _items_of(Capture).validate_python([raw])
    except ValidationError as problems:
        first = problems.errors(include_url=False)[0]
        where = ".".join(["snapshot", *map(str, first["loc"][1:])])
        raise ValueError(f"{where}: {first['msg']}") from None
    capture: Capture = found
    return capture


def _part_memories(raw: dict[str, Any]) -> dict[str, Any]:
    """A document of version 2 with what features remember apart from what the core does."""
    return {**raw, "memories": [_part(each) for each in raw["memories"]]} if _has_objects(raw, "memories") else raw


def _has_objects(raw: Mapping[str, Any], name: str) -> bool:
    return isinstance(raw.get(name), list) and all(isinstance(each, dict) for each in raw[name])


def _part(memory: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in memory.items() if name not in _OF_REPAIR}
    known = {name: memory[name] for name in _OF_REPAIR if name in memory}
    return rest | ({"features": {"repair": known}} if known else {})


def _place_shapes(raw: Any, shapes: Any) -> Any:
    """A document of version 1 with each shape where its place in the table stood."""
    if isinstance(raw, list):
        return [_place_shapes(each, shapes) for each in raw]
    if not isinstance(raw, dict):
        return raw
    said = {name: _place_shapes(each, shapes) for name, each in raw.items()}
    place = raw.get("shape")
    if isinstance(place, int):
        if not isinstance(shapes, list) or not 0 <= place < len(shapes):
            raise ValueError(f"snapshot: {place} is no place in its table of shapes")
        said["shape"] = shapes[place]
    return said
