"""Pods whose Job or parent no watch shows: they go on without it when the API server says that it does not exist."""

import pytest

from extender.core.protocol import Hold, Pass
from extender.core.scheduling.awaited_owner import AwaitedOwner, Waiter
from serried.api.names import GroupKey, GroupKind, Key
from serried.api.verdict import Reason, Verdict
from serried.kube.errors import ApiError
from serried.kube.wire import BadLineError
from tests.support.builders import JobBuilder, PodBuilder, job, pod
from tests.support.extender_harness import SCHEDULER, Harness, small_nodes
from tests.support.fake_api import Call, error
from tests.support.parents import leader_worker_set

JOB = job("j").size(2).scheduler(SCHEDULER)
PODS = [pod(f"j-{index}").of_job("j", index).cpu(1).scheduler(SCHEDULER) for index in range(2)]
WAITING = GroupKey("default", "j", GroupKind("Job"))
NOT_SHOWN = "the API server has the Job, but no watch has shown it yet"


def make_unseen(world: Harness, builder: JobBuilder) -> None:
    """The API server has a Job, and no watch shows it."""
    world.api.owners["jobs"][builder.value().key] = builder.raw()


def asked(world: Harness) -> list[Call]:
    """Return the calls that ask the API server about owners."""
    return [call for call in world.api.list_calls("list") if call.resource in {"jobs", "jobsets", "leaderworkersets"}]


def why(world: Harness, key: GroupKey = WAITING) -> Verdict | None:
    """Return the reason why the pods wait."""
    return world.groups.states[key].verdict


async def test_pods_of_a_job_that_exists_are_held_for_as_long_as_no_watch_shows_it(world: Harness) -> None:
    make_unseen(world, JOB)
    await world.add(*small_nodes(2), *(each.gate() for each in PODS)).run_until_idle()
    for _ in range(20):
        await world.pass_time(31.0)
    assert [world.filter(name) for name in ("j-0", "j-1")] == [Hold(), Hold()]
    assert world.api.list_calls("ungate") == []
    assert why(world) == Verdict(Reason.JOB_UNKNOWN, detail=NOT_SHOWN)


async def test_nobody_of_them_is_bound_alone(world: Harness) -> None:
    make_unseen(world, JOB)
    await world.add(*small_nodes(2), *PODS).run_until_idle()
    await world.pass_time(31.0)
    call = world.bind("j-0", "n1")
    await world.run_tasks()
    assert call.error
    assert world.node_of("j-0") == ""


async def test_they_are_a_gang_when_the_watch_shows_the_job(world: Harness) -> None:
    make_unseen(world, JOB)
    await world.add(*small_nodes(2), *PODS).run_until_idle()
    await world.pass_time(31.0)
    await world.add(JOB).run_until_idle()
    assert why(world) == Verdict(Reason.POD_GROUP_MISSING)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(error(403, "Forbidden"), id="the role that shows Jobs is gone"),
        pytest.param(error(503), id="it has too much to do"),
        pytest.param(error(0), id="it cannot be reached"),
        pytest.param(error(404), id="it does not serve the kind"),
    ],
)
async def test_an_api_server_that_does_not_say_whether_the_job_exists_leaves_them_held(
    world: Harness, fault: ApiError
) -> None:
    await world.add(*small_nodes(2), *PODS).run_until_idle()
    world.api.fail("list", fault)
    await world.pass_time(31.0)
    assert world.filter("j-0") == Hold()
    assert why(world) == Verdict(Reason.JOB_UNKNOWN, detail=f"Serried cannot find out whether the Job exists: {fault}")
    await world.pass_time(31.0)
    assert world.filter("j-0") == Pass()
    assert why(world) == Verdict(Reason.JOB_UNKNOWN)


async def test_it_is_asked_once_for_all_pods_and_again_after_a_pause(world: Harness) -> None:
    make_unseen(world, JOB)
    await world.add(*PODS).run_until_idle()
    await world.pass_time(29.0)
    assert asked(world) == []
    await world.pass_time(2.0)
    assert [(call.resource, call.name) for call in asked(world)] == [("jobs", "metadata.name=j")]
    await world.pass_time(29.0)
    assert len(asked(world)) == 1
    await world.pass_time(2.0)
    assert len(asked(world)) == 2


async def test_it_is_not_asked_twice_while_it_does_not_answer(world: Harness) -> None:
    await world.add(*PODS).run_until_idle()
    world.api.hold("list")
    for _ in range(20):
        await world.pass_time(31.0)
    assert len(asked(world)) == 1
    assert world.filter("j-0") == Hold()
    world.api.release("list")
    await world.run_until_idle()
    assert world.filter("j-0") == Pass()


async def test_an_answer_that_nobody_can_read_does_not_end_the_asking(world: Harness) -> None:
    await world.add(*small_nodes(2), *PODS).run_until_idle()
    world.api.fail("list", BadLineError("no JSON"))
    await world.pass_time(31.0)
    verdict = why(world)
    assert verdict is not None
    assert "no JSON" in verdict.detail
    await world.pass_time(31.0)
    assert world.filter("j-0") == Pass()


async def test_once_nobody_waits_any_more_the_group_is_not_looked_at_for_it(world: Harness) -> None:
    make_unseen(world, JOB)
    await world.add(*PODS).run_until_idle()
    await world.pass_time(31.0)
    await world.add(*(each.deleting() for each in PODS)).run_until_idle()
    await world.pass_time(31.0)
    assert world.groups.states[WAITING].awaited is None
    assert len(asked(world)) == 1


async def test_the_end_of_a_term_ends_the_question_and_the_next_term_asks_anew(world: Harness) -> None:
    await world.add(*PODS).run_until_idle()
    world.api.hold("list")
    await world.pass_time(31.0)
    world.core.end_term()
    await world.run_tasks()
    world.api.release("list")
    world.term.active = True
    world.group_scheduler.set_obstacle("")
    await world.run_until_idle()
    assert world.filter("j-0") == Hold()
    await world.pass_time(31.0)
    assert len(asked(world)) == 2
    assert world.filter("j-0") == Pass()


class TestANameThatIsUsedAgain:
    NEW = tuple(pod(f"new-{index}").of_job("j", index, uid="second").cpu(1).scheduler(SCHEDULER) for index in range(2))

    async def delete_job(self, world: Harness) -> None:
        """Job j is gone for a minute, and its pods take long to end."""
        old = [each.on("n1") for each in PODS]
        await world.add(*small_nodes(3), JOB, *old).run_until_idle()
        world.store.drop_job(Key("default", "j"))
        await world.add(*(each.deleting() for each in old)).run_until_idle()
        await world.pass_time(60.0)

    async def test_pods_of_the_new_job_that_are_shown_before_it_are_held(self, world: Harness) -> None:
        await self.delete_job(world)
        make_unseen(world, JOB.uid("second"))
        await world.add(*self.NEW).run_until_idle()
        assert [world.filter(f"new-{index}") for index in range(2)] == [Hold(), Hold()]
        await world.pass_time(31.0)
        assert [world.filter(f"new-{index}") for index in range(2)] == [Hold(), Hold()]

    async def test_a_pod_that_is_left_of_the_old_job_goes_and_those_of_the_new_one_wait(self, world: Harness) -> None:
        make_unseen(world, JOB.uid("second"))
        await world.add(*small_nodes(3), *PODS, *self.NEW).run_until_idle()
        await world.pass_time(31.0)
        assert [world.filter(name) for name in ("j-0", "new-0")] == [Pass(), Hold()]
        assert why(world) == Verdict(Reason.JOB_UNKNOWN, detail=NOT_SHOWN)

    async def test_pods_of_a_new_job_wait_for_their_own_time_when_those_of_the_old_one_have_gone_on(
        self, world: Harness
    ) -> None:
        await world.add(*small_nodes(3), *PODS).run_until_idle()
        await world.pass_time(31.0)
        assert world.filter("j-0") == Pass()
        await world.add(*self.NEW).run_until_idle()
        assert world.filter("new-0") == Hold()
        make_unseen(world, JOB.uid("second"))
        await world.pass_time(31.0)
        assert [world.filter(name) for name in ("j-1", "new-0")] == [Pass(), Hold()]


class TestASetWhoseLabelsDoNotGiveItsUid:
    SET = GroupKey("default", "s", GroupKind("LeaderWorkerSet"))

    @staticmethod
    def worker(name: str, worker: int) -> PodBuilder:
        return pod(name).of_replica("s", 0, worker=worker).cpu(1).scheduler(SCHEDULER)

    async def test_its_pods_go_when_there_is_none_and_later_ones_wait_for_their_own_time(self, world: Harness) -> None:
        world.store.membership.followed.add("LeaderWorkerSet")
        await world.add(*small_nodes(3), self.worker("old", 0)).run_until_idle()
        await world.pass_time(31.0)
        assert world.filter("old") == Pass()
        made = leader_worker_set("s")
        world.api.owners["leaderworkersets"][made.value().key] = made.raw()
        await world.add(self.worker("new", 1)).run_until_idle()
        assert world.filter("new") == Hold()
        await world.pass_time(31.0)
        assert world.filter("new") == Hold()
        assert why(world, self.SET) == Verdict(Reason.JOB_UNKNOWN, detail=NOT_SHOWN)


@pytest.mark.parametrize(
    ("waiter", "found", "lost"),
    [
        pytest.param(Waiter("a"), "a", False, id="its own owner"),
        pytest.param(Waiter("a"), "b", True, id="another one of the name"),
        pytest.param(Waiter("a"), "", True, id="none"),
        pytest.param(Waiter("", "p"), "a", False, id="one that may be its own"),
        pytest.param(Waiter("", "p"), "", True, id="none, whichever was its own"),
    ],
)
def test_who_has_lost_its_owner(waiter: Waiter, found: str, lost: bool) -> None:  # noqa: FBT001 - of a table
    assert waiter.has_lost(found) is lost


def test_of_pods_that_are_gone_nothing_is_kept() -> None:
    awaited = AwaitedOwner(30.0)
    members = [each.value() for each in PODS]
    awaited.ask(WAITING, members, 0.0)
    asked = awaited.ask(WAITING, members, 31.0)
    awaited.note_found(asked, "", 31.0)
    assert awaited.is_lost(WAITING, members[0])
    awaited.ask(WAITING, [], 32.0)
    assert not awaited.is_lost(WAITING, members[0])
