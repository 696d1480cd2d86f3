"""Rows that readers hold a copy of: each has a number that stands for it, and only what changed is told again."""

from collections.abc import Container, Hashable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

Row = tuple[Any, ...]


class Table(Generic[K]):
    """Rows by key. The first column of a row, as readers get it, is its number, which no other row ever has."""

    def __init__(self) -> None:
        self._numbers: dict[K, int] = {}
        self._rows: dict[int, Row] = {}
        self._changed: dict[int, None] = {}
        self._gone: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._rows)

    def number_of(self, key: K) -> int | None:
        """The number of a row, None if there is none of this key."""
        return self._numbers.get(key)

    def put(self, key: K, row: Row) -> int:
        """A row came or changed, or is as it was; returns its number."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
        if self._rows.get(number) != row:
            self._rows[number] = row
            self._changed[number] = None
        return number

    def keep_only(self, keys: Container[K]) -> None:
        """All other rows are gone."""
        for key in [key for key in self._numbers if key not in keys]:
            number = self._numbers.pop(key)
            del self._rows[number]
            self._changed.pop(number, None)
            self._gone.append(number)

    def take_changed(self) -> list[Row]:
        """The rows that came or changed since the last time, as readers get them."""
        changed = [(number, *self._rows[number]) for number in self._changed]
        self._changed = {}
        return changed

    def take_gone(self) -> list[int]:
        """The numbers of the rows that went since the last time."""
        gone = self._gone
        self._gone = []
        return gone

    def in_parts(self, size: int) -> Iterator[list[Row]]:
        """All rows as readers get them, so many at a time."""
        rows = iter(list(self._rows.items()))
        while part := [(number, *row) for number, row in islice(rows, size)]:
            yield part
