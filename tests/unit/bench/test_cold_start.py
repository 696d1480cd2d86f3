"""Cold starts: the measurements that count as defects, and the summary of several starts."""

from dataclasses import replace

import pytest

from bench.cold_start import Start, find_defects, render_table, summarize

GOOD = Start(
    answers=2.0, listed=12.0, gang_bound=13.0, early=0, plain=40, plain_slowest=0.4, tried_slowest=9.0, peak_mib=900.0
)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        pytest.param(GOOD, [], id="plain pods pass and the gang waits: nothing"),
        pytest.param(
            replace(GOOD, early=3), ["3 members were bound before all was listed"], id="a gang that does not wait"
        ),
        pytest.param(
            replace(GOOD, plain_slowest=9.5),
            ["a plain pod waited 9.5 s"],
            id="a plain pod that waits for the lists",
        ),
        pytest.param(
            replace(GOOD, tried_slowest=16.0),
            ["a plain pod that was tried before waited 16.0 s"],
            id="a plain pod that is not tried again in time",
        ),
        pytest.param(
            replace(GOOD, plain=0, plain_slowest=0.0),
            ["no plain pod came while the lists were read"],
            id="nobody who could have waited",
        ),
    ],
)
def test_a_defect_is_told(start: Start, said: list[str]) -> None:
    assert find_defects([GOOD, start]) == said


def test_of_several_starts_the_median_and_the_largest_are_told() -> None:
    told = summarize([GOOD, replace(GOOD, listed=14.0), replace(GOOD, listed=13.0)])

    assert told["listed"] == {"median": 13.0, "max": 14.0}


def test_the_table_has_a_row_for_each_start() -> None:
    assert len(render_table([GOOD, GOOD]).splitlines()) == 4
