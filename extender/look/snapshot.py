"""Snapshots: the planner's whole input at one instant, as a value (`Capture`) and as a file.

`write_snapshot` writes the file for ``/debug/snapshot``. `read_snapshot` reads it for ``serried replay``, which repeats
the planner's decision on a group from it, on any machine.

The file is one JSON object, possibly compressed by gzip. ``version`` is the version of the format. It grows when an
older reader would misunderstand the file, but not when a field with a default is added. Every dataclass is an object,
every NamedTuple a list. Fields with their default values are left out, so a new field has its default in older files.
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
from serried.api.volume import VolumePool
from serried.plan.forecast import NodeShare


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation in a capture, with the fields of `serried.api.reservation.Reservation`."""

    group: GroupKey
    group_uid: str
    domain: str
    need: int
    slots: tuple[Slot, ...]
    committed: frozenset[str] = frozenset()
    parts: Mapping[str, int] = field(default_factory=dict)
    victims: tuple[Victim, ...] = ()

    since: float | None = None
    """The loop time at which the group's binding cycle began; None if it has none."""


@dataclass(frozen=True, slots=True)
class VacantSlot:
    """The kept slot of a member that has ended, with the fields of `serried.cluster.usage.Vacancy`."""

    group: GroupKey
    pod: Pod
    leaf: str = ""
    refusal: str = ""
    since: float | None = None
    replacement: str = ""


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node on which members with one shape are not planned, because kube-scheduler or the kubelet rejected it.

    A shape is what a pod requests and demands of a node. ``until`` is the loop time up to which the rejection counts.
    """

    shape: Shape
    node: str
    until: float


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The nodes in kube-scheduler's last complete filter call, i.e. with all feasible nodes, for members of one shape.

    A shape is what a pod requests and demands of a node. ``until`` is the loop time up to which the list counts.
    """

    shape: Shape
    nodes: frozenset[str]
    until: float


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The state of a group (`GroupState`), as far as it matters for decisions. Times are loop times."""

    group: GroupKey
    first_seen: float = 0.0
    quorum_since: float | None = None
    started: bool = False
    home: str = ""
    refusals: tuple[NodeRefusal, ...] = ()
    offers: tuple[NodeOffer, ...] = ()

    rejection: tuple[float, str, str] | None = None
    """The last rejection of a member by kube-scheduler, which found no node for it while other members had theirs.

    As (time up to which the rejection counts, kube-scheduler's reason, UID of the member); None without one. While it
    counts, no free resources are kept and no pods are evicted for the group.
    """

    verdict: Verdict | None = None
    """The last verdict on the group; None if it was not considered in this term."""

    preempted: bool = False
    """True if pods are evicted for its binding cycle."""

    features: Mapping[str, Any] = field(default_factory=dict)
    """The state that features of the core, such as repair, keep of the group: JSON by ``Memory.captured``, a name."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """The head of the queue and the nodes whose free resources are kept for it. Times are loop times.

    It has the fields of `extender.features.backfill.Head`.
    """

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
    shares: Mapping[str, NodeShare] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capture:
    """The planner's whole input at one instant.

    Its pods are those that use or wait for resources, and the members of groups. All are stripped of fields that do not
    matter for decisions.
    """

    level: ApiLevel
    schedulers: frozenset[str]

    wall: float
    """The time of the capture, in seconds since 1970."""

    clock: float
    """The time of the capture, as the loop time that all other times in it refer to."""

    settings: Mapping[str, Any]
    """The options of the core (`extender.options.Options`) that differ from their defaults, as JSON."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    used: Mapping[str, Resources]
    """The resources that bound, assumed and reserved pods use on each node, by node name."""

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
    """The UIDs of nominated pods whose bind call has arrived. Their resources are in ``used``, as of assumed pods."""

    memories: tuple[GroupMemory, ...] = ()
    kept: KeptNodes | None = None

    pools: tuple[VolumePool, ...] = ()
    """The sets of PersistentVolumes that volume claims may choose from.

    Many pods share a set. So the pods of the capture have each set without its volumes; `restore` fills them in.
    """

    profiles: frozenset[str] = frozenset()
    """The schedulerNames of all profiles of the kube-scheduler that Serried serves, also of those without Serried."""

    group: GroupKey | None = None
    """The group whose decision a replay should repeat; None if the request for the snapshot named none."""


VERSION = 3
"""The version of the format that is written.

In version 1 the shapes of pods, i.e. what they demand of a node, were in a table, and pods had indices into it. In
version 2 the state that features keep of a group was among the other fields of `GroupMemory`.
"""

_OF_REPAIR = ("broken_since", "stood")
"""The fields of `GroupMemory` in version 2 that are now in its ``features``: the state of the feature `Repairs`."""

_ITEMS_PER_CHUNK = 25

_GZIP = 31
"""The value of zlib's parameter ``wbits`` for the gzip format."""

_GZIP_LEVEL = 1
"""The compression level: the fastest one, because higher ones cost much time for few bytes."""

_MAX_BYTES = 1 << 30
"""The largest size of a file after decompression, in bytes."""

_MAGIC = b"\x1f\x8b"


@cache
def _items_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(tuple[kind, ...], config=ConfigDict(ser_json_inf_nan="strings"))


@cache
def list_writers() -> tuple[tuple[Any, bool, TypeAdapter[Any]], ...]:
    """Return the fields of `Capture`, each with the pydantic adapter that writes it as JSON.

    An entry is the dataclass field, True if its value is a tuple, and the adapter. For a tuple, the adapter writes one
    item of it. The first call takes 50 ms.
    """
    kinds = get_type_hints(Capture)
    many = {name for name, kind in kinds.items() if get_origin(kind) is tuple}
    items = {name: get_args(kind)[0] if name in many else kind for name, kind in kinds.items()}
    return tuple((each, each.name in many, _items_of(items[each.name])) for each in fields(Capture))


def write_snapshot(capture: Capture, pods: Iterable[Pod] | None = None) -> Iterator[bytes]:
    """Yield the snapshot file in pieces of some 25 objects. ``pods``, if not None, replace the pods of the capture."""
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
    """Compress the pieces of a file by gzip. Yield the compressed pieces; some are empty."""
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()


def read_snapshot(data: bytes) -> Capture | Malformed:
    """Return the capture in a snapshot file, which may be compressed, and of any version of the format.

    Return Malformed, with the reason, if the file is invalid; never raise.
    """
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
        raise ValueError(f"the gzip file is damaged or incomplete: {problem}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
    if not unpacker.eof:
        raise ValueError("the gzip file is damaged or incomplete: its end is missing")
    return plain


def _read(data: bytes) -> Capture:
    raw = orjson.loads(data)
    if not isinstance(raw, dict) or "version" not in raw:
        raise ValueError("it is no snapshot: it has no version")
    if raw["version"] == 1:
        raw = _inline_shapes(raw, raw.get("shapes"))
    if raw["version"] == 1 or raw["version"] == 2:
        raw = _separate_memories(raw)
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


def _separate_memories(raw: dict[str, Any]) -> dict[str, Any]:
    """Convert the content of a file from version 2 to 3.

    The state that features of the core keep of a group is moved into the field ``features`` of its `GroupMemory`.
    """
    if not _has_objects(raw, "memories"):
        return raw
    return {**raw, "memories": [_separate_features(each) for each in raw["memories"]]}


def _has_objects(raw: Mapping[str, Any], name: str) -> bool:
    return isinstance(raw.get(name), list) and all(isinstance(each, dict) for each in raw[name])


def _separate_features(memory: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in memory.items() if name not in _OF_REPAIR}
    known = {name: memory[name] for name in _OF_REPAIR if name in memory}
    return rest | ({"features": {"repair": known}} if known else {})


def _inline_shapes(raw: Any, shapes: Any) -> Any:
    """Return a value of a file of version 1 with each index into the table of shapes replaced by the shape.

    A shape is what a pod demands of a node. ``shapes`` is the table, a list. Raises ValueError for a wrong index.
    """
    if isinstance(raw, list):
        return [_inline_shapes(each, shapes) for each in raw]
    if not isinstance(raw, dict):
        return raw
    said = {name: _inline_shapes(each, shapes) for name, each in raw.items()}
    place = raw.get("shape")
    if isinstance(place, int):
        if not isinstance(shapes, list) or not 0 <= place < len(shapes):
            raise ValueError(f"snapshot: {place} is no place in its table of shapes")
        said["shape"] = shapes[place]
    return said
