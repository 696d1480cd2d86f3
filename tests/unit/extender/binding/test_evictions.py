"""A drained member takes all other members along, or none, as far as can be known before the first one goes."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from extender.options import DisruptionTrigger
from serried.api.names import Disruption, Key
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness
from tests.support.fake_api import budget_refusal

EARLIER, SINCE, LATER, LAST = (f"2026-01-01T00:00:0{second}Z" for second in (0, 5, 7, 9))
SIZE = 5


class Pauses:
    """Stands in for ``asyncio.sleep``: a pause of a second or more ends when the test says so."""

    def __init__(self) -> None:
        self._sleep = asyncio.sleep
        self._over = asyncio.Event()

    async def take(self, seconds: float) -> None:
        """A pause."""
        await (self._sleep(seconds) if seconds < 1.0 else self._over.wait())

    def end(self) -> None:
        """End the pauses that have begun."""
        self._over.set()
        self._over = asyncio.Event()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(asyncio, "sleep", made.take)
    return made


@pytest.fixture
async def strict(pauses: Pauses) -> AsyncIterator[Harness]:
    """A harness in which a gang of mode all ends with a member that is drained."""
    made = Harness(disrupted=DisruptionTrigger.ANY)
    yield made
    await made.close()


def member(name: str, number: int, started: str = EARLIER) -> PodBuilder:
    """Return a member of a group that runs on a node of its own."""
    made = pod(f"{name}{number}").on(f"{name}-n{number}").cpu(1)
    return made.scheduler(SCHEDULER).in_group(name[0]).started(started)


async def start(world: Harness, name: str = "g") -> None:
    """Start a gang of mode all, whose pods take some time to end."""
    world.add(pod_group(name).gang(SIZE).disruption(Disruption.ALL))
    for number in range(SIZE):
        world.add(node(f"{name}-n{number}").cpu(1), member(name, number))
        world.api.graceful.add(Key("default", f"{name}{number}"))
    await world.run_until_idle()


async def drain(world: Harness, builder: PodBuilder, at: str = SINCE) -> None:
    """A member is evicted: it says so, and ends."""
    await world.add(builder.disrupted("EvictionByEvictionAPI", at=at).deleting()).run_until_idle()


def going(world: Harness, name: str = "g") -> set[str]:
    """Return the names of the members that are ending or gone."""
    everybody = {f"{name}{number}" for number in range(SIZE)}
    return everybody - {key.name for key in world.api.pods if not world.pod(key.name).deleting}


def refused(names: Iterable[str]) -> set[Key]:
    return {Key("default", name) for name in names}


async def test_all_go_if_the_budget_allows_all_of_them(strict: Harness) -> None:
    strict.api.add_budget(allowed=4)
    await start(strict)
    await drain(strict, member("g", 0))
    assert going(strict) == {"g0", "g1", "g2", "g3", "g4"}


async def test_nobody_does_if_it_allows_some_of_them_though_each_dry_run_passes(strict: Harness) -> None:
    strict.api.add_budget(allowed=2)
    await start(strict)
    await drain(strict, member("g", 0))
    assert going(strict) == {"g0"}
    assert strict.api.list_calls("evict") == []


async def test_two_gangs_do_not_share_what_the_budget_allows_one_of_them(strict: Harness) -> None:
    await start(strict, "g")
    await start(strict, "h")
    strict.api.add_budget(allowed=5)
    strict.add(member("g", 0).disrupted("EvictionByEvictionAPI", at=SINCE).deleting())
    await drain(strict, member("h", 0))
    assert sorted(len(going(strict, name)) for name in "gh") == [1, SIZE]


async def test_the_place_of_one_that_is_gone_by_then_is_kept_if_the_others_stay(strict: Harness) -> None:
    await start(strict)
    strict.api.fail("rehearse", budget_refusal())
    strict.add(member("g", 0).disrupted("EvictionByEvictionAPI", at=SINCE))
    strict.delete("g0")
    await strict.run_until_idle()
    assert [vacancy.pod.name for vacancy in strict.store.vacancies] == ["g0"]


async def test_the_next_member_that_is_drained_takes_them_along_if_the_budget_allows_it_by_then(
    strict: Harness,
) -> None:
    strict.api.add_budget(allowed=2)
    await start(strict)
    await drain(strict, member("g", 0))
    strict.api.add_budget(allowed=3)
    await drain(strict, member("g", 1))
    assert going(strict) == {"g0", "g1", "g2", "g3", "g4"}


async def refuse_halfway(world: Harness) -> None:
    """Between the dry runs and the evictions others have used up what the budget allows."""
    world.api.add_budget()
    await start(world)
    world.api.hold("evict")
    await drain(world, member("g", 0))
    world.api.guarded = refused(["g3", "g4"])
    world.api.release("evict")
    await world.run_until_idle()
    assert going(world) == {"g0", "g1", "g2"}


async def look_again(world: Harness, pauses: Pauses) -> None:
    world.api.calls.clear()
    pauses.end()
    await world.run_until_idle()


class TestARestThatABudgetKeepsHalfway:
    async def test_goes_as_soon_as_the_budget_allows_all_of_it(self, strict: Harness, pauses: Pauses) -> None:
        await refuse_halfway(strict)
        strict.api.guarded = refused(["g4"])
        for _ in range(10):
            await look_again(strict, pauses)
            assert strict.api.list_calls("rehearse")
            assert strict.api.list_calls("evict") == []
        strict.api.guarded = set()
        await look_again(strict, pauses)
        assert going(strict) == {"g0", "g1", "g2", "g3", "g4"}

    async def test_leaves_no_slot_of_those_that_went(self, strict: Harness) -> None:
        await refuse_halfway(strict)
        for name in ("g0", "g1", "g2"):
            strict.delete(name)
        await strict.run_until_idle()
        assert list(strict.store.vacancies) == []

    async def test_stays_with_those_that_have_come_in_the_place_of_the_others(
        self, strict: Harness, pauses: Pauses
    ) -> None:
        await mend(strict, pauses)
        assert going(strict) == {"g0", "g1", "g2"}
        assert strict.api.list_calls("rehearse") == []

    async def test_goes_with_them_when_one_of_them_is_drained(self, strict: Harness, pauses: Pauses) -> None:
        await mend(strict, pauses)
        await drain(strict, member("g", 3), at=LAST)
        assert {key.name for key in strict.api.pods if not strict.pod(key.name).deleting} == set()

    async def test_goes_in_our_next_term_and_not_in_that_of_others(self, strict: Harness, pauses: Pauses) -> None:
        await refuse_halfway(strict)
        strict.core.end_term()
        strict.api.guarded = set()
        strict.api.calls.clear()
        pauses.end()
        await strict.run_tasks()
        assert strict.api.calls == []
        strict.term.active = True
        strict.group_scheduler.set_obstacle("")
        await strict.run_until_idle()
        assert going(strict) == {"g0", "g1", "g2", "g3", "g4"}


async def mend(world: Harness, pauses: Pauses) -> None:
    """The gang is whole again with new members, and then the budget allows the rest of the old ones to go."""
    await refuse_halfway(world)
    for number in range(3):
        world.delete(f"g{number}")
        world.add(member("gnew", number, started=LATER).on(f"g-n{number}"))
    await world.run_until_idle()
    world.api.guarded = set()
    await look_again(world, pauses)
