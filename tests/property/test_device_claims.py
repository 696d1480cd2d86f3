"""Counts of devices do not depend on history: they are as if all objects had just been listed."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from serried.api.device import DeviceClass, ResourceClaim, ResourceSlice
from serried.cluster.cache import Store
from serried.plan.fit import count_fitting
from serried.rules.all import RULES
from tests.support.builders import node, pod, pod_group
from tests.support.devices import DRIVER, claim, claiming, counters, device_class, devices, mark_devices_listed
from tests.support.rules import one_item_per_step, run_deferred_work

NUMA = f"{DRIVER}/numa"
BIG = {"cel": {"expression": f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'}}
NODES, CLAIMS, PODS = ["n1", "n2", "n3"], [f"c{index}" for index in range(5)], [f"p{index}" for index in range(5)]


class World:
    """Objects that are created, changed and deleted at random, and a Store that follows them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.objects: dict[tuple[str, str], Any] = {}
        self.store = Store({"serried"}, rules=RULES)
        mark_devices_listed(self.store)

    def step(self) -> None:
        """Something happens."""
        often = ["node", "slice", "slice", "counters", "class", "group", *["claim", "pod"] * 3]
        kind = self.random.choice(often)
        names = {"class": ["gpu", "big"], "claim": CLAIMS, "pod": PODS, "group": ["g"]}.get(kind, NODES)
        name = self.random.choice(names)
        if (kind, name) in self.objects and self.random.random() < 0.25:
            del self.objects[kind, name]
            drop(self.store, kind, name)
            return
        found = self.objects[kind, name] = getattr(self, f"make_{kind}")(name)
        put(self.store, kind, found)

    def make_node(self, name: str) -> Any:
        return node(name).cpu(8).pods(9).label("zone", self.random.choice("ab")).value()

    def make_slice(self, name: str) -> Any:
        made = devices(name, self.random.randint(1, 4)).pool(1, 1 if self.random.random() < 0.7 else 2)
        if self.random.random() < 0.25:
            made = made.consumed_counters({"a": {"memory": 1}}, {"a": {"memory": 2}}).pool(1, 2)
        made = made.attribute("numa", {"int": self.random.randint(0, 1)}, {"int": 1})
        made = made.each_device(capacity={"memory": {"value": self.random.choice(["16Gi", "80Gi"])}})
        if self.random.random() < 0.15:
            made = made.nodes_field(allNodes=True)
        if self.random.random() < 0.1:
            made = made.each_device(allowMultipleAllocations=True)
        return made.value()

    def make_counters(self, name: str) -> Any:
        return counters(name, {"a": {"memory": self.random.randint(2, 5)}}).pool(1, 2).value()

    def make_class(self, name: str) -> Any:
        made = device_class(name).cel_selectors(f'device.driver == "{DRIVER}"')
        if name == "big":
            made = made.cel_selectors(f'device.driver == "{DRIVER}"', BIG["cel"]["expression"])
        return made.extended_resource("example.com/gpu").value() if self.random.random() < 0.3 else made.value()

    def make_claim(self, name: str) -> Any:
        made = claim(name)
        draw = self.random.random()
        if draw < 0.15:
            made = made.request("r", deviceClassName="gpu", allocationMode="All")
        elif draw < 0.3:
            ask = {"deviceClassName": "gpu", "selectors": [BIG], "count": self.random.randint(1, 2)}
            made = made.first_available("r", ask, {"deviceClassName": "big"})
        else:
            made = made.request(
                "r", deviceClassName=self.random.choice(["gpu", "gpu", "big"]), count=self.random.randint(1, 2)
            )
            if draw < 0.5:
                made = made.constraint(matchAttribute=NUMA)
        if self.random.random() < 0.5:
            at = self.random.choice(NODES)
            others = [each for (kind, other), each in self.objects.items() if kind == "claim" and other != name]
            taken = {device.name for each in others for device in each.devices if device.pool.name == at}
            free = sorted({f"gpu-{index}" for index in range(4)} - taken)
            consumers = tuple(self.random.sample(PODS, self.random.choice([0, 1, 1, 1, 2])))
            if free and self.random.random() < 0.2:
                made = made.allocated_share(at, free[0], consumers=consumers, memory="2Gi")
            elif free:
                made = made.allocated(at, *free[: self.random.randint(1, 2)], consumers=consumers)
        return made.value()

    def make_pod(self, name: str) -> Any:
        made = pod(name).in_group("g").cpu(1)
        if self.random.random() < 0.8:
            claims = claiming(*self.random.sample(CLAIMS, self.random.randint(1, 2)))
            made = made.with_field(claims, "spec", "resourceClaims")
        else:
            made = made.request("example.com/gpu", 1)
        if self.random.random() < 0.4:
            made = made.on(self.random.choice(NODES))
            if self.random.random() < 0.3:
                made = made.phase("Succeeded")
        return made.value()

    def make_group(self, name: str) -> Any:
        return pod_group(name).gang(2).topology(NUMA).value()


def put(store: Store, kind: str, found: Any) -> None:
    methods: dict[str, Callable[[Any], None]] = {
        "node": store.put_node,
        "slice": store.put_object,
        "counters": store.put_object,
        "class": store.put_object,
        "claim": store.put_object,
        "pod": store.put_pod,
        "group": store.put_group,
    }
    methods[kind](found)


def drop(store: Store, kind: str, name: str) -> None:
    match kind:
        case "node":
            store.drop_node(name)
        case "slice":
            store.drop_object(ResourceSlice, f"{name}-0")
        case "counters":
            store.drop_object(ResourceSlice, f"{name}-counters")
        case "class":
            store.drop_object(DeviceClass, name)
        case "claim":
            store.drop_object(ResourceClaim, claim(name).value().key)
        case "pod":
            store.drop_pod(f"pod-{name}")
        case _:
            store.drop_group(pod_group(name).value().key)


def show(store: Store) -> dict[str, Any]:
    """Return the counts of the Store that plans depend on."""
    used = store.occupancy.used
    fits = {
        (pod.name, name): count_fitting(pod.shape, each, used.get(name))
        for pod in store.pods.values()
        if pod.pending  # what a bound one would ask for elsewhere nobody asks
        for name, each in store.nodes.items()
    }
    told = {
        each.name: (each.counted, each.uncountable, each.obstacle.partition(" fails ")[0], each.shape.neighbours)
        for each in store.pods.values()
    }
    return {"labels": {name: each.labels for name, each in store.nodes.items()}, "fits": fits, "told": told}


@pytest.mark.parametrize("seed", range(60))
def test_a_store_that_has_seen_all_is_as_one_that_has_just_listed(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.step()
        fresh = Store({"serried"}, rules=RULES)
        mark_devices_listed(fresh)
        for (kind, _), found in world.random.sample(
            sorted(world.objects.items(), key=lambda each: each[0]), len(world.objects)
        ):
            put(fresh, kind, found)
        run_deferred_work(world.store)
        run_deferred_work(fresh)
        assert show(world.store) == show(fresh)


@pytest.mark.parametrize("seed", range(60))
def test_a_store_that_puts_off_all_it_can_comes_to_the_same(seed: int) -> None:
    world = World(seed)
    with one_item_per_step():
        for turn in range(120):
            world.step()
            if world.random.random() < 0.3:
                world.store.apply_rule_changes()
            if turn % 10 == 9:
                run_deferred_work(world.store)
                fresh = Store({"serried"}, rules=RULES)
                mark_devices_listed(fresh)
                for (kind, _), found in world.objects.items():
                    put(fresh, kind, found)
                run_deferred_work(fresh)
                assert show(world.store) == show(fresh)
