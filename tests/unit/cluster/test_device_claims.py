"""Claims of devices, whatever comes first: how many pods like p each node takes."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from serried.api.device import DeviceTaintRule
from serried.api.interpod import HOSTNAME, InterPodRules, share_claim
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.api.resources import DEVICES
from serried.api.verdict import Verdict
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.fit import admits, count_fitting
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest
from serried.rules.all import RULES
from serried.rules.devices.cluster import DeviceClaims
from tests.support.builders import Builder, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.devices import (
    DRIVER,
    DeviceClassBuilder,
    DeviceTaintRuleBuilder,
    ResourceClaimBuilder,
    ResourceSliceBuilder,
    claim,
    claiming,
    counters,
    device_class,
    devices,
    mark_devices_listed,
    rejection_message,
    taint_rule,
)
from tests.support.effort import measured

N1, N2 = (node(name).cpu(64).pods(100).label("zone", name) for name in ("n1", "n2"))
CLASS = device_class("gpu").cel_selectors(f'device.driver == "{DRIVER}"')
BIG = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
MODEL = f'device.attributes["{DRIVER}"].model == "{{}}"'
SMALL_SLICE = devices("n1", 4).each_device(capacity={"memory": {"value": "16Gi"}})
BIG_SLICE = devices("n2", 4).each_device(capacity={"memory": {"value": "80Gi"}})


def asking(*claims: str) -> PodBuilder:
    return pod("p").cpu(1).with_field(claiming(*claims), "spec", "resourceClaims")


def other(name: str, claim_name: str) -> PodBuilder:
    return pod(name).cpu(1).with_field(claiming(claim_name), "spec", "resourceClaims")


P = asking("mine")
ALL = claim("mine").request("r", allocationMode="All")
SICK = devices("n1", 4).each_device(taints=[{"key": "sick", "effect": "NoSchedule"}])
BEYOND = [{"cel": {"expression": "sets.contains([1], [1])"}}]


def show(store: Store, builder: Builder) -> None:
    match builder:
        case PodBuilder():
            found = builder.value()
            store.put_pod(found if found.may_be_member else builder.in_group("gang").value())
        case NodeBuilder():
            store.put_node(builder.value())
        case PodGroupBuilder():
            store.put_group(builder.value())
        case DeviceClassBuilder():
            store.put_object(builder.value())
        case ResourceSliceBuilder():
            store.put_object(builder.value())
        case ResourceClaimBuilder():
            store.put_object(builder.value())
        case DeviceTaintRuleBuilder():
            store.put_object(builder.value())


def stored(*builders: Builder, known: bool = True) -> Store:
    store = Store({"serried"}, rules=RULES)
    mark_devices_listed(store, KindState.KNOWN if known else KindState.DENIED)
    for builder in builders:
        show(store, builder)
    return store


def find(store: Store) -> Pod:
    return store.pods["pod-p"]


def count(store: Store) -> tuple[int, int]:
    """Return how many pods like p fit on n1 and on n2."""
    found = [
        count_fitting(find(store).shape, each, store.occupancy.used.get(name)) for name, each in store.nodes.items()
    ]
    return found[0], found[1]


def in_every_order(*builders: Builder) -> list[Store]:
    few = list(permutations(builders)) if len(builders) <= 5 else [builders, builders[::-1]]
    return [stored(N1, N2, *order) for order in few]


# Two cards on n1, as drivers say it: each is a whole one, two halves or four quarters.
CARDS = [{"a": {"memory": 4}}, {"b": {"memory": 4}}]
HALVES = [{"a": {"memory": 2}}, {"a": {"memory": 2}}, {"b": {"memory": 2}}, {"b": {"memory": 2}}]
MIG: list[Builder] = [
    counters("n1", {"a": {"memory": 4}, "b": {"memory": 4}}).pool(1, 3),
    devices("n1", 2).attribute("size", {"int": 4}).consumed_counters(*CARDS).pool(1, 3),
    devices("n1", 4, 2).attribute("size", {"int": 2}).consumed_counters(*HALVES).pool(1, 3),
]


def sized(size: int, **fields: Any) -> dict[str, Any]:
    """A request for devices of one size."""
    return {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].size == {size}'}}], **fields}


MEMORY = {"memory": {"value": "80Gi"}}
SHARED = devices("n1", 2).each_device(allowMultipleAllocations=True, capacity=MEMORY)
GIBI = {"capacity": {"requests": {"memory": "30Gi"}}}

CASES: list[tuple[str, list[Builder], tuple[int, int]]] = [
    ("one device a pod", [P, CLASS, claim("mine", 1), devices("n1", 4)], (4, 0)),
    ("two devices a pod", [P, CLASS, claim("mine", 2), devices("n1", 4), devices("n2", 3)], (2, 1)),
    ("two claims of a pod", [asking("mine", "more"), CLASS, claim("mine", 2), claim("more", 1), devices("n1", 8)],
     (2, 0)),
    ("two requests of a claim", [P, CLASS, claim("mine", 2).request("s", count=1), devices("n1", 8)], (2, 0)),
    ("a class without devices", [P, CLASS, claim("mine", 1)], (0, 0)),
    ("devices of another driver", [P, device_class("gpu").cel_selectors('device.driver == "x"'), claim("mine", 1),
                                   devices("n1", 4)], (0, 0)),
    ("a class without selectors", [P, device_class("gpu"), claim("mine", 1), devices("n1", 4)], (4, 0)),
    ("a selector of the claim", [P, CLASS, claim("mine").request("r", selectors=[{"cel": {"expression": BIG}}]),
                                 SMALL_SLICE, BIG_SLICE], (0, 4)),
    ("what a claim holds for nobody", [P, CLASS, claim("mine", 1), devices("n1", 4),
                                       claim("x", 2).allocated("n1", "gpu-0", "gpu-3")], (2, 0)),
    ("what a claim holds for a bound pod", [P, CLASS, claim("mine", 1), devices("n1", 4), other("q", "x").on("n1"),
                                            claim("x", 2).allocated("n1", "gpu-0", "gpu-3", consumers=("q",))], (2, 0)),
    ("what a claim holds for two bound pods", [P, CLASS, claim("mine", 1), devices("n1", 4), other("q", "x").on("n1"),
                                               other("r", "x").on("n1"),
                                               claim("x", 2).allocated("n1", "gpu-0", "gpu-3", consumers=("q", "r"))],
     (2, 0)),
    ("what a claim holds for a pod that has ended", [P, CLASS, claim("mine", 1), devices("n1", 4),
                                                     other("q", "x").on("n1").phase("Succeeded"),
                                                     claim("x", 3).allocated("n1", "gpu-0", "gpu-1", "gpu-2",
                                                                           consumers=("q",))], (1, 0)),
    ("a claim that has its devices needs none", [P, CLASS, claim("mine", 1).allocated("n2", "gpu-0"), devices("n2", 1)],
     (0, 63 + 1)),
    ("a taint", [P, CLASS, claim("mine", 1), SICK,
                 devices("n2", 4)], (0, 4)),
    ("a taint that is tolerated", [P, CLASS,
                                   claim("mine").request("r", tolerations=[{"key": "sick", "operator": "Exists"}]),
                                   SICK], (4, 0)),
    ("a rule that taints a device", [P, CLASS, claim("mine", 1), devices("n1", 4), devices("n2", 2),
                                     taint_rule("t", driver=DRIVER, pool="n1", device="gpu-1")], (3, 2)),
    ("a rule that taints a driver's devices", [P, CLASS, claim("mine", 1), devices("n1", 4),
                                               taint_rule("t", driver=DRIVER)], (0, 0)),
    ("a rule for another pool's devices", [P, CLASS, claim("mine", 1), devices("n1", 4), taint_rule("t", pool="x")],
     (4, 0)),
    ("a rule without a selector", [P, CLASS, claim("mine", 1), devices("n1", 4),
                                   taint_rule("t").with_field(None, "spec", "deviceSelector")], (4, 0)),
    ("a pool of which a slice is missing", [P, CLASS, claim("mine", 1), devices("n1", 4).pool(1, 2)], (0, 0)),
    ("a pool of two slices", [P, CLASS, claim("mine", 1), devices("n1", 4).pool(1, 2),
                              devices("n1", 2, 4).pool(1, 2)], (6, 0)),
    ("a pool with a device twice", [P, CLASS, claim("mine", 1), devices("n1", 4).pool(1, 2),
                                    devices("n1", 4, 3).pool(1, 2)], (0, 0)),
    ("a newer generation of a pool", [P, CLASS, claim("mine", 1), devices("n1", 4).pool(1, 1),
                                      devices("n1", 2, 4).pool(2, 1)], (2, 0)),
    ("all devices of a node", [P, CLASS, ALL, devices("n1", 4)], (1, 0)),
    ("all devices of a node in use", [P, CLASS, ALL, devices("n1", 4),
                                      devices("n2", 1), claim("x", 1).allocated("n1", "gpu-0")], (0, 1)),
    ("all devices of a node that a pod uses", [P, CLASS, ALL, devices("n1", 4),
                                               other("q", "x").on("n1"),
                                               claim("x", 1).allocated("n1", "gpu-0", consumers=("q",))], (0, 0)),
    ("for administrators", [P, CLASS, claim("mine").request("r", adminAccess=True, count=2), devices("n1", 2),
                            devices("n2", 1), claim("x", 1).allocated("n1", "gpu-0")], (64, 0)),
    ("the same value", [P, CLASS, claim("mine", 2).constraint(matchAttribute=f"{DRIVER}/numa"),
                        devices("n1", 6).attribute("numa", {"int": 0}, {"int": 1}), devices("n2", 2)], (2, 0)),
    ("the same value, where one is in use", [P, CLASS, claim("mine", 2).constraint(matchAttribute=f"{DRIVER}/numa"),
                        devices("n1", 4).attribute("numa", {"int": 0}, {"int": 1}),
                        claim("x", 1).allocated("n1", "gpu-0")], (1, 0)),
    ("different values", [P, CLASS, claim("mine", 2).constraint(distinctAttribute=f"{DRIVER}/numa"),
                          devices("n1", 4).attribute("numa", {"int": 0}, {"int": 1}),
                          devices("n2", 4).attribute("numa", {"int": 0})], (2, 0)),
    ("the first of two classes", [P, CLASS, device_class("nic").cel_selectors('device.driver == "nic"'),
                                  claim("mine").first_available("r", {"deviceClassName": "nic"}, {"count": 1}),
                                  devices("n1", 3)], (3, 0)),
    ("two of one class, or one of another", [P, CLASS, claim("mine").first_available("r", {"count": 2}, {"count": 1}),
                                             devices("n1", 3)], (2, 0)),
    ("a constraint on one of the alternatives", [
        P, CLASS, claim("mine").first_available("r", {"count": 2}, {"count": 1}).constraint(
            matchAttribute=f"{DRIVER}/numa", requests=["r/r-0"]),
        devices("n1", 3).attribute("numa", {"int": 0}, {"int": 1})], (2, 0)),
    ("all devices of a class beside one of another", [
        P, device_class("gpu").cel_selectors(MODEL.format("a")), device_class("nic").cel_selectors(MODEL.format("b")),
        claim("mine").request("r", allocationMode="All").request("s", deviceClassName="nic"),
        devices("n1", 4).attribute("model", {"string": "a"}, {"string": "b"})], (1, 0)),
    ("whole cards", [P, CLASS, claim("mine").request("r", **sized(4)), *MIG], (2, 0)),
    ("halves of cards", [P, CLASS, claim("mine").request("r", **sized(2)), *MIG], (4, 0)),
    ("a card and a half", [P, CLASS, claim("mine").request("r", **sized(4)).request("s", **sized(2)), *MIG], (1, 0)),
    ("whole cards where half of one is in use", [P, CLASS, claim("mine").request("r", **sized(4)),
                                                 claim("x", 1).allocated("n1", "gpu-2"), *MIG], (1, 0)),
    ("half a card where a whole one is in use", [P, CLASS, claim("mine").request("r", **sized(2)),
                                                 claim("x", 1).allocated("n1", "gpu-0"), *MIG], (2, 0)),
    ("whole cards, or half of one", [P, CLASS, claim("mine").first_available("r", sized(4), sized(2)),
                                     claim("x", 1).allocated("n1", "gpu-4"), *MIG], (2, 0)),
    ("the resource of a class that is half a card", [
        pod("p").cpu(1).request("example.com/half", 1), *MIG,
        device_class("half").extended_resource("example.com/half")
        .cel_selectors(f'device.attributes["{DRIVER}"].size == 2')],
     (4, 0)),
    ("counters that nobody gives",
     [P, CLASS, claim("mine", 1), devices("n1", 1).consumed_counters({"a": {"memory": 1}})],
     (0, 0)),
    ("shares of devices", [P, CLASS, claim("mine").request("r", **GIBI), SHARED], (4, 0)),
    ("shares of devices of which some are in use", [
        P, CLASS, claim("mine").request("r", **GIBI), SHARED,
        claim("x", 1).allocated_share("n1", "gpu-0", memory="30Gi"),
        claim("y", 1).allocated_share("n1", "gpu-0", memory="30Gi")],
     (2, 0)),
    ("all of a device that may be shared", [P, CLASS, claim("mine", 1), SHARED], (2, 0)),
    ("one of some devices, then the first one that is left", [
        asking("some", "any"), CLASS, claim("some").request("r", **sized(4)), claim("any", 1),
        devices("n1", 4).attribute("size", {"int": 4}, {"int": 2}).each_device(
            allowMultipleAllocations=True, capacity=MEMORY)], (2, 0)),
    ("enough of a device for one claim alone", [P, CLASS, claim("mine").request("r", **GIBI), SMALL_SLICE, BIG_SLICE],
     (0, 4)),
    ("devices that all nodes reach", [P, CLASS, claim("mine", 1), devices("x", 3).nodes_field(allNodes=True)], (3, 3)),
    ("devices that some nodes reach", [P, CLASS, claim("mine", 1), devices("x", 3).nodes_field(nodeSelector={
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["n2"]}]}]})], (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("builders", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_slots_whatever_comes_first(builders: list[Builder], expected: tuple[int, int]) -> None:
    for store in in_every_order(*builders):
        assert count(store) == expected


def test_sorts_that_overlap_are_counted_together() -> None:
    any_gpu, big = claim("mine", 1), claim("large").request("r", selectors=[{"cel": {"expression": BIG}}])
    mixed = devices("n1", 2).each_device(capacity={"memory": {"value": "16Gi"}})
    more = devices("n1", 2, 2).each_device(capacity={"memory": {"value": "80Gi"}})
    for store in in_every_order(CLASS, P, other("q", "large"), any_gpu, big, mixed.pool(1, 2), more.pool(1, 2)):
        shape = store.pods["pod-q"].shape
        free = store.nodes["n1"]
        assert (count(store)[0], count_fitting(shape, free, None)) == (4, 2)
        three = {name: 3 * amount for name, amount in find(store).shape.requests}
        assert count_fitting(shape, free, three) == 1, "beside three of any kind there is one of the large ones"
        two = {name: 2 * amount for name, amount in shape.requests}
        assert count_fitting(find(store).shape, free, two) == 2
        assert count_fitting(shape, free, two) == 0


def test_a_bound_pod_uses_what_its_claim_holds_whatever_it_asked_for() -> None:
    held = claim("x", 1).allocated("n2", "gpu-0", consumers=("q",))
    mine = claim("mine").request("r", selectors=[{"cel": {"expression": BIG}}])
    for store in in_every_order(CLASS, P, other("q", "x").on("n2"), mine, held, BIG_SLICE):
        assert count(store) == (0, 3)
        store.drop_pod("pod-q")
        assert count(store) == (0, 3), "its claim holds the device still"
        store.put_object(claim("x", 1).value())
        assert count(store) == (0, 4)


OBSTACLES: list[tuple[str, list[Builder], str]] = [
    ("a claim that is not there", [P, CLASS, devices("n1", 4)], "ResourceClaim mine does not exist"),
    ("a claim that is being deleted", [P, CLASS, claim("mine", 1).with_field("2026-01-01T00:00:00Z", "metadata",
                                                                         "deletionTimestamp")],
     "ResourceClaim mine is being deleted"),
    ("a class that is not there", [P, claim("mine", 1)],
     "ResourceClaim mine names DeviceClass gpu, which does not exist"),
    ("what is no selector", [P, device_class("gpu").cel_selectors("?!"), claim("mine", 1)],
     "the selector ?! is no selector: <input>:1:1: Syntax error: extraneous input '?'"),
    ("a selector that fails",
     [P, device_class("gpu").cel_selectors(MODEL.format("x")), claim("mine", 1), devices("n1", 1)],
     f'the selector {MODEL.format("x")} fails for device gpu-0 of {DRIVER}: Key not found in map : "model" (node n1)'),
]  # fmt: skip


@pytest.mark.parametrize(("builders", "expected"), [pytest.param(*case[1:], id=case[0]) for case in OBSTACLES])
def test_what_makes_a_claim_hopeless_is_an_obstacle(builders: list[Builder], expected: str) -> None:
    for store in in_every_order(*builders):
        assert find(store).obstacle.startswith(expected)
        assert find(store).refused


UNCOUNTABLE: list[tuple[str, list[Builder], str]] = [
    ("a selector beyond us", [claim("mine").request("r", selectors=BEYOND)],
     "Serried does not know what sets.contains([1], [1]) means"),
    ("devices of many nodes", [claim("mine", 1), devices("x", 1).nodes_field(allNodes=True)],
     "several nodes reach a device"),
    ("partitions that several nodes reach", [
        claim("mine", 1), counters("x", {"a": {"memory": 4}}).nodes_field(allNodes=True),
        devices("x", 2).consumed_counters({"a": {"memory": 2}}).nodes_field(allNodes=True).pool(1, 2)],
     "several nodes share counters of devices"),
    ("a claim that is shared, of devices of many nodes", [claim("mine", 1), other("q", "mine"),
                                                          devices("x", 1).nodes_field(allNodes=True)],
     "several nodes reach a device"),
]  # fmt: skip


@pytest.mark.parametrize(("builders", "expected"), [pytest.param(*case[1:], id=case[0]) for case in UNCOUNTABLE])
def test_what_cannot_be_counted_is_left_to_the_scheduler(builders: list[Builder], expected: str) -> None:
    for store in in_every_order(P, CLASS, *builders):
        assert find(store).uncountable.startswith(expected)
        assert find(store).only_scheduler_counts
        assert not find(store).obstacle


def test_pods_that_share_a_claim_ask_once_and_stay_together() -> None:
    for store in in_every_order(P, CLASS, claim("mine", 2), other("q", "mine"), devices("n1", 2)):
        first, second = find(store).shape, store.pods["pod-q"].shape
        mates = share_claim("default", "mine")
        assert first.neighbours is not None
        assert first.neighbours.beside == mates
        assert second.neighbours == InterPodRules(replace(mates, follows=True))
        assert dict(second.requests)[mates.matching.amount] == 1
        assert (count_fitting(first, store.nodes["n1"], None), count_fitting(second, store.nodes["n2"], None)) == (
            1,
            64,
        )
        store.put_object(claim("mine", 2).allocated("n1", "gpu-0", "gpu-1", consumers=("p",)).value())
        assert count(store) == (1, 0)
        assert find(store).shape.neighbours is None
        assert admits(store.pods["pod-q"].shape, store.nodes["n1"])
        assert not admits(store.pods["pod-q"].shape, store.nodes["n2"])


def leads(store: Store, uid: str) -> bool:
    """Return whether a pod asks for the devices of the claim that it shares."""
    return bool([name for name, _ in store.pods[uid].shape.requests if name.startswith(DEVICES)])


def follows(store: Store, uid: str) -> bool:
    """Return whether a plan has to place another pod of the claim before this one."""
    rules = store.pods[uid].shape.neighbours
    return rules is not None and rules.beside is not None and rules.beside.follows


Q = other("q", "mine")
AFTER: list[tuple[str, PodBuilder, PodBuilder, tuple[bool, bool]]] = [
    ("the one before in the alphabet", P, Q, (True, False)),
    ("a pod of another group, which follows nobody", P.in_group("g"), Q, (True, False)),
    ("a pod of another shape", P.cpu(2), Q, (True, False)),
    ("one that may come by now", P.gate("other/gate"), Q, (False, True)),
    ("one that stays", P.deleting(), Q, (False, True)),
    ("one that has not ended", P.phase("Succeeded"), Q, (False, True)),
]


@pytest.mark.parametrize(("one", "another", "expected"), [pytest.param(*case[1:], id=case[0]) for case in AFTER])
def test_of_pods_that_share_a_claim_one_asks_for_its_devices(
    one: PodBuilder, another: PodBuilder, expected: tuple[bool, bool]
) -> None:
    alike = one.value().shape == another.value().shape and one.value().group == another.value().group
    for store in in_every_order(one, another, CLASS, claim("mine", 1), devices("n1", 1)):
        assert (leads(store, "pod-p"), leads(store, "pod-q")) == expected
        assert (follows(store, "pod-p"), follows(store, "pod-q")) == (
            (not expected[0]) and alike,
            (not expected[1]) and alike,
        )


def test_another_pod_asks_for_a_shared_device_once_the_first_one_goes_or_changes() -> None:
    store = stored(N1, CLASS, claim("mine", 1), devices("n1", 1), P, Q, other("r", "mine"))
    assert [leads(store, uid) for uid in ("pod-p", "pod-q", "pod-r")] == [True, False, False]
    show(store, P.gate("other/gate"))
    assert [leads(store, uid) for uid in ("pod-p", "pod-q", "pod-r")] == [False, True, False]
    show(store, P)
    assert [leads(store, uid) for uid in ("pod-p", "pod-q", "pod-r")] == [True, False, False]
    store.drop_pod("pod-p")
    assert [leads(store, uid) for uid in ("pod-q", "pod-r")] == [True, False]
    assert follows(store, "pod-r")
    store.drop_pod("pod-q")
    assert store.pods["pod-r"].shape.neighbours is None
    assert leads(store, "pod-r")


def plan(need: int, *builders: Builder) -> Plan | Verdict:
    """Plan the waiting pods, of which ``need`` must be placed."""
    hosts = [each.label(HOSTNAME, name) for each, name in ((N1, "n1"), (N2, "n2"))]
    store = stored(*hosts, CLASS, *builders)
    waiting = [each for each in store.pods.values() if each.pending]
    return plan_gang(store.snapshots.take(0, waiting), PlanRequest(waiting, need))


@pytest.mark.parametrize("at", ["n1", "n2"])
def test_all_who_share_a_device_are_planned_where_it_is_in_any_order(at: str) -> None:
    many = [other(f"q{index}", "mine") for index in range(5)]
    for order in (many, many[::-1]):
        found = plan(2, claim("mine", 1), devices(at, 1), *order)
        assert isinstance(found, Plan)
        assert set(found.nodes.values()) == {at}
        assert len(found.nodes) == 5
        assert len(found.waves) == 1, "the first pod that is tried gets the device"


def test_where_the_shared_device_is_missing_there_is_room_for_nobody() -> None:
    many = [other(f"q{index}", "mine") for index in range(5)]
    found = plan(2, claim("mine", 1), *many)
    assert isinstance(found, Verdict)
    assert (found.have, found.need) == (0, 2)
    assert not found.detail


def test_those_of_another_shape_go_without_the_one_that_asks_where_it_can_go_nowhere() -> None:
    nowhere = P.node_selector("zone", "nowhere")
    found = plan(2, claim("mine", 1), devices("n1", 1), nowhere, Q, other("r", "mine"))
    assert isinstance(found, Plan)
    assert len(found.nodes) == 2


def test_one_more_pod_of_a_shared_claim_costs_the_same_however_many_share_it() -> None:
    def cost(pods: int) -> int:
        names = (f"p{at:03}" for at in range(pods))
        store = stored(N1, CLASS, claim("mine", 1), devices("n1", 1), *(other(name, "mine") for name in names))
        late = other("q", "mine").value()
        with measured() as effort:
            store.put_pod(late)
        return effort.calls

    assert cost(200) <= cost(20) * 1.1


def test_devices_that_are_counted_are_room() -> None:
    refused = P.unschedulable(message=rejection_message("12 cannot allocate all claims"))
    for store in in_every_order(refused, CLASS, claim("mine", 1), devices("n1", 1)):
        assert not find(store).only_scheduler_counts
        assert find(store).wants_room
        assert not find(store).refused


def test_devices_of_another_pod_s_claim_are_room_for_those_that_share_it() -> None:
    refused = Q.unschedulable(message=rejection_message("12 cannot allocate all claims"))
    for store in in_every_order(P, refused, CLASS, claim("mine", 1)):
        assert store.pods["pod-q"].wants_room
        assert not store.pods["pod-q"].refused


def test_the_resource_of_a_class_is_counted_by_devices_where_no_plugin_shows_it() -> None:
    plugged = N2.allocatable("example.com/gpu", 3)
    providing = CLASS.extended_resource("example.com/gpu")
    asks = pod("p").cpu(1).request("example.com/gpu", 2)
    for order in permutations([N1, plugged, providing, asks, devices("n1", 8)]):
        store = stored(*order)
        shape = find(store).shape
        assert [count_fitting(shape, store.nodes[name], None) for name in ("n1", "n2")] == [4, 1]
        assert not find(store).only_scheduler_counts


def test_an_attribute_of_devices_is_a_domain_where_a_group_asks_for_it() -> None:
    key = f"{DRIVER}/nvlink"
    linked = [devices(f"n{index}", 2).attribute("nvlink", {"string": domain}) for index, domain in ((1, "a"), (2, "b"))]
    mixed = devices("n3", 2).attribute("nvlink", {"string": "a"}, {"string": "b"})
    n3 = node("n3").cpu(64).pods(100)
    for order in permutations([N1, n3, pod_group("g").gang(2).topology(key), *linked, mixed]):
        store = stored(N2, *order)
        assert {name: each.labels.get(key) for name, each in store.nodes.items()} == {"n1": "a", "n2": "b", "n3": None}
        store.put_node(N1.label("more", "x").value())
        assert store.nodes["n1"].labels == {"zone": "n1", "more": "x", key: "a"}
        store.put_node(N1.label(key, "own").value())
        assert store.nodes["n1"].labels[key] == "own"
        store.drop_group(GroupKey("default", "g"))
        assert key not in store.nodes["n2"].labels


def test_nothing_is_counted_before_everything_is_known() -> None:
    store = stored(N1, N2, P, CLASS, claim("mine", 1), devices("n1", 2), known=False)
    assert count(store) == (64, 64)
    assert find(store).only_scheduler_counts
    mark_devices_listed(store, KindState.LISTING)
    assert find(store).obstacle == "Serried is listing the devices"
    mark_devices_listed(store)
    assert count(store) == (2, 0)
    assert not find(store).obstacle


def test_a_taint_goes_with_its_rule() -> None:
    store = stored(N1, N2, P, CLASS, claim("mine", 1), devices("n1", 4), taint_rule("t", device="gpu-1"))
    assert count(store) == (3, 0)
    show(store, taint_rule("t", device="gpu-9"))
    assert count(store) == (4, 0)
    show(store, taint_rule("t"))
    assert count(store) == (0, 0)
    store.drop_object(DeviceTaintRule, "t")
    assert count(store) == (4, 0)


def test_those_who_have_parts_of_devices_are_counted_once_bound_and_leave_room_for_their_own_kind() -> None:
    halves = [claim(name).request("r", **sized(2)) for name in ("mine", "x")]
    held = halves[1].allocated("n1", "gpu-4", consumers=("q",))
    for store in in_every_order(CLASS, P, other("q", "x").on("n1"), halves[0], held, *MIG):
        assert count(store) == (3, 0)
        assert count_fitting(find(store).shape, store.nodes["n1"], None) == 4, "what would be without q"
        store.drop_pod("pod-q")
        assert count(store) == (3, 0), "its claim holds the device still"
        store.put_object(halves[1].value())
        assert count(store) == (4, 0)


def test_too_many_ways_to_choose_devices_are_left_to_the_scheduler() -> None:
    names = [{"string": str(index)} for index in range(24)]
    asks = claim("mine", 12).constraint(distinctAttribute=f"{DRIVER}/name", requests=["s"])
    asks = asks.request("s", count=3).constraint(matchAttribute=f"{DRIVER}/name", requests=["s"])
    store = stored(N1, N2, P, CLASS, asks, devices("n1", 24).attribute("name", *names))
    assert find(store).uncountable == "its devices can be chosen in too many ways"


def test_pods_of_one_kind_share_their_shape() -> None:
    store = stored(N1, P, other("q", "other"), CLASS, claim("mine", 1), claim("other", 1), devices("n1", 2))
    assert find(store).shape is store.pods["pod-q"].shape


def test_what_pods_without_claims_have_is_untouched() -> None:
    store = stored(N1, N2, pod("p").cpu(1))
    before: Any = find(store)
    assert not store.rule(DeviceClaims).wanted
    for builder in (CLASS, claim("mine", 1), devices("n1", 4)):
        show(store, builder)
    assert find(store) is before
    assert store.nodes["n1"].allocatable == N1.value().allocatable


def test_a_replay_has_no_devices_and_counts_what_was_counted() -> None:
    store, again = stored(N1, N2, P, CLASS, claim("mine", 2), devices("n1", 4)), Store({"serried"}, rules=RULES)
    for each in store.nodes.values():
        again.put_node(each)
    again.put_pod(find(store))
    assert count(again) == count(store) == (2, 0)
    assert find(again) == find(store)


def test_a_new_sort_concerns_only_nodes_that_have_its_devices_and_pods_that_ask_for_them() -> None:
    store = stored(N1, N2, CLASS, SMALL_SLICE, BIG_SLICE, claim("mine", 1), P)
    before, small = find(store), store.nodes["n1"]
    show(store, claim("big").request("r", selectors=[{"cel": {"expression": BIG}}]))
    show(store, other("q", "big"))
    assert find(store) is before
    assert store.nodes["n1"] is small
    assert [count_fitting(store.pods["pod-q"].shape, each, None) for each in store.nodes.values()] == [0, 4]


def test_pods_that_ask_for_other_devices_are_unaffected_where_a_selector_fails() -> None:
    store = stored(N1, N2, CLASS, SMALL_SLICE, BIG_SLICE, claim("mine", 1), P)
    failing = f'device.attributes["{DRIVER}"].model == "x"'
    show(store, claim("strange").request("r", selectors=[{"cel": {"expression": failing}}]))
    show(store, other("q", "strange"))
    before, big = find(store), store.nodes["n2"]
    show(store, SMALL_SLICE.pool(2, 1))
    assert "fails for device" in store.pods["pod-q"].obstacle
    show(store, SMALL_SLICE.pool(3, 1).attribute("model", {"string": "x"}))
    assert find(store) is before
    assert store.nodes["n2"] is big


def test_devices_that_are_of_two_sorts_are_given_once_where_neither_sort_is_among_the_other() -> None:
    slices = devices("n1", 3).attribute("a", {"int": 1}, {"int": 1}, {"int": 0})
    slices = slices.attribute("b", {"int": 0}, {"int": 1}, {"int": 1})
    asked = [{"cel": {"expression": f'device.attributes["{DRIVER}"].{name} == 1'}} for name in "ab"]
    mine = claim("mine").request("r0", selectors=asked[:1], count=2).request("r1", selectors=asked[1:], count=2)
    assert count(stored(N1, N2, CLASS, slices, mine, P))[0] == 0
    fewer = claim("mine").request("r0", selectors=asked[:1], count=2).request("r1", selectors=asked[1:])
    assert count(stored(N1, N2, CLASS, slices, fewer, P))[0] == 1


def test_who_asks_for_a_part_of_the_devices_leaves_less_of_the_whole() -> None:
    both = claim("mine").request("r0", count=2).request("r1", selectors=[{"cel": {"expression": BIG}}], count=2)
    assert count(stored(N1, N2, CLASS, SMALL_SLICE, BIG_SLICE, both, P)) == (0, 1)
    more = claim("mine").request("r0", count=3).request("r1", selectors=[{"cel": {"expression": BIG}}], count=2)
    assert count(stored(N1, N2, CLASS, SMALL_SLICE, BIG_SLICE, more, P)) == (0, 0)
