"""Kueue's configuration, flavors and quotas are read as Kueue 0.19 reads them."""

from typing import Any

import pytest

from cli.check.kueue import (
    Configuration,
    Flavor,
    Manager,
    Outsider,
    Quota,
    WaitForPodsReady,
    decode_configuration,
    decode_flavors,
    decode_manager,
    decode_outsider,
    decode_quotas,
)

CURRENT, OLDER = "config.kueue.x-k8s.io/v1beta2", "config.kueue.x-k8s.io/v1beta1"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
DEFAULTS = WaitForPodsReady(30 * MINUTE, 30 * MINUTE, blocks_admission=False, requeues_by_eviction=True)


NEW = Manager(19)


def configure(api: str = CURRENT, manager: Manager = NEW, **fields: Any) -> Configuration:
    """A configuration with these fields."""
    return decode_configuration("here", {"apiVersion": api, "kind": "Configuration", **fields}, manager)


@pytest.mark.parametrize(
    ("api", "minor", "wait", "expected"),
    [
        pytest.param(CURRENT, 19, None, DEFAULTS, id="0.19 waits 30 minutes without being told to"),
        pytest.param(CURRENT, None, None, DEFAULTS, id="an image without version counts as new"),
        pytest.param(CURRENT, 18, None, None, id="0.18 waits only where it is told to"),
        pytest.param(CURRENT, 18, {}, DEFAULTS, id="an empty field tells 0.18 to wait"),
        pytest.param(
            CURRENT,
            19,
            {
                "timeout": "24h",
                "recoveryTimeout": "1h",
                "blockAdmission": False,
                "requeuingStrategy": {"timestamp": "Creation"},
            },
            WaitForPodsReady(DAY, HOUR, blocks_admission=False, requeues_by_eviction=False),
            id="the recommended settings",
        ),
        pytest.param(
            CURRENT,
            19,
            {"timeout": "2h"},
            WaitForPodsReady(2 * HOUR, 2 * HOUR, blocks_admission=False, requeues_by_eviction=True),
            id="the recovery's time-out is the other one by default",
        ),
        pytest.param(
            CURRENT,
            19,
            {"timeout": "0s", "recoveryTimeout": "0s", "blockAdmission": True},
            WaitForPodsReady(30 * MINUTE, 0, blocks_admission=True, requeues_by_eviction=True),
            id="0 is the default for one, and never for the other",
        ),
        pytest.param(OLDER, 19, None, None, id="v1beta1 does not wait without the field"),
        pytest.param(OLDER, 19, {"timeout": "1h"}, None, id="v1beta1 does not wait unless it is enabled"),
        pytest.param(
            OLDER,
            19,
            {"enable": True},
            WaitForPodsReady(5 * MINUTE, 5 * MINUTE, blocks_admission=True, requeues_by_eviction=True),
            id="v1beta1 waits 5 minutes, and blocks admission",
        ),
    ],
)
def test_how_long_kueue_waits_for_pods(
    api: str, minor: int | None, wait: dict[str, Any] | None, expected: WaitForPodsReady | None
) -> None:
    fields = {} if wait is None else {"waitForPodsReady": wait}
    assert configure(api, Manager(minor), **fields).wait == expected


@pytest.mark.parametrize(
    ("manager", "fields"),
    [
        pytest.param(Manager(19, {"DisableWaitForPodsReady": True}), {}, id="on the command line"),
        pytest.param(Manager(19), {"featureGates": {"DisableWaitForPodsReady": True}}, id="in the configuration"),
    ],
)
def test_a_feature_gate_turns_the_waiting_off(manager: Manager, fields: dict[str, Any]) -> None:
    assert configure(manager=manager, waitForPodsReady={"timeout": "5m"}, **fields).wait is None


def test_resources_that_kueue_computes_are_known() -> None:
    resources = {
        "transformations": [{"input": "nvidia.com/mig-1g", "outputs": {"example.com/memory": "5Gi"}}],
        "deviceClassMappings": [{"name": "example.com/gpus", "deviceClassNames": ["gpu"]}],
    }
    assert configure(resources=resources).computed == {"example.com/memory", "example.com/gpus"}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(None, id="an empty file"),
        pytest.param({"apiVersion": "v1", "kind": "ConfigMap"}, id="another kind"),
        pytest.param({"apiVersion": CURRENT, "kind": "Other"}, id="another kind of Kueue"),
        pytest.param({"apiVersion": CURRENT, "kind": "Configuration", "waitForPodsReady": 5}, id="no field"),
        pytest.param(
            {"apiVersion": CURRENT, "kind": "Configuration", "waitForPodsReady": {"timeout": "5 min"}}, id="no duration"
        ),
    ],
)
def test_a_document_that_is_no_configuration_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_configuration("here", document, Manager())


def manage(image: str, *args: str) -> dict[str, Any]:
    """Kueue's Deployment, with a proxy beside the manager."""
    containers = [{"image": "proxy:v1.0.0"}, {"image": image, "args": list(args)}]
    return {
        "metadata": {"name": "kueue-controller-manager"},
        "spec": {"template": {"spec": {"containers": containers}}},
    }


def test_version_and_gates_are_read_from_the_deployment() -> None:
    told = manage("registry.k8s.io/kueue/kueue:v0.19.1", "--config=/c.yaml", "--feature-gates=A=true,B=false")
    assert decode_manager(told) == Manager(19, {"A": True, "B": False})
    assert decode_manager(manage("registry:5000/kueue:main")) == Manager(None, {})


def test_flavors_have_the_levels_of_their_topology() -> None:
    rack = {"metadata": {"name": "racks"}, "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "host"}]}}
    flavors: list[dict[str, Any]] = [
        {"metadata": {"name": "gpu"}, "spec": {"nodeLabels": {"pool": "gpu"}, "topologyName": "racks"}},
        {"metadata": {"name": "any"}, "spec": {}},
    ]
    gpu, every = decode_flavors(flavors, [rack])
    assert gpu == Flavor("gpu", {"pool": "gpu"}, "racks", ("rack", "host"))
    assert every == Flavor("any", {})
    assert every.selects({})
    assert gpu.selects({"pool": "gpu", "rack": "r1", "host": "n1", "other": "x"})
    assert not gpu.selects({"pool": "gpu", "rack": "r1"})
    assert not gpu.selects({"pool": "cpu", "rack": "r1", "host": "n1"})


def test_quotas_are_read_by_flavor() -> None:
    flavors = [
        {"name": "a", "resources": [{"name": "cpu", "nominalQuota": "2500m"}, {"name": "gpu", "nominalQuota": 8}]},
        {"name": "b", "resources": [{"name": "cpu"}]},
    ]
    queue = {"metadata": {"name": "team"}, "spec": {"resourceGroups": [{"flavors": flavors}]}}
    assert list(decode_quotas(queue)) == [
        Quota("team", "a", {"cpu": 2500, "gpu": 8}),
        Quota("team", "b", {"cpu": 0}),
    ]


@pytest.mark.parametrize(
    ("metadata", "node", "found"),
    [
        pytest.param({}, "n1", True, id="a pod of somebody else takes room"),
        pytest.param({}, "", False, id="a pod without node takes none"),
        pytest.param({"labels": {"kueue.x-k8s.io/podset": "main"}}, "n1", False, id="a label of Kueue"),
        pytest.param({"annotations": {"kueue.x-k8s.io/workload": "w"}}, "n1", False, id="an annotation of Kueue"),
        pytest.param({"labels": {"mine.kueue.x-k8s.io.example.com/x": "y"}}, "n1", True, id="a similar label"),
        pytest.param({"ownerReferences": [{"kind": "DaemonSet"}]}, "n1", False, id="a pod of a DaemonSet"),
        pytest.param({"ownerReferences": [{"kind": "Node"}]}, "n1", False, id="a static pod"),
        pytest.param({"ownerReferences": [{"kind": "Job"}]}, "n1", True, id="a pod of a Job without queue"),
        pytest.param({"namespace": "kube-system"}, "n1", False, id="a pod of the system"),
    ],
)
def test_which_pods_take_room_beside_kueue(metadata: dict[str, Any], node: str, *, found: bool) -> None:
    pod = {"metadata": {"namespace": "team", "name": "p", **metadata}, "spec": {"nodeName": node}}
    assert decode_outsider(pod) == (Outsider("n1", "team/p") if found else None)
