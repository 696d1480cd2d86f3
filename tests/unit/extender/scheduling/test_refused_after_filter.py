"""Nodes that filter has answered, and that somebody else refuses then: another extender, or a Reserve or Permit plugin.

Filter is offered such a node again and again, so only the pod's condition tells of it.
"""

from serried.api.verdict import render
from tests.support.builders import node, pod
from tests.support.devices import rejection_message
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

TAKEN = "licence of the node is taken"
ONE_OF_TWO = rejection_message(f"1 {TAKEN}").replace("12 nodes", "2 nodes")
BY_A_PLUGIN = rejection_message(f"1 {TAKEN}").replace("0/12 nodes", "0/1 nodes")
HIGH = 100


def planned(world: Harness, name: str) -> str:
    """The node of a member's slot, "" for none."""
    slot = world.ledger.slot_of(world.pod(name).uid)
    return slot.node if slot else ""


async def refuse_after_filter(world: Harness, name: str, message: str = ONE_OF_TWO) -> str:
    """Filter answers a member's node, and then the scheduler gives the member up; that node."""
    refused = planned(world, name)
    world.filter(name)
    world.erase_nomination(name)
    world.mark_unschedulable(name, message)
    world.sync_pods()
    await world.pass_time(1)
    return refused


async def begin(world: Harness, nodes: int, *, cpus: int = 1) -> None:
    """A gang of two, of which m0 is at its bind call."""
    world.start_nominating()
    await world.add(*small_nodes(nodes, cpus), gang(2), *[each.cpu(1) for each in members(2)]).run_until_idle()
    world.filter("m0")
    world.bind("m0")
    await world.run_tasks()


async def test_the_member_goes_to_another_node_while_the_others_wait(world: Harness) -> None:
    await begin(world, 3)
    refused = await refuse_after_filter(world, "m1")
    assert planned(world, "m1") not in {"", refused, planned(world, "m0")}
    world.filter("m1")
    world.bind("m1")
    await world.run_until_idle()
    assert world.node_of("m0")
    assert world.node_of("m1") not in {"", refused}


async def test_a_plugins_word_is_about_that_node_alone(world: Harness) -> None:
    await begin(world, 3)
    refused = await refuse_after_filter(world, "m1", BY_A_PLUGIN)
    assert planned(world, "m1") not in {"", refused}


async def test_where_no_other_node_is_left_everything_is_given_back_and_the_words_are_told(world: Harness) -> None:
    await begin(world, 2)
    refused = await refuse_after_filter(world, "m1")
    assert world.nothing_reserved
    said = [render(verdict) for _, verdict in world.heard.verdicts]
    assert any(f"kube-scheduler rejected node {refused} for m1: 1 {TAKEN}" in each for each in said)
    assert said[-1] == (
        "NoCapacity: only 1 of 2 members fit into the cluster; kube-scheduler rejects 1 node after the filter "
        f"call: 1 {TAKEN}"
    )


async def test_that_filter_is_offered_the_node_again_says_nothing(world: Harness) -> None:
    await begin(world, 2)
    await refuse_after_filter(world, "m1")
    for name in ("m0", "m1"):
        world.filter(name)
    await world.pass_time(5)
    assert world.nothing_reserved


async def test_a_domain_after_the_other_is_tried_without_a_pause(world: Harness) -> None:
    world.start_nominating()
    racks = [node(f"{name}{rack}").cpu(1).rack(f"r{rack}") for rack in range(8) for name in "ab"]
    await world.add(*racks, gang(2).topology(), *members(2)).run_until_idle()
    tried = set()
    for _ in range(8):
        tried.add(world.binding_cycle().reservation.domain)
        await refuse_after_filter(world, "m0")
    assert len(tried) == 8
    assert world.nothing_reserved
    await world.pass_time(130)
    assert not world.nothing_reserved  # then all are tried again


async def test_what_was_said_before_filter_answered_is_no_refusal(world: Harness) -> None:
    await begin(world, 3)
    world.mark_unschedulable("m1", ONE_OF_TWO)
    world.sync_pods()
    before = planned(world, "m1")
    world.filter("m1")
    await world.pass_time(5)
    assert planned(world, "m1") == before


async def test_nobody_is_evicted_on_a_node_that_was_refused_though_it_had_room(world: Harness) -> None:
    world.start_nominating()
    high = [each.cpu(1).priority(HIGH) for each in members(1)]
    await world.add(*small_nodes(1, 1), gang(1).priority(HIGH), *high).run_until_idle()
    await refuse_after_filter(world, "m0")
    world.add(pod("low").cpu(1).on("n1"))
    await world.pass_time(100)
    assert world.api.list_evicted() == []
    assert world.groups.states[GANG].cycle is None


async def test_until_the_scheduler_says_that_nothing_but_room_is_missing(world: Harness) -> None:
    world.start_nominating()
    high = [each.cpu(1).priority(HIGH) for each in members(1)]
    await world.add(*small_nodes(1, 1), gang(1).priority(HIGH), *high).run_until_idle()
    await refuse_after_filter(world, "m0")
    world.add(pod("low").cpu(1).on("n1"))
    world.mark_unschedulable("m0", rejection_message("12 Insufficient cpu"))
    world.sync_pods()
    for _ in range(3):
        await world.pass_time(30)
    assert world.api.list_evicted() == ["low"]


async def test_a_member_whose_room_others_have_taken_is_moved_at_once(world: Harness) -> None:
    await begin(world, 3)
    lost = planned(world, "m1")
    world.add(pod("plain").cpu(1).on(lost))
    world.filter("m1")
    world.erase_nomination("m1")
    world.mark_unschedulable("m1", rejection_message("12 Insufficient cpu"))
    world.sync_pods()
    await world.pass_time(1)
    assert planned(world, "m1") not in {"", lost}


async def test_nodes_that_are_refused_in_different_words_are_each_tried_once(world: Harness) -> None:
    world.start_nominating()
    await world.add(*small_nodes(4), gang(1), *members(1)).run_until_idle()
    tried = []
    for _ in range(4):
        at = planned(world, "m0")
        tried.append(await refuse_after_filter(world, "m0", rejection_message(f"1 licence of {at} is taken")))
    assert sorted(tried) == ["n1", "n2", "n3", "n4"]
    assert world.nothing_reserved
