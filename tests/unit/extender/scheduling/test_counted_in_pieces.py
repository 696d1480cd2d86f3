"""A rule that means more than is counted at once: its gang waits for the answer, and nobody else does."""

import asyncio

import pytest

from serried.api.device import ResourceSlice
from serried.api.verdict import Reason
from tests.support.builders import RACK, PodBuilder, node, pod, pod_group
from tests.support.devices import claim, claiming, device_class, devices, mark_devices_listed
from tests.support.extender_harness import GANG, SCHEDULER, Harness
from tests.support.listener import wait_until
from tests.support.rules import one_item_per_step, run_deferred_work

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANYBODY = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}


def member() -> PodBuilder:
    return pod("m0").cpu(1).scheduler(SCHEDULER).in_group("g")


def alone() -> PodBuilder:
    """A member with anti-affinity to every pod that has a label."""
    terms = [{"topologyKey": RACK, "labelSelector": ANYBODY}]
    return member().with_field(terms, "spec", "affinity", "podAntiAffinity", REQUIRED)


def claims() -> PodBuilder:
    """A member with a claim of a device."""
    return member().with_field(claiming("c"), "spec", "resourceClaims")


def build_racks() -> Harness:
    """Four racks of a node each: all but the last one have a pod, and that one alone has devices."""
    world = Harness()
    world.add(*(node(f"n{rack}").cpu(2).rack(f"r{rack}") for rack in range(4)))
    world.add(*(pod(f"p{rack}").label("app", "x").cpu(1).on(f"n{rack}") for rack in range(3)))
    mark_devices_listed(world.store)
    for each in (device_class("gpu"), devices("n3", 2), claim("c", 1)):
        world.store.put_object(each.value())
    run_deferred_work(world.store)
    return world


@pytest.mark.parametrize(
    ("built", "said"),
    [
        pytest.param(
            alone(), "Serried is counting the pods that the affinity or spread rules of m0 select", id="other pods"
        ),
        pytest.param(claims(), "Serried is counting the devices that m0 claims", id="devices"),
    ],
)
async def test_a_gang_says_that_its_rule_is_being_counted_and_is_planned_by_the_loop_then(
    built: PodBuilder, said: str
) -> None:
    world = build_racks()
    with one_item_per_step():
        world.add(pod_group("g").gang(1), built)
        world.filter("m0")  # kube-scheduler offers every node meanwhile
        world.schedule_groups()
        verdict = world.groups.states[GANG].verdict
        assert verdict is not None
        assert verdict.reason is Reason.PLANNING
        assert verdict.detail == said
        running = asyncio.create_task(world.core.loop.run())
        await wait_until(lambda: world.ledger.of_group(GANG) is not None)
    reservation = world.ledger.of_group(GANG)
    assert reservation is not None
    assert {slot.node for slot in reservation.slots.values()} == {"n3"}
    running.cancel()
    await world.close()


async def test_a_gang_without_rules_is_planned_while_others_are_counted() -> None:
    world = build_racks()
    with one_item_per_step():
        world.add(pod_group("ruled").gang(1), alone().uid("other").in_group("ruled"))
        world.add(pod_group("g").gang(1), member())
        world.schedule_groups()
        assert world.store.apply_rule_changes()
        assert world.ledger.of_group(GANG) is not None
    await world.close()


async def test_devices_that_come_while_others_are_read_are_found() -> None:
    world = build_racks()
    with one_item_per_step():
        world.store.drop_object(ResourceSlice, "n3-0")
        world.store.put_object(devices("n0", 2).value())
        world.add(pod_group("g").gang(1), claims())
        run_deferred_work(world.store)
    await world.run_until_idle()
    reservation = world.ledger.of_group(GANG)
    assert reservation is not None
    assert {slot.node for slot in reservation.slots.values()} == {"n0"}
    await world.close()
