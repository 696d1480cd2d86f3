"""A gang that is evicted while it waits, and comes back, has the place in the queue that it had."""

import pytest

from serried.api.group import FirstQuorum
from serried.api.names import GroupKey, write_time
from tests.support.builders import PodBuilder, PodGroupBuilder, pod, pod_group
from tests.support.extender_harness import DAY, GANG, SCHEDULER, Harness, gang, members, small_nodes

pytestmark = pytest.mark.core

HOUR = 3_600.0

FULL = small_nodes(1, cpus=0)
"""A cluster in which everybody waits."""


def now(world: Harness) -> str:
    return write_time(world.wall_time())


def evict(world: Harness, count: int = 2) -> None:
    for number in range(count):
        world.delete(f"m{number}")
    world.schedule_groups()


def bring_back(world: Harness, count: int = 2, into: str = "g") -> None:
    """The Job controller makes the pods anew."""
    for number, each in enumerate(members(count)):
        world.add(each.in_group(into).uid(f"m{number}-at-{world.clock()}").created(now(world)))
    world.schedule_groups()


def waited(world: Harness, group: GroupKey = GANG) -> float:
    """Return the seconds that a gang has waited, by the queue."""
    found = world.groups.states[group].quorum_since
    assert found is not None
    return world.clock() - found


def begin(world: Harness, group: PodGroupBuilder | None = None) -> None:
    """Gang g of two waits for an hour."""
    world.add(*FULL, group or gang(2), *(each.created(now(world)) for each in members(2)))
    world.schedule_groups()
    world.clock.advance(HOUR)


def of_jobset(name: str, uid: str = "jobset-uid") -> PodGroupBuilder:
    """A PodGroup for one JobSet, made from the template of its Workload."""
    return pod_group(name).gang(2).controlled_by("JobSet", "train", uid).from_template("train", "main")


def restart(world: Harness) -> None:
    """Begin the term of another process, which remembers nothing."""
    world.core.end_term()
    world.groups.states.clear()
    world.term.active = True
    world.group_scheduler.begin_term(world.wall_time())
    world.group_scheduler.set_obstacle("")


def test_a_gang_that_is_evicted_every_half_hour_keeps_its_place_for_days(world: Harness) -> None:
    """Kueue does so after the timeout of waitForPodsReady."""
    begin(world)
    for _ in range(150):
        evict(world)
        world.clock.advance(HOUR)
        bring_back(world)
    assert waited(world) == 151 * HOUR


def test_it_is_before_a_gang_that_came_while_it_was_away(world: Harness) -> None:
    begin(world)
    evict(world)
    other = pod("o").cpu(1).scheduler(SCHEDULER).in_group("a-younger").created(now(world))
    world.add(pod_group("a-younger").gang(1), other)
    world.clock.advance(60)
    bring_back(world)
    keys = [GroupKey("default", "a-younger"), GANG]
    waiting = [world.queue.describe(key, world.groups.states.get(key)) for key in keys]
    assert [each.group.name for each in world.queue.order.sort(waiting)] == ["g", "a-younger"]


def test_one_deleted_member_does_not_cost_the_place(world: Harness) -> None:
    begin(world)
    evict(world, count=1)
    world.clock.advance(60)
    bring_back(world, count=1)
    assert waited(world) == HOUR + 60


def test_the_time_behind_a_gate_of_others_counts_for_a_gang_that_has_its_place(world: Harness) -> None:
    begin(world)
    evict(world)
    gated = [each.uid(f"{number}-anew").created(now(world)) for number, each in enumerate(members(2))]
    world.add(*(PodBuilder(each.raw()).gate("kueue.x-k8s.io/topology") for each in gated))
    world.schedule_groups()
    world.clock.advance(60)
    world.add(*gated)
    world.schedule_groups()
    assert waited(world) == HOUR + 60


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        pytest.param(DAY - 1, HOUR + DAY - 1, id="that is back within a day has its place"),
        pytest.param(DAY, 0, id="that is away for a day waits anew"),
    ],
)
def test_a_gang(world: Harness, away: float, expected: float) -> None:
    begin(world)
    evict(world)
    world.clock.advance(away)
    bring_back(world)
    assert waited(world) == expected


def test_a_gang_that_has_run_waits_anew(world: Harness) -> None:
    begin(world)
    for each in members(2):
        world.add(each.created(now(world)).on("n1"))
    world.schedule_groups()
    world.clock.advance(HOUR)
    evict(world)
    bring_back(world, count=1)
    world.clock.advance(60)
    bring_back(world)
    assert waited(world) == 0


class TestAPodGroupThatIsMadeAnew:
    def test_for_the_same_jobset_has_the_place(self, world: Harness) -> None:
        begin(world)
        world.add(of_jobset("train-1"))
        bring_back(world, into="train-1")
        world.clock.advance(HOUR)
        evict(world)
        world.store.drop_group(GroupKey("default", "train-1"))
        world.schedule_groups()
        world.add(of_jobset("train-2"))
        bring_back(world, into="train-2")
        assert waited(world, GroupKey("default", "train-2")) == HOUR

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(of_jobset("other", uid="another-uid"), id="another JobSet of the same name"),
            pytest.param(of_jobset("other").from_template("train", "second"), id="another stage"),
            pytest.param(of_jobset("other").replica(1), id="another replica"),
            pytest.param(pod_group("other").gang(2), id="nobody"),
        ],
    )
    def test_has_none_for(self, world: Harness, other: PodGroupBuilder) -> None:
        begin(world)
        world.add(of_jobset("train-1"))
        bring_back(world, into="train-1")
        world.clock.advance(HOUR)
        evict(world)
        world.add(other)
        bring_back(world, into="other")
        assert waited(world, GroupKey("default", "other")) == 0


class TestAfterARestart:
    """The memory is gone, and the condition says it."""

    @pytest.mark.parametrize(
        ("lost", "expected"),
        [
            pytest.param(None, 10 * DAY, id="it has the place that its condition says, whatever its pods say"),
            pytest.param(DAY - 1, 10 * DAY, id="also if its quorum was lost less than a day ago"),
            pytest.param(DAY, HOUR, id="not if it was lost a day ago"),
        ],
    )
    def test_a_gang_that_waits(self, world: Harness, lost: float | None, expected: float) -> None:
        since, gone = world.wall_time() - 10 * DAY + HOUR, ""
        if lost is not None:
            gone = write_time(world.wall_time() + HOUR - lost)
        begin(world, gang(2).first_quorum(write_time(since), gone))
        restart(world)
        world.schedule_groups()
        assert waited(world) == expected

    def test_a_loss_that_nobody_has_written_is_written_now(self, world: Harness) -> None:
        """Otherwise a Job that is resumed a week later would have its place of today."""
        since = int(world.wall_time() - HOUR)
        world.add(*FULL, gang(2).first_quorum(write_time(since)))
        world.schedule_groups()
        assert world.reasons()
        assert world.group_scheduler.find_place(GANG) == FirstQuorum(since, int(world.wall_time()))


class TestWhatIsWrittenDown:
    def test_is_the_date_of_the_first_quorum_while_the_gang_waits(self, world: Harness) -> None:
        begin(world)
        assert world.group_scheduler.find_place(GANG) == FirstQuorum(int(world.wall_time() - HOUR))

    def test_is_also_since_when_it_is_lost(self, world: Harness) -> None:
        begin(world)
        evict(world)
        world.clock.advance(60)
        expected = FirstQuorum(int(world.wall_time() - HOUR - 60), int(world.wall_time() - 60))
        assert world.group_scheduler.find_place(GANG) == expected

    def test_is_nothing_for_a_gang_that_was_never_whole(self, world: Harness) -> None:
        world.add(*FULL, gang(2), *members(1))
        world.schedule_groups()
        assert world.group_scheduler.find_place(GANG) is None

    def test_is_nothing_for_a_gang_of_which_members_run(self, world: Harness) -> None:
        begin(world)
        world.add(members(1)[0].on("n1"))
        world.schedule_groups()
        assert world.group_scheduler.find_place(GANG) is None

    def test_is_nothing_for_a_gang_that_nobody_knows(self, world: Harness) -> None:
        assert world.group_scheduler.find_place(GANG) is None


def test_only_so_many_places_are_remembered(world: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.core.scheduling.first_quorums._MAX_PLACES", 1)
    world.add(*FULL)
    for name in ("a", "b"):
        world.add(pod_group(name).gang(1), pod(name).cpu(1).scheduler(SCHEDULER).in_group(name).created(now(world)))
        world.schedule_groups()
    world.clock.advance(HOUR)
    for name in ("a", "b"):
        world.delete(name)
        world.schedule_groups()
    found = [world.group_scheduler.find_place(GroupKey("default", name)) is not None for name in ("a", "b")]
    assert found == [False, True]
