"""Discovery finds the autoscalers of a cluster, and reports what it may not read."""

from typing import Any

import pytest

from extender.autoscalers import Autoscalers
from extender.options import Autoscaling
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from tests.support.fake_api import error

POOL = {"metadata": {"name": "general"}, "spec": {}}


class Discovered(ApiClient):
    """A cluster that serves these API groups, in v1 or in the version behind the slash, and answers so."""

    def __init__(self, *groups: str, status: ApiError | None = None, pools: ApiError | None = None) -> None:
        self.groups = groups
        self.status, self.pools = status, pools
        self.fault: ApiError | None = None

    async def read(self, path: str, params: Any = None) -> dict[str, Any]:
        if self.fault is not None:
            raise self.fault
        return {"groups": [_describe_group(*group.partition("/")) for group in self.groups]}

    async def list_all(self, resource: object) -> list[dict[str, Any]]:
        if self.pools is not None:
            raise self.pools
        return [POOL]

    async def get(self, *args: Any) -> dict[str, Any]:
        if self.status is not None:
            raise self.status
        return {}


def _describe_group(name: str, _: str, version: str) -> dict[str, Any]:
    version = version or "v1"
    return {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}


async def look(cluster: Discovered) -> Autoscalers:
    found = Autoscalers(cluster, Autoscaling.AUTO, lambda: None)
    await found.refresh()
    return found


@pytest.mark.parametrize(
    ("cluster", "names"),
    [
        pytest.param(Discovered("karpenter.sh", status=error(404)), "Karpenter", id="one with Karpenter's API"),
        pytest.param(Discovered(), "Cluster Autoscaler", id="one with Cluster Autoscaler's status"),
        pytest.param(Discovered("karpenter.sh"), "Karpenter and Cluster Autoscaler", id="one with both"),
        pytest.param(Discovered(status=error(404)), "", id="one with neither"),
        pytest.param(Discovered(status=error(403, "Forbidden")), "", id="one whose status may not be read"),
    ],
)
async def test_a_cluster_is(cluster: Discovered, names: str) -> None:
    found = await look(cluster)
    assert (found.known, found.seen.names) == (True, names)


async def test_node_pools_are_read_and_if_they_may_not_be_that_is_said() -> None:
    assert [pool.name for pool in (await look(Discovered("karpenter.sh"))).seen.pools] == ["general"]
    seen = (await look(Discovered("karpenter.sh", pools=error(403, "Forbidden")))).seen
    assert seen.karpenter
    assert seen.unknown.startswith("Serried cannot read NodePools")


async def test_while_the_api_server_is_silent_what_was_found_before_holds() -> None:
    cluster = Discovered("karpenter.sh", status=error(404))
    found = await look(cluster)
    cluster.fault = error(0)
    await found.refresh()
    assert found.seen.names == "Karpenter"


async def test_an_autoscaler_that_is_removed_is_seen_no_more() -> None:
    cluster = Discovered("karpenter.sh", status=error(404))
    found = await look(cluster)
    cluster.groups = ()
    await found.refresh()
    assert not found.seen


@pytest.mark.parametrize(
    ("group", "usable"),
    [
        pytest.param("autoscaling.x-k8s.io", True, id="v1 are used"),
        pytest.param("autoscaling.x-k8s.io/v1beta1", False, id="v1beta1 alone are not"),
        pytest.param("autoscaling.k8s.io", False, id="no version are not"),
    ],
)
async def test_provisioning_requests_of(group: str, *, usable: bool) -> None:
    assert (await look(Discovered(group))).seen.provisioning is usable


async def test_before_the_first_answer_nothing_is_known() -> None:
    cluster = Discovered()
    cluster.fault = error(0)
    assert not (await look(cluster)).known
