"""Waiting pods and the nodes that reach their volumes, whatever comes first."""

from itertools import permutations

import pytest

from serried.api.names import GroupKey, Key
from serried.cluster.cache import Store
from serried.plan.fit import admits
from tests.support.builders import Builder, NodeBuilder, PodBuilder, node, pod
from tests.support.memory import read_memory
from tests.support.volumes import VolumeBuilder, VolumeClaimBuilder, volume, volume_claim

HERE = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
ANYWHERE = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
NODES = [node(name).label("kubernetes.io/hostname", name) for name in ("n1", "n2", "n3")]
CLAIMED = [volume("v").local_to("n1", "n2"), volume_claim("c").bound_to("v")]


def show(store: Store, builder: Builder) -> None:
    match builder:
        case PodBuilder():
            store.put_pod(builder.value())
        case VolumeBuilder():
            store.put_volume(builder.value())
        case VolumeClaimBuilder():
            store.put_volume_claim(builder.value())
        case NodeBuilder():
            store.put_node(builder.value())


def stored(*builders: Builder) -> Store:
    store = Store({"serried"})
    for builder in builders:
        show(store, builder)
    return store


def reached(store: Store) -> str:
    """The nodes that admit pod p."""
    shape = store.pods["pod-p"].shape
    return " ".join(each.value().name for each in NODES if admits(shape, each.value()))


CASES: list[tuple[str, PodBuilder, list[Builder], str]] = [
    ("a pod without claims goes anywhere", pod("p"), CLAIMED, "n1 n2 n3"),
    ("a claim confines its pod to the nodes of its volume", pod("p").mounting("c"), CLAIMED, "n1 n2"),
    ("a claim without a volume confines nobody", pod("p").mounting("c"), [volume_claim("c")], "n1 n2 n3"),
    ("nor does a volume of every node", pod("p").mounting("c"), [volume("v"), volume_claim("c").bound_to("v")],
     "n1 n2 n3"),
    ("a claim that is not known does not", pod("p").mounting("d"), CLAIMED, "n1 n2 n3"),
    ("one of another namespace does not", pod("p").mounting("c").namespace("other"), CLAIMED, "n1 n2 n3"),
    ("all of its volumes must be reached", pod("p").mounting("c", "d"),
     [*CLAIMED, volume("w").local_to("n2", "n3"), volume_claim("d").bound_to("w")], "n2"),
    ("its own affinity counts, too", pod("p").mounting("c").affine(
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), CLAIMED, "n2"),
    ("any of its own terms with any of the volume's", pod("p").mounting("c").affine(
        HERE, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), CLAIMED, "n1"),
    ("an empty term still matches nothing", pod("p").mounting("c").affine({}), CLAIMED, ""),
    ("a volume that no node reaches leaves none", pod("p").mounting("c"),
     [volume("v").reached_from(), volume_claim("c").bound_to("v")], ""),
    ("so many alternatives are left to the scheduler",
     pod("p").mounting("c").affine(*[ANYWHERE] * 9),
     [volume("v").reached_from(*[HERE] * 9), volume_claim("c").bound_to("v")], "n1 n2 n3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mounting", "others", "nodes"), [pytest.param(m, o, n, id=sentence) for sentence, m, o, n in CASES]
)
def test_a_waiting_pod_goes_where_its_volumes_are_in_whatever_order_they_are_seen(
    mounting: PodBuilder, others: list[Builder], nodes: str
) -> None:
    for order in permutations([mounting, *others]):
        assert reached(stored(*order)) == nodes


def test_what_changes_later_counts() -> None:
    store = stored(pod("p").mounting("c").in_group("g"), *CLAIMED)
    changes: list[tuple[Builder, str]] = [
        (volume("v").local_to("n3"), "n3"),
        (volume_claim("c"), "n1 n2 n3"),
        (volume_claim("c").bound_to("w"), "n1 n2 n3"),
        (volume("w").local_to("n2"), "n2"),
    ]
    for change, nodes in changes:
        store.dirty.groups.clear()
        show(store, change)
        assert reached(store) == nodes
    assert store.dirty.groups == {GroupKey("default", "g")}
    store.drop_volume("w")
    assert reached(store) == "n1 n2 n3"
    show(store, volume("w").local_to("n2"))
    store.drop_volume_claim(Key("default", "c"))
    assert reached(store) == "n1 n2 n3"


def test_a_change_that_changes_nothing_touches_nobody() -> None:
    store = stored(pod("p").mounting("c").in_group("g"), *CLAIMED)
    store.dirty.groups.clear()
    for builder in CLAIMED:
        show(store, builder.version("8"))
    assert not store.dirty.groups
    assert store.volumes.volumes["v"].version == "8"


def test_pods_of_equal_volumes_have_equal_shapes() -> None:
    twins = [volume("w").local_to("n1", "n2"), volume_claim("d").bound_to("w"), pod("q").mounting("d")]
    store = stored(*CLAIMED, *twins, pod("p").mounting("c"))
    assert store.pods["pod-p"].shape == store.pods["pod-q"].shape


@pytest.mark.parametrize("end", ["bound", "gone"])
def test_nothing_is_kept_of_a_pod_that_waits_no_more(end: str) -> None:
    store = stored(*CLAIMED, pod("p").mounting("c"))
    if end == "bound":
        store.put_pod(pod("p").mounting("c").on("n1").value())
    else:
        store.drop_pod("pod-p")
    assert store.volumes.put_volume(volume("v").value()) == []
    left = read_memory(store.volumes)
    assert (left["pods"], left["users"]) == ({}, {})


def test_unbound_claims_are_counted_by_pod() -> None:
    store = stored(*CLAIMED, volume_claim("d"))
    pods = [pod("p").mounting("c"), pod("q").mounting("d", "c"), pod("r").mounting("unknown"), pod("s")]
    assert store.volumes.count_unbound(each.value() for each in pods) == 1
