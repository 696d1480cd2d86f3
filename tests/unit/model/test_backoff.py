import pytest

from serried.kube.retry import Backoff


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.5), (1, 0.5), (2, 1.0), (4, 4.0), (9, 60.0), (5000, 60.0)])
def test_waits_double_up_to_the_cap(failures: int, seconds: float) -> None:
    assert Backoff(first=0.5, cap=60.0).delay(failures) == seconds
