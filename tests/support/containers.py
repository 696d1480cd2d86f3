"""Count the items in each container of a process, to find those that grow although the cluster does not.

The walk follows every reference from a root into objects of our own packages, into containers, and through bound
methods, partials and closures, so that a new field is looked at without being named here. What cannot grow beyond a
size of its own is left out: the caches of cachetools, and a deque with a longest length.
"""

import types
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from cachetools import Cache

_OURS = ("serried.", "extender.", "controller.")
_LEAVES = (str, bytes, bytearray, int, float, complex, type, types.ModuleType, types.CodeType, type(None))


def count_items(*roots: object) -> Counter[str]:
    """Return the number of items in all reachable containers, by the class and field that holds them."""
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("root", root) for root in roots]
    while left:
        path, each = left.pop()
        if isinstance(each, _LEAVES) or id(each) in seen:
            continue
        seen.add(id(each))
        if _is_bounded(each):
            continue
        if isinstance(each, (Mapping, AbstractSet, Sequence, deque)) and not isinstance(each, tuple):
            counts[path] += len(each)
        left += _list_parts(path, each)
    return counts


def list_grown(looks: Sequence[Counter[str]]) -> list[str]:
    """Return a line for each container that was larger in all samples of the last quarter than in any of the second.

    Growth by one item in every other sample is reported. Sizes that go up and down, such as those per node, are not.
    """
    quarter = len(looks) // 4
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    return [
        f"{path}: {[look[path] for look in looks]}"
        for path in sorted(set().union(*late))
        if min(look[path] for look in late) >= max(look[path] for look in early) + quarter / 2
    ]


def _is_bounded(each: object) -> bool:
    return isinstance(each, Cache) or (isinstance(each, deque) and each.maxlen is not None)


def _list_parts(path: str, each: object) -> Iterator[tuple[str, Any]]:
    """Yield what an object refers to, each with the path (class and field) under which it is reported."""
    if isinstance(each, Mapping):
        yield from ((path, part) for pair in list(each.items()) for part in pair)
    elif isinstance(each, (AbstractSet, Sequence, deque)):
        yield from ((path, part) for part in list(each))
    elif isinstance(each, types.MethodType):
        yield path, each.__self__
    elif isinstance(each, partial):
        yield from ((path, part) for part in (each.func, *each.args, *each.keywords.values()))
    elif isinstance(each, types.FunctionType):
        yield from ((path, part) for part in _list_cells(each))
    if type(each).__module__.startswith(_OURS):
        yield from ((f"{type(each).__name__}.{name}", part) for name, part in _list_fields(each))


def _list_cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not filled yet


def _list_fields(each: object) -> Iterator[tuple[str, Any]]:
    yield from vars(each).items() if hasattr(each, "__dict__") else ()
    for kind in type(each).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(each, name):
                yield name, getattr(each, name)
