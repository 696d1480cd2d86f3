"""Resources that nodes do not show: the one that pod p asks for, and how often it fits, in any order of objects."""

from itertools import permutations

import pytest

from serried.api.device import DeviceClass
from serried.api.node import Node
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.fit import count_fitting
from serried.rules.all import RULES
from serried.rules.extended.cluster import ExtendedResources
from tests.support.builders import Builder, NodeBuilder, PodBuilder, node, pod
from tests.support.devices import DeviceClassBuilder, device_class
from tests.support.memory import read_memory
from tests.support.volumes import VolumeBuilder, VolumeClaimBuilder, volume, volume_claim

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
CLASS = device_class("gpu").extended_resource(GPU)
PLAIN = node("plain").cpu(8).pods(100)
RICH = node("rich").cpu(8).pods(100).allocatable(GPU, 4)
POOR = node("poor").cpu(8).pods(100).allocatable(GPU, 0)
ASKING = pod("p").cpu(1).request(GPU, 2)


def show(store: Store, builder: Builder) -> None:
    match builder:
        case PodBuilder():
            store.put_pod(builder.value())
        case NodeBuilder():
            store.put_node(builder.value())
        case DeviceClassBuilder():
            store.put_object(builder.value())
        case VolumeBuilder():
            store.put_object(builder.value())
        case VolumeClaimBuilder():
            store.put_object(builder.value())


def stored(*builders: Builder) -> Store:
    store = Store({"serried"}, rules=RULES)
    for builder in builders:
        show(store, builder)
    return store


def count(store: Store) -> dict[str, int]:
    """Return how many pods like p fit on each node."""
    shape = store.pods["pod-p"].shape
    return {name: count_fitting(shape, found, store.occupancy.used.get(name)) for name, found in store.nodes.items()}


CASES: list[tuple[str, list[Builder], dict[str, int], tuple[str, ...]]] = [
    ("a node is counted by what it shows", [RICH], {"rich": 2}, ()),
    ("one without any takes nobody beside it", [RICH, PLAIN, POOR], {"rich": 2, "plain": 0, "poor": 0}, ()),
    ("a class gives those without it no limit", [CLASS, RICH, PLAIN, POOR], {"rich": 2, "plain": 8, "poor": 8}, (GPU,)),
    ("also where no node has any", [CLASS, PLAIN, POOR], {"plain": 8, "poor": 8}, (GPU,)),
    ("another class gives nothing", [device_class("x").extended_resource("x.com/x"), RICH, PLAIN],
     {"rich": 2, "plain": 0}, ()),
    ("what no node has is not counted", [PLAIN, POOR], {"plain": 8, "poor": 8}, (GPU,)),
    ("used amounts are counted on nodes that show it", [CLASS, RICH, PLAIN, pod("q").request(GPU, 2).on("rich"),
     pod("r").request(GPU, 99).on("plain")], {"rich": 1, "plain": 8}, (GPU,)),
]  # fmt: skip


@pytest.mark.parametrize(("builders", "expected", "uncounted"), [pytest.param(*c[1:], id=c[0]) for c in CASES])
def test_slots_whatever_comes_first(
    builders: list[Builder], expected: dict[str, int], uncounted: tuple[str, ...]
) -> None:
    for order in permutations([ASKING, *builders]):
        store = stored(*order)
        assert count(store) == expected
        assert store.pods["pod-p"].uncounted == uncounted


@pytest.mark.parametrize(
    ("builders", "obstacle", "missing"),
    [
        pytest.param([PLAIN, POOR], "", (GPU,), id="nothing brings it"),
        pytest.param([PLAIN, POOR, CLASS], "", (), id="a class provides it"),
        pytest.param([PLAIN, RICH], "", (), id="a node has it"),
        pytest.param([PLAIN, POOR], "they are not shown", (), id="a class may provide it that we do not see"),
    ],
)
def test_what_is_missing_is_what_nothing_brings_whatever_is_known_first(
    builders: list[Builder], obstacle: str, missing: tuple[str, ...]
) -> None:
    for order in permutations([ASKING, *builders]):
        store = stored(*order)
        store.note_state(DeviceClass, KindState.DENIED if obstacle else KindState.KNOWN, obstacle)
        assert store.pods["pod-p"].missing == store.shape_hypothetical(ASKING.value()).missing == missing
        store.note_state(DeviceClass, KindState.KNOWN if obstacle else KindState.DENIED)
        store.note_state(DeviceClass, KindState.DENIED if obstacle else KindState.KNOWN, obstacle)
        assert store.pods["pod-p"].missing == missing


def test_the_resource_of_a_classs_own_name_is_provided() -> None:
    store = stored(PLAIN, node("shows").cpu(8).pods(100).allocatable(IMPLICIT, 1), pod("p").cpu(1).request(IMPLICIT, 1))
    assert count(store) == {"plain": 0, "shows": 1}
    show(store, device_class("gpu"))
    assert count(store) == {"plain": 8, "shows": 1}


def test_a_class_that_changes_or_goes_takes_its_resource_with_it() -> None:
    store = stored(CLASS, RICH, PLAIN, ASKING)
    show(store, device_class("gpu").extended_resource("example.com/other"))
    assert count(store) == {"rich": 2, "plain": 0}
    show(store, CLASS)
    assert count(store) == {"rich": 2, "plain": 8}
    show(store, device_class("second").extended_resource(GPU))
    store.drop_object(DeviceClass, "gpu")
    assert count(store) == {"rich": 2, "plain": 8}
    store.drop_object(DeviceClass, "second")
    store.drop_object(DeviceClass, "second")
    assert count(store) == {"rich": 2, "plain": 0}


def test_the_first_node_that_shows_a_resource_makes_it_counted_and_the_last_takes_that_back() -> None:
    store = stored(PLAIN, ASKING)
    assert count(store) == {"plain": 8}
    show(store, RICH)
    assert count(store) == {"plain": 0, "rich": 2}
    show(store, RICH.allocatable(GPU, 0))
    assert count(store) == {"plain": 8, "rich": 8}
    show(store, RICH)
    store.drop_node("rich")
    store.drop_node("rich")
    assert count(store) == {"plain": 8}


def test_resources_of_the_system_are_counted_wherever_they_are() -> None:
    big = node("big").cpu(8).pods(100).allocatable("hugepages-2Mi", "2Mi")
    store = stored(PLAIN, pod("p").cpu(1).request("hugepages-2Mi", "2Mi").request("ephemeral-storage", 0), big)
    assert count(store) == {"plain": 0, "big": 1}
    store = stored(PLAIN, pod("p").cpu(1).host_port(80).anti_affinity({"app": "a"}).label("app", "a"))
    assert count(store) == {"plain": 1}


def test_what_uses_the_resource_is_forgotten_with_its_pods() -> None:
    store = stored(RICH, ASKING.on("rich"))
    assert store.occupancy.used["rich"][GPU] == 2
    store.drop_pod("pod-p")
    show(store, CLASS)
    left = read_memory(store.rule(ExtendedResources))
    assert not left["pods"]
    assert not left["users"]
    assert "pod-p" not in store.pods


def test_volumes_and_uncounted_resources_do_not_lose_each_other() -> None:
    disk = volume("v").local_to("plain")
    parts: list[Builder] = [
        CLASS, disk, volume_claim("c").bound_to("v"), RICH.label("kubernetes.io/hostname", "rich"),
        PLAIN.label("kubernetes.io/hostname", "plain"), ASKING.mounting("c"),
    ]  # fmt: skip
    for order in permutations(parts):
        store = stored(*order)
        assert count(store) == {"rich": 0, "plain": 8}
        show(store, volume("v").local_to("rich"))
        assert count(store) == {"rich": 2, "plain": 0}
        store.drop_object(DeviceClass, "gpu")
        show(store, disk)
        assert count(store) == {"rich": 0, "plain": 0}


def test_pods_of_one_kind_share_their_shape() -> None:
    store = stored(CLASS, RICH, PLAIN, ASKING, pod("q").cpu(1).request(GPU, 2))
    assert store.pods["pod-p"].shape is store.pods["pod-q"].shape


def test_the_room_of_bound_pods_follows_the_name_of_their_resource() -> None:
    store = stored(RICH, PLAIN, pod("q").request(GPU, 3).on("rich"), ASKING)
    assert count(store)["rich"] == 0
    show(store, CLASS)
    assert count(store) == {"rich": 0, "plain": 8}
    store.drop_pod("pod-q")
    assert count(store) == {"rich": 2, "plain": 8}
    assert "rich" not in store.occupancy.used


def test_only_who_asks_for_the_resource_is_looked_at_when_it_turns() -> None:
    store = stored(RICH, PLAIN, ASKING, pod("q").cpu(1))
    before: Pod = store.pods["pod-q"]
    show(store, CLASS)
    assert store.pods["pod-q"] is before
    found: Node = store.nodes["rich"]
    assert found.allocatable[GPU] == 4
