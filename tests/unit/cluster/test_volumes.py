"""Waiting pods and the nodes that reach their volumes, whatever comes first."""

from itertools import permutations

import pytest

from serried.api.names import GroupKey, Key
from serried.api.pod import Pod
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.capacity import group_classes
from serried.plan.fit import admits, count_fitting
from serried.plan.request import Snapshot
from serried.rules.all import RULES
from serried.rules.volumes.cluster import Volumes
from serried.rules.volumes.plan import VolumeChoices
from tests.support.builders import Builder, NodeBuilder, PodBuilder, node, pod
from tests.support.memory import read_memory
from tests.support.rules import PLAN_RULES
from tests.support.volumes import (
    csi_driver,
    storage_capacity,
    storage_class,
    volume,
    volume_claim,
)

HERE = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
ANYWHERE = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
NODES = [node(name).label("kubernetes.io/hostname", name) for name in ("n1", "n2", "n3")]
CLAIMED = [volume("v").local_to("n1", "n2"), volume_claim("c").bound_to("v")]


def show(store: Store, builder: Builder) -> None:
    match builder:
        case PodBuilder():
            store.put_pod(builder.value())
        case NodeBuilder():
            store.put_node(builder.value())
        case _:
            store.put_object(builder.value())  # type: ignore[attr-defined]


def stored(*builders: Builder) -> Store:
    store = Store({"serried"}, rules=RULES)
    for builder in builders:
        show(store, builder)
    return store


def reached(store: Store) -> str:
    """The nodes that admit pod p."""
    nodes = {each.value().name: each.value() for each in NODES}
    (kind,) = group_classes([store.pods["pod-p"]])
    choices = VolumeChoices(Snapshot(nodes, {}, rules=PLAN_RULES), [kind])
    choices.count()
    return " ".join(n for n in nodes if admits(kind.shape, nodes[n]) and choices.admits(kind, n))


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
    ("its own affinity counts, too", pod("p").mounting("c").node_affinity(
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), CLAIMED, "n2"),
    ("any of its own terms with any of the volume's", pod("p").mounting("c").node_affinity(
        HERE, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), CLAIMED, "n1"),
    ("an empty term still matches nothing", pod("p").mounting("c").node_affinity({}), CLAIMED, ""),
    ("a volume that no node reaches leaves none", pod("p").mounting("c"),
     [volume("v").node_affinity(), volume_claim("c").bound_to("v")], ""),
    ("so many alternatives are left to the scheduler",
     pod("p").mounting("c").node_affinity(*[ANYWHERE] * 9),
     [volume("v").node_affinity(*[HERE] * 9), volume_claim("c").bound_to("v")], "n1 n2 n3"),
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
    store.drop_object(Volume, "w")
    assert reached(store) == "n1 n2 n3"
    show(store, volume("w").local_to("n2"))
    store.drop_object(VolumeClaim, Key("default", "c"))
    assert reached(store) == "n1 n2 n3"


def test_a_change_that_changes_nothing_touches_nobody() -> None:
    store = stored(pod("p").mounting("c").in_group("g"), *CLAIMED)
    store.dirty.groups.clear()
    for builder in CLAIMED:
        show(store, builder.version("8"))
    assert not store.dirty.groups
    assert store.rule(Volumes).supply.volumes["v"].version == "8"


def test_pods_of_equal_volumes_have_equal_shapes() -> None:
    twins = [volume("w").local_to("n1", "n2"), volume_claim("d").bound_to("w"), pod("q").mounting("d")]
    store = stored(*CLAIMED, *twins, pod("p").mounting("c"))
    assert store.pods["pod-p"].shape == store.pods["pod-q"].shape


@pytest.mark.parametrize("end", ["ended", "gone"])
def test_nothing_is_kept_of_a_pod_that_needs_no_node_any_more(end: str) -> None:
    store = stored(*CLAIMED, pod("p").mounting("c").on("n1"))
    if end == "ended":
        store.put_pod(pod("p").mounting("c").on("n1").phase("Succeeded").value())
    else:
        store.drop_pod("pod-p")
    store.put_object(volume("v").value())
    left = read_memory(store.rule(Volumes))
    assert (left["pods"], left["users"]) == ({}, {})


def test_unbound_claims_are_counted_by_pod() -> None:
    store = stored(*CLAIMED, volume_claim("d"))
    pods = [pod("p").mounting("c"), pod("q").mounting("d", "c"), pod("r").mounting("unknown"), pod("s")]
    assert store.list_caveats([each.value() for each in pods]) == [
        "1 member mounts volume claims that are not bound yet"
    ]


KINDS: tuple[type, ...] = (VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode)


def seeing(*builders: Builder) -> Store:
    """A Store that is shown all kinds of storage."""
    store = Store({"serried"}, rules=RULES)
    for kind in KINDS:
        store.note_state(kind, KindState.KNOWN)
    for builder in builders:
        show(store, builder)
    return store


P = pod("p").mounting("c")
LOCAL = storage_class("local")
FAST = storage_class("fast", "fast.example.com")
WAITING = volume_claim("c").requesting("local")
MADE = volume_claim("c").requesting("fast")
HERE_AND_THERE = [volume("v").available("local").local_to("n1"), volume("w").available("local").local_to("n3")]
SCARCE = csi_driver("fast.example.com")

REACHED: list[tuple[str, list[Builder], str]] = [
    ("a claim that waits goes where volumes of its class are", [LOCAL, WAITING, *HERE_AND_THERE], "n1 n3"),
    ("that are large enough", [LOCAL, WAITING, volume("v").available("local", "512Mi"), HERE_AND_THERE[1]], "n3"),
    ("of a mode that it asks for",
     [LOCAL, WAITING, volume("v").available("local", mode="ReadOnlyMany"), HERE_AND_THERE[1]],
     "n3"),
    ("of its volume mode",
     [LOCAL, WAITING, HERE_AND_THERE[0].with_field("Block", "spec", "volumeMode"), HERE_AND_THERE[1]],
     "n3"),
    ("with labels that it selects", [LOCAL, WAITING.with_field({"matchLabels": {"kind": "ssd"}}, "spec", "selector"),
                                     HERE_AND_THERE[0].label("kind", "ssd"), HERE_AND_THERE[1]], "n1"),
    ("that nobody has", [LOCAL, WAITING, HERE_AND_THERE[0].claim_ref("other"), HERE_AND_THERE[1]], "n3"),
    ("that are not on their way out", [LOCAL, WAITING, HERE_AND_THERE[0].deleting(), HERE_AND_THERE[1]], "n3"),
    ("and nowhere else if one is kept for it", [LOCAL, WAITING, HERE_AND_THERE[0].claim_ref("c"), HERE_AND_THERE[1]],
     "n1"),
    ("a kept one that is too small is none",
     [LOCAL, WAITING.requesting("local", "2Gi"), HERE_AND_THERE[0].claim_ref("c"),
      volume("x").available("local", "2Gi").local_to("n2")], "n2"),
    ("a volume can be made everywhere", [FAST, MADE], "n1 n2 n3"),
    ("but for the topology that the class allows",
     [FAST.allowed_topology("kubernetes.io/hostname", "n1", "n2"), MADE], "n1 n2"),
    ("or where there is one", [FAST.allowed_topology("kubernetes.io/hostname", "n1"), MADE,
                               volume("v").available("fast").local_to("n3")], "n1 n3"),
    ("where its driver has storage",
     [FAST, MADE, SCARCE, storage_capacity("s", "fast", "1Gi", **{"kubernetes.io/hostname": "n1"}),
      storage_capacity("t", "fast", "1Mi", **{"kubernetes.io/hostname": "n2"})], "n1"),
    ("of its class", [FAST, MADE, SCARCE, storage_capacity("s", "fast", "1Gi", **{"kubernetes.io/hostname": "n1"}),
                      storage_capacity("t", "slow", "1Gi", **{"kubernetes.io/hostname": "n2"})], "n1"),
    ("everywhere, if one pool is everybody's", [FAST, MADE, SCARCE, storage_capacity("s", "fast", "1Gi")], "n1 n2 n3"),
    ("a driver that tells nothing has storage everywhere",
     [FAST, MADE, csi_driver("fast.example.com").with_field({}, "spec")], "n1 n2 n3"),
    ("a claim stays with the node that was chosen for it", [FAST, MADE.selected_node("n2")], "n2"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "nodes"), [pytest.param(o, n, id=sentence) for sentence, o, n in REACHED])
def test_where_a_claim_without_a_volume_leaves_its_pod(others: list[Builder], nodes: str) -> None:
    for order in permutations([P, *others]):
        store = seeing(*order)
        assert reached(store) == nodes
        assert not store.pods["pod-p"].obstacle


NOWHERE: list[tuple[str, list[Builder], str]] = [
    ("does not exist", [], "volume claim c does not exist"),
    ("is lost", [volume_claim("c").bound_to("v").with_field("Lost", "status", "phase")],
     "volume claim c has lost its PersistentVolume v"),
    ("goes", [volume_claim("c").bound_to("v").deleting(), volume("v")], "volume claim c is being deleted"),
    ("has a volume that does not exist", [volume_claim("c").bound_to("v")],
     "volume claim c is bound to PersistentVolume v, which does not exist"),
    ("is not bound to the volume that it names", [volume_claim("c").with_field("v", "spec", "volumeName"), volume("v")],
     "volume claim c is not bound to PersistentVolume v yet"),
    ("has no class", [volume_claim("c")], "volume claim c is not bound, and the claim names no StorageClass"),
    ("has an unknown class", [MADE], "volume claim c is not bound, and its StorageClass fast does not exist"),
    ("should have been bound at once", [FAST.immediate(), MADE],
     "volume claim c is not bound yet, and StorageClass fast does not wait for the first consumer"),
    ("finds no volume", [LOCAL, WAITING, volume("v").available("local", "1Mi")],
     "no PersistentVolume fits volume claim c, and StorageClass local creates none"),
    ("finds no storage", [FAST, MADE, SCARCE],
     "no PersistentVolume fits volume claim c, and no driver has storage for the claim"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "said"), [pytest.param(o, said, id=sentence) for sentence, o, said in NOWHERE])
def test_a_pod_with_a_claim_that_nothing_serves_can_run_nowhere_and_says_why(others: list[Builder], said: str) -> None:
    for order in permutations([P, *others]):
        store = seeing(*order)
        assert store.pods["pod-p"].obstacle == said
        assert store.pods["pod-p"].refused


def test_what_we_are_not_shown_keeps_nobody_from_anywhere() -> None:
    for _, others, _ in (*NOWHERE[:1], *NOWHERE[5:]):
        assert not stored(P, *others).pods["pod-p"].obstacle
    blind = seeing(P, FAST, MADE, SCARCE)
    blind.note_state(StorageCapacity, KindState.DENIED)
    assert (blind.pods["pod-p"].obstacle, reached(blind)) == ("", "n1 n2 n3")
    blind.note_state(VolumeClaim, KindState.DENIED)
    blind.drop_object(VolumeClaim, Key("default", "c"))
    assert not blind.pods["pod-p"].obstacle


def test_a_pod_waits_until_all_is_known_of_the_clusters_storage() -> None:
    store = seeing(P, FAST, MADE)
    store.note_state(StorageCapacity, KindState.LISTING)
    assert store.pods["pod-p"].obstacle == "Serried is reading the storage of the cluster"
    store.note_state(StorageCapacity, KindState.KNOWN)
    assert not store.pods["pod-p"].obstacle


def test_a_claim_of_an_ephemeral_volume_is_its_pods() -> None:
    scratch = pod("p").with_field([{"name": "scratch", "ephemeral": {}}], "spec", "volumes")
    store = seeing(scratch, FAST)
    assert store.pods["pod-p"].obstacle == "volume claim p-scratch is still to be made"
    show(store, volume_claim("p-scratch").requesting("fast"))
    assert store.pods["pod-p"].obstacle == "volume claim p-scratch was not made for this pod"
    show(store, volume_claim("p-scratch").requesting("fast").controlled_by("Pod", "p"))
    assert not store.pods["pod-p"].obstacle


def test_a_pod_that_does_not_exist_may_bring_its_claims() -> None:
    store = seeing(volume_claim("lost").bound_to("v").with_field("Lost", "status", "phase"))
    assert not store.shape_hypothetical(P.value()).obstacle
    assert store.shape_hypothetical(pod("q").mounting("lost").value()).obstacle


OLD_ZONE, ZONE = "failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"

ZONES: list[tuple[str, dict[str, str], list[NodeBuilder], str]] = [
    ("a volume's zone is its node's", {ZONE: "a"}, [node("a").label(ZONE, "a"), node("b").label(ZONE, "b")], "a"),
    ("any of its zones will do", {ZONE: "a__b"}, [node("a").label(ZONE, "a"), node("b").label(ZONE, "b")], "a b"),
    ("a node that says nothing of zones will do", {ZONE: "a"}, [node("n"), node("b").label(ZONE, "b")], "n"),
    ("one that has another region's name only will not", {ZONE: "a"},
     [node("r").label("topology.kubernetes.io/region", "r")], ""),
    ("an old label is met by the new one", {OLD_ZONE: "a"}, [node("a").label(ZONE, "a"), node("b").label(ZONE, "b")],
     "a"),
    ("if the old one is not there", {OLD_ZONE: "a"}, [node("a").label(ZONE, "a").label(OLD_ZONE, "b")], ""),
    ("all labels count", {ZONE: "a", "topology.kubernetes.io/region": "r"},
     [node("a").label(ZONE, "a"), node("b").label(ZONE, "a").label("topology.kubernetes.io/region", "r")], "b"),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "nodes", "where"), [pytest.param(lb, n, w, id=s) for s, lb, n, w in ZONES])
def test_the_zones_of_a_bound_volume(labels: dict[str, str], nodes: list[NodeBuilder], where: str) -> None:
    zoned = volume("v").with_field(labels, "metadata", "labels")
    store = stored(P, volume_claim("c").bound_to("v"), zoned)
    shape = store.pods["pod-p"].shape
    assert " ".join(each.value().name for each in nodes if admits(shape, each.value())) == where


BLOCK = [volume_claim("c").bound_to("v").read_write_once_pod(), volume("v")]
TWO = [node(name).label("kubernetes.io/hostname", name).cpu(4) for name in ("n1", "n2")]


def obstacles(store: Store, *names: str) -> list[str]:
    return [store.pods[f"pod-{name}"].obstacle for name in names]


def free_nodes(store: Store, found: Pod) -> str:
    """The nodes with room for a pod."""
    used = store.occupancy.used
    return " ".join(each.name for each in store.nodes.values() if count_fitting(found.shape, each, used.get(each.name)))


def test_a_claim_that_one_pod_may_use_is_not_shared() -> None:
    for order in permutations([P, pod("q").mounting("c").on("n1"), *BLOCK]):
        store = seeing(*order)
        assert obstacles(store, "p") == ["volume claim c is ReadWriteOncePod, and q uses it"]
    store.drop_pod("pod-q")
    assert obstacles(store, "p") == [""]


def test_one_of_lower_priority_may_be_preempted_for_it_where_it_is() -> None:
    store = seeing(*TWO, P.priority(10), pod("q").mounting("c").on("n1"), *BLOCK)
    waiting = store.pods["pod-p"]
    assert (waiting.obstacle, free_nodes(store, waiting), reached(store)) == ("", "", "n1")
    store.drop_pod("pod-q")
    assert free_nodes(store, store.pods["pod-p"]) == "n1 n2"
    assert store.pods["pod-p"].shape == pod("p").value().shape
    never = seeing(
        *TWO, P.priority(10).with_field("Never", "spec", "preemptionPolicy"), pod("q").mounting("c").on("n1"), *BLOCK
    )
    assert obstacles(never, "p") == ["volume claim c is ReadWriteOncePod, and q uses it"]


def test_of_the_members_of_a_gang_the_first_may_have_it() -> None:
    mates = [pod(name).mounting("c").in_group("g") for name in ("p", "q", "r")]
    said = "volume claim c is ReadWriteOncePod, and another member of the gang mounts the claim, too"
    for order in permutations([*mates, *BLOCK]):
        store = seeing(*order)
        assert obstacles(store, "p", "q", "r") == ["", said, said]
    store.drop_pod("pod-p")
    assert obstacles(store, "q", "r") == ["", said]
    store.drop_pod("pod-q")
    assert obstacles(store, "r") == [""]


def test_an_offer_does_not_give_it_to_the_second_one_too() -> None:
    # Until the first one has its node, kube-scheduler finds nodes for each of them.
    held = [
        pod(name).mounting("c").in_group("g").unschedulable(message="1 Serried holds this pod for its gang")
        for name in "pq"
    ]
    store = seeing(*held, *BLOCK)
    assert [store.pods[f"pod-{name}"].refused for name in "pq"] == [False, True]


def test_pods_of_two_gangs_may_both_hope_for_it() -> None:
    store = seeing(P.in_group("g"), pod("q").mounting("c").in_group("h"), *BLOCK)
    assert obstacles(store, "p", "q") == ["", ""]


def test_what_the_scheduler_says_of_its_user_is_a_want_of_room() -> None:
    said = (
        "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
        "already in-use by another pod. preemption: not eligible"
    )
    store = seeing(*TWO, P.priority(10).unschedulable(message=said), pod("q").mounting("c").on("n1"), *BLOCK)
    assert not store.pods["pod-p"].refused


AMOUNT = "volume:local/1073741824/ReadWriteOnce/Filesystem"


def chosen(store: Store, name: str = "p") -> tuple[dict[str, int], list[str]]:
    """The amounts of volumes that a pod takes, and the volumes that its claims choose from."""
    shape = store.pods[f"pod-{name}"].shape
    amounts = {amount: count for amount, count in shape.requests if amount.startswith("volume:")}
    return amounts, [each.name for choice in shape.volumes if choice.pool for each in choice.pool.volumes]


def test_claims_with_one_wish_choose_from_the_same_volumes() -> None:
    claims = [volume_claim(name).requesting("local") for name in ("c", "d")]
    wide = volume("u").available("local").local_to("n1", "n2")
    store = seeing(
        LOCAL, P, pod("q").mounting("d"), *claims, wide, *HERE_AND_THERE, volume("x").available("local", "2Gi")
    )
    assert chosen(store) == ({AMOUNT: 1}, ["v", "w", "u", "x"])
    assert store.pods["pod-p"].shape == store.pods["pod-q"].shape
    show(store, HERE_AND_THERE[0].claim_ref("d"))
    assert chosen(store) == ({AMOUNT: 1}, ["w", "u", "x"])
    assert chosen(store, "q") == ({}, [])
    show(store, HERE_AND_THERE[0].claim_ref("other"))
    assert chosen(store, "q") == chosen(store)


def test_a_pod_with_a_node_chooses_no_more() -> None:
    store = seeing(LOCAL, P.on("n1"), WAITING, *HERE_AND_THERE)
    assert chosen(store) == ({}, [])


def test_claims_that_several_pods_mount_are_one_choice_for_all() -> None:
    pair = [P, pod("q").mounting("c")]
    for order in permutations([LOCAL, WAITING, *pair, *HERE_AND_THERE]):
        store = seeing(*order)
        assert chosen(store) == chosen(store, "q") == ({f"{AMOUNT}|default/c": 1}, ["v", "w"])
    store.drop_pod("pod-q")
    assert chosen(store) == ({AMOUNT: 1}, ["v", "w"])


def test_a_volume_that_is_made_for_one_of_several_pods_confines_no_other() -> None:
    store = seeing(FAST, P, pod("q").mounting("c"), MADE.selected_node("n2"))
    assert chosen(store) == ({"volume:|default/c": 1}, [])
    assert reached(store) == "n1 n2 n3"
    store.drop_pod("pod-q")
    assert (chosen(store), reached(store)) == (({}, []), "n2")


def test_a_gang_is_looked_at_again_when_there_is_one_more_volume() -> None:
    store = seeing(LOCAL, P.in_group("g"), WAITING, *HERE_AND_THERE)
    store.dirty.groups.clear()
    show(store, volume("x").available("local").local_to("n1"))
    assert store.dirty.groups == {GroupKey("default", "g")}


def test_nothing_is_kept_of_wishes_that_nobody_has() -> None:
    store = seeing(LOCAL, P, WAITING, *HERE_AND_THERE)
    store.drop_pod("pod-p")
    store.drop_object(VolumeClaim, Key("default", "c"))
    show(store, HERE_AND_THERE[0].deleting())
    left = read_memory(store.rule(Volumes).supply)
    assert (left["pools"], left["volume_nodes"]) == ({}, {})
