"""Which levels a gang may try after it has waited so long."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serried.model.preference import Level


@dataclass(frozen=True, slots=True)
class Opening:
    """``keys`` may be tried after ``waited`` seconds, the narrowest first; in ``next_in`` more is open, or infinite."""

    keys: tuple[str, ...]
    next_in: float
    waited: float = 0.0

    @property
    def spills(self) -> bool:
        """Whether the gang may take several domains if none is large enough."""
        return self.next_in == math.inf


def open_levels(levels: Sequence[Level], waited: float) -> Opening:
    """What is open to a gang whose quorum stands for ``waited`` seconds: each level after the waits before it."""
    keys: list[str] = []
    opens = 0.0
    for level in levels:
        if opens > waited:
            break
        keys.append(level.key)
        opens += level.wait
    return Opening(tuple(keys), opens - waited if opens > waited else math.inf, waited)
