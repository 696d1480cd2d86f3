"""A rolling update from a release that knew no formats: whichever dies at any turn, the other one takes over."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest

from extender.core.binding import records
from extender.options import NominationPolicy
from serried.api import reservation as decoder
from tests.sim.test_death_anywhere import GANG_OF_THREE, MOST_TURNS, NAMES, Play, begin, finish, inherit
from tests.support.fake_api import FakeApi
from tests.support.older_records import OLDER

POLICY = NominationPolicy.AUTO
Release = Mapping[str, Callable[..., Any]]
THIS: Release = MappingProxyType({})


@contextmanager
def running(release: Release) -> Iterator[None]:
    """The extender of a release is the one that runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in release.items():
            patch.setattr(records, name, function)
        yield


async def count_turns() -> int:
    """Return the number of turns of a life without a death."""
    world = begin(FakeApi(), POLICY, GANG_OF_THREE)
    turns = await Play(world).run(MOST_TURNS)
    await world.close()
    assert 5 < turns < MOST_TURNS
    return turns


async def die(turn: int) -> FakeApi:
    """Return the API server's state after the death of an extender at this turn."""
    first = begin(FakeApi(), POLICY, GANG_OF_THREE)
    await Play(first).run(turn)
    api = inherit(first.api)
    await first.close()
    return api


def count_bound(api: FakeApi) -> int:
    return sum(bool(raw["spec"].get("nodeName")) for raw in api.pods.values())


async def is_held(api: FakeApi) -> bool:
    """Return whether an extender that takes over keeps the promised room before it plans anything."""
    heir = begin(inherit(api), POLICY, GANG_OF_THREE)
    heir.term.active = False
    await heir.recovery.recover()
    held = not heir.nothing_reserved
    await heir.close()
    return held


@pytest.mark.parametrize(
    ("dying", "next_one", "most_listed", "kept"),
    [
        pytest.param(OLDER, THIS, 1_000_000, True, id="from a release that knew no formats"),
        pytest.param(THIS, OLDER, 1_000_000, True, id="back to it"),
        pytest.param(THIS, THIS, 0, True, id="from this one to this one, where the record is packed"),
        pytest.param(
            *(THIS, OLDER, 0, False),
            id="back, where the record is packed: it is empty to the older release, which plans the gang anew",
        ),
    ],
)
async def test_a_death_at_any_turn_ends_whole(
    monkeypatch: pytest.MonkeyPatch, dying: Release, next_one: Release, most_listed: int, *, kept: bool
) -> None:
    monkeypatch.setattr(decoder, "_MAX_LISTED_BYTES", most_listed)
    seen = set()
    for turn in range(await count_turns() + 1):
        with running(dying):
            api = await die(turn)
        assert all(("packed" in record["spec"]) == (most_listed == 0) for record in api.records.values())
        bound = count_bound(api)
        assert bound in {0, len(NAMES)} or api.record_phase() == "Committed"
        seen.add(api.record_phase())
        with running(next_one):
            if api.record_phase() == "Committed" and bound < len(NAMES):
                assert await is_held(api) == kept
            await finish(api, POLICY, GANG_OF_THREE, f"turn {turn}, left {api.record_phase()} with {bound} bound")
    # Else no record was ever taken over.
    assert seen == {None, "Committed"}
