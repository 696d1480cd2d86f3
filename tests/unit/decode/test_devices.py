import pytest

from serried.api.device import DeviceClass, decode_device_class
from serried.api.names import Malformed
from serried.api.pod import HELD
from serried.plan.fit import count_fitting
from tests.support.builders import node, pod, pod_group
from tests.support.devices import device_class, held_message, rejection_message

IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


def test_a_class_provides_the_resource_of_its_name() -> None:
    assert device_class("gpu").value() == DeviceClass("gpu")
    assert device_class("gpu").value().provides == {IMPLICIT}


def test_and_the_one_that_it_names() -> None:
    found = device_class("gpu").extended_resource("example.com/gpu").version("7").value()
    assert found == DeviceClass("gpu", "example.com/gpu", "7")
    assert found.provides == {IMPLICIT, "example.com/gpu"}


@pytest.mark.parametrize("raw", [{"metadata": {}}, {"metadata": {"name": "g"}, "spec": {"extendedResourceName": 1}}])
def test_a_class_that_cannot_be_read_is_malformed(raw: dict[str, object]) -> None:
    assert isinstance(decode_device_class(raw), Malformed)


def test_claims_of_devices_are_read_of_pods_and_of_groups() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}, {"name": "nic", "resourceClaimName": "mine"}]
    assert pod("p").with_field(claims, "spec", "resourceClaims").value().device_claims == ("claim", "template one")
    assert pod_group("g").gang(2).with_field(claims, "spec", "resourceClaims").value().device_claims == (
        "claim",
        "template one",
    )
    assert pod("p").value().device_claims == pod_group("g").gang(2).value().device_claims == ()


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        pytest.param([], "one", id="before the claim is made"),
        pytest.param([{"name": "other", "resourceClaimName": "x"}], "one", id="while only another one is"),
        pytest.param([{"name": "gpu", "resourceClaimName": "p-gpu-7"}], "", id="once it is made"),
        pytest.param([{"name": "gpu"}], "", id="where none is needed"),
    ],
)
def test_a_pod_lacks_its_claim_until_its_status_names_it(statuses: list[dict[str, str]], expected: str) -> None:
    claims = [{"name": "nic", "resourceClaimName": "mine"}, {"name": "gpu", "resourceClaimTemplateName": "one"}]
    found = (
        pod("p").with_field(claims, "spec", "resourceClaims").with_field(statuses, "status", "resourceClaimStatuses")
    )
    assert found.value().unclaimed == expected


def test_pods_with_other_claims_are_of_another_class_that_fits_wherever_the_rest_does() -> None:
    plain, claiming = (
        pod("p").cpu(1),
        pod("p").cpu(1).with_field([{"resourceClaimName": "c"}], "spec", "resourceClaims"),
    )
    assert plain.value().shape != claiming.value().shape
    assert count_fitting(claiming.value().shape, node("n").cpu(4).pods(9).value(), None) == 4


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            rejection_message("12 cannot allocate all claims"), "12 cannot allocate all claims", id="no device"
        ),
        pytest.param(
            rejection_message("4 Insufficient cpu", "8 Insufficient example.com/gpu"),
            "4 Insufficient cpu, 8 Insufficient example.com/gpu",
            id="where one of the reasons is news, all are told",
        ),
        pytest.param(
            "0/3 nodes are available: 3 node(s) had a tale.", "3 node(s) had a tale", id="without an epilogue"
        ),
        pytest.param(
            'running PreFilter plugin "DynamicResources": no such claim', "", id="an error is no word about nodes"
        ),
        pytest.param(
            rejection_message("2 Insufficient cpu", "10 Too many pods"), "", id="what a plan counts is no objection"
        ),
        pytest.param(
            rejection_message(
                "6 node(s) didn't match Pod's node affinity/selector",
                "3 node(s) had untolerated taint {example.com/gpu: yes}",
                "3 node(s) were unschedulable",
            ),
            "",
            id="nor is what a plan knows of nodes",
        ),
        pytest.param(held_message("11 cannot allocate all claims"), "", id="a node that we held it back from would do"),
        pytest.param(
            "0/96 nodes are available: 88 node(s) had a tale.", "", id="of some nodes nothing was said: they would do"
        ),
        pytest.param(
            rejection_message('persistentvolumeclaim "data" not found'),
            'persistentvolumeclaim "data" not found',
            id="what is said of the pod has no number of nodes",
        ),
        pytest.param("", "", id="nothing was said"),
    ],
)
def test_the_schedulers_word_about_a_pod_that_no_node_takes(message: str, expected: str) -> None:
    assert pod("p").unschedulable(message=message).value().objection == expected


def test_a_pod_that_is_held_by_a_gate_was_not_tried() -> None:
    text = rejection_message("12 cannot allocate all claims")
    assert pod("p").unschedulable("SchedulingGated", text).value().objection == ""
    assert pod("p").value().objection == ""


def test_what_filter_says_is_found_again_in_the_condition() -> None:
    assert HELD in held_message()


APART = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "ring"}}}


@pytest.mark.parametrize(
    ("reason", "wants_room"),
    [
        pytest.param("12 cannot allocate all claims", False, id="devices are no room"),
        pytest.param("12 node(s) didn't match pod topology spread constraints", False, id="nor is spread"),
        pytest.param("12 node(s) didn't match pod anti-affinity rules", False, id="nor who else is there"),
        pytest.param("1 Insufficient cpu, 11 node(s) had a tale", True, id="some nodes lack only room"),
        pytest.param("12 Insufficient example.com/gpu", True, id="what nodes show is room"),
        pytest.param("12 node(s) didn't have free ports for the requested pod ports", True, id="so are host ports"),
        pytest.param("12 node(s) didn't match pod affinity rules", True, id="mates may come that it must be beside"),
    ],
)
def test_room_is_what_a_pod_may_lack_on_some_nodes(reason: str, wants_room: bool) -> None:  # noqa: FBT001
    found = pod("p").unschedulable(message=rejection_message(reason)).value()
    assert (found.wants_room, found.refused) == (wants_room, not wants_room)


def test_anti_affinity_by_host_name_is_counted_so_it_is_room() -> None:
    terms = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}}
    apart = pod("p").label("app", "ring").with_field(terms, "spec", "affinity")
    message = rejection_message("12 node(s) didn't match pod anti-affinity rules")
    assert apart.unschedulable(message=message).value().wants_room
