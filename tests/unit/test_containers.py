"""Containers are found wherever they are referred to, and growth is told from sizes that go up and down."""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from cachetools import LRUCache

from extender.core.timeline import Timelines
from serried.kube.retry import Backoff
from tests.support.containers import count_items, list_grown


def hold(found: object) -> Callable[[], object]:
    return lambda: found


@pytest.mark.parametrize(
    ("root", "counts"),
    [
        pytest.param({"a": [1, 2]}, {"root": 3}, id="a list in a dictionary"),
        pytest.param(({1, 2},), {"root": 2}, id="a set in a tuple, which cannot grow"),
        pytest.param(hold([1, 2, 3]), {"root": 3}, id="what a closure holds"),
        pytest.param(partial(print, [1], file={2: 3}), {"root": 2}, id="what a partial holds"),
        pytest.param([1].append, {}, id="a method of what is not ours"),
        pytest.param(LRUCache(9, None), {}, id="a cache with a bound"),
        pytest.param(deque([1, 2], maxlen=3), {}, id="a deque with a bound"),
        pytest.param(deque([1, 2]), {"root": 2}, id="a deque without one"),
        pytest.param(SimpleNamespace(a=[1]), {}, id="an object that is not ours"),
        pytest.param(Timelines(lambda: 0.0), {"Timelines._events": 0}, id="an object of ours"),
        pytest.param(Backoff(0.0, 0.0), {}, id="one with slots and no container"),
    ],
)
def test_items_are_counted_by_who_holds_them(root: object, counts: dict[str, int]) -> None:
    assert count_items(root) == Counter(counts)


def test_what_refers_to_itself_is_counted_once() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    assert count_items(ring, ring) == Counter({"root": 2})


@pytest.mark.parametrize(
    ("sizes", "grown"),
    [
        pytest.param(range(16), True, id="one at each look"),
        pytest.param([at // 2 for at in range(16)], True, id="one at every other look"),
        pytest.param([7] * 16, False, id="none"),
        pytest.param([min(at, 4) for at in range(16)], False, id="up to a bound"),
        pytest.param([0, 5] * 8, False, id="up and down"),
    ],
)
def test_what_grows_is_told(sizes: list[int], grown: bool) -> None:  # noqa: FBT001 - of a table
    found = list_grown([Counter(a=size) for size in sizes])
    assert found == ([f"a: {list(sizes)}"] if grown else [])
