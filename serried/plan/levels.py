"""Which preferred levels a gang may try, by how long it has waited."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serried.model.preference import Level


@dataclass(frozen=True, slots=True)
class Opening:
    """What is open to a gang by now."""

    keys: tuple[str, ...]
    """The label keys that it may try, the narrowest first."""

    next_in: float
    """In how many seconds more is open; infinite if all is."""

    waited: float = 0.0
    """How many seconds it has waited."""

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
