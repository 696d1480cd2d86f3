import pytest

from serried.kube.retry import RateLimiter


class TestRateLimiter:
    def test_a_burst_goes_at_once_and_the_next_waits_for_its_share(self) -> None:
        rate_limiter = RateLimiter(rate=10.0, burst=2)
        for _ in range(2):
            assert rate_limiter.delay(5.0) == 0.0
            rate_limiter.take()
        assert rate_limiter.delay(5.0) == pytest.approx(0.1)
        assert rate_limiter.delay(5.05) == pytest.approx(0.05)
        assert rate_limiter.delay(5.1) == pytest.approx(0.0)

    def test_a_long_rest_saves_up_one_burst(self) -> None:
        rate_limiter = RateLimiter(rate=10.0, burst=1)
        assert rate_limiter.delay(1000.0) == 0.0
        rate_limiter.take()
        assert rate_limiter.delay(1000.0) > 0.0
