import pytest

from serried.api.names import Key, Malformed
from serried.api.selectors import NodeSelectorTerm, Requirement
from serried.api.volume import ClaimRequirements, Volume, VolumeClaim, decode_volume
from serried.plan.fit import matches_terms
from tests.support.builders import PodBuilder, node, pod
from tests.support.volumes import storage_capacity, volume, volume_claim


def test_a_volume_that_says_nothing_is_reached_from_everywhere() -> None:
    assert volume("v").version("7").value() == Volume("v", version="7")


def test_a_local_volume_is_reached_from_its_node() -> None:
    where = Requirement("kubernetes.io/hostname", "In", ("n1",))
    assert volume("v").local_to("n1").value().terms == (NodeSelectorTerm((where,)),)


def test_a_volume_without_terms_is_reached_from_nowhere() -> None:
    assert volume("v").node_affinity().value().terms == ()


def test_a_node_has_no_name_for_the_affinity_of_a_volume() -> None:
    (term,) = (
        volume("v")
        .node_affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})
        .value()
        .terms
        or ()
    )
    assert not matches_terms((term,), node("n1").value())


def test_nodes_may_know_the_zone_of_an_in_tree_volume_by_its_drivers_label() -> None:
    old = {"key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    disk = (
        volume("v").node_affinity({"matchExpressions": [old]}).with_field({"pdName": "d"}, "spec", "gcePersistentDisk")
    )
    found = disk.value()
    assert found.bound_terms is not None
    for key in ("failure-domain.beta.kubernetes.io/zone", "topology.gke.io/zone"):
        assert matches_terms(found.bound_terms, node("n1").label(key, "a").value())
        assert not matches_terms(found.bound_terms, node("n1").label(key, "b").value())
    assert len(found.terms or ()) == 1
    assert volume("v").node_affinity({"matchExpressions": [old]}).value().bound_terms == found.terms


def test_an_azure_disk_of_an_unmanaged_kind_has_no_driver() -> None:
    disk = volume("v").with_field({"diskName": "d", "kind": "Dedicated"}, "spec", "azureDisk")
    assert not disk.value().driver
    assert disk.with_field("managed", "spec", "azureDisk", "kind").value().driver == "disk.csi.azure.com"


def test_a_claim_may_be_bound() -> None:
    assert volume_claim("c").value() == VolumeClaim(Key("default", "c"), "persistentvolumeclaim-c")
    assert volume_claim("c").bound_to("v").value().bound


def test_a_claim_is_bound_once_kube_controller_manager_says_so() -> None:
    assert not volume_claim("c").with_field("v", "spec", "volumeName").value().bound


def test_the_old_annotation_of_a_class_goes_before_the_field() -> None:
    old = {"volume.beta.kubernetes.io/storage-class": "old"}
    both = volume_claim("c").requesting("new").with_field(old, "metadata", "annotations")
    assert both.value().wish == ClaimRequirements("old", 1 << 30, frozenset({"ReadWriteOnce"}))
    assert volume("v").available("new").with_field(old, "metadata", "annotations").value().storage_class == "old"


def test_what_a_driver_can_provision_is_the_largest_volume_where_it_says_that() -> None:
    said = storage_capacity("s", "fast", "10Gi", rack="a")
    assert said.value().limit == 10 << 30
    assert said.with_field("1Gi", "maximumVolumeSize").value().limit == 1 << 30
    unknown = said.with_field(None, "capacity").with_field(None, "nodeTopology").value()
    assert (unknown.limit, unknown.nodes) == (-1, None)


def test_odd_affinity_is_malformed() -> None:
    raw = volume("v").with_field([], "spec", "nodeAffinity").raw()
    assert decode_volume(raw) == Malformed("PersistentVolume", "v", "nodeAffinity is not an object")


@pytest.mark.parametrize(
    ("builder", "claims"),
    [
        pytest.param(pod("p"), (), id="none"),
        pytest.param(pod("p").mounting("a", "b"), ("a", "b"), id="by name"),
        pytest.param(
            pod("p").with_field([{"name": "scratch", "ephemeral": {}}], "spec", "volumes"),
            ("p-scratch",),
            id="of an ephemeral volume, by the names of pod and volume",
        ),
        pytest.param(
            pod("p").with_field([{"name": "t", "projected": {}}], "spec", "volumes"), (), id="no other volume"
        ),
    ],
)
def test_the_claims_of_a_pod(builder: PodBuilder, claims: tuple[str, ...]) -> None:
    assert builder.value().claims == claims
