"""How long a gang rests after a cycle that failed."""

import math

_BASE_SECONDS = 1.0
_CAP_SECONDS = 10.0


def backoff(failures: int, size: int) -> float:
    """Seconds: doubling from 1 with each of ``failures`` in a row, up to 10 for one member.

    The cap grows with the square root of the gang's size, as upstream's does for a pod group: a larger gang takes
    more with it whenever it fails.
    """
    # 2.0 ** 1024 is an OverflowError, and no cap is anywhere near 2 ** 20 seconds.
    return min(_CAP_SECONDS * math.sqrt(max(1, size)), _BASE_SECONDS * 2.0 ** min(20, max(0, failures - 1)))
