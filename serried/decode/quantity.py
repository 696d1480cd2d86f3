"""Kubernetes quantities as integers, the same ones that kube-scheduler counts with.

These are ``ParseQuantity``, and ``Value`` or ``MilliValue`` of it (apimachinery 0.37, pkg/api/resource: quantity.go,
amount.go, math.go). They round up, so the sum of rounded requests is at most one unit for each container too high: the
API server keeps at most three decimals of a request.

They are upstream's also where an amount does not fit into 64 bits. Some of these are capped, some are 0, and others are
what is left in 64 bits. Whoever counted better than kube-scheduler would hold pods that it binds, and use nodes that it
takes for full.
"""

import re
from functools import lru_cache

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

# Nothing is tried twice, as in upstream's scanner: a text of a million digits may come from anybody.
_QUANTITY = re.compile(r"([+-]?+)(0*+)([0-9]*+)(?:\.([0-9]*+))?+([eEinumkKMGTP]*+[+-]?+[0-9]*+)")
_EXPONENT = re.compile(r"[eE]([+-]?+)(?=[0-9])0*+([0-9]{0,19}+)")

_MOST = (1 << 63) - 1
_MOST_DIGITS = 18
"""A number of so many digits is an int64 for sure (maxInt64Factors)."""

_MOST_BINARY_DIGITS = 14
_NANO = -9
"""The power of ten of what is counted in: what is smaller is rounded up to it."""

_UNCHECKED = frozenset({1, 2, 3, 6, 9})
"""Powers of ten by which upstream multiplies without a look at the overflow."""

_SAFE_POWER = 100
"""This power of ten, and each higher one, leaves nothing in 64 bits, whatever it is multiplied with."""

_SAFE_PLACES = 70
"""So many decimals say how the amount is rounded, if the last one is not 0 where any further one is not."""

_SAFE_DIGITS = 200
"""So many digits, at ``_SAFE_PLACES`` decimals at most, decide what is left in 64 bits."""

_MAX_KEPT = 40
"""In characters. Longer texts are not kept: they are rare, and may be very long."""


def parse_quantity(text: str) -> int:
    """The amount in base units (bytes, pieces), rounded up. ValueError if ``text`` is no quantity."""
    return _parse_kept(text, 0) if len(text) <= _MAX_KEPT else _parse(text, 0)


def parse_cpu(text: str) -> int:
    """The amount in thousandths (millicores), rounded up. ValueError if ``text`` is no quantity."""
    return _parse_kept(text, 3) if len(text) <= _MAX_KEPT else _parse(text, 3)


def _parse(text: str, places: int) -> int:
    found = _QUANTITY.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text[:_MAX_KEPT]!r} is not a quantity")
    sign, zeros, whole, fraction, suffix = found.groups(default="")
    ten, two = _read_suffix(suffix)
    scale = _wrap(ten - len(fraction), 32)
    if _is_small(len(whole or "0"), len(fraction), two) and scale >= _NANO:
        amount = int((whole or "0") + fraction) << two
        return _shift(-amount if sign == "-" else amount, scale + places)
    if not zeros + whole + fraction:
        raise ValueError(f"{text[:_MAX_KEPT]!r} is a quantity without a number")
    amount = _round_up(whole + fraction, scale, two)
    if two and amount > _MOST * 10**-_NANO:
        return _wrap((-_MOST if sign == "-" else _MOST) * 10**places, 64)
    return _shift_down(-amount if sign == "-" else amount, -_NANO - places)


_parse_kept = lru_cache(maxsize=32768)(_parse)


def _read_suffix(suffix: str) -> tuple[int, int]:
    """The powers of ten and of two by which the number is multiplied."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], 0
    if suffix in _BINARY:
        return 0, _BINARY[suffix]
    found = _EXPONENT.fullmatch(suffix)
    exponent = int(f"{found[1]}0{found[2]}") if found else _MOST + 1
    if not -_MOST - 1 <= exponent <= _MOST:
        raise ValueError(f"{suffix[:_MAX_KEPT]!r} is an unknown suffix of a quantity")
    return _wrap(exponent, 32), 0


def _is_small(whole: int, fraction: int, two: int) -> bool:
    """Whether upstream counts with an int64, by the numbers of digits; otherwise it has no limit (inf.Dec)."""
    if two:
        return fraction == 0 and whole + two * 3 // 10 <= _MOST_BINARY_DIGITS
    return whole + fraction <= _MOST_DIGITS


def _shift(amount: int, power: int) -> int:
    """``amount * 10**power`` as upstream's int64 has it, rounded away from zero (int64Amount.AsScaledInt64)."""
    if power < 0:
        size: int = -(-abs(amount) // 10**-power)
        return -size if amount < 0 else size
    power = _wrap(power, 32)
    product: int = amount * 10 ** max(0, min(power, _SAFE_POWER))
    if power in _UNCHECKED:
        return _wrap(product, 64)
    return product if abs(product) <= _MOST else 0


def _round_up(digits: str, scale: int, two: int) -> int:
    """``digits * 2**two * 10**scale``, up to the next billionth, in billionths.

    Of an amount far too large for 64 bits, the result is another one of which the same is left in them. This takes time
    in proportion to the length, which Python's own integers do not.
    """
    if scale < -_SAFE_PLACES:
        cut = max(0, len(digits) - (-scale - _SAFE_PLACES + 1))
        digits, scale = digits[:cut] + ("1" if digits[cut:].strip("0") else "0"), -_SAFE_PLACES
    digits = digits.lstrip("0")
    if len(digits) > _SAFE_DIGITS:
        digits = "1" + digits[-_SAFE_DIGITS:]
    amount = int(digits or "0") << two
    power = min(scale, _SAFE_POWER) - _NANO
    factor: int = 10 ** abs(power)
    return amount * factor if power >= 0 else -(-amount // factor)


def _shift_down(amount: int, places: int) -> int:
    """``amount / 10**places`` as upstream rounds it: up where it is positive, and by chance where not (scaledValue)."""
    divisor: int = 10**places
    if amount >= _MOST:
        return _wrap(-(-amount // divisor), 64)
    left = _wrap(amount, 64)
    size, rest = divmod(abs(left), divisor)
    return (-size if left < 0 else size) + bool(rest)


def _wrap(number: int, bits: int) -> int:
    """What is left of a number in a signed integer of so many bits."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half
