"""Selectors of devices: a table of upstream's own forms, and of those that users write."""

import pytest

from serried.api.cel import compile_selector
from tests.support.upstream.selectors import GPU, SELECTORS, decode, evaluate


@pytest.mark.parametrize(("expression", "expected"), SELECTORS)
def test_a_selector_takes_what_upstreams_takes(expression: str, expected: str) -> None:
    assert evaluate(expression, decode(GPU)) == expected


def test_what_a_selector_does_not_look_at_makes_no_other_device() -> None:
    selector = compile_selector('device.attributes["d"].model == "a100"')
    for index in range(1000):
        values = {"d": {"model": "a100", "uuid": f"gpu-{index}"}}
        assert selector.matches("d", values, {}, shareable=False)
    assert not selector.matches("d", {"d": {"model": "h100", "uuid": "gpu-0"}}, {}, shareable=False)
    assert len(selector._results) == 2  # noqa: SLF001  # how often it was evaluated


def test_a_selector_that_takes_too_many_steps_is_left_to_the_scheduler() -> None:
    ten = "[1,2,3,4,5,6,7,8,9,10]"
    nested = f"{ten}.all(a, {ten}.all(b, {ten}.all(c, {ten}.all(d, {ten}.all(e, {ten}.all(f, a > 0))))))"
    assert evaluate(nested, decode(GPU)) == "beyond"
