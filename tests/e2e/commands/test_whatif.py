"""Forecasts for a Job as the API server lets it in, compared with what becomes of it: 12 nodes of 32 CPU."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.cluster.installation import kubeconfig
from tests.support.cluster_stage import SCHEDULER, ClusterStage, eventually, indexed_spec
from tests.support.commands import Run

pytestmark = pytest.mark.e2e

Raw = dict[str, Any]

RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


def job(size: int, resources: Raw, **spec: Any) -> Raw:
    """An Indexed Job of so many pods."""
    made = indexed_spec(SCHEDULER, "1") | {"parallelism": size, "completions": size}
    made["template"]["spec"] |= {"containers": [{"name": "main", "image": "none", "resources": resources}], **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"train-{size}"}, "spec": made}


class Asking:
    """Asks what would become of a Job, and creates it."""

    def __init__(self, stage: ClusterStage, serried: Run, directory: Path) -> None:
        self.stage = stage
        self._serried = serried
        self._path = directory / "job.json"

    def foretell(self, wish: Raw, **variables: str) -> Raw:
        self._path.write_text(json.dumps(wish))
        where = ("-n", self.stage.namespace, "--server", self.stage.cluster.ops_url)
        ended = self._serried("whatif", str(self._path), *where, "-o", "json", **variables)
        assert ended.code in {0, 1}, ended.err
        found: Raw = json.loads(ended.out)
        return found

    def fits(self, wish: Raw) -> bool:
        return bool(self.foretell(wish)["fits"])

    def create(self, wish: Raw) -> str:
        self.stage.cluster.api.post(f"/apis/batch/v1/namespaces/{self.stage.namespace}/jobs", wish)
        return self.stage.group_of_job(wish["metadata"]["name"])

    def create_in_namespace(self, plural: str, **fields: Any) -> None:
        path = f"/api/v1/namespaces/{self.stage.namespace}/{plural}"
        self.stage.cluster.api.post(path, {"metadata": {"name": "team"}, **fields})


@pytest.fixture
def asking(stage: ClusterStage, serried: Run, tmp_path: Path) -> Asking:
    return Asking(stage, serried, tmp_path)


def say_nothing(_: Asking) -> Raw:
    return {}


def set_defaults(asking: Asking) -> Raw:
    limit = {"type": "Container", "defaultRequest": {"cpu": "30"}, "default": {"cpu": "30"}}
    asking.create_in_namespace("limitranges", spec={"limits": [limit]})
    return {}


def add_overhead(asking: Asking) -> Raw:
    name = f"heavy-{asking.stage.namespace}"
    made = {"metadata": {"name": name}, "handler": "none", "overhead": {"podFixed": {"cpu": "29"}}}
    asking.stage.cluster.api.post(RUNTIME_CLASSES, made)
    return {"runtimeClassName": name}


@pytest.mark.parametrize(
    ("prepare", "resources", "sizes", "reason"),
    [
        pytest.param(say_nothing, {"limits": {"cpu": "30"}}, (12, 13), "only 12 of 13 members fit", id="limits alone"),
        pytest.param(set_defaults, {}, (12, 13), "only 12 of 13 members fit", id="the defaults of a LimitRange"),
        pytest.param(
            add_overhead,
            {"requests": {"cpu": "1"}},
            (12, 13),
            "only 12 of 13 members fit",
            id="the overhead of a RuntimeClass",
        ),
        pytest.param(
            say_nothing,
            {"limits": {"cpu": "1", "example.com/nothing": "1"}},
            (2,),
            "example.com/nothing, which no node has and no DeviceClass provides",
            id="a resource that nothing brings",
        ),
    ],
)
def test_what_does_not_fit_is_told_and_waits(
    asking: Asking, prepare: Any, resources: Raw, sizes: tuple[int, ...], reason: str
) -> None:
    spec = prepare(asking)
    for size in sizes[:-1]:
        eventually("it fits", partial(asking.fits, job(size, resources, **spec)))
    wish = job(sizes[-1], resources, **spec)
    foretold = asking.foretell(wish)
    assert foretold["unchecked"] == []
    assert [(each["outcome"], reason in each["message"]) for each in foretold["groups"]] == [("DoesNotFit", True)]
    assert not asking.stage.pods()
    asking.stage.await_reason(asking.create(wish), "NoCapacity", reason)


def test_a_quota_without_room_for_the_whole_gang_is_told_and_keeps_it_waiting(asking: Asking) -> None:
    quotas = f"/api/v1/namespaces/{asking.stage.namespace}/resourcequotas/team"
    asking.create_in_namespace("resourcequotas", spec={"hard": {"requests.cpu": "3"}})
    eventually("its usage", lambda: asking.stage.cluster.api.get(quotas)["status"].get("used"))
    resources = {"requests": {"cpu": "1"}}
    eventually("room for three", partial(asking.fits, job(3, resources)))
    foretold = asking.foretell(job(4, resources))
    source = f"Job {asking.stage.namespace}/train-4"
    assert foretold["refused"] == [f"{source}: quota team has 3 of 3 requests.cpu left, and its 4 pods need 4"]
    too_large = asking.foretell(job(2, {"requests": {"cpu": "4"}}))
    assert "is forbidden: exceeded quota: team" in too_large["refused"][0]
    asking.stage.await_reason(asking.create(job(4, resources)), "QuorumMissing", "3 of 4 members exist")


DEVICES = "/apis/resource.k8s.io/v1"
CHANNEL = "compute-domain-default-channel.nvidia.com"


@pytest.fixture
def channels(stage: ClusterStage) -> Iterator[int]:
    """NVIDIA's driver shows the channel of two nodes."""
    api, driver = stage.cluster.api, "compute-domain.nvidia.com"
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    api.post(f"{DEVICES}/deviceclasses", {"metadata": {"name": CHANNEL}, "spec": {"selectors": [selector]}})
    hosts = [each["metadata"]["name"] for each in api.get("/api/v1/nodes")["items"][:2]]
    for host in hosts:
        pool = {"name": host, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": host, "pool": pool, "devices": [{"name": "channel-0"}]}
        api.post(f"{DEVICES}/resourceslices", {"metadata": {"name": f"channel-{host}"}, "spec": spec})
    yield len(hosts)
    for host in hosts:
        api.delete(f"{DEVICES}/resourceslices/channel-{host}")
    api.delete(f"{DEVICES}/deviceclasses/{CHANNEL}")


def test_the_manifest_of_an_nvlink_rack_is_answered_by_its_channels(asking: Asking, channels: int) -> None:
    claims = [{"name": "channel", "resourceClaimTemplateName": "rack-channel"}]
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "rack"},
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "rack-channel"}}},
    }

    def foretell(size: int) -> Raw:
        items = [domain, job(size, {"limits": {"cpu": "1"}}, resourceClaims=claims)]
        return asking.foretell({"apiVersion": "v1", "kind": "List", "items": items})

    eventually("one more has no channel", lambda: not foretell(channels + 1)["fits"])
    found = foretell(channels)
    assert (found["fits"], found["refused"], found["skipped"]) == (True, [], ["ComputeDomain rack"])
    assert len(found["groups"][0]["nodes"]) == channels


def test_who_may_not_create_pods_is_told_what_was_not_checked(asking: Asking, tmp_path: Path) -> None:
    stage = asking.stage
    stage.cluster.kubectl("create", "serviceaccount", "guest", "-n", stage.namespace)
    token = stage.cluster.kubectl("create", "token", "guest", "-n", stage.namespace).strip()
    authority = (stage.cluster.kubeconfig.parent / "pki" / "ca.crt").read_bytes()
    path = tmp_path / "guest"
    path.write_text(json.dumps(kubeconfig(stage.cluster.server, authority, token)))
    foretold = asking.foretell(job(2, {"limits": {"cpu": "1"}}), KUBECONFIG=str(path))
    assert foretold["fits"] is True
    (unchecked,) = foretold["unchecked"]
    assert unchecked.endswith(f"in namespace {stage.namespace}: this needs the right to create pods in the namespace")
