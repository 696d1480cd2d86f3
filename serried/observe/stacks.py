"""Samples of what a thread is at work on: cheap enough to be taken while it serves."""

import sys
import threading
from collections import Counter
from pathlib import PurePath
from types import CodeType, FrameType

INTERVAL_SECONDS = 0.01
_MAX_DEPTH = 100


def sample_stacks(thread: int, seconds: float, ended: threading.Event) -> Counter[str]:
    """How often each stack of this thread was seen, at one look every 10 ms for so long, or until ``ended``.

    To be called in another thread. A stack is written as flame graphs read it: frames from the outermost to the
    innermost, separated by semicolons. At most the innermost 100 count.
    """
    seen: Counter[str] = Counter()
    for _ in range(max(1, round(seconds / INTERVAL_SECONDS))):
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - what Python's own documentation names
        if frame is not None:
            seen[_fold(frame)] += 1
        if ended.wait(INTERVAL_SECONDS):
            break
    return seen


def _fold(innermost: FrameType) -> str:
    names: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(names) < _MAX_DEPTH:
        names.append(_name(frame.f_code))
        frame = frame.f_back
    return ";".join(reversed(names))


def _name(code: CodeType) -> str:
    return f"{code.co_qualname} ({PurePath(code.co_filename).name}:{code.co_firstlineno})"
