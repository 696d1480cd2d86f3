"""Kubernetes quantities as integers (apimachinery pkg/api/resource: quantity.go, suffix.go).

They are rounded up, away from zero, to the unit asked for, as in ``Quantity.Value`` and ``Quantity.MilliValue``.
The API server keeps at most three decimals of a request. So the sum of rounded requests is at most one byte for each
container too high, and never too low.
"""

import re
from functools import lru_cache

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

_QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([a-zA-Z]*))")

_MAX_AMOUNT = (1 << 63) - 1
"""Larger amounts count as this one: they fit nowhere, and upstream's int64 ends here too."""

_MAX_EXPONENT = 64
"""With a larger one every amount is above ``_MAX_AMOUNT``, or rounds up to 1, whatever its 40 digits are."""

_MAX_LENGTH = 40
"""In characters; longer texts are no quantities."""


@lru_cache(maxsize=16384)
def parse_quantity(text: str) -> int:
    """The amount in base units (bytes, pieces), rounded up. ValueError if ``text`` is no quantity."""
    return _scale(text, 0)


@lru_cache(maxsize=16384)
def parse_cpu(text: str) -> int:
    """The amount in thousandths (millicores), rounded up. ValueError if ``text`` is no quantity."""
    return _scale(text, 3)


def _scale(text: str, places: int) -> int:
    found = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if found is None:
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a quantity")
    sign, whole, fraction, exponent, suffix = found.groups(default="")
    if not whole and not fraction:
        raise ValueError(f"{text!r} is not a quantity")
    ten = places - len(fraction)
    two = 0
    if exponent:
        ten += max(-_MAX_EXPONENT, min(int(exponent), _MAX_EXPONENT))
    elif suffix in _BINARY:
        two = _BINARY[suffix]
    elif suffix in _DECIMAL:
        ten += _DECIMAL[suffix]
    else:
        raise ValueError(f"{text!r} has an unknown suffix")
    amount = min(_round_up(int(whole + fraction) << two, ten), _MAX_AMOUNT)
    return -amount if sign == "-" else amount


def _round_up(digits: int, ten: int) -> int:
    """``digits * 10**ten``, up to the next integer."""
    power: int = 10 ** abs(ten)
    return digits * power if ten >= 0 else -(-digits // power)
