"""A rolling update from a release that knew no formats: whichever dies at any turn, the other one takes over."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from extender.scheduling.nomination import NominationPolicy
from tests.sim.test_death_anywhere import MOST_TURNS, NAMES, Play, begin, finish, inherit
from tests.support.fake_api import FakeApi

POLICY = NominationPolicy.AUTO
Write = Callable[[Mapping[str, Any]], None]


def say_no_format(record: Mapping[str, Any]) -> None:
    """As a release that knew no formats."""
    record["spec"].pop("format", None)


def write_as_ever(_record: Mapping[str, Any]) -> None:
    """As this release."""


async def count_turns() -> int:
    """How many turns a life without death has."""
    world = begin(FakeApi(), POLICY)
    turns = await Play(world).run(MOST_TURNS)
    await world.close()
    assert 5 < turns < MOST_TURNS
    return turns


@pytest.mark.parametrize(
    ("dying", "next_one"),
    [
        pytest.param(say_no_format, write_as_ever, id="from a release that knew no formats"),
        pytest.param(write_as_ever, say_no_format, id="back to it"),
    ],
)
async def test_a_death_at_any_turn_ends_whole(dying: Write, next_one: Write) -> None:
    seen = set()
    for turn in range(await count_turns() + 1):
        first = begin(FakeApi(), POLICY)
        first.api.before_write = dying
        await Play(first).run(turn)
        api = inherit(first.api)
        await first.close()
        seen.add(api.phase())
        bound = sum(bool(raw["spec"].get("nodeName")) for raw in api.pods.values())
        assert bound in {0, len(NAMES)} or api.phase() == "Committed"
        api.before_write = next_one
        await finish(api, POLICY, f"turn {turn}, left {api.phase()} with {bound} bound")
    # Else no record was ever taken over.
    assert seen == {None, "Planned", "Committed"}
