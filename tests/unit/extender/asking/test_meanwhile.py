"""Events while a gang asks for nodes: other gangs, other terms, clocks, trees, volumes, and bad input."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from extender.autoscalers import FoundAutoscalers
from extender.core.scheduling.planning_tasks import PlanningTasks
from extender.features.asking import asking as asking_module
from extender.features.asking.ask import Ask
from extender.features.asking.asking import Asking
from extender.features.asking.targets import NoTarget, Target, accepts, choose_target
from serried.api.names import ASKED, GroupKey, Key, write_time
from serried.api.node_pool import NODE_POOL_LABEL, NodePool
from serried.api.selectors import NodeSelectorTerm, Requirement, Taint
from serried.api.verdict import Reason
from tests.support.autoscalers import ZONE, add_cluster_autoscaler, add_karpenter, node_pool
from tests.support.builders import PodBuilder, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, Harness
from tests.support.fake_api import error
from tests.support.rules import run_deferred_work
from tests.support.volumes import volume, volume_claim
from tests.unit.extender.asking.test_asking import (
    gang,
    members,
    new_node,
    said,
    selectors,
    visible,
    wait_for_ask,
    zone_node,
)
from tests.unit.extender.asking.test_targets import RACK, ZONES, ask, choose, choose_from, refused


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness()
    await add_karpenter(made)
    made.add(zone_node("n-a", "a", cpus=1), zone_node("n-b", "b", cpus=1))
    yield made
    await made.close()


async def take_over(world: Harness) -> Harness:
    """A process that was standby leads now: it has the same API server, and knows nothing else."""
    other = Harness(api=world.api)
    other.clock.advance(world.clock() - other.clock())
    other.sync_nodes()
    other.store.put_group(world.store.groups[GANG])
    other.sync_pods()
    run_deferred_work(other.store)
    other.core.feature(Asking).recover([])
    return other


async def test_a_new_leader_that_has_not_looked_at_the_groups_yet_keeps_what_was_asked(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    at = world.core.feature(Asking).asks[GANG].at
    other = await take_over(world)
    await other.core.autoscalers.refresh()
    await other.pass_time(0.5)
    assert {group: ask.at for group, ask in other.core.feature(Asking).asks.items()} == {GANG: at}
    await other.close()


async def test_a_tick_of_the_loop_during_the_recovery_keeps_what_was_asked(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    other = await take_over(world)
    other.group_scheduler.drop_queued()  # the term is not active before the stray nominations are cleared
    other.group_scheduler.begin_term(other.wall_time())
    await other.core.autoscalers.refresh()
    await other.pass_time(0.5)
    found = set(other.core.feature(Asking).asks)
    await other.close()
    assert found == {GANG}


async def test_gangs_for_which_nobody_asks_keep_no_gang_behind_them_from_asking(world: Harness) -> None:
    for number in range(32):
        world.add(gang(f"x{number}", 2, key=RACK), *members(f"x{number}-", 0))
        world.add(
            *(pod(f"x{number}-{each}").cpu(1).scheduler(SCHEDULER).in_group(f"x{number}").gate() for each in range(2))
        )
    await world.run_until_idle()
    await world.pass_time(1.0)
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    for _ in range(10):
        await world.pass_time(1.0)
    assert visible(world) == {"g0", "g1", "g2"}


async def test_a_group_that_is_made_anew_asks_for_its_own_domain(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    for number in range(3):
        world.delete(f"g{number}")
    world.store.drop_group(GANG)
    again = [
        pod(f"again{number}").cpu(1).scheduler(SCHEDULER).in_group("g").gate().node_selector(ZONE, "b")
        for number in range(3)
    ]
    await wait_for_ask(world.add(gang("g", 3), *again))
    assert selectors(world, ["again0", "again1", "again2"]) == [{ZONE: "b"}] * 3


async def test_a_gang_whose_members_are_all_gone_keeps_no_other_from_asking(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    for number in range(3):
        world.delete(f"g{number}")
    await world.run_until_idle()
    await wait_for_ask(world.add(gang("h", 3), *members("h", 3)))
    await world.pass_time(60.0)
    assert visible(world) == {"h0", "h1", "h2"}


async def test_a_time_in_the_future_in_the_annotation_of_a_pod_keeps_nobody_from_asking(world: Harness) -> None:
    liar = (
        pod("liar0")
        .cpu(1)
        .scheduler(SCHEDULER)
        .in_group("liar")
        .gate()
        .annotation(ASKED, f"2123-11-14T22:13:20Z {ZONE}=a")
    )
    world.add(gang("liar", 2), liar, gang("h", 3), *members("h", 3))
    await world.run_until_idle()
    asking = world.core.feature(Asking)
    asking.end_term()
    asking.recover([])
    world.groups.states[GroupKey("default", "h")].entry.force_retry()
    world.groups.mark_dirty(GroupKey("default", "h"))
    await wait_for_ask(world)
    await world.pass_time(1200.0)
    await wait_for_ask(world)
    assert visible(world) == {"h0", "h1", "h2"}


async def test_a_leader_that_dies_between_request_and_annotation_leaves_no_second_request() -> None:
    world = Harness()
    await add_cluster_autoscaler(world)
    world.add(zone_node("n-a", "a", cpus=1))
    for number in range(3):
        world.api.reject("activate", Key("default", f"g{number}"), error(0))
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    world.api.recover()
    asking = world.core.feature(Asking)
    asking.end_term()
    asking.recover([])
    world.groups.states[GANG].entry.force_retry()
    world.groups.mark_dirty(GANG)
    await world.pass_time(6.0)
    await wait_for_ask(world)
    assert len(world.api.owners["provisioningrequests"]) == 1
    await world.close()


def test_with_two_autoscalers_a_gang_that_no_node_pool_takes_asks_the_other_one() -> None:
    pool = NodePool("cpu", {}, taints=(Taint("cpu-only", "", "NoSchedule"),))
    seen = FoundAutoscalers(karpenter=True, cluster_autoscaler=True, pools=(pool,))
    assert isinstance(choose_from(seen, ask(), refused()), Target)


def test_a_pool_that_does_not_name_the_key_adds_no_node_with_it() -> None:
    other = NodePool("racks", {}, (Requirement(RACK, "In", ("r1",)),), taints=(Taint("x", "", "NoSchedule"),))
    found = choose(other, NodePool("plain", {}), request=ask(key=RACK))
    assert isinstance(found, NoTarget)


@pytest.mark.parametrize("operator", ["NotIn", "DoesNotExist"])
def test_a_pool_of_spot_nodes_takes_no_pod_that_excludes_them(operator: str) -> None:
    key = "karpenter.sh/capacity-type"
    pool = NodePool("spot", {}, (Requirement(key, "In", ("spot",)),))
    values = ("spot",) if operator == "NotIn" else ()
    shape = pod("p").cpu(1).value().shape
    term = NodeSelectorTerm((Requirement(key, operator, values),), ())
    assert not accepts(pool, replace(shape, node_terms=(term,)))


async def test_what_was_asked_outlasts_an_obstacle_that_is_over(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    asking = world.core.feature(Asking)
    asking.end_term()
    world.group_scheduler.set_obstacle("the records cannot be read")
    asking.recover([])  # the order of Leadership._begin
    world.group_scheduler.begin_term(world.wall_time())
    world.group_scheduler.set_obstacle("")
    await world.pass_time(0.5)
    assert GANG in asking.asks


async def test_a_gang_that_has_asked_in_vain_runs_where_there_is_room_later(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    await world.pass_time(601.0)
    assert world.reasons()[-1] is Reason.NO_NODES_CAME
    await world.add(new_node(world, "elsewhere", zone="b", cpus=8)).run_until_idle()
    for _ in range(3):
        await world.pass_time(1.0)
    assert world.reasons()[-1] is Reason.PLANNED or "selector" in said(world)


async def test_filter_has_its_turn_between_two_candidates(world: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def count(*args: object) -> Target | NoTarget:
        nonlocal calls
        calls += 1
        return choose_target(*args)  # type: ignore[arg-type]

    for number in range(20):
        world.add(gang(f"x{number}", 3), *members_of(f"x{number}", 3))
    await world.run_until_idle()
    monkeypatch.setattr(asking_module, "choose_target", count)
    world.clock.advance(2.0)
    most, before = 0, 0
    for _ in world.core.feature(Asking).list_requeues():
        most, before = max(most, calls - before), calls
    most = max(most, calls - before)
    assert most <= 4


def members_of(name: str, count: int) -> list[PodBuilder]:
    return [pod(f"{name}-{number}").cpu(1).scheduler(SCHEDULER).in_group(name).gate() for number in range(count)]


async def test_of_a_tree_as_many_members_are_shown_as_its_quorum_needs(world: Harness) -> None:
    world.add(composite("tree").gang(2).topology(ZONE))
    for name in ("left", "right"):
        world.add(pod_group(name).child_of("tree").gang(2), *members(name, 4))
    await wait_for_ask(world)
    for _ in range(3):
        await world.pass_time(1.0)
    assert len(visible(world)) == 4


async def test_a_zone_without_capacity_is_not_asked_for_twice_in_a_row() -> None:
    world = Harness()
    await add_cluster_autoscaler(world)
    await wait_for_ask(
        world.add(zone_node("n-a", "a", cpus=1), zone_node("n-b", "b", cpus=1), gang("g", 3), *members("g", 3))
    )
    zones = []
    for _ in range(2):
        [request] = world.api.owners["provisioningrequests"].values()
        [template] = world.api.owners["podtemplates"].values()
        zones.append(template["template"]["spec"]["nodeSelector"][ZONE])
        condition = {
            "type": "Provisioned",
            "status": "False",
            "reason": "CapacityIsNotFound",
            "message": "none in zone",
        }
        request["status"] = {"conditions": [condition]}
        await world.pass_time(6.0)
        world.api.owners["podtemplates"].clear()  # garbage collection
        await world.pass_time(1201.0)
        await wait_for_ask(world)
    await world.close()
    assert sorted(zones) == ["a", "b"]


async def test_a_node_that_came_stays_kept_while_a_member_of_the_gang_is_replaced(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 4), *members("g", 4)))
    await world.add(new_node(world, "came", cpus=2)).run_until_idle()
    await world.pass_time(1.0)
    world.delete("g3")
    await world.run_until_idle()
    await world.add(gang("h", 3), *members("h", 3)).run_until_idle()
    assert world.reasons(GroupKey("default", "h"))[-1] is Reason.BEHIND_HEAD


async def test_gangs_that_have_asked_in_vain_keep_no_gang_behind_them_from_asking(world: Harness) -> None:
    for number in range(32):
        world.add(gang(f"x{number}", 3), *members_of(f"x{number}", 3))
    await world.run_until_idle()
    asking = world.core.feature(Asking)
    for number in range(32):
        key = GroupKey("default", f"x{number}")
        target = Target(ZONE, "a", frozenset({"default"}))
        asking.asks[key] = Ask(world.store.groups[key].uid, world.wall_time() - 700.0, target, timed_out=True)
    await world.pass_time(5.0)
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    for _ in range(10):
        await world.pass_time(1.0)
    assert visible(world) >= {"g0", "g1", "g2"}


async def test_a_search_for_victims_stops_no_gang_of_another_node_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Harness()
    await add_karpenter(world, node_pool("one"), node_pool("two"))
    world.add(zone_node("n-a", "a", cpus=1), zone_node("n-b", "b", cpus=1))
    first = [each.node_selector(NODE_POOL_LABEL, "one").priority(9) for each in members("x", 3)]
    await world.add(gang("x", 3).priority(9), *first).run_until_idle()
    monkeypatch.setattr(PlanningTasks, "is_working_for", lambda _, group: group.name == "x")
    second = [each.node_selector(NODE_POOL_LABEL, "two") for each in members("g", 3)]
    await wait_for_ask(world.add(gang("g", 3), *second))
    await world.pass_time(60.0)
    found = visible(world)
    await world.close()
    assert found == {"g0", "g1", "g2"}


async def test_a_long_answer_to_a_request_is_cut() -> None:
    world = Harness()
    await add_cluster_autoscaler(world)
    await wait_for_ask(world.add(zone_node("n-a", "a", cpus=1), gang("g", 3), *members("g", 3)))
    condition = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "x" * 32768}
    [request] = world.api.owners["provisioningrequests"].values()
    request["status"] = {"conditions": [condition]}
    await world.pass_time(6.0)
    await world.run_until_idle()
    text = said(world)
    await world.close()
    assert "Accepted" in text
    assert len(text) < 2000


async def test_the_request_for_a_tree_counts_the_quorum_of_each_group() -> None:
    world = Harness()
    await add_cluster_autoscaler(world)
    world.add(zone_node("n-a", "a", cpus=1), composite("tree").gang(2).topology(ZONE))
    world.add(pod_group("left").child_of("tree").gang(2), *members("left", 4))
    large = [pod(f"right{number}").cpu(2).scheduler(SCHEDULER).in_group("right").gate() for number in range(2)]
    await wait_for_ask(world.add(pod_group("right").child_of("tree").gang(2), *large))
    for _ in range(3):
        await world.pass_time(1.0)
    [request] = world.api.owners["provisioningrequests"].values()
    counts = sorted(each["count"] for each in request["spec"]["podSets"])
    await world.close()
    assert counts == [2, 2]


async def test_members_whose_volumes_are_in_one_zone_ask_for_nodes_there(world: Harness) -> None:
    in_b = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
    for number in range(3):
        world.store.put_object(volume(f"v{number}").node_affinity(in_b).value())
        world.store.put_object(volume_claim(f"c{number}").bound_to(f"v{number}").value())
    mounting = [each.mounting(f"c{number}") for number, each in enumerate(members("g", 3))]
    world.add(pod("busy").cpu(1).on("n-b"))
    await wait_for_ask(world.add(gang("g", 3), *mounting))
    assert selectors(world, ["g0", "g1", "g2"]) == [{ZONE: "b"}] * 3


@pytest.mark.parametrize("operator", ["In", "NotIn"])
def test_a_zone_is_asked_for_that_the_members_affinity_allows(operator: str) -> None:
    term = NodeSelectorTerm((Requirement(ZONE, operator, ("b",) if operator == "In" else ("a", "c")),), ())
    request = ask()
    found = [replace(each, shape=replace(each.shape, node_terms=(term,))) for each in request.members]
    target = choose(ZONES, request=replace(request, members=found))
    assert isinstance(target, Target)
    assert target.domain == "b"


async def test_members_with_the_basic_policy_ask_together(world: Harness) -> None:
    world.add(pod("busy-a").cpu(1).on("n-a"), pod("busy-b").cpu(1).on("n-b"))
    await wait_for_ask(world.add(pod_group("g").topology(ZONE), *members("g", 5)))
    assert len(visible(world)) == 5


async def test_a_node_that_came_is_kept_though_the_clock_is_ahead(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 4), *members("g", 4)))
    await world.pass_time(40.0)
    created = write_time(world.wall_time() - 60.0)  # the API server's time
    came = zone_node("came", "a", cpus=2).with_field(created, "metadata", "creationTimestamp")
    await world.add(came, gang("h", 3), *members("h", 3)).run_until_idle()
    assert world.reasons(GroupKey("default", "h"))[-1] is Reason.BEHIND_HEAD
