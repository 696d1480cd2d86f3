"""How long a gang rests after a cycle that failed."""

import math

from serried.model.backoff import Backoff

_FIRST_SECONDS = 1.0
_CAP_SECONDS = 10.0


def backoff(failures: int, size: int) -> float:
    """Seconds: doubling from 1 with each of ``failures`` in a row, up to 10 for one member.

    The cap grows with the square root of the gang's size, as upstream's does for a pod group: a larger gang takes
    more with it whenever it fails.
    """
    return Backoff(_FIRST_SECONDS, _CAP_SECONDS * math.sqrt(max(1, size))).delay(failures)
