"""Upstream's cases about groups whose pods share the devices of a ResourceClaim, with upstream's outcome.

They are those of test/integration/dra/pod_group.go and workload_resource_claims.go and of test/e2e/dra/dra.go of
Kubernetes 1.37.1. Claims of a PodGroup itself need the gate DRAWorkloadResourceClaims, in kube-scheduler, too; at the
fallback level a PodGroup has none. 12 nodes of 32 CPU in 4 racks.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from tests.e2e.promises.test_devices import Devices, await_lack, claiming
from tests.support.cluster_stage import ClusterStage, Raw, eventually, names
from tests.support.clusters import LEVELS, Find, at_one_level

pytestmark = pytest.mark.e2e

HOSTNAME = "kubernetes.io/hostname"
TAINT = {"key": "example.com/ill", "value": "yes", "effect": "NoSchedule"}
TOLERANT = {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}
BY_NAME, BY_TEMPLATE = {"resourceClaimName": "shared"}, {"resourceClaimTemplateName": "one"}


@pytest.fixture(scope="session", params=LEVELS)
def cluster(request: pytest.FixtureRequest, shared: Find) -> Cluster:
    return shared(request.param)


@pytest.fixture(scope="package")
def stage_class() -> type[ClusterStage]:
    return ClusterStage


@pytest.fixture
def devices(stage: ClusterStage) -> Iterator[Devices]:
    """A class of devices, of which there are none yet."""
    devices = Devices(stage)
    devices.create_class()
    yield devices
    stage.delete_all_pods()
    devices.clear()


@pytest.fixture
def hosts(stage: ClusterStage) -> list[str]:
    """The first two nodes."""
    return sorted(node["metadata"]["name"] for node in stage.cluster.api.get("/api/v1/nodes")["items"])[:2]


def create_claiming_group(stage: ClusterStage, source: Raw, min_count: int | None = None) -> None:
    """A PodGroup with a claim of its own: a gang, or policy basic for None."""
    policy = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    spec = {"schedulingPolicy": policy, "resourceClaims": [{"name": "gpu", **source}]}
    stage.create_scheduling("PodGroup", "ring", spec)


def list_consumers(devices: Devices) -> dict[str, list[str]]:
    """For whom claims are reserved, as ``RESOURCE NAME``, by the name of the claim."""
    return {
        claim["metadata"]["name"]: sorted(
            f"{each['resource']} {each['name']}" for each in claim.get("status", {}).get("reservedFor", [])
        )
        for claim in devices.api.get(devices.claims)["items"]
    }


def await_consumers(devices: Devices, **expected: list[str]) -> None:
    """Wait until the claims are reserved for these pods and for no others."""
    eventually(f"consumers {expected}", lambda: list_consumers(devices) == expected)


@pytest.mark.parametrize(
    ("min_count", "size"),
    [
        pytest.param(2, 2, id="a gang of two"),
        pytest.param(20, 20, id="a gang of twenty"),
        pytest.param(2, 5, id="a gang of which two would do"),
        pytest.param(None, 2, id="two of no gang"),
        pytest.param(None, 20, id="twenty of no gang"),
    ],
)
@at_one_level("fallback", "beside")
def test_all_pods_of_a_group_share_one_device(
    stage: ClusterStage, devices: Devices, hosts: list[str], min_count: int | None, size: int
) -> None:
    devices.publish(hosts[0], 1)
    devices.create_claim("shared")
    stage.create_group("ring", min_count)
    stage.create_pods(names("ring", size), "ring", **claiming(**BY_NAME))
    stage.await_bound("ring", size, seconds=60)
    assert set(stage.bound("ring").values()) == {hosts[0]}
    assert len(devices.allocated()) == 1


@at_one_level("fallback", "beside")
def test_pods_that_share_a_device_and_may_not_be_on_one_node_wait_both(
    stage: ClusterStage, devices: Devices, hosts: list[str]
) -> None:
    devices.publish(hosts[0], 1)
    devices.create_claim("shared")
    stage.create_group("ring", 2)
    for name, host in zip(names("ring", 2), hosts, strict=True):
        stage.create_pods([name], "ring", **claiming(**BY_NAME), nodeSelector={HOSTNAME: host})
    stage.await_reason("ring", "NoCapacity")
    assert not stage.bound()
    assert not devices.allocated()


@at_one_level("fallback", "beside")
def test_while_there_is_no_device_for_all_nobody_goes_though_two_would_do(
    stage: ClusterStage, devices: Devices, hosts: list[str]
) -> None:
    devices.create_claim("shared")
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 5), "ring", **claiming(**BY_NAME))
    stage.await_reason("ring", "NoCapacity", "only 0 of 2 members fit into the cluster")
    await_lack(stage, "ring", devices)
    assert not stage.reservations()
    assert not stage.held_in_ledger()
    devices.publish(hosts[0], 1)
    stage.await_bound("ring", 5, seconds=60)


@pytest.mark.parametrize("cluster", ["native", "fallback"], indirect=True)
def test_without_the_gate_a_group_has_no_claims(stage: ClusterStage, devices: Devices, hosts: list[str]) -> None:
    if not stage.native:
        with pytest.raises(ApiError, match="are not available"):
            create_claiming_group(stage, BY_NAME)
        return
    devices.publish(hosts[0], 1)
    devices.create_claim("shared")
    create_claiming_group(stage, BY_NAME, 2)
    (group,) = stage.list_groups()
    assert "resourceClaims" not in group["spec"]
    stage.create_pods(names("ring", 2), "ring", **claiming(**BY_NAME))
    stage.await_bound("ring", 2)
    await_consumers(devices, shared=["pods ring-0", "pods ring-1"])


@pytest.mark.full
@pytest.mark.parametrize("cluster", ["beside"], indirect=True)
class TestClaimsOfGroups:
    """PodGroups with claims of their own, to which their pods refer by the same name."""

    def test_such_a_claim_is_the_group_s_for_as_long_as_there_is_the_group(
        self, stage: ClusterStage, devices: Devices, hosts: list[str]
    ) -> None:
        devices.publish(hosts[0], 2)
        devices.create_claim("shared")
        devices.create_claim("other")
        create_claiming_group(stage, BY_NAME)
        both: dict[str, Any] = claiming(**BY_NAME)
        both["containers"][0]["resources"]["claims"].append({"name": "other"})
        both["resourceClaims"].append({"name": "other", "resourceClaimName": "other"})

        stage.create_pods(["ring-0"], "ring", **both)
        stage.await_bound("ring", 1)
        await_consumers(devices, other=["pods ring-0"], shared=["podgroups ring"])
        stage.create_pods(["ring-1"], "ring", **both)
        stage.await_bound("ring", 2)
        await_consumers(devices, other=["pods ring-0", "pods ring-1"], shared=["podgroups ring"])
        assert set(stage.bound("ring").values()) == {hosts[0]}

        stage.delete_pods("ring-0")
        await_consumers(devices, other=["pods ring-1"], shared=["podgroups ring"])
        stage.delete_pods("ring-1")
        await_consumers(devices, other=[], shared=["podgroups ring"])
        stage.delete_group("ring")
        await_consumers(devices, other=[], shared=[])

    @pytest.mark.parametrize("min_count", [4, None], ids=["gang", "no gang"])
    @pytest.mark.parametrize("source", [BY_NAME, BY_TEMPLATE], ids=["by name", "from a template"])
    def test_pods_share_the_claim_of_their_group(
        self, stage: ClusterStage, devices: Devices, hosts: list[str], source: Raw, min_count: int | None
    ) -> None:
        devices.publish(hosts[1], 1)
        if source is BY_NAME:
            devices.create_claim("shared")
        else:
            devices.create_template()
        create_claiming_group(stage, source, min_count)
        stage.create_pods(names("ring", 4), "ring", **claiming(**source))
        stage.await_bound("ring", 4)
        assert set(stage.bound("ring").values()) == {hosts[1]}
        (claim,) = devices.allocated()
        await_consumers(devices, **{claim["metadata"]["name"]: ["podgroups ring"]})

        stage.create_pods(["ring-4"], "ring", **claiming(**source))
        stage.await_bound("ring", 5)
        assert set(stage.bound("ring").values()) == {hosts[1]}

    def test_one_device_too_few_for_two_groups_is_waited_for(
        self, stage: ClusterStage, devices: Devices, hosts: list[str]
    ) -> None:
        devices.publish(hosts[0], 1)
        devices.create_template()
        for group in ("first", "second"):
            spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
            stage.create_scheduling("PodGroup", group, spec | {"resourceClaims": [{"name": "gpu", **BY_TEMPLATE}]})
            stage.create_pods(names(group, 2), group, **claiming(**BY_TEMPLATE))
            if group == "first":
                stage.await_bound("first", 2)
        await_lack(stage, "second", devices)
        assert not stage.bound("second")

        stage.delete_pods(*names("first", 2))
        stage.delete_group("first")
        stage.await_bound("second", 2, seconds=60)

    @pytest.mark.parametrize("tolerant", [False, True], ids=["and waited for", "and taken where that is tolerated"])
    def test_a_tainted_device_is_not_taken(
        self, stage: ClusterStage, devices: Devices, hosts: list[str], *, tolerant: bool
    ) -> None:
        devices.publish(hosts[0], 1, taints=[TAINT])
        devices.create_template(**(TOLERANT if tolerant else {}))
        create_claiming_group(stage, BY_TEMPLATE, 2)
        stage.create_pods(names("ring", 2), "ring", **claiming(**BY_TEMPLATE))
        if tolerant:
            stage.await_bound("ring", 2)
        else:
            stage.await_reason("ring", "NoCapacity")
            assert not stage.bound()
