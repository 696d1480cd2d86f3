"""Two objects of one name at two API levels are one group."""

from hypothesis import given
from hypothesis import strategies as st

from serried.cluster.cache import Layers

Item = tuple[str, int]
"""A key, and the object's value."""


class Shown:
    """The map that the layers keep: as the Store's."""

    def __init__(self) -> None:
        self.map: dict[str, Item] = {}
        self.layers: Layers[str, Item] = Layers(lambda item: item[0], self._put, self._drop)

    def _put(self, item: Item) -> None:
        self.map[item[0]] = item

    def _drop(self, key: str) -> None:
        self.map.pop(key, None)


def test_the_object_of_the_level_in_use_counts_while_it_is_there() -> None:
    shown = Shown()
    shown.layers.put_lower(("g", 1))
    assert shown.map == {"g": ("g", 1)}
    shown.layers.put_upper(("g", 2))
    shown.layers.put_lower(("g", 3))
    assert shown.map == {"g": ("g", 2)}
    shown.layers.drop_upper("g")
    assert shown.map == {"g": ("g", 3)}
    shown.layers.drop_lower("g")
    assert shown.map == {}


def test_an_object_that_is_not_shown_goes_without_a_trace() -> None:
    shown = Shown()
    shown.layers.put_upper(("g", 1))
    shown.layers.put_lower(("g", 2))
    shown.layers.drop_lower("g")
    assert shown.map == {"g": ("g", 1)}


KEYS = st.sampled_from("ab")
CHANGES = st.lists(st.tuples(st.sampled_from(["put_upper", "put_lower", "drop_upper", "drop_lower"]), KEYS))


@given(CHANGES)
def test_whatever_comes_and_goes_the_upper_is_shown_else_the_lower(changes: list[tuple[str, str]]) -> None:
    shown = Shown()
    upper: dict[str, Item] = {}
    lower: dict[str, Item] = {}
    for number, (verb, key) in enumerate(changes):
        there = upper if verb.endswith("upper") else lower
        if verb.startswith("put"):
            there[key] = (key, number)
            getattr(shown.layers, verb)((key, number))
        else:
            there.pop(key, None)
            getattr(shown.layers, verb)(key)
    assert shown.map == {**lower, **upper}
