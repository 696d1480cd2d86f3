"""How many examples Hypothesis takes where one costs more, or less, than usual."""

from hypothesis import settings


def scale(count: int) -> int:
    """So many examples in `make test-full`, and in other profiles the same share of them as everywhere."""
    return max(1, count * settings().max_examples // 100)
