"""Captures as documents: the file that ``/debug/snapshot`` gives and ``serried replay`` reads.

One JSON object, maybe compressed by gzip. ``version`` is that of the format: it grows when an older reader would
understand something else, not when a field comes that has a default.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from itertools import islice
from typing import Any, get_origin, get_type_hints

import orjson

from serried import __version__
from serried.decode.malformed import Malformed
from serried.decode.values import Codec
from serried.model.capture import Capture
from serried.model.pod import Pod, Shape

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
