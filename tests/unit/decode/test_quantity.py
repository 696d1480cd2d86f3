import sys

import pytest

from serried.api.resources import parse_cpu, parse_quantity
from tests.support.upstream.quantities import NO_QUANTITIES, QUANTITIES


@pytest.mark.parametrize(("text", "amount", "milli"), QUANTITIES)
def test_a_quantity_has_upstreams_value(text: str, amount: int, milli: int) -> None:
    assert (parse_quantity(text), parse_cpu(text)) == (amount, milli)


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_upstream_refuses_is_a_value_error(text: str) -> None:
    for parse in (parse_quantity, parse_cpu):
        with pytest.raises(ValueError, match="quantity"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("9" * 100_000, -1),
        ("9" * 100_000 + "Ki", 2**63 - 1),
        ("0" * 100_000 + "7", 7),
        ("1." + "0" * 100_000, 1),
        ("1." + "0" * 100_000 + "1Ki", 1025),
        ("1e" + "0" * 100_000 + "3", 1000),
    ],
    ids=["nines", "binary nines", "leading zeros", "trailing zeros", "a last decimal", "a long exponent"],
)
def test_a_text_may_be_longer_than_pythons_integers_may_be(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


def test_a_long_text_is_not_kept() -> None:
    text = "".join(["1", "0" * 100_000])
    references = sys.getrefcount(text)
    parse_quantity(text)
    assert sys.getrefcount(text) == references
