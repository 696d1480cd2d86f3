"""Calls of the API client, with the same result on both fakes: the server behind a socket, and the client in memory.

Tests of one part may use either, so both must refuse what the real API server refuses. What only the server has (pages,
watches, JSON patches, other resources) is in ``test_fake_apiserver.py``.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from serried.api.names import Key
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, Conflict, NotFound, Unavailable
from serried.kube.wire import NODES, PODS, RESERVATIONS, Selection, select_name
from tests.support.apiserver import FakeApiServer
from tests.support.builders import NodeBuilder, PodBuilder, node, pod
from tests.support.fake_api import FakeApi
from tests.support.faults import calls

NAMESPACE = "default"


class OverSocket:
    """The fake API server, and a real client of it."""

    def __init__(self, server: FakeApiServer, client: ApiClient) -> None:
        self._server = server
        self.client = client

    def add_pod(self, builder: PodBuilder) -> None:
        self._server.add(PODS, builder.raw())

    def add_node(self, builder: NodeBuilder) -> None:
        self._server.add(NODES, builder.raw())

    def lose_answer_to_create(self) -> None:
        self._server.lose_answer(calls("POST", "/reservations"), times=10)


class InMemory:
    """The fake client."""

    def __init__(self) -> None:
        self._api = FakeApi()
        self.client = self._api.client()

    def add_pod(self, builder: PodBuilder) -> None:
        raw = builder.raw()
        self._api.pods[Key(NAMESPACE, raw["metadata"]["name"])] = raw

    def add_node(self, builder: NodeBuilder) -> None:
        raw = builder.version("0").raw()
        self._api.nodes[Key("", raw["metadata"]["name"])] = raw

    def lose_answer_to_create(self) -> None:
        self._api.lose_answer("create")


Api = OverSocket | InMemory


@pytest.fixture(params=[OverSocket, InMemory], ids=["over a socket", "in memory"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    if request.param is InMemory:
        yield InMemory()
        return
    async with FakeApiServer() as server, server.client() as client:
        yield OverSocket(server, client)


def record(name: str = "r", **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "spec": {"phase": "Planned"}}


def at(raw: dict[str, Any], *path: str) -> Any:
    """A field of an object, None where it is not there."""
    found: Any = raw
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found


async def create(api: Api, name: str = "r") -> dict[str, Any]:
    return await api.client.create(RESERVATIONS, NAMESPACE, record(name))


async def read(api: Api, name: str = "p") -> dict[str, Any]:
    return await api.client.get(PODS, NAMESPACE, name)


async def select(api: Api, name: str) -> list[dict[str, Any]]:
    """The objects of this name."""
    named = Selection(NAMESPACE, fields=select_name(name))
    return [found async for found in api.client.items(RESERVATIONS, named)]


async def bind(api: Api, node: str = "n1", uid: str = "pod-p", **how: Any) -> None:
    await api.client.bind(NAMESPACE, "p", uid, node, **how)


class TestGet:
    async def test_answers_the_object_as_it_was_made(self, api: Api) -> None:
        made = await create(api)
        assert await api.client.get(RESERVATIONS, NAMESPACE, "r") == made

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await api.client.get(RESERVATIONS, NAMESPACE, "r")

    async def test_answers_a_copy(self, api: Api) -> None:
        await create(api)
        (await api.client.get(RESERVATIONS, NAMESPACE, "r"))["spec"]["phase"] = "changed by its reader"
        found = await api.client.get(RESERVATIONS, NAMESPACE, "r")
        assert found["spec"]["phase"] == "Planned"


class TestList:
    async def test_answers_every_object_of_the_resource(self, api: Api) -> None:
        api.add_pod(pod("p"))
        made = [await create(api, name) for name in ("r", "s")]
        assert await api.client.list_all(RESERVATIONS) == made

    async def test_answers_the_one_object_of_a_name_in_a_namespace(self, api: Api) -> None:
        made = [await create(api, name) for name in ("r", "s")]
        elsewhere = {**record("r"), "metadata": {"name": "r", "namespace": "elsewhere"}}
        await api.client.create(RESERVATIONS, "elsewhere", elsewhere)
        assert await select(api, "r") == made[:1]
        assert await select(api, "nobody") == []

    @pytest.mark.parametrize("name", ["", "r,metadata.namespace=default", "a=b", "back\\slash"])
    async def test_of_a_name_that_no_object_can_have_answers_none(self, api: Api, name: str) -> None:
        await create(api)
        assert await select(api, name) == []


class TestCreate:
    async def test_gives_uid_and_resource_version(self, api: Api) -> None:
        one, other = await create(api, "r"), await create(api, "s")
        assert one["spec"] == {"phase": "Planned"}
        for field in ("uid", "resourceVersion"):
            assert one["metadata"][field]
            assert one["metadata"][field] != other["metadata"][field]

    async def test_refuses_a_name_that_is_taken(self, api: Api) -> None:
        await create(api)
        with pytest.raises(AlreadyExists):
            await create(api)

    async def test_that_is_done_though_its_answer_is_lost(self, api: Api) -> None:
        api.lose_answer_to_create()
        with pytest.raises((Unavailable, AlreadyExists)):
            await create(api)
        assert (await api.client.get(RESERVATIONS, NAMESPACE, "r"))["spec"] == {"phase": "Planned"}


class TestReplace:
    async def test_writes_over_the_version_that_it_names(self, api: Api) -> None:
        made = await create(api)
        after = await api.client.replace(RESERVATIONS, {**made, "spec": {"phase": "Committed"}})
        assert after["spec"] == {"phase": "Committed"}
        assert after["metadata"]["uid"] == made["metadata"]["uid"]
        assert after["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
        assert await api.client.get(RESERVATIONS, NAMESPACE, "r") == after

    async def test_refuses_a_version_that_is_not_the_newest(self, api: Api) -> None:
        made = await create(api)
        await api.client.replace(RESERVATIONS, {**made, "spec": {"phase": "Committed"}})
        with pytest.raises(Conflict):
            await api.client.replace(RESERVATIONS, {**made, "spec": {"phase": "Planned"}})
        assert (await api.client.get(RESERVATIONS, NAMESPACE, "r"))["spec"] == {"phase": "Committed"}

    async def test_refuses_another_uid(self, api: Api) -> None:
        made = await create(api)
        version = made["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await api.client.replace(RESERVATIONS, record(uid="another", resourceVersion=version))

    async def test_writes_over_any_version_if_it_names_none(self, api: Api) -> None:
        made = await create(api)
        after = await api.client.replace(RESERVATIONS, {**record(), "spec": {"phase": "Committed"}})
        assert after["spec"] == {"phase": "Committed"}
        assert after["metadata"]["uid"] == made["metadata"]["uid"]

    async def test_that_changes_nothing_makes_no_version(self, api: Api) -> None:
        made = await create(api)
        assert await api.client.replace(RESERVATIONS, made) == made

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await api.client.replace(RESERVATIONS, record())


class TestDelete:
    async def test_takes_the_object_away(self, api: Api) -> None:
        await create(api)
        await api.client.delete(RESERVATIONS, NAMESPACE, "r")
        assert await api.client.list_all(RESERVATIONS) == []

    async def test_keeps_to_its_preconditions(self, api: Api) -> None:
        metadata = (await create(api))["metadata"]
        with pytest.raises(Conflict):
            await api.client.delete(RESERVATIONS, NAMESPACE, "r", uid="another")
        with pytest.raises(Conflict):
            await api.client.delete(RESERVATIONS, NAMESPACE, "r", metadata["uid"], version="another")
        await api.client.delete(RESERVATIONS, NAMESPACE, "r", metadata["uid"], metadata["resourceVersion"])
        assert await api.client.list_all(RESERVATIONS) == []

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await api.client.delete(RESERVATIONS, NAMESPACE, "r")


class TestPatch:
    async def test_merges_and_none_takes_away(self, api: Api) -> None:
        api.add_pod(pod("p").label("app", "x").gate("g"))
        patch = {"metadata": {"labels": {"tier": "1"}}, "spec": {"schedulingGates": None}}
        after = await api.client.patch_merge(PODS, NAMESPACE, "p", patch)
        assert after["metadata"]["labels"] == {"app": "x", "tier": "1"}
        assert at(after, "spec", "schedulingGates") is None
        assert await read(api) == after

    async def test_of_the_status_changes_nothing_else(self, api: Api) -> None:
        api.add_pod(pod("p"))
        both = {"spec": {"nodeName": "n1"}, "status": {"nominatedNodeName": "n1"}}
        after = await api.client.patch_merge(PODS, NAMESPACE, "p", both, "status")
        assert at(after, "status", "nominatedNodeName") == "n1"
        assert at(after, "spec", "nodeName") is None

    async def test_of_the_object_does_not_change_its_status(self, api: Api) -> None:
        api.add_pod(pod("p"))
        both = {"metadata": {"annotations": {"kick": "1"}}, "status": {"nominatedNodeName": "n1"}}
        after = await api.client.patch_merge(PODS, NAMESPACE, "p", both)
        assert at(after, "metadata", "annotations", "kick") == "1"
        assert at(after, "status", "nominatedNodeName") is None

    async def test_refuses_another_uid(self, api: Api) -> None:
        api.add_pod(pod("p"))
        with pytest.raises(Conflict):
            await api.client.patch_merge(PODS, NAMESPACE, "p", {"metadata": {"uid": "another", "labels": {"a": "b"}}})
        assert at(await read(api), "metadata", "labels", "a") is None

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await api.client.patch_merge(PODS, NAMESPACE, "p", {"metadata": {"labels": {"a": "b"}}})


class TestPatchOfANode:
    async def read(self, api: Api) -> dict[str, Any]:
        """The node as a list of its name has it."""
        (found,) = [each async for each in api.client.items(NODES, Selection(fields=select_name("n")))]
        return found

    async def annotate(self, api: Api, version: str, **annotations: str | None) -> None:
        body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
        await api.client.patch_merge(NODES, "", "n", body)

    async def test_changes_the_annotations_that_it_names_and_the_version(self, api: Api) -> None:
        api.add_node(node("n").cpu(1).with_field("kept", "metadata", "annotations", "kept"))
        before = await self.read(api)
        await self.annotate(api, before["metadata"]["resourceVersion"], added="a")
        between = await self.read(api)
        assert between["metadata"]["annotations"] == {"kept": "kept", "added": "a"}
        assert between["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
        await self.annotate(api, between["metadata"]["resourceVersion"], added=None)
        assert (await self.read(api))["metadata"]["annotations"] == {"kept": "kept"}

    async def test_of_what_has_changed_since_it_was_read_is_refused(self, api: Api) -> None:
        api.add_node(node("n").cpu(1))
        version = (await self.read(api))["metadata"]["resourceVersion"]
        await self.annotate(api, version, added="a")
        with pytest.raises(Conflict):
            await self.annotate(api, version, added="b")
        assert (await self.read(api))["metadata"]["annotations"] == {"added": "a"}


class TestBind:
    async def test_gives_the_pod_its_node_and_annotations_and_ends_its_nomination(self, api: Api) -> None:
        api.add_pod(pod("p").nominated("n1"))
        await bind(api, annotations={"rank": "0"})
        bound = await read(api)
        assert at(bound, "spec", "nodeName") == "n1"
        assert at(bound, "metadata", "annotations", "rank") == "0"
        assert at(bound, "status", "nominatedNodeName") is None
        assert {"type": "PodScheduled", "status": "True"} in bound["status"]["conditions"]

    async def test_twice_to_the_same_node_is_done(self, api: Api) -> None:
        api.add_pod(pod("p"))
        await bind(api)
        await bind(api)
        assert at(await read(api), "spec", "nodeName") == "n1"

    async def test_twice_to_different_nodes_is_refused(self, api: Api) -> None:
        api.add_pod(pod("p"))
        await bind(api, "n1")
        with pytest.raises(Conflict):
            await bind(api, "n2")
        assert at(await read(api), "spec", "nodeName") == "n1"

    @pytest.mark.parametrize("gated", [pod("p").gate("g"), pod("p").deleting()], ids=["gated", "being deleted"])
    async def test_refuses_a_pod_that_cannot_run(self, api: Api, gated: PodBuilder) -> None:
        api.add_pod(gated)
        with pytest.raises(Conflict):
            await bind(api)
        assert at(await read(api), "spec", "nodeName") is None

    async def test_refuses_another_uid(self, api: Api) -> None:
        api.add_pod(pod("p"))
        with pytest.raises(Conflict):
            await bind(api, uid="another")

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await bind(api)

    async def test_asks_first_and_is_not_sent_if_the_answer_is_no(self, api: Api) -> None:
        def forbid() -> None:
            raise LookupError

        api.add_pod(pod("p"))
        with pytest.raises(LookupError):
            await bind(api, before=forbid)
        assert at(await read(api), "spec", "nodeName") is None


class TestRehearseEviction:
    async def test_leaves_the_pod_where_it_is(self, api: Api) -> None:
        api.add_pod(pod("p").on("n1"))
        await api.client.rehearse_eviction(NAMESPACE, "p", "pod-p")
        assert len(await api.client.list_all(PODS)) == 1

    async def test_refuses_another_uid(self, api: Api) -> None:
        api.add_pod(pod("p").on("n1"))
        with pytest.raises(Conflict):
            await api.client.rehearse_eviction(NAMESPACE, "p", "another")

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await api.client.rehearse_eviction(NAMESPACE, "p", "pod-p")


class TestEvict:
    async def test_takes_the_pod_away(self, api: Api) -> None:
        api.add_pod(pod("p").on("n1"))
        await api.client.evict(NAMESPACE, "p", "pod-p")
        assert await api.client.list_all(PODS) == []

    async def test_refuses_another_uid(self, api: Api) -> None:
        api.add_pod(pod("p").on("n1"))
        with pytest.raises(Conflict):
            await api.client.evict(NAMESPACE, "p", "another")

    async def test_of_what_is_not_there_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound):
            await api.client.evict(NAMESPACE, "p", "pod-p")


class TestPatchStrategic:
    async def patch(self, api: Api, uid: str = "pod-p", **condition: str) -> dict[str, Any]:
        patch = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        return await api.client.patch_strategic(PODS, NAMESPACE, "p", patch, "status")

    async def test_puts_one_condition_beside_others_and_changes_it_by_its_type(self, api: Api) -> None:
        api.add_pod(pod("p"))
        await self.patch(api, type="Ready", status="True")
        await self.patch(api, type="Odd", status="False", reason="Old")
        after = await self.patch(api, type="Odd", status="True")
        wanted = {
            "Ready": {"type": "Ready", "status": "True"},
            "Odd": {"type": "Odd", "status": "True", "reason": "Old"},
        }
        assert {each["type"]: each for each in after["status"]["conditions"]} == wanted

    async def test_takes_one_condition_away_and_leaves_the_others(self, api: Api) -> None:
        api.add_pod(pod("p"))
        for kind in ("Ready", "Odd"):
            await self.patch(api, type=kind, status="True")
        await self.patch(api, **{"type": "Odd", "$patch": "delete"})
        assert at(await read(api), "status", "conditions") == [{"type": "Ready", "status": "True"}]

    async def test_of_a_pod_that_was_made_anew_is_refused(self, api: Api) -> None:
        api.add_pod(pod("p"))
        with pytest.raises(Conflict):
            await self.patch(api, uid="an-earlier-one", type="Odd", status="True")
