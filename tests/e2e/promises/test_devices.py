"""Members that ask for devices, which no node shows: 12 nodes of 32 CPU in 4 racks."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.api import ApiError
from cli import main
from tests.e2e.promises.test_preemption import create_high_class
from tests.e2e.promises.test_volumes import Hopeless
from tests.support.cluster_stage import RACK, ClusterStage, Raw, eventually, indexed_spec, names, pod_spec

pytestmark = pytest.mark.e2e

API = "/apis/resource.k8s.io/v1"
CLASSES, SLICES = f"{API}/deviceclasses", f"{API}/resourceslices"
TAINT_RULES = f"{API}/devicetaintrules"
READY = "example.com/attached"
NOW = "2026-01-01T00:00:00Z"


class Devices:
    """The device class of one story, what its resource is called, and the devices of nodes."""

    def __init__(self, stage: ClusterStage) -> None:
        self.stage, self.api = stage, stage.cluster.api
        self.name = f"gpu-{stage.namespace}"
        self.resource = f"{stage.namespace}.example.com/gpu"
        self.claims = f"{API}/namespaces/{stage.namespace}/resourceclaims"
        self.templates = f"{API}/namespaces/{stage.namespace}/resourceclaimtemplates"

    def create_class(self) -> None:
        """A DeviceClass that provides the resource."""
        selector = {"cel": {"expression": f"device.driver == '{self.name}.example.com'"}}
        spec = {"selectors": [selector], "extendedResourceName": self.resource}
        self.api.post(CLASSES, {"metadata": {"name": self.name}, "spec": spec})

    def publish(self, node: str, count: int, **fields: Any) -> None:
        """A node has so many devices, each with these fields, as a driver says it."""
        spec = {
            "driver": f"{self.name}.example.com", "nodeName": node,
            "pool": {"name": f"{self.name}-{node}", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{index}", **fields} for index in range(count)],
        }  # fmt: skip
        self.api.post(SLICES, {"metadata": {"name": f"{self.name}-{node}"}, "spec": spec})

    def publish_card(self, node: str) -> None:
        """A node has a device that is given out whole or in two halves, as drivers say it: by a counter."""
        pool = {"name": f"{self.name}-{node}", "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": f"{self.name}.example.com", "nodeName": node, "pool": pool}
        parts = [
            {
                "name": name,
                "attributes": {"size": {"int": size}},
                "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": str(size)}}}],
            }
            for name, size in (("whole", 2), ("left", 1), ("right", 1))
        ]
        counters = [{"name": "card", "counters": {"memory": {"value": "2"}}}]
        for kind, fields in (("counters", {"sharedCounters": counters}), ("devices", {"devices": parts})):
            self.api.post(SLICES, {"metadata": {"name": f"{self.name}-{node}-{kind}"}, "spec": spec | fields})

    def sized(self, size: int) -> list[Raw]:
        """Selectors of cards, or of halves of them."""
        return [{"cel": {"expression": f'device.attributes["{self.name}.example.com"].size == {size}'}}]

    def create_taint_rule(self, node: str) -> None:
        """An administrator keeps claims off the devices of a node."""
        chosen = {"driver": f"{self.name}.example.com", "pool": f"{self.name}-{node}"}
        taint = {"key": "example.com/sick", "effect": "NoSchedule"}
        self.api.post(
            TAINT_RULES, {"metadata": {"name": self.name}, "spec": {"deviceSelector": chosen, "taint": taint}}
        )

    def create_template(self, **fields: Any) -> None:
        """A template of claims for one device each; ``fields`` are more of the request."""
        self.api.post(self.templates, {"metadata": {"name": "one"}, "spec": {"spec": self._ask(**fields)}})

    def create_claim(self, name: str, **fields: Any) -> None:
        """A claim for one device, if the fields of the request do not say otherwise."""
        self.api.post(self.claims, {"metadata": {"name": name}, "spec": self._ask(**fields)})

    def _ask(self, **fields: Any) -> Raw:
        return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": self.name, **fields}}]}}

    def allocated(self) -> list[Raw]:
        """The claims of the namespace that have their devices."""
        return [claim for claim in self.api.get(self.claims)["items"] if claim.get("status", {}).get("allocation")]

    def prepare(self, claims: list[Raw]) -> None:
        """The driver says of the devices of these claims that they are ready to be used."""
        ready = {"type": READY, "status": "True", "reason": "Attached", "message": "", "lastTransitionTime": NOW}
        for claim in claims:
            given = [
                {name: each[name] for name in ("driver", "pool", "device")} | {"conditions": [ready]}
                for each in claim["status"]["allocation"]["devices"]["results"]
            ]
            self.api.patch(f"{self.claims}/{claim['metadata']['name']}/status", {"status": {"devices": given}})

    def clear(self) -> None:
        """All of it goes."""
        self.stage.delete_all(SLICES)
        self.stage.delete_all(TAINT_RULES)
        self.stage.delete_all(CLASSES)
        self.stage.delete_all(self.templates)
        self.stage.delete_all(self.claims)


@pytest.fixture
def devices(stage: ClusterStage) -> Iterator[Devices]:
    devices = Devices(stage)
    yield devices
    stage.delete_all_pods()
    devices.clear()


@pytest.fixture
def high(stage: ClusterStage) -> str:
    return create_high_class(stage)


def asking(resource: str, amount: int = 1) -> dict[str, Any]:
    """Fields of a pod that asks for an extended resource."""
    amounts = {"cpu": "1", resource: str(amount)}
    container = {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {"containers": [container]}


def claiming(**source: str) -> dict[str, Any]:
    """Fields of a pod with a claim, and where that comes from."""
    container = pod_spec("1")["containers"][0]
    container["resources"]["claims"] = [{"name": "gpu"}]
    return {"containers": [container], "resourceClaims": [{"name": "gpu", **source}]}


def nodes_of_rack(stage: ClusterStage, rack: str) -> list[str]:
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    return sorted(node["metadata"]["name"] for node in nodes if node["metadata"]["labels"][RACK] == rack)


def racks_of(stage: ClusterStage) -> list[str]:
    return sorted({node["metadata"]["labels"][RACK] for node in stage.cluster.api.get("/api/v1/nodes")["items"]})


def create_group_in_a_rack(stage: ClusterStage, name: str, size: int) -> None:
    """A gang that needs one rack.

    Beside native gang scheduling an annotation says so. With the field kube-scheduler tries the racks one by one, and
    says of one of them at random why it has no node (docs/api-levels.md).
    """
    if not stage.beside_native:
        stage.create_group(name, size, RACK)
        return
    policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
    stage.create_scheduling("PodGroup", name, policy, {"scheduling.serried.dev/required-topology": RACK})


def await_lack(stage: ClusterStage, group: str, devices: Devices) -> None:
    """The gang waits for room, and devices are what most nodes lack."""

    def find() -> bool:
        hurdles = (stage.debug_page(group).get("diagnosis") or {}).get("hurdles", ())
        return [each["name"] for each in hurdles][:1] == [f"devices of {devices.name}"]

    eventually(f"{group} lacks devices", find)
    assert stage.debug_page(group)["reason"] in {"NoCapacity", "NoDomainFits"}


def test_a_gang_finds_the_one_rack_that_has_the_devices_of_a_class(stage: ClusterStage, devices: Devices) -> None:
    rack = racks_of(stage)[-1]
    devices.create_class()
    for node in nodes_of_rack(stage, rack):
        devices.publish(node, 2)
    create_group_in_a_rack(stage, "ring", 5)
    stage.create_pods(names("ring", 5), "ring", **asking(devices.resource))
    stage.await_bound("ring", 5)
    assert stage.racks("ring") == {rack}
    assert len(devices.allocated()) == 5


def test_devices_for_half_a_gang_hold_nobody_and_the_missing_one_starts_it(
    stage: ClusterStage, devices: Devices
) -> None:
    first, second, *_ = nodes_of_rack(stage, racks_of(stage)[0])
    devices.create_class()
    devices.publish(first, 2)
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 3), "ring", **asking(devices.resource))
    await_lack(stage, "ring", devices)
    assert not stage.bound()
    assert not stage.reservations()
    assert not devices.allocated()

    devices.publish(second, 1)
    stage.await_bound("ring", 3, seconds=60)
    assert set(stage.bound("ring").values()) == {first, second}


def test_what_no_node_has_and_no_class_provides_is_waited_for(stage: ClusterStage, devices: Devices) -> None:
    create_group_in_a_rack(stage, "ring", 2)
    stage.create_pods(names("ring", 2), "ring", **asking(devices.resource))
    stage.await_reason(
        "ring",
        "NoCapacity",
        f"asks for {devices.resource}, which no node has and no DeviceClass provides",
    )
    eventually("nothing held", lambda: not stage.reservations() and not stage.held_in_ledger())
    versions = {pod["metadata"]["resourceVersion"] for pod in stage.pods()}

    stage.create_group("plain", 2)
    stage.create_pods(names("plain", 2), "plain")
    stage.await_bound("plain", 2)
    assert versions == {pod["metadata"]["resourceVersion"] for pod in stage.pods("ring")}, "nobody was touched again"

    rack = racks_of(stage)[2]
    for node in nodes_of_rack(stage, rack):
        devices.publish(node, 1)
    devices.create_class()
    stage.await_bound("ring", 2)
    assert stage.racks("ring") == {rack}


@pytest.mark.both_levels
def test_a_gang_with_claims_is_bound_whole_where_their_devices_are(stage: ClusterStage, devices: Devices) -> None:
    rack = racks_of(stage)[1]
    devices.create_class()
    create_group_in_a_rack(stage, "ring", 4)
    for name in names("ring", 4):
        devices.create_claim(name)
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name))
    await_lack(stage, "ring", devices)
    for node in nodes_of_rack(stage, rack)[:2]:
        devices.publish(node, 2)
    stage.await_bound("ring", 4)
    assert stage.racks("ring") == {rack}
    assert len(devices.allocated()) == 4


def test_claims_from_a_template_are_waited_for(stage: ClusterStage, devices: Devices) -> None:
    # kube-controller-manager 1.37 makes none for a pod that names a PodGroup while its own gate GenericWorkload is off.
    made = not stage.native or stage.beside_native
    devices.create_class()
    devices.publish(nodes_of_rack(stage, racks_of(stage)[3])[0], 2)
    devices.create_template()
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", **claiming(resourceClaimTemplateName="one"))
    if made:
        stage.await_bound("ring", 2)
        return
    stage.await_reason(
        "ring", "QuorumMissing", "2 of 2 members exist; ring-0 has no ResourceClaim from template one yet"
    )
    assert not stage.reservations()


def test_what_if_counts_the_devices_of_a_template_that_exists(
    stage: ClusterStage, devices: Devices, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices.create_class()
    devices.publish(nodes_of_rack(stage, racks_of(stage)[3])[0], 2)
    devices.create_template()
    manifest = tmp_path / "job.yaml"
    where = ["--server", stage.cluster.ops_url, "--kubeconfig", str(stage.cluster.kubeconfig), "-n", stage.namespace]

    def ask(size: int) -> Raw:
        spec = indexed_spec("serried", "1") | {"parallelism": size, "completions": size}
        spec["template"]["spec"] |= claiming(resourceClaimTemplateName="one")
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
        manifest.write_text(json.dumps(job))
        main(["whatif", str(manifest), "-o", "json", *where])
        (found,) = json.loads(capsys.readouterr().out)["groups"]
        return dict(found)

    # Slices are listed from the first question on.
    eventually("devices that are counted", lambda: ask(2)["message"] == "2 of 2 members fit")
    assert ask(3)["outcome"] == "DoesNotFit"
    assert not stage.pods()


def retraced(stage: ClusterStage, group: str) -> list[str]:
    """Return the gang's decisions after its first plan, without Binding and Scheduled: empty if no member was refused.

    Before it there may be more: on a busy machine the plan is made in slices, and a pod is seen before its claim.
    """
    decided = stage.decisions(group)[::-1]
    planned = [at for at, line in enumerate(decided) if line.startswith("Planned: ")]
    assert planned, decided
    return [line for line in decided[planned[0] + 1 :] if not line.startswith(("Binding: ", "Scheduled: "))]


@pytest.mark.both_levels
def test_two_devices_a_member_are_found_among_those_that_others_have_left(
    stage: ClusterStage, devices: Devices
) -> None:
    """8 members, 4 devices a node, half of them taken: a member for each of 8 nodes."""
    devices.create_class()
    nodes = [name for rack in racks_of(stage) for name in nodes_of_rack(stage, rack)][:8]
    for node in nodes:
        devices.publish(node, 4)
    stage.create_group("taken", 8)
    for name, node in zip(names("taken", 8), nodes, strict=True):
        devices.create_claim(name, count=2)
        on_it = claiming(resourceClaimName=name) | {"nodeSelector": {"kubernetes.io/hostname": node}}
        stage.create_pods([name], "taken", **on_it)
    stage.await_bound("taken", 8)
    stage.create_group("ring", 8)
    for name in names("ring", 8):
        devices.create_claim(name, count=2)
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name))
    stage.await_bound("ring", 8, seconds=2 + 8)
    assert sorted(stage.bound("ring").values()) == sorted(nodes)
    assert not retraced(stage, "ring")
    assert len(devices.allocated()) == 16


@pytest.mark.both_levels
def test_members_that_share_a_claim_are_bound_where_its_device_is(stage: ClusterStage, devices: Devices) -> None:
    node = nodes_of_rack(stage, racks_of(stage)[2])[1]
    devices.create_class()
    devices.publish(node, 1)
    devices.create_claim("shared")
    stage.create_group("ring", 4)
    stage.create_pods(names("ring", 4), "ring", **claiming(resourceClaimName="shared"))
    stage.await_bound("ring", 4)
    assert set(stage.bound("ring").values()) == {node}
    assert not retraced(stage, "ring")


@pytest.mark.both_levels
def test_all_members_get_devices_with_one_value_of_an_attribute(stage: ClusterStage, devices: Devices) -> None:
    devices.create_class()
    nodes = [name for rack in racks_of(stage)[:2] for name in nodes_of_rack(stage, rack)]
    domains = dict(zip(nodes, ["a", "b", "a", "b", "a", "b"], strict=True))
    for name, domain in domains.items():
        devices.publish(name, 1 if domain == "a" else 2, attributes={"nvlink": {"string": domain}})
    policy = {"schedulingPolicy": {"gang": {"minCount": 5}}}
    key = f"{devices.name}.example.com/nvlink"
    stage.create_scheduling("PodGroup", "ring", policy, {"scheduling.serried.dev/required-topology": key})
    for name in names("ring", 5):
        devices.create_claim(name)
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name))
    stage.await_bound("ring", 5)
    assert {domains[node] for node in stage.bound("ring").values()} == {"b"}
    assert not retraced(stage, "ring")


@pytest.mark.both_levels
def test_members_get_the_halves_of_cards_that_nobody_has_whole(stage: ClusterStage, devices: Devices) -> None:
    first, second, third = nodes_of_rack(stage, racks_of(stage)[0])
    devices.create_class()
    for node in (first, second):
        devices.publish_card(node)
    devices.create_claim("whole", selectors=devices.sized(2))
    on_it = claiming(resourceClaimName="whole") | {"nodeSelector": {"kubernetes.io/hostname": first}}
    stage.create_pods(["whole"], **on_it)
    stage.await_bound("whole", 1)
    stage.create_group("ring", 3)
    for name in names("ring", 3):
        devices.create_claim(name, selectors=devices.sized(1))
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name))
    stage.await_reason("ring", "NoCapacity", "only 2 of 3 members fit")
    (hurdle, *_) = stage.debug_page("ring")["diagnosis"]["hurdles"]
    assert hurdle["name"].endswith("within shared counters")
    assert len(devices.allocated()) == 1

    devices.publish_card(third)
    stage.await_bound("ring", 3)
    assert set(stage.bound("ring").values()) == {second, third}


def test_members_get_devices_that_no_rule_taints(stage: ClusterStage, devices: Devices) -> None:
    sick, *well = nodes_of_rack(stage, racks_of(stage)[0])
    devices.create_class()
    for node in (sick, *well):
        devices.publish(node, 2)
    devices.create_taint_rule(sick)
    stage.create_group("ring", 4)
    for name in names("ring", 4):
        devices.create_claim(name)
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name))
    stage.await_bound("ring", 4)
    assert set(stage.bound("ring").values()) == set(well)
    assert not retraced(stage, "ring")


def test_a_gang_of_higher_priority_gets_the_devices_of_others(stage: ClusterStage, devices: Devices, high: str) -> None:
    devices.create_class()
    nodes = nodes_of_rack(stage, racks_of(stage)[0])[:2]
    for node in nodes:
        devices.publish(node, 4)
    for name in names("low", 8):
        devices.create_claim(name)
        stage.create_pods([name], **claiming(resourceClaimName=name))
    stage.await_bound("low", 8)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": high}
    stage.create_scheduling("PodGroup", "ring", spec)
    for name in names("ring", 2):
        devices.create_claim(name, count=3)
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name), priorityClassName=high)
    stage.await_bound("ring", 2, seconds=20)
    assert set(stage.bound("ring").values()) == set(nodes)
    assert len(stage.bound("low")) == 2, "those keep theirs whose devices are not needed"


def test_gangs_go_once_their_claims_and_devices_are_mended(stage: ClusterStage, devices: Devices) -> None:
    with pytest.raises(ApiError, match="ompilation failed"):  # so no claim comes to be that does not compile
        devices.create_claim("broken", selectors=[{"cel": {"expression": "device.attributes["}}])
    devices.create_class()
    late, node = f"{devices.name}-late", nodes_of_rack(stage, racks_of(stage)[0])[0]
    devices.publish(node, 3)
    selector = {"cel": {"expression": f'device.attributes["{devices.name}.example.com"].model == "x"'}}
    devices.create_claim("failing", selectors=[selector])
    devices.create_claim("classless", deviceClassName=late)
    hopeless = Hopeless(stage)
    hopeless.create("missing", "ResourceClaim missing does not exist", **claiming(resourceClaimName="missing"))
    told = f"names DeviceClass {late}, which does not exist"
    hopeless.create("classless", told, **claiming(resourceClaimName="classless"))
    hopeless.create("failing", "fails for device gpu-0 of gpu-", **claiming(resourceClaimName="failing"))
    hopeless.check_nobody_went()

    devices.create_claim("missing")
    hopeless.await_going("missing")
    stage.cluster.api.post(CLASSES, {"metadata": {"name": late}, "spec": {}})
    hopeless.await_going("classless")
    better = [{"name": f"gpu-{index}", "attributes": {"model": {"string": "x"}}} for index in range(3)]
    stage.cluster.api.patch(f"{SLICES}/{devices.name}-{node}", {"spec": {"devices": better}})
    hopeless.await_going("failing")


def test_a_hopeless_claim_is_told_and_nobody_is_evicted(stage: ClusterStage, devices: Devices, high: str) -> None:
    stage.create_pods(names("low", 12), cpu="32")
    stage.await_bound("low", 12)
    devices.create_class()
    devices.create_claim("lonely")
    devices.create_claim("classless", deviceClassName="absent")
    selector = {"cel": {"expression": f'device.attributes["{devices.name}.example.com"].model == "x"'}}
    devices.create_claim("failing", selectors=[selector])
    told = {
        "absent": "ResourceClaim absent does not exist",
        "classless": "ResourceClaim classless names DeviceClass absent, which does not exist",
        "lonely": "only 0 of 1 members fit into the cluster",
        "failing": "fails for device gpu-0 of gpu-",
    }
    for claim, words in told.items():
        if claim == "failing":
            devices.publish(nodes_of_rack(stage, racks_of(stage)[0])[0], 2)
        spec = {"schedulingPolicy": {"gang": {"minCount": 1}}, "priorityClassName": high}
        stage.create_scheduling("PodGroup", claim, spec)
        stage.create_pods([f"{claim}-0"], claim, **claiming(resourceClaimName=claim), priorityClassName=high)
        stage.await_reason(claim, "NoCapacity", words)
        if claim == "lonely":
            stage.delete_pods("lonely-0")
    assert not stage.reservations()
    assert len(stage.bound("low")) == 12


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        pytest.param(4, 15, id="4 members, 15 s"),
        pytest.param(4, 90, id="4 members, 90 s", marks=pytest.mark.full),
        pytest.param(64, 90, id="64 members, 90 s", marks=pytest.mark.full),
    ],
)
def test_a_gang_waits_for_a_driver_that_takes_longer_than_the_barrier_to_attach_its_devices(
    stage: ClusterStage, devices: Devices, size: int, seconds: float
) -> None:
    """kube-scheduler waits for the bindingConditions of a claim for up to 10 minutes, --barrier-idle for 8 s here."""
    nodes = [name for rack in racks_of(stage) for name in nodes_of_rack(stage, rack)]
    devices.create_class()
    for node in nodes:
        devices.publish(
            node, -(-size // len(nodes)), bindingConditions=[READY], bindingFailureConditions=["example.com/failed"]
        )
    stage.create_group("ring", size)
    for name in names("ring", size):
        devices.create_claim(name)
        stage.create_pods([name], "ring", **claiming(resourceClaimName=name))
    eventually("every member has its device", lambda: len(devices.allocated()) == size, seconds=60)
    time.sleep(seconds)  # the driver is at work
    assert not stage.bound("ring")
    devices.prepare(devices.allocated())
    stage.await_bound("ring", size, seconds=60)
    assert not retraced(stage, "ring")
