"""Volume limits of nodes."""

from itertools import permutations

import pytest

from serried.api.volume import CSINode
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.fit import count_fitting
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest
from tests.support.builders import Builder, PodBuilder, node, pod
from tests.support.volumes import CSINodeBuilder, csi_driver, csi_node, storage_class, volume, volume_claim
from tests.unit.cluster.test_volumes import seeing, show

FAST = storage_class("fast", "fast.example.com")
NODES = [node(name).cpu(32).label("kubernetes.io/hostname", name) for name in ("n1", "n2")]
TAKES_TWO = [csi_node("n1", fast=2), csi_node("n2", fast=2)]
CLAIMS = [volume_claim(name).requesting("fast") for name in ("a", "b", "c", "d")]


def room(store: Store, waiting: str = "p") -> str:
    """Return for how many pods like this one each node has room; "many" without a limit."""
    found = store.pods[f"pod-{waiting}"].shape
    used = store.occupancy.used
    free = {each.name: count_fitting(found, each, used.get(each.name)) for each in store.nodes.values()}
    return " ".join(f"{name}:{count if count < 30 else 'many'}" for name, count in sorted(free.items()))


def using(name: str, *claims: str) -> PodBuilder:
    return pod(name).mounting(*claims).on("n1")


CASES: list[tuple[str, list[Builder], str]] = [
    ("two volumes fit", [], "n1:2 n2:2"),
    ("those of pods that run count", [using("x", "b")], "n1:1 n2:2"),
    ("until there are too many", [using("x", "b"), using("y", "c")], "n1:0 n2:2"),
    ("each volume of a pod", [using("x", "b", "c")], "n1:0 n2:2"),
    ("one that two pods share counts once", [using("x", "b"), using("y", "b")], "n1:1 n2:2"),
    ("bound ones count by the driver of their volume",
     [using("x", "v"), volume_claim("v").bound_to("v"),
      volume("v").with_field({"driver": "fast.example.com", "volumeHandle": "1"}, "spec", "csi")], "n1:1 n2:2"),
    ("and not where it has none", [using("x", "v"), volume_claim("v").bound_to("v"), volume("v")], "n1:2 n2:2"),
    ("pods that have ended need none", [using("x", "b").phase("Succeeded")], "n1:2 n2:2"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "expected"), [pytest.param(o, e, id=sentence) for sentence, o, e in CASES])
def test_nodes_take_so_many_volumes_of_a_driver(others: list[Builder], expected: str) -> None:
    known = [*NODES, FAST, *CLAIMS]
    parts: list[list[Builder]] = [[pod("p").mounting("a"), *others], [*TAKES_TWO]]
    for first, second in permutations(parts):
        assert room(seeing(*known, *first, *second)) == expected
        assert room(seeing(*first, *second, *known)) == expected


IN_TREE = [
    pytest.param("ebs.csi.aws.com", "awsElasticBlockStore", {"volumeID": "1"}, "kubernetes.io/aws-ebs", id="EBS"),
    pytest.param("disk.csi.azure.com", "azureDisk", {"diskName": "1"}, "kubernetes.io/azure-disk", id="Azure"),
    pytest.param("cinder.csi.openstack.org", "cinder", {"volumeID": "1"}, "kubernetes.io/cinder", id="Cinder"),
    pytest.param("pd.csi.storage.gke.io", "gcePersistentDisk", {"pdName": "1"}, "kubernetes.io/gce-pd", id="GCE"),
]


@pytest.mark.parametrize(("driver", "field", "source", "provisioner"), IN_TREE)
def test_in_tree_volumes_count_for_the_driver_that_they_have_moved_to(
    driver: str, field: str, source: dict[str, str], provisioner: str
) -> None:
    drivers = [{"name": driver, "allocatable": {"count": 2}}]
    takes_two = [csi_node(name).with_field(drivers, "spec", "drivers") for name in ("n1", "n2")]
    bound = [volume("v").with_field(source, "spec", field), volume_claim("v").bound_to("v"), using("x", "v")]
    waiting = [storage_class("fast", provisioner), CLAIMS[0], pod("p").mounting("a")]
    assert room(seeing(*NODES, *takes_two, *bound, *waiting)) == "n1:1 n2:2"


def test_those_of_vsphere_do_not_count() -> None:
    drivers = [{"name": "csi.vsphere.vmware.com", "allocatable": {"count": 1}}]
    bound = [volume("v").with_field({"volumePath": "1"}, "spec", "vsphereVolume"), volume_claim("v").bound_to("v")]
    store = seeing(*NODES, csi_node("n1").with_field(drivers, "spec", "drivers"), *bound, pod("p").mounting("v"))
    assert room(store) == "n1:many n2:many"


SHARING = [
    ("where it is new it is one more", [using("x", "b")], 2, "n1 n1"),
    ("there is no room where others have all", [using("x", "b", "c")], 2, ""),
    ("but where it is in use", [using("x", "b"), pod("q").mounting("a").on("n1")], 2, "n1 n1"),
    ("it leaves room for another", [using("x", "b")], 1, "n1"),
]


@pytest.mark.parametrize(("others", "count", "expected"), [pytest.param(*each, id=say) for say, *each in SHARING])
def test_a_volume_that_members_share_needs_room_once(others: list[Builder], count: int, expected: str) -> None:
    """n2 takes none: all that can be is on n1, where two volumes are."""
    limits = [csi_node("n1", fast=2), csi_node("n2", fast=0)]
    members = [pod(f"p{at}").mounting("a") for at in range(max(2, count))]
    store = seeing(*NODES, FAST, *CLAIMS, *limits, *others, *members)
    waiting = [store.pods[f"pod-p{at}"] for at in range(count)]
    found = plan_gang(store.snapshots.take(0, waiting), PlanRequest(waiting, count), store.capacity)
    assert " ".join(found.nodes.values() if isinstance(found, Plan) else ()) == expected


def test_own_and_shared_volumes_of_members_are_counted_together() -> None:
    limits = [csi_node("n1", fast=3), csi_node("n2", fast=2)]
    claims = [volume_claim(f"c{at}").requesting("fast") for at in range(4)]
    members = [pod(f"p{at}").mounting(f"c{at}", "a") for at in range(4)]
    store = seeing(*NODES, FAST, *CLAIMS, *claims, *limits, *members)
    for count in (3, 4):
        waiting = [store.pods[f"pod-p{at}"] for at in range(count)]
        found = plan_gang(store.snapshots.take(0, waiting), PlanRequest(waiting, count), store.capacity)
        if count == 4:
            assert not isinstance(found, Plan), "each node has room for one less than it takes"
        else:
            assert isinstance(found, Plan)
            assert sorted(found.nodes.values()) == ["n1", "n1", "n2"]


def test_what_changes_later_counts() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, *TAKES_TWO, pod("p").mounting("a"), using("x", "b"), using("y", "c"))
    changes: list[tuple[Builder, str]] = [
        (csi_node("n1", fast=4), "n1:2 n2:2"),
        (csi_node("n1"), "n1:many n2:2"),
        (csi_node("n1", fast=1), "n1:0 n2:2"),
        (NODES[0].cpu(31), "n1:0 n2:2"),
    ]
    for change, expected in changes:
        show(store, change)
        assert room(store) == expected
    for uid in ("pod-x", "pod-y"):
        store.drop_pod(uid)
    assert room(store) == "n1:1 n2:2"
    for name in ("n1", "n2"):
        store.drop_object(CSINode, name)
    assert room(store) == "n1:many n2:many"
    assert not any(":" in name for each in store.nodes.values() for name in each.allocatable)
    assert store.pods["pod-p"].shape == pod("p").value().shape


def test_a_volume_that_is_shared_no_more_is_its_users_again() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, *TAKES_TWO, pod("p").mounting("a"), using("x", "b"), using("y", "b"))
    store.drop_pod("pod-y")
    assert room(store) == "n1:1 n2:2"
    store.drop_pod("pod-x")
    assert room(store) == "n1:2 n2:2"


def test_a_volume_that_is_shared_from_now_on_is_taken_off_its_node() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, *TAKES_TWO, using("x", "b"), pod("p").mounting("a"))
    show(store, pod("q").mounting("b"))
    assert room(store) == "n1:1 n2:2"
    store.drop_pod("pod-q")
    assert room(store) == "n1:1 n2:2"


def test_a_node_without_a_limit_takes_any_number() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, TAKES_TWO[0], pod("p").mounting("a"))
    assert room(store) == "n1:2 n2:many"


def test_a_node_that_takes_none_has_no_room_though_no_other_has_a_limit() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, csi_node("n1", fast=0), pod("p").mounting("a"))
    assert room(store) == "n1:0 n2:many"
    show(store, csi_node("n2", fast=0))
    assert room(store) == "n1:0 n2:0"
    store.drop_object(CSINode, "n1")
    assert room(store) == "n1:many n2:0"


def test_a_driver_without_a_limit_costs_no_amount() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, csi_node("n1", other=2), pod("p").mounting("a"))
    assert store.pods["pod-p"].shape == pod("p").value().shape


def test_volumes_that_are_too_many_are_a_want_of_room() -> None:
    said = "0/2 nodes are available: 2 node(s) exceed max volume count. preemption: not eligible"
    store = seeing(*NODES, FAST, *CLAIMS, *TAKES_TWO, pod("p").mounting("a").unschedulable(message=said))
    assert not store.pods["pod-p"].refused


REQUIRED = csi_driver("fast.example.com").with_field({"preventPodSchedulingIfMissing": True}, "spec")
NOT_REQUIRED = csi_driver("fast.example.com").with_field({"preventPodSchedulingIfMissing": False}, "spec")


def installed(name: str) -> CSINodeBuilder:
    return csi_node(name).with_field([{"name": "fast.example.com", "nodeID": name}], "spec", "drivers")


MISSING: list[tuple[str, list[Builder], str]] = [
    ("no pod goes where a required driver is missing", [REQUIRED, installed("n1"), csi_node("n2")], "n1:many n2:0"),
    ("nor where nothing is said of any driver", [REQUIRED, installed("n1")], "n1:many n2:0"),
    ("a limit counts beside", [REQUIRED, TAKES_TWO[0]], "n1:2 n2:0"),
    ("one that need not be there may be missing", [NOT_REQUIRED, installed("n1"), csi_node("n2")], "n1:many n2:many"),
    ("so may one of which there is no CSIDriver", [installed("n1"), csi_node("n2")], "n1:many n2:many"),
]  # fmt: skip


@pytest.mark.parametrize(("drivers", "expected"), [pytest.param(d, e, id=sentence) for sentence, d, e in MISSING])
def test_where_drivers_are_missing(drivers: list[Builder], expected: str) -> None:
    others = [*NODES, FAST, *CLAIMS, pod("p").mounting("a")]
    for order in permutations(drivers):
        assert room(seeing(*others, *order)) == expected
        assert room(seeing(*order, *others)) == expected


def test_a_driver_that_is_installed_opens_its_node() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, pod("p").mounting("a"), REQUIRED, csi_node("n1"))
    assert room(store) == "n1:0 n2:0"
    show(store, installed("n1"))
    assert room(store) == "n1:many n2:0"
    show(store, NOT_REQUIRED)
    assert room(store) == "n1:many n2:many"


def test_while_the_csi_nodes_are_not_known_no_driver_is_missing() -> None:
    store = seeing(*NODES, FAST, *CLAIMS, pod("p").mounting("a"), REQUIRED)
    store.note_state(CSINode, KindState.DENIED)
    assert room(store) == "n1:many n2:many"
    store.note_state(CSINode, KindState.KNOWN)
    assert room(store) == "n1:0 n2:0"
