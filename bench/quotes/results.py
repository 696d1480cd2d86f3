"""Find and read the files in `bench/results/` by name and date."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.quotes.expressions import QuoteError

_DATE = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"


class Results:
    """The results in one directory. ``latency`` names the newest of that name, ``latency-2026-11-21`` that day's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, dict[str, Any]] = {}

    def find(self, name: str) -> Path:
        """Return the path of a result. Raise QuoteError if there is none of this name."""
        found = self._list(name)
        if not found:
            raise QuoteError(f"no result is called {name}")
        return found[-1]

    def _list(self, name: str) -> list[Path]:
        exact = self._directory / f"{name}.json"
        return [exact] if exact.is_file() else sorted(self._directory.glob(f"{name}-{_DATE}.json"))

    def read_all(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the results of these names that exist. Raise QuoteError if there is none of them."""
        found = [self.read(name) for name in names if self._list(name)]
        if not found:
            raise QuoteError(f"no result is called {' or '.join(names)}")
        return found

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a result. Raise QuoteError if there is none, or if it is no JSON object."""
        path = self.find(name)
        if path not in self._read:
            try:
                content: Any = json.loads(path.read_text())
            except ValueError as error:
                raise QuoteError(f"{path.name} is no JSON: {error}") from error
            if not isinstance(content, dict):
                raise QuoteError(f"{path.name} is no JSON object")
            self._read[path] = content
        return self._read[path]
