"""Changes after which an owner is reconciled."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from controller.process import Controller
from serried.api.group import PodGroup, Policy
from serried.api.level import FALLBACK
from serried.api.names import JOB, Key
from serried.api.parent import OwnerKey
from serried.api.topology import LabelCount, LevelTable, Pool, TopologyLevels
from serried.ops.metrics import ControllerMetrics
from serried.settings import controller_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import job, pod_group, workload


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    """A controller that does not run, and knows a Workload w of Job j."""
    async with FakeApiServer() as server, server.client() as client:
        settings = controller_settings(["--lease="], {})
        made = Controller(settings, client, FALLBACK, ControllerMetrics())
        made.store.put_workload(workload("w").for_job("j").value())
        yield made


@pytest.fixture
def group() -> PodGroup:
    return pod_group("g").gang(2).priority(0).from_template("w", "t").value()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"condition": ("False", "Waiting", "no room")}, id="a reason"),
        pytest.param({"condition": ("True", "Scheduled", ""), "scheduled": True}, id="it runs"),
        pytest.param({"told_natively": True}, id="kube-scheduler has said how it stands"),
        pytest.param({"preempted": 7}, id="it is preempted as a whole"),
    ],
)
async def test_how_a_gang_stands_asks_for_no_look_at_its_owner(
    controller: Controller, group: PodGroup, change: dict[str, Any]
) -> None:
    controller.loop.on_change(group, replace(group, version="2", **change))
    assert len(controller.queue) == 0


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"deleting": True}, id="it is being deleted"),
        pytest.param({"policy": Policy(3)}, id="its minCount"),
        pytest.param({"uid": "other"}, id="it was made anew"),
        pytest.param({"labels": {"a": "b"}}, id="its labels"),
        pytest.param({"template": "u"}, id="its template"),
    ],
)
async def test_what_a_pod_group_is_asks_for_one(
    controller: Controller, group: PodGroup, change: dict[str, Any]
) -> None:
    controller.loop.on_change(group, replace(group, version="2", **change))
    assert len(controller.queue) == 1


async def test_so_does_its_first_sight(controller: Controller, group: PodGroup) -> None:
    controller.loop.on_change(None, group)
    assert len(controller.queue) == 1


async def test_so_does_its_end(controller: Controller, group: PodGroup) -> None:
    controller.loop.on_change(group, None)
    assert len(controller.queue) == 1


def published(label: str, nodes: int) -> TopologyLevels:
    return TopologyLevels("default", {}, LevelTable({}, (Pool("", nodes, {"rack": LabelCount(label, nodes)}),)))


@pytest.mark.parametrize(
    ("new", "looks"),
    [
        pytest.param(published("example.com/rack", 5), 0, id="one node more changes nothing for those that wait"),
        pytest.param(published("example.com/other", 4), 1, id="another label may be what they wait for"),
    ],
)
async def test_who_waits_for_a_level_is_looked_at_when_levels_mean_something_else(
    controller: Controller, new: TopologyLevels, looks: int
) -> None:
    controller.store.put_job(job("waits").size(2).scheduler("serried").topology("spine").value())
    old = published("example.com/rack", 4)
    controller.store.put_levels(old)
    await controller.loop.reconciler.reconcile(OwnerKey(JOB, Key("default", "waits")), 0)
    controller.store.put_levels(new)
    controller.loop.on_change(old, new)
    assert len(controller.queue) == looks
