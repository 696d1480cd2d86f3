import pytest

from serried.decode.quantity import parse_cpu, parse_quantity

MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0), ("1", 1), ("+5", 5), ("-5", -5), ("007", 7), ("1.", 1), (".5", 1), ("1.0", 1), ("1.5", 2),
        ("1n", 1), ("1u", 1), ("1m", 1), ("1000m", 1), ("1001m", 2), ("-1001m", -2),
        ("1k", 1000), ("1M", 10**6), ("1G", 10**9), ("1T", 10**12), ("1P", 10**15), ("1E", 10**18),
        ("1Ki", 2**10), ("1Mi", 2**20), ("1Gi", 2**30), ("1Ti", 2**40), ("1Pi", 2**50), ("1Ei", 2**60),
        ("1.5Gi", 3 * 2**29), ("0.1Ki", 103), ("1.1k", 1100),
        ("1e3", 1000), ("1E3", 1000), ("12e-1", 2), ("1.5e+2", 150), ("0e99", 0),
        ("0.5Ki", 512), ("1.001Ki", 1026), ("-0", 0), ("1.Mi", 2**20), ("8Ei", MOST), ("10E", MOST),
        ("1e-999999999", 1), ("1e999999999", MOST), ("16Ei", MOST), ("-1e99", -MOST),
    ],
)  # fmt: skip
def test_base_units_are_rounded_up_to_integers(text: str, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    ("text", "millicores"),
    [("1", 1000), ("100m", 100), ("0.1", 100), ("1500m", 1500), ("0.0001", 1), ("1u", 1), ("2k", 2_000_000), ("0", 0)],
)
def test_cpu_is_counted_in_millicores(text: str, millicores: int) -> None:
    assert parse_cpu(text) == millicores


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "-",
        "Ki",
        "1 ",
        " 1",
        "1ki",
        "1K",
        "1mi",
        "1e",
        "1e1.5",
        "1e3Mi",
        "--1",
        "+-1",
        "1KiB",
        "1Gi5",
        "0x10",
        "1,5",
        "1_0",
        "٣",
        "9" * 41,
    ],
)
def test_what_is_no_quantity_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|suffix"):
        parse_quantity(text)
