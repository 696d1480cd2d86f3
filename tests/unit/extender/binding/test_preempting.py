"""A gang gets the room of others: first the record, then dry runs, then conditions, then evictions, then the wait."""

import pytest

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.features.preemption.search import find_preemption
from extender.options import EvictionMethod, PreemptionMode
from serried.api.names import PREEMPTED, Disruption, GroupKey, Key, write_time
from serried.api.verdict import Reason
from serried.plan.eviction import Preemption
from tests.support.budgets import budget
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal
from tests.support.priorities import priority_class

HIGH = 100


def running(name: str, node: str, priority: int = 0, cpus: int = 2) -> PodBuilder:
    return pod(name).cpu(cpus).on(node).priority(priority)


def urgent(count: int) -> list[PodBuilder]:
    return [each.cpu(2).priority(HIGH) for each in members(count)]


def full(world: Harness, nodes: int = 2) -> Harness:
    """Every node is taken by one pod of low priority, low1, low2, ..."""
    return world.add(*small_nodes(nodes), *(running(f"low{i}", f"n{i}") for i in range(1, nodes + 1)))


def wait_gracefully(world: Harness, *names: str) -> None:
    world.api.graceful.update(Key("default", name) for name in names)


async def end(world: Harness, *names: str) -> None:
    """Victims have ended, and the watch says so."""
    for name in names:
        world.delete(name)
    await world.run_until_idle()


def list_terminating(world: Harness) -> list[str]:
    return sorted(key.name for key, raw in world.api.pods.items() if "deletionTimestamp" in raw["metadata"])


async def start(world: Harness) -> Harness:
    """A gang of two needs both nodes; those that run there end gracefully."""
    wait_gracefully(world, "low1", "low2")
    full(world).add(gang(2).priority(HIGH), *urgent(2))
    world.start_nominating()
    await world.run_until_idle()
    return world


async def test_lower_priority_makes_room_and_the_gang_is_bound_whole(world: Harness) -> None:
    await start(world)
    assert world.reasons()[-1] is Reason.PREEMPTING
    assert list_terminating(world) == ["low1", "low2"]
    await end(world, "low1", "low2")
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert isinstance(world.filter("m0"), Steer)
    assert isinstance(world.filter("m1"), Steer)
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert {world.node_of("m0"), world.node_of("m1")} == {"n1", "n2"}
    assert world.reasons()[-1] is Reason.SCHEDULED
    assert world.nothing_reserved


ALONE = ["create", "list", "rehearse", "mark", "mark", "delete", "delete"]
GUARDED = ["create", "list", "rehearse", "rehearse", "mark", "mark", "evict", "evict", "mark", "mark"]


@pytest.mark.parametrize(
    ("guarded", "steps"),
    [
        pytest.param([], ALONE, id="no budget selects them"),
        pytest.param(["all"], GUARDED, id="a budget selects them"),
    ],
)
async def test_record_dry_runs_conditions_and_evictions_come_in_this_order(
    world: Harness, guarded: list[str], steps: list[str]
) -> None:
    for _ in guarded:
        world.api.add_budget()
    await start(world)
    assert [call.verb for call in world.api.calls if call.verb != "nominate"] == steps
    record = world.api.records[GANG.object_key]["spec"]
    assert {victim["name"] for victim in record["victims"]} == {"low1", "low2"}
    assert record["phase"] == "Planned"
    conditions = world.api.pods[Key("default", "low1")]["status"]["conditions"]
    assert [(each["type"], each["reason"]) for each in conditions] == [("DisruptionTarget", PREEMPTED)]
    assert "default/g" in conditions[0]["message"]
    assert {name for name, _ in world.heard.victims} == {"low1", "low2"}
    assert "default/low1" in world.heard.preemptions[0][1]


async def test_a_victim_that_is_gone_when_its_eviction_is_answered_costs_no_more_writes(world: Harness) -> None:
    world.api.add_budget()
    world.api.hold("evict")
    await start(world)
    world.delete("low1")
    world.api.release("evict")
    await world.run_until_idle()
    assert [call.name for call in world.api.list_calls("mark")] == ["low1", "low2", "low2"]


async def test_members_are_held_and_nominated_while_victims_end(world: Harness) -> None:
    await start(world)
    assert isinstance(world.filter("m0", "elsewhere"), Hold)
    assert {world.pod("m0").nominated, world.pod("m1").nominated} == {"n1", "n2"}
    await end(world, "low1")
    assert isinstance(world.filter("m1", "elsewhere"), Hold)
    assert world.binding_cycle().stage is CycleStage.PREEMPTING


async def test_a_member_whose_node_is_free_waits_at_bind_and_is_not_bound_alone(world: Harness) -> None:
    await start(world)
    await end(world, "low1")
    assert isinstance(world.filter("m0", "elsewhere"), Hold)
    assert world.filter("m0", "n1") == Steer("n1")
    first = world.bind("m0")
    await world.run_until_idle()
    assert first.waiting
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    assert not world.node_of("m0")
    await end(world, "low2")
    assert isinstance(world.filter("m1"), Steer)
    second = world.bind("m1")
    await world.run_until_idle()
    assert (first.error, second.error) == ("", "")
    assert {world.node_of("m0"), world.node_of("m1")} == {"n1", "n2"}


async def test_the_scheduler_may_see_a_victim_end_before_our_watch_shows_it(world: Harness) -> None:
    await start(world)
    assert world.filter("m0", "n1") == Steer("n1")
    call = world.bind("m0")
    await world.run_until_idle()
    assert call.waiting
    await end(world, "low1", "low2")
    world.filter("m1", "n2")
    world.bind("m1")
    await world.run_until_idle()
    assert {world.node_of("m0"), world.node_of("m1")} == {"n1", "n2"}


async def test_nobody_has_ended_before_the_first_eviction_whatever_is_offered(world: Harness) -> None:
    world.api.hold("mark")
    await start(world)
    assert not world.binding_cycle().eviction_sent
    assert isinstance(world.filter("m0", "n1"), Hold)
    world.api.release("mark")
    await world.run_until_idle()
    assert world.filter("m0", "n1") == Steer("n1")


async def test_a_scheduler_that_schedules_gangs_itself_may_only_try_what_would_be_without_the_victims(
    world: Harness,
) -> None:
    world.store.schedules_gangs = True
    await start(world)
    assert isinstance(world.filter("m0", "n1"), Hold)
    await end(world, "low1")
    assert world.filter("m0", "n1") == Steer("n1")


async def test_no_bind_call_is_open_for_longer_than_kube_scheduler_waits(world: Harness) -> None:
    await start(world)
    await end(world, "low1")
    world.filter("m0")
    call = world.bind("m0")
    await world.pass_time(119)
    assert call.waiting
    await world.pass_time(2)
    assert "kube-scheduler tries the pod again" in call.error
    assert world.filter("m0") == Steer("n1")
    again = world.bind("m0")
    await end(world, "low2")
    await world.pass_time(50)
    assert again.waiting
    world.filter("m1")
    last = world.bind("m1")
    await world.run_until_idle()
    assert (again.error, last.error) == ("", "")


async def test_while_victims_take_their_time_events_are_not_held_up(world: Harness) -> None:
    await start(world)
    assert world.core.preemptions.stage.eviction_writes.is_on()
    for _ in range(5):
        await world.pass_time(6)
        assert not world.core.preemptions.stage.eviction_writes.is_on()


async def test_while_one_victim_after_the_other_ends_events_wait(world: Harness) -> None:
    await start(world)
    await world.pass_time(1.5)
    await end(world, "low1")
    await world.pass_time(1.5)
    assert world.core.preemptions.stage.eviction_writes.is_on()


async def test_the_time_to_gather_begins_when_the_last_victim_is_gone(world: Harness) -> None:
    await start(world)
    await end(world, "low1")
    world.filter("m0")
    call = world.bind("m0")
    await world.pass_time(119)
    await end(world, "low2")
    await world.pass_time(59)
    assert call.waiting
    assert world.binding_cycle().stage is CycleStage.GATHERING


async def test_a_member_at_bind_whose_room_was_taken_meanwhile_comes_anew(world: Harness) -> None:
    await start(world)
    world.add(*small_nodes(3))
    await end(world, "low1")
    world.filter("m0")
    call = world.bind("m0")
    await world.run_until_idle()
    world.add(running("thief", "n1", HIGH))
    await end(world, "low2")
    assert call.error == "serried: node n1 has too few free resources"
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n2", "n3"}


async def test_a_gang_that_goes_while_victims_end_answers_who_waits_at_bind(world: Harness) -> None:
    await start(world)
    await end(world, "low1")
    world.filter("m0")
    call = world.bind("m0")
    await world.run_until_idle()
    world.store.drop_group(GANG)
    await world.run_until_idle()
    assert call.error


async def test_room_that_victims_leave_is_nobody_elses(world: Harness) -> None:
    await start(world)
    other = GroupKey("default", "h")
    rival = pod("r0").cpu(1).scheduler(SCHEDULER).in_group("h").priority(HIGH)
    world.add(pod_group("h").gang(1).priority(HIGH), rival)
    await end(world, "low1")
    assert world.reasons(other) == [Reason.NO_CAPACITY]


async def test_a_slot_of_a_gangs_victim_is_not_kept_for_its_replacement(world: Harness) -> None:
    wait_gracefully(world, "v0", "v1")
    world.add(*small_nodes(2), pod_group("v").gang(2))
    world.add(*(running(f"v{i}", f"n{i + 1}").scheduler(SCHEDULER).in_group("v") for i in range(2)))
    world.add(gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert world.reasons()[-1] is Reason.PREEMPTING
    await end(world, "v0", "v1")
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert not len(world.store.vacancies)


async def test_a_gang_of_mode_all_goes_whole(world: Harness) -> None:
    wait_gracefully(world, "v0", "v1")
    world.add(*small_nodes(2), pod_group("v").gang(2).disruption(Disruption.ALL))
    world.add(*(running(f"v{i}", f"n{i + 1}").scheduler(SCHEDULER).in_group("v") for i in range(2)))
    world.add(gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    assert list_terminating(world) == ["v0", "v1"]
    assert [name for name, _ in world.heard.preempted] == ["default/v"]
    assert not world.heard.disruptions
    assert sorted(world.api.list_evicted()) == ["v0", "v1"]


async def test_a_budget_keeps_all_victims_and_others_are_looked_for(world: Harness) -> None:
    world.api.add_budget()
    world.api.guarded.add(Key("default", "low1"))
    wait_gracefully(world, "low2", "low3")
    full(world, nodes=3).add(gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert list_terminating(world) == ["low2", "low3"]
    assert len(world.api.list_evicted()) == 2


async def test_nobody_is_evicted_where_a_budget_keeps_the_only_victims(world: Harness) -> None:
    world.api.add_budget()
    world.api.guarded.add(Key("default", "low1"))
    full(world).add(gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert not world.api.list_evicted()
    assert "PodDisruptionBudget" in world.heard.verdicts[-1][1].detail
    assert world.nothing_reserved
    world.api.guarded.clear()
    await world.pass_time(61)
    assert len(world.api.list_evicted()) == 2


async def test_budgets_do_not_count_for_deletion() -> None:
    world = Harness(preempt_by=EvictionMethod.DELETION)
    world.api.guarded.update([Key("default", "low1"), Key("default", "low2")])
    full(world).add(gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert world.api.list_evicted() == ["low1", "low2"]
    await world.close()


@pytest.mark.parametrize("priority", [HIGH, HIGH + 1])
async def test_equal_and_higher_priority_stays(world: Harness, priority: int) -> None:
    world.add(*small_nodes(1), running("other", "n1", priority), gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    assert world.reasons() == [Reason.NO_CAPACITY]
    assert not world.api.list_evicted()


async def test_nobody_goes_where_the_gang_would_not_fit_all_the_same(world: Harness) -> None:
    full(world).add(gang(3).priority(HIGH), *urgent(3))
    await world.run_until_idle()
    assert world.reasons() == [Reason.NO_CAPACITY]
    assert not world.api.list_calls("rehearse")


@pytest.mark.parametrize("mode", [PreemptionMode.ADVICE, PreemptionMode.OFF])
async def test_advice_is_given_and_nobody_goes(mode: PreemptionMode) -> None:
    world = Harness(preemption=mode)
    full(world).add(gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert not world.api.list_calls("rehearse")
    said = world.heard.verdicts[-1][1]
    assert said.reason is Reason.NO_CAPACITY
    assert ("default/low1" in said.detail) is (mode is PreemptionMode.ADVICE)
    await world.close()


async def test_a_gang_that_goes_before_the_first_eviction_takes_nobody_with_it(world: Harness) -> None:
    world.api.hold("rehearse")
    await start(world)
    world.store.drop_group(GANG)
    await world.run_until_idle()
    world.api.release("rehearse")
    await world.run_until_idle()
    assert not world.api.list_evicted()
    assert not world.api.conditions
    assert world.nothing_reserved


async def test_a_gang_that_shrinks_before_the_first_eviction_takes_nobody_with_it(world: Harness) -> None:
    world.api.hold("rehearse")
    await start(world)
    world.delete("m0")
    await world.run_until_idle()
    world.api.release("rehearse")
    await world.run_until_idle()
    assert not world.api.list_evicted()
    assert world.nothing_reserved


async def test_a_gang_that_goes_after_evictions_gives_the_room_back(world: Harness) -> None:
    await start(world)
    for name in ("m0", "m1"):
        world.delete(name)
    world.store.drop_group(GANG)
    await world.run_until_idle()
    assert not len(world.ledger)
    assert not world.api.records
    assert not len(world.store.pending_victims)


async def test_victims_that_do_not_end_are_waited_for_in_vain(world: Harness) -> None:
    await start(world)
    await end(world, "low1")
    await world.pass_time(631)
    assert Reason.VICTIMS_REMAIN in world.reasons()
    assert not len(world.ledger)
    assert len(world.api.list_evicted()) == 2
    await end(world, "low2")
    assert world.reasons()[-1] is Reason.VICTIMS_REMAIN  # long enough for somebody to hear of it
    await world.pass_time(6)
    assert world.reasons()[-1] is Reason.PLANNED


async def test_after_a_failure_nobody_is_evicted_for_a_while(world: Harness) -> None:
    await start(world)
    await world.pass_time(631)
    world.delete("low1")
    world.delete("low2")
    world.add(running("next1", "n1"), running("next2", "n2"))
    await world.run_until_idle()
    assert len(world.api.list_evicted()) == 2
    await world.pass_time(6)
    assert len(world.api.list_evicted()) == 2
    await world.pass_time(61)
    assert world.api.list_evicted() == ["low1", "low2", "next1", "next2"]


async def test_a_budget_that_says_no_in_the_end_is_asked_again(world: Harness) -> None:
    world.api.add_budget()
    world.api.fail("evict", budget_refusal())
    await start(world)
    assert len(list_terminating(world)) == 1
    await world.pass_time(6)
    assert list_terminating(world) == ["low1", "low2"]
    await end(world, "low1", "low2")
    assert world.binding_cycle().stage is CycleStage.GATHERING


async def test_no_more_go_than_a_budget_allows(world: Harness) -> None:
    wait_gracefully(world, "low1", "low2", "low3")
    world.add(
        *small_nodes(3), *(running(f"low{i}", f"n{i}").label("app", "web") for i in (1, 2)), running("low3", "n3")
    )
    world.add(budget("web").selecting(app="web").disruptions_allowed(1), gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert list_terminating(world) in (["low1", "low3"], ["low2", "low3"])


async def test_nobody_goes_where_a_budget_allows_a_part_only(world: Harness) -> None:
    full(world)
    world.add(*(running(f"low{i}", f"n{i}").label("app", "web") for i in (1, 2)))
    world.add(budget("web").selecting(app="web").disruptions_allowed(1), gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert not world.api.list_calls("rehearse")
    assert "PodDisruptionBudgets" in world.heard.verdicts[-1][1].detail
    world.add(budget("web").selecting(app="web").disruptions_allowed(2))
    await world.pass_time(61)
    assert len(world.api.list_evicted()) == 2


@pytest.mark.parametrize("who", ["member", "class"])
async def test_a_gang_that_never_preempts_waits(world: Harness, who: str) -> None:
    world.add(priority_class("polite", HIGH).with_field("Never", "preemptionPolicy"))
    policy = ("Never", "spec", "preemptionPolicy") if who == "member" else ("polite", "spec", "priorityClassName")
    group = gang(2).priority(HIGH)
    full(world).add(group if who == "member" else group.with_field(*policy))
    world.add(*(each.with_field(*policy) if who == "member" else each for each in urgent(2)))
    await world.run_until_idle()
    assert world.reasons() == [Reason.NO_CAPACITY]
    assert not world.api.list_calls("rehearse")


async def test_a_gang_that_goes_before_the_first_eviction_takes_its_conditions_back(world: Harness) -> None:
    world.api.hold("mark")
    await start(world)
    world.store.drop_group(GANG)
    await world.run_until_idle()
    world.api.release("mark")
    await world.run_until_idle()
    assert not world.api.list_evicted()
    assert [world.pod(name).disruption for name in ("low1", "low2")] == ["", ""]


async def test_room_that_others_have_taken_meanwhile_is_found_elsewhere_or_the_gang_waits(world: Harness) -> None:
    await start(world)
    world.add(running("thief", "n1"), *small_nodes(3))
    await end(world, "low1", "low2")
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n2", "n3"}


async def test_a_gang_whose_room_was_taken_meanwhile_does_not_say_that_its_members_are_gone(world: Harness) -> None:
    await start(world)
    world.add(running("thief", "n1", HIGH))
    await end(world, "low1", "low2")
    said = [verdict for _, verdict in world.heard.verdicts if verdict.reason is Reason.PLAN_OUTDATED]
    assert [verdict.detail for verdict in said] == ["planned members were deleted, or lost their planned nodes"]
    assert world.nothing_reserved


async def test_a_gang_beside_the_victims_is_bound_all_the_same(world: Harness) -> None:
    wait_gracefully(world, "low1")
    world.add(*small_nodes(1, cpus=4), running("low1", "n1"), pod_group("h").gang(1).priority(1))
    world.add(pod("h0").cpu(2).scheduler(SCHEDULER).in_group("h").priority(1))
    await world.run_until_idle()
    world.add(gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    assert list_terminating(world) == ["low1"]
    call = world.bind("h0")
    await world.run_until_idle()
    assert call.error == ""
    assert world.binding_cycle().stage is CycleStage.PREEMPTING


@pytest.mark.parametrize(
    ("graces", "waits"),
    [
        pytest.param({}, True, id="victims take 30 s unless they say otherwise"),
        pytest.param({"low1": 10, "low2": 10}, False, id="victims end sooner"),
        pytest.param({"low1": 20, "low2": 10}, True, id="one of the victims does not end sooner"),
        pytest.param({"low1": 10, "low2": 10, "other": 600}, False, id="who stays may take as long as it likes"),
    ],
)
async def test_nobody_goes_where_room_is_forecast_sooner_than_victims_end(
    world: Harness,
    graces: dict[str, int],
    waits: bool,  # noqa: FBT001
) -> None:
    """The victims end in 15 s by themselves; a pod of higher priority beside them does not."""
    now = write_time(world.wall_time())
    pods = {f"low{i}": running(f"low{i}", f"n{i}").started(now).active_deadline(15) for i in (1, 2)}
    pods["other"] = running("other", "n3", HIGH).started(now)
    world.add(
        *small_nodes(3), *(pods[name].grace_period(graces[name]) if name in graces else pods[name] for name in pods)
    )
    await world.add(gang(2).priority(HIGH), *urgent(2)).run_until_idle()
    assert (world.reasons()[-1] is Reason.NO_CAPACITY) is waits
    assert bool(world.api.list_calls("rehearse")) is not waits


async def test_a_gang_waits_only_for_a_while_for_room_that_was_forecast_and_does_not_come(world: Harness) -> None:
    """The running pods should have ended an hour ago: their nodes are silent, or our clock was set ahead."""
    began = write_time(world.wall_time() - 3600)
    overdue = [running(f"low{i}", f"n{i}").started(began).active_deadline(15).grace_period(20) for i in (1, 2)]
    await world.add(*small_nodes(2), *overdue, gang(2).priority(HIGH), *urgent(2)).run_until_idle()
    for _ in range(5):
        await world.pass_time(6.0)
    assert world.reasons()[-1] is Reason.NO_CAPACITY
    assert not world.api.list_calls("rehearse")
    for _ in range(5):
        await world.pass_time(6.0)
    assert world.api.list_calls("rehearse")


async def test_members_of_a_tree_go_as_their_highest_group_says(world: Harness) -> None:
    wait_gracefully(world, "a0", "b0")
    world.add(*small_nodes(2), composite("top").gang(2).disruption(Disruption.ALL))
    for index, name in enumerate("ab", start=1):
        world.add(pod_group(name).gang(1).child_of("top"))
        world.add(running(f"{name}0", f"n{index}").scheduler(SCHEDULER).in_group(name))
    world.add(gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    assert list_terminating(world) == ["a0", "b0"]
    assert list_whole(world) == ["default/a", "default/b", "default/composite:top"]


def list_whole(world: Harness) -> list[str]:
    """The groups of which it was said that they are evicted as a whole."""
    return sorted(name for name, _ in world.heard.preempted)


def add_tree(world: Harness, halves: str) -> Harness:
    """A tree ``top`` of such halves, each of mode all with two PodGroups of one member, each of which fills a node."""
    world.add(composite("top").gang(1))
    for half in halves:
        world.add(composite(half).gang(2).child_of("top").disruption(Disruption.ALL))
        for part in (f"{half}1", f"{half}2"):
            world.add(pod_group(part).gang(1).child_of(half), node(f"node-{part}").cpu(2))
            world.add(running(f"{part}-0", f"node-{part}").scheduler(SCHEDULER).in_group(part))
            wait_gracefully(world, f"{part}-0")
    return world


async def test_of_a_tree_only_the_groups_that_go_whole_say_so(world: Harness) -> None:
    add_tree(world, "xy").add(gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    half = list_terminating(world)[0][0]
    assert list_terminating(world) == [f"{half}1-0", f"{half}2-0"]
    assert list_whole(world) == [f"default/composite:{half}", f"default/{half}1", f"default/{half}2"]
    victims = world.api.records[GANG.object_key]["spec"]["victims"]
    assert {victim["podGroup"] for victim in victims} == {f"composite:{half}"}


async def test_the_root_goes_whole_with_all_below_it(world: Harness) -> None:
    add_tree(world, "x").add(gang(2).priority(HIGH), *urgent(2))
    await world.run_until_idle()
    assert list_whole(world) == ["default/composite:top", "default/composite:x", "default/x1", "default/x2"]


async def test_half_of_a_tree_that_goes_is_one_gang_broken_and_its_root_stands(world: Harness) -> None:
    add_tree(world, "xyz").add(gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    found = find_preemption(world.groups.states[GANG])
    assert isinstance(found, Preemption)
    assert [(damage.broken, damage.pods) for damage in found.cost.damages] == [(1, 2)]


async def test_a_group_of_which_members_stay_does_not_say_that_it_goes(world: Harness) -> None:
    wait_gracefully(world, "v0", "v1")
    world.add(*small_nodes(2), pod_group("v").gang(1))
    world.add(*(running(f"v{i}", f"n{i + 1}").scheduler(SCHEDULER).in_group("v") for i in range(2)))
    world.add(gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    assert len(list_terminating(world)) == 1
    assert list_whole(world) == []


async def test_a_group_that_stays_after_all_says_no_longer_that_it_goes(world: Harness) -> None:
    world.api.hold("mark")
    wait_gracefully(world, "v0")
    world.add(*small_nodes(1), pod_group("v").gang(1).disruption(Disruption.ALL))
    world.add(running("v0", "n1").scheduler(SCHEDULER).in_group("v"), gang(1).priority(HIGH), *urgent(1))
    await world.run_until_idle()
    assert list_whole(world) == ["default/v"]
    world.store.drop_group(GANG)
    await world.run_until_idle()
    world.api.release("mark")
    await world.run_until_idle()
    assert world.heard.spared == ["default/v"]
    assert not list_terminating(world)


class TestMetrics:
    """Metrics of preemptions, without the name of any object."""

    async def test_a_preemption_that_clears_the_room(self, world: Harness) -> None:
        await start(world)
        assert ([outcome for outcome, _ in world.heard.searches], world.heard.ended_preemptions) == (["Found"], [])
        await end(world, "low1", "low2")
        assert world.heard.ended_preemptions == ["Cleared"]
        assert world.heard.evictions == ["Plain", "Plain"]

    async def test_one_that_is_given_up(self, world: Harness) -> None:
        await start(world)
        await world.pass_time(631)
        assert world.heard.ended_preemptions == ["VictimsRemain"]

    async def test_one_whose_gang_goes(self, world: Harness) -> None:
        await start(world)
        world.delete("m0")
        world.delete("m1")
        world.store.drop_group(GANG)
        await world.run_until_idle()
        assert world.heard.ended_preemptions == ["Withdrawn"]

    @pytest.mark.parametrize(("mode", "kinds"), [(Disruption.ALL, ["Group", "Group"]), (Disruption.SINGLE, ["Member"])])
    async def test_victims_of_groups(self, world: Harness, mode: Disruption, kinds: list[str]) -> None:
        world.add(*small_nodes(2), pod_group("v").gang(1).disruption(mode))
        world.add(*(running(f"v{i}", f"n{i + 1}").scheduler(SCHEDULER).in_group("v") for i in range(2)))
        await world.add(gang(1).priority(HIGH), *urgent(1)).run_until_idle()
        assert world.heard.evictions == kinds

    async def test_a_search_in_vain(self, world: Harness) -> None:
        await full(world).add(gang(3).priority(HIGH), *urgent(3)).run_until_idle()
        assert [outcome for outcome, _ in world.heard.searches] == ["Room"]
        assert world.heard.ended_preemptions == []
