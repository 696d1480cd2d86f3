"""What way a request takes through the rooms: the files of the product that run, the first one first."""

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
class Length:
    """How many files a walk enters."""

    files: int

    outside: int
    """Those that are neither of the planner nor of the values."""


@dataclass(slots=True)
class Walk:
    """One walk, in one piece or in several."""

    files: dict[str, None] = field(default_factory=dict)
    """Relative to the root, the first one first."""

    def measure(self) -> Length:
        """How long it is by now."""
        outside = [name for name in self.files if not name.startswith(_PLANNER_AND_VALUES)]
        return Length(len(self.files), len(outside))

    @contextmanager
    def follow(self) -> Iterator[None]:
        """What runs meanwhile belongs to the walk. Coverage and debuggers are without their hook for that time."""
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
