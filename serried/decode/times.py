"""Times of the API (metav1.Time: RFC 3339 in UTC, to the second) as seconds since 1970."""

import math
import re

from serried.decode.fields import Raw, read_text

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?Z", re.ASCII)
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097


def read_time(obj: Raw, name: str) -> int | None:
    """Seconds since 1970 at ``name``; None if absent, or no time in UTC."""
    found = _TIME.fullmatch(read_text(obj, name))
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    return _days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second


def write_time(seconds: float) -> str:
    """A time as the API writes it; ``seconds`` are since 1970, and fractions are cut off."""
    days, second = divmod(math.floor(seconds), 86_400)
    year, month, day = _date(days)
    return f"{year:04}-{month:02}-{day:02}T{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. The year begins in March here, so that the leap day is its last day."""
    year -= month <= 2
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    era, of_era = divmod(year, 400)
    return era * _DAYS_IN_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + in_year - _DAYS_TO_1970


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day, from ``days`` since 1970-01-01: `_days` backwards."""
    era, of_era = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    in_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    in_year = of_era - (in_era * 365 + in_era // 4 - in_era // 100)
    month = (5 * in_year + 2) // 153
    day = in_year - (153 * month + 2) // 5 + 1
    return in_era + era * 400 + (month >= 10), (month + 2) % 12 + 1, day
