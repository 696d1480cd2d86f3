import pytest

from serried.api.names import Key, Malformed
from serried.api.node import Volume, VolumeClaim, decode_volume
from serried.api.selectors import NodeSelectorTerm, Requirement
from tests.support.builders import PodBuilder, pod
from tests.support.volumes import volume, volume_claim


def test_a_volume_that_says_nothing_is_reached_from_everywhere() -> None:
    assert volume("v").version("7").value() == Volume("v", None, "7")


def test_a_local_volume_is_reached_from_its_node() -> None:
    where = Requirement("kubernetes.io/hostname", "In", ("n1",))
    assert volume("v").local_to("n1").value().terms == (NodeSelectorTerm((where,)),)


def test_a_volume_without_terms_is_reached_from_nowhere() -> None:
    assert volume("v").reached_from().value().terms == ()


def test_a_claim_may_be_bound() -> None:
    assert volume_claim("c").value() == VolumeClaim(Key("default", "c"))
    assert volume_claim("c").bound_to("v").value().volume == "v"


def test_odd_affinity_is_malformed() -> None:
    raw = volume("v").having([], "spec", "nodeAffinity").raw()
    assert decode_volume(raw) == Malformed("PersistentVolume", "v", "nodeAffinity is not an object")


@pytest.mark.parametrize(
    ("builder", "claims"),
    [
        pytest.param(pod("p"), (), id="none"),
        pytest.param(pod("p").mounting("a", "b"), ("a", "b"), id="by name"),
        pytest.param(
            pod("p").having([{"name": "scratch", "ephemeral": {}}], "spec", "volumes"),
            ("p-scratch",),
            id="of an ephemeral volume, by the names of pod and volume",
        ),
        pytest.param(pod("p").having([{"name": "t", "projected": {}}], "spec", "volumes"), (), id="no other volume"),
    ],
)
def test_the_claims_of_a_pod(builder: PodBuilder, claims: tuple[str, ...]) -> None:
    assert builder.value().claims == claims
