"""The status of TopologyLevels says what the nodes say; nobody writes it twice, and a refusal stops nobody."""

from collections.abc import AsyncIterator

import pytest

from extender.features.status.levels import LevelReport
from serried.api.topology import DEFAULT, TopologyLevels, decode_topology_levels
from serried.cluster.cache import Store
from serried.kube.client import ApiClient
from serried.kube.wire import JSON, TOPOLOGY_LEVELS
from serried.rules.all import RULES
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node
from tests.support.faults import calls

RACK = "topology.k8s.aws/network-node-layer-3"


class Scene:
    """A Store of one node, which the test shows what is on the server."""

    def __init__(self, server: FakeApiServer, client: ApiClient) -> None:
        self.server = server
        self.now = 0.0
        self.store = Store(["serried"], rules=RULES)
        self.store.put_node(node("n").label(RACK, "r").value())
        self.report = LevelReport(client, self.store.levels, lambda: True, lambda: self.now)

    @property
    def written(self) -> JSON | None:
        return self.server.get_object(TOPOLOGY_LEVELS, "", DEFAULT)

    def show(self) -> None:
        decoded = decode_topology_levels(self.written)
        assert isinstance(decoded, TopologyLevels)
        self.store.put_levels(decoded)

    def count_writes(self) -> int:
        return len(self.server.list_requests(lambda request: request.method in {"POST", "PATCH"}))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with FakeApiServer() as server, server.client() as client:
        yield Scene(server, client)


async def test_the_object_is_made_and_its_status_written_once(scene: Scene) -> None:
    await scene.report.write_if_changed()
    scene.show()
    await scene.report.write_if_changed()
    scene.show()
    await scene.report.write_if_changed()
    assert scene.count_writes() == 2
    assert scene.store.levels.published == scene.store.levels.table
    assert scene.store.levels.published is not None
    assert scene.store.levels.published.find_label("rack", ()) == RACK


async def test_it_follows_the_nodes(scene: Scene) -> None:
    await scene.report.write_if_changed()
    scene.show()
    await scene.report.write_if_changed()
    scene.show()
    scene.store.drop_node("n")
    await scene.report.write_if_changed()
    scene.show()
    assert scene.store.levels.published is not None
    assert scene.store.levels.published.find_label("rack", ()) == ""


async def test_mere_counts_are_written_now_and_then(scene: Scene) -> None:
    for _ in range(2):
        await scene.report.write_if_changed()
        scene.show()
    for number in range(3):
        scene.store.put_node(node(f"more{number}").label(RACK, "r").value())
        await scene.report.write_if_changed()
    assert scene.count_writes() == 2
    scene.now = 30.0
    await scene.report.write_if_changed()
    scene.show()
    assert scene.count_writes() == 3
    assert scene.store.levels.published == scene.store.levels.table


async def test_one_that_the_watch_does_not_show_yet_is_left_alone_ever_longer(scene: Scene) -> None:
    first = scene.report.delay
    await scene.report.write_if_changed()
    await scene.report.write_if_changed()
    await scene.report.write_if_changed()
    assert scene.written is not None
    assert "status" not in scene.written
    assert scene.report.delay > first
    scene.show()
    await scene.report.write_if_changed()
    assert scene.report.delay == first


async def test_a_refusal_is_logged_once_and_ends(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.server.reject(calls("POST", "/topologylevels"), times=2, status=403)
    for _ in range(3):
        await scene.report.write_if_changed()
    assert caplog.text.count("cannot write TopologyLevels") == 1
    assert scene.written is not None
