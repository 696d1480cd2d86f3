"""Scale the number of Hypothesis examples for tests whose examples are unusually slow or fast."""

from hypothesis import settings


def scale(count: int) -> int:
    """The number of examples: this many in `make test-full`, and scaled like all other tests in other profiles."""
    return max(1, count * settings().max_examples // 100)
