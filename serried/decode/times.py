"""Times of the API: metav1.Time, which the API server writes in UTC and to the second."""

import re

from serried.decode.fields import Raw, read_text

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?Z", re.ASCII)
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097


def read_time(obj: Raw, name: str) -> int | None:
    """Seconds since 1970 at ``name``; None if absent, and for what is no time in UTC: no decision hangs on one."""
    found = _TIME.fullmatch(read_text(obj, name))
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    return _days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01: the year begins in March here, so that the day too many of a leap year is its last."""
    year -= month <= 2
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    era, of_era = divmod(year, 400)
    return era * _DAYS_IN_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + in_year - _DAYS_TO_1970
