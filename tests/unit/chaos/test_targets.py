"""The least that a soak of the default length has to reach."""

from typing import Any

import pytest

from tests.chaos.__main__ import find_missed
from tests.chaos.storm import KINDS


def result(proxy: int = 10_000, kills: int = 300, *hardly: str) -> dict[str, Any]:
    return {
        "totals": {"proxy": proxy, "kills": kills},
        "hardly_in_force": list(hardly),
    }


@pytest.mark.parametrize(
    ("found", "kinds", "missed"),
    [
        pytest.param(result(), KINDS, [], id="enough of all"),
        pytest.param(result(proxy=9_999), KINDS, ["9999 of 10000 proxy"], id="too few faults on the way"),
        pytest.param(result(kills=299), KINDS, ["299 of 300 kills"], id="too few kills"),
        pytest.param(result(kills=0), ("proxy", "cluster"), [], id="none where they were left out"),
        pytest.param(
            result(10_000, 300, "silent"),
            KINDS,
            ["silent: in force for less than a minute"],
            id="a rule that was hardly in force",
        ),
    ],
)
def test_what_was_not_reached_is_told(found: dict[str, Any], kinds: tuple[str, ...], missed: list[str]) -> None:
    assert find_missed(found, kinds) == missed
