"""A kind without which nothing is planned is not served any more: what it showed is gone from the Store."""

import asyncio

from extender.core.protocol import Hold, Pass, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.options import BrokenAction, RepairRules
from serried.api.names import Key
from serried.api.verdict import Reason, Verdict
from tests.support.builders import job, pod, pod_group, workload
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes

GAP = "the API server does not serve jobs.batch (v1)"

JOB = job("j").size(2).scheduler(SCHEDULER)
PODS = [pod(f"j-{index}").of_job("j", index).cpu(1).scheduler(SCHEDULER) for index in range(2)]


async def test_no_gang_is_planned_and_each_is_told_why_until_the_kind_is_listed_again(world: Harness) -> None:
    world.store.set_plan_obstacle(GAP)
    await world.add(*small_nodes(2), gang(2), *members(2), pod("plain").scheduler(SCHEDULER)).run_until_idle()
    assert world.groups.states[GANG].verdict == Verdict(Reason.API_MISSING, detail=GAP)
    assert world.filter("m0") == Hold()
    assert world.filter("plain") == Pass()
    world.store.set_plan_obstacle("")
    await world.run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING


async def test_who_waits_already_is_told(world: Harness) -> None:
    await world.add(gang(3), *members(2)).run_until_idle()
    world.schedule_groups()  # also at what the watch has repeated
    assert world.reasons() == [Reason.QUORUM_MISSING]
    world.store.set_plan_obstacle(GAP)
    world.schedule_groups()
    assert world.reasons() == [Reason.QUORUM_MISSING, Reason.API_MISSING]
    world.store.set_plan_obstacle("")
    world.schedule_groups()
    assert world.reasons()[2:] == [Reason.QUORUM_MISSING]


async def test_a_plain_pod_is_bound_meanwhile(world: Harness) -> None:
    world.store.set_plan_obstacle(GAP)
    world.add(*small_nodes(2), pod("plain").scheduler(SCHEDULER))
    call = world.bind("plain", "n1")
    await world.run_tasks()
    assert (call.error, world.node_of("plain")) == ("", "n1")


async def test_the_pods_of_a_job_that_vanished_with_its_kind_are_not_let_go(world: Harness) -> None:
    world.store.put_job(JOB.value())
    world.store.put_workload(workload("w").for_job("j").gang_template("t", 2).value())
    await world.add(pod_group("g").gang(2).from_template("w", "t"), *(each.gate() for each in PODS)).run_until_idle()
    world.store.set_plan_obstacle(GAP)
    world.store.drop_job(Key("default", "j"))
    await world.run_until_idle()
    for _ in range(4):
        await world.pass_time(30.0)
    assert world.filter("j-0") == Hold()
    assert world.api.list_calls("activate") == []
    world.store.put_job(JOB.value())
    world.store.set_plan_obstacle("")
    await world.add(*small_nodes(2)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING


async def test_a_gang_that_was_planned_before_is_neither_steered_nor_bound(world: Harness) -> None:
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    assert isinstance(world.filter("m0"), Steer)
    assert isinstance(world.filter("m1"), Steer)
    world.store.set_plan_obstacle(GAP)
    assert world.filter("m0") == Hold()
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [world.node_of(name) for name in ("m0", "m1")] == ["", ""]
    assert all(not call.task.done() or call.error for call in calls)
    world.store.set_plan_obstacle("")
    await world.run_until_idle()
    assert [isinstance(world.filter(name), Steer) for name in ("m0", "m1")] == [True, True]
    again = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    await asyncio.gather(*(call.task for call in again))
    assert all(world.node_of(name) for name in ("m0", "m1"))


async def test_what_is_left_of_a_broken_gang_is_not_evicted_meanwhile() -> None:
    world = Harness(rules=RepairRules(seconds=1.0, grace=10.0, broken=BrokenAction.EVICT))
    await world.add(*small_nodes(2), gang(2), *(each.on("n1") for each in members(2))).run_until_idle()
    world.delete("m0")
    await world.run_until_idle()
    world.store.set_plan_obstacle(GAP)
    await world.pass_time(30.0)
    assert world.api.list_calls("evict") == []
    world.store.set_plan_obstacle("")
    await world.run_until_idle()
    await world.pass_time(30.0)
    assert [call.name for call in world.api.list_calls("evict")] == ["m1"]
    await world.close()
