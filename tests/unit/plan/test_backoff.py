import pytest

from serried.kube.retry import gang_backoff


@pytest.mark.parametrize(
    ("failures", "size", "seconds"),
    [
        pytest.param(1, 1, 1.0, id="a second after the first failure"),
        pytest.param(3, 1, 4.0, id="twice as long each time"),
        pytest.param(9, 1, 10.0, id="ten seconds at most for a single pod"),
        pytest.param(9, 64, 80.0, id="eight times as long at most for 64 members"),
        pytest.param(2, 64, 2.0, id="no longer for a large gang that has failed but twice"),
        pytest.param(100_000, 4, 20.0, id="its cap however often it failed"),
        pytest.param(1, 0, 1.0, id="a second for a gang that has lost every member"),
    ],
)
def test_a_gang_rests(failures: int, size: int, seconds: float) -> None:
    assert gang_backoff(failures, size) == seconds
