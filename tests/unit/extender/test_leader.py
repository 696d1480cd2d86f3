import asyncio
from dataclasses import replace

import pytest

from bench.failover.bounds import read_pace
from extender.lead import leadership as module
from extender.lead.leadership import STILL_SECONDS, UNCONTESTED, Leadership
from serried.api.names import Key, write_time
from serried.kube.election import Lease
from serried.kube.reflector import Deleted, Upserted
from serried.kube.wire import LEASES
from tests.support.apiserver import FakeApiServer
from tests.support.clock import Clock
from tests.support.controller_harness import wait_until
from tests.support.faults import watches

NOW = 1_700_000_000
HERE = "serried-0"


class Turns:
    """A callback that records its calls."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def __call__(self, active: bool) -> None:  # noqa: FBT001 - the callback's one argument
        self.seen.append(active)


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def clock() -> Clock:
    """The wall clock."""
    made = Clock()
    made.advance(NOW - made())
    return made


@pytest.fixture
def leadership(turns: Turns, clock: Clock) -> Leadership:
    return Leadership(HERE, turns, clock)


def held_by(holder: str, renewed: int = NOW) -> Lease:
    return Lease(holder, renewed, 15)


def lease(holder: str | None) -> dict[str, object]:
    spec = {
        "holderIdentity": holder,
        "renewTime": write_time(NOW),
        "leaseDurationSeconds": 15,
    }
    return {"metadata": {"name": "serried", "namespace": "serried"}, "spec": spec}


@pytest.mark.parametrize(
    "holder",
    [
        pytest.param("serried-0_3f0c", id="the scheduler beside us: the Pod's name, an underscore and a UUID"),
        pytest.param("serried-0", id="an identity that is the Pod's name alone"),
    ],
)
def test_active_while_the_scheduler_beside_us_holds_the_lease(
    leadership: Leadership, turns: Turns, holder: str
) -> None:
    leadership.set_lease(held_by(holder))
    assert (leadership.active, leadership.holder, turns.seen) == (True, holder, [True])


@pytest.mark.parametrize("holder", ["serried-01_3f0c", "serried-1_3f0c", "serried", "serried-0-x_1", ""])
def test_not_active_while_another_one_holds_it(leadership: Leadership, turns: Turns, holder: str) -> None:
    leadership.set_lease(held_by(holder))
    assert (leadership.active, turns.seen) == (False, [])


def test_only_turns_are_told_not_renewals(leadership: Leadership, turns: Turns) -> None:
    for holder in ("serried-0_a", "serried-0_a", "serried-0_b", "serried-1_c", "serried-1_c", "serried-0_d"):
        leadership.set_lease(held_by(holder))
    assert turns.seen == [True, False, True]


class TestALeaseThatNobodyRenews:
    def test_ends_before_others_may_take_it(self, leadership: Leadership, clock: Clock) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(11.9)
        assert leadership.leads()
        clock.advance(0.2)
        assert not leadership.leads()

    def test_is_noticed_without_any_word_of_the_api_server(
        self, leadership: Leadership, clock: Clock, turns: Turns
    ) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(15)
        leadership.update()
        assert (leadership.active, turns.seen) == (False, [True, False])

    async def test_is_looked_at_all_the_time(
        self, leadership: Leadership, clock: Clock, turns: Turns, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(15)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await leadership.watch_time()
        assert turns.seen == [True, False]

    def test_goes_on_when_it_is_renewed(self, leadership: Leadership, clock: Clock, turns: Turns) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(10)
        leadership.set_lease(held_by("serried-0_a", NOW + 10))
        clock.advance(10)
        leadership.update()
        assert turns.seen == [True]

    def test_was_over_already_if_the_watch_is_late(self, leadership: Leadership, turns: Turns) -> None:
        leadership.set_lease(held_by("serried-0_a", NOW - 60))
        assert (leadership.active, turns.seen) == (False, [])

    def test_without_a_time_was_never_ours(self, leadership: Leadership) -> None:
        leadership.set_lease(Lease("serried-0_a", None, 15))
        assert not leadership.active


HOUR = 3600


class TestAWallClockThatIsSet:
    """On a node it is the scheduler's, too: its next renewal goes by the clock as it is then."""

    @pytest.fixture
    def steady(self) -> Clock:
        """The clock that nobody sets."""
        return Clock()

    @pytest.fixture
    def leadership(self, turns: Turns, clock: Clock, steady: Clock) -> Leadership:
        return Leadership(HERE, turns, clock, steady)

    def test_back_prolongs_no_lease_that_nobody_renews(
        self, leadership: Leadership, clock: Clock, steady: Clock
    ) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(-HOUR)
        pass_time(11.9, clock, steady)
        assert leadership.leads()
        pass_time(0.2, clock, steady)
        assert not leadership.leads()

    def test_back_makes_no_renewal_of_a_lease_that_is_only_shown_again(
        self, leadership: Leadership, clock: Clock, steady: Clock
    ) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(-HOUR)
        pass_time(11.9, clock, steady)
        leadership.set_lease(held_by("serried-0_a"))
        pass_time(0.2, clock, steady)
        assert not leadership.leads()

    def test_back_ends_nothing_while_it_is_renewed(
        self, leadership: Leadership, clock: Clock, steady: Clock, turns: Turns
    ) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(-HOUR)
        for seconds in (10, 20, 30):
            pass_time(10, clock, steady)
            leadership.set_lease(held_by("serried-0_a", NOW - HOUR + seconds))
        assert leadership.leads()
        assert turns.seen == [True]

    def test_ahead_ends_it_until_the_next_renewal(self, leadership: Leadership, clock: Clock, turns: Turns) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(HOUR)
        leadership.update()
        assert not leadership.leads()
        leadership.set_lease(held_by("serried-0_a", NOW + HOUR))
        assert leadership.leads()
        assert turns.seen == [True, False, True]

    def test_ahead_and_back_is_told_as_a_turn_if_somebody_has_heard_a_no(
        self, leadership: Leadership, clock: Clock, turns: Turns
    ) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(HOUR)
        assert not leadership.leads()
        clock.advance(-HOUR)
        assert not leadership.leads()
        leadership.update()
        assert leadership.leads()
        assert turns.seen == [True, False, True]


def pass_time(seconds: float, *clocks: Clock) -> None:
    """On every clock, however it is set."""
    for each in clocks:
        each.advance(seconds)


def test_it_follows_the_watch_of_the_lease(leadership: Leadership, turns: Turns) -> None:
    leadership.handle_event(Upserted(lease("serried-0_a")))
    leadership.handle_event(Upserted({"spec": "nonsense"}))
    assert leadership.active
    leadership.handle_event(Upserted(lease(None)))
    assert not leadership.active
    leadership.handle_event(Upserted(lease("serried-0_a")))
    leadership.handle_event(Deleted(lease("serried-0_a")))
    assert turns.seen == [True, False, True, False]


class TestAWatchWhoseConnectionIsDead:
    def test_is_made_anew_before_leadership_runs_out(self, leadership: Leadership, clock: Clock) -> None:
        leadership.set_lease(held_by("serried-0_a"))
        clock.advance(module.WATCH_TIMING.silence + 1)
        assert leadership.leads()

    @pytest.mark.parametrize("waiting", ["", "leases"], ids=["only that one", "and the next one, too"])
    async def test_costs_no_more_than_a_moment_of_leadership(
        self, leadership: Leadership, monkeypatch: pytest.MonkeyPatch, waiting: str
    ) -> None:
        monkeypatch.setattr(module, "WATCH_TIMING", replace(module.WATCH_TIMING, silence=0.05))
        async with FakeApiServer() as server, server.client(timeout=30.0) as client, asyncio.TaskGroup() as tasks:
            server.add(LEASES, lease("serried-1_a"))
            watch = tasks.create_task(leadership.watch(client, Key("serried", "serried")))
            await server.await_watch(LEASES)
            await wait_until(lambda: leadership.holder == "serried-1_a")
            if waiting:
                server.hold(watches(waiting), times=1)
            server.drop_changes(LEASES)
            server.patch(LEASES, "serried", "serried", {"spec": {"holderIdentity": "serried-0_a"}})
            await wait_until(lambda: leadership.active)
            watch.cancel()


def test_without_a_lease_it_is_active_from_the_beginning(turns: Turns, clock: Clock) -> None:
    alone = Leadership("", turns, clock)
    alone.set_lease(UNCONTESTED)
    clock.now += 1e9
    alone.update()
    assert (alone.active, alone.leads(), turns.seen) == (True, True, [True])


class TestAProcessThatStoodStill:
    """The scheduler may have given the Lease up meanwhile, and the watch may still show what was before that."""

    @pytest.fixture
    def steady(self) -> Clock:
        return Clock()

    @pytest.fixture
    def leadership(self, turns: Turns, clock: Clock, steady: Clock) -> Leadership:
        made = Leadership(HERE, turns, clock, steady)
        made.begin_checks()
        made.set_lease(held_by("serried-0_a"))
        return made

    @pytest.fixture(autouse=True)
    def stop(self, leadership: Leadership, clock: Clock, steady: Clock) -> None:
        """Longer than the scheduler's probe takes to fail, and not long enough for the Lease to run out."""
        for each in (clock, steady):
            each.advance(6)

    def test_does_not_lead_before_anybody_has_looked(self, leadership: Leadership) -> None:
        assert not leadership.leads()

    def test_tells_that_turn(self, leadership: Leadership, turns: Turns) -> None:
        leadership.check_time()
        assert (leadership.leads(), turns.seen) == (False, [True, False])

    def test_is_not_persuaded_by_renewals_that_were_kept_for_it(self, leadership: Leadership, turns: Turns) -> None:
        leadership.check_time()
        leadership.set_lease(held_by("serried-0_a", NOW + 4))
        assert (leadership.leads(), turns.seen) == (False, [True, False])

    def test_leads_again_when_the_lease_is_renewed_after_that(
        self, leadership: Leadership, turns: Turns, clock: Clock, steady: Clock
    ) -> None:
        leadership.check_time()
        for each in (clock, steady):
            each.advance(1.5)
        leadership.set_lease(held_by("serried-0_a", NOW + 7))
        assert (leadership.leads(), turns.seen) == (True, [True, False, True])


def test_a_pause_that_costs_no_scheduler_the_lease_is_no_reason_to_doubt(turns: Turns, clock: Clock) -> None:
    steady = Clock()
    leadership = Leadership(HERE, turns, clock, steady)
    leadership.begin_checks()
    leadership.set_lease(held_by("serried-0_a"))
    steady.advance(STILL_SECONDS - 0.1)
    leadership.check_time()
    assert (leadership.leads(), turns.seen) == (True, [True])


async def test_a_process_that_is_slow_and_looks_now_and_then_does_not_stand_still(
    turns: Turns, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    steady = Clock()
    leadership = Leadership(HERE, turns, clock, steady)
    leadership.set_lease(held_by("serried-0_a"))
    looking = asyncio.create_task(leadership.watch_time())
    for _ in range(3):
        for _ in range(5):
            await asyncio.sleep(0)
        steady.advance(STILL_SECONDS - 0.5)
    assert (leadership.leads(), turns.seen) == (True, [True])
    looking.cancel()


def test_a_leader_that_stood_still_doubts_before_the_probe_of_its_scheduler_can_have_failed() -> None:
    probe = read_pace().liveness
    assert (probe.failures - 1) * probe.period > STILL_SECONDS
