from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.api.names import read_time, write_time


@given(moment=st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_the_seconds_since_1970(moment: datetime) -> None:
    text = moment.strftime("%Y").rjust(4, "0") + moment.strftime("-%m-%dT%H:%M:%SZ")
    assert read_time({"at": text}, "at") == int(moment.replace(microsecond=0).timestamp())
    assert write_time(moment.replace(microsecond=0).timestamp()) == text


def test_what_is_left_of_a_second_is_cut_off() -> None:
    assert write_time(1.999) == "1970-01-01T00:00:01Z"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="no text"),
        pytest.param("2026-11-21T15:00:00+01:00", id="a time that is not in UTC"),
        pytest.param("2026-11-21", id="a day"),
        pytest.param("2026-11-21T15:00:00Z ", id="a time with something behind it"),
    ],
)
def test_nothing_is_read_of(text: str) -> None:
    assert read_time({"at": text}, "at") is None


def test_a_fraction_of_a_second_is_left_off() -> None:
    assert read_time({"at": "1970-01-01T00:00:01.999999Z"}, "at") == 1
