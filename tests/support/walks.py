"""Measure how many files of the product a request runs through, by a profiler hook."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
_ROOMS = ("serried/", "extender/", "controller/")
_PLANNER_AND_VALUES = ("serried/plan/", "serried/api/")


@dataclass(frozen=True, slots=True)
class PathLength:
    """The length of a walk."""

    files: int
    """Number of files of the product that ran."""

    outside: int
    """Number of these files that are neither in serried/plan nor in serried/api."""


@dataclass(slots=True)
class RequestPath:
    """The files through which one request runs. It may be recorded in several parts."""

    files: dict[str, None] = field(default_factory=dict)
    """The paths relative to the repository, in order of first use."""

    def measure(self) -> PathLength:
        """Return the length so far."""
        outside = [name for name in self.files if not name.startswith(_PLANNER_AND_VALUES)]
        return PathLength(len(self.files), len(outside))

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Record the files that run while the body runs. Coverage and debuggers lose their hook for that time."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if name.startswith(_ROOMS):
            self.files[name] = None
