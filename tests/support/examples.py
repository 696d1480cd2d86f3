"""Scale the number of Hypothesis examples for tests whose examples are unusually slow or fast."""

from hypothesis import settings


def scale(count: int) -> int:
    """Return the number of Hypothesis examples: ``count`` in `make test-full`, and a share of it in other profiles."""
    return max(1, count * settings().max_examples // 100)
