"""The fake API server keeps to the rules of the real one that Serried leans on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError, Conflict, Gone, Invalid, NotFound
from serried.kube.wire import INITIAL_EVENTS_END, NODES, PODS, RESERVATIONS, LineSplitter
from tests.support.apiserver import FakeApiServer
from tests.support.selectors import match_selectors


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    async with server.client() as client:
        yield client


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, **fields}


async def read_watch(client: ApiClient, count: int, **params: str) -> list[tuple[str, dict[str, Any]]]:
    """The first ``count`` events of a watch of Pods."""
    lines, events = LineSplitter(), []
    async with client.stream(PODS.path(), {"watch": "true", **params}) as chunks, asyncio.timeout(10):
        async for chunk in chunks:
            events += [orjson.loads(line) for line in lines.feed(chunk)]
            if len(events) >= count:
                break
    return [(event["type"], event["object"]) for event in events]


async def test_create_owns_metadata_and_drops_status(client: ApiClient) -> None:
    made = await client.create(PODS, "ns", named("a", status={"phase": "Running"}))
    assert made["status"] == {"phase": "Pending"}
    assert {"uid", "resourceVersion", "creationTimestamp", "generation"} <= set(made["metadata"])
    with pytest.raises(AlreadyExists):
        await client.create(PODS, "ns", named("a"))
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await client.create(PODS, "ns", {"spec": {}})
    generated = await client.create(PODS, "ns", {"metadata": {"generateName": "g-"}})
    assert generated["metadata"]["name"].startswith("g-")


async def test_status_and_spec_are_written_apart(client: ApiClient) -> None:
    await client.create(RESERVATIONS, "ns", named("r", spec={"a": 1}))
    both = {"spec": {"a": 2}, "status": {"b": 1}}
    changed = await client.patch_merge(RESERVATIONS, "ns", "r", both)
    assert (changed["spec"], changed.get("status")) == ({"a": 2}, None)
    assert changed["metadata"]["generation"] == 2
    stated = await client.patch_merge(RESERVATIONS, "ns", "r", {"spec": {"a": 3}, "status": {"b": 2}}, "status")
    assert (stated["spec"], stated["status"]) == ({"a": 2}, {"b": 2})
    assert stated["metadata"]["generation"] == 2


async def test_a_write_that_changes_nothing_makes_no_version(server: FakeApiServer, client: ApiClient) -> None:
    made = await client.create(PODS, "ns", named("a", spec={"x": 1}))
    again = await client.patch_merge(PODS, "ns", "a", {"spec": {"x": 1}})
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_preconditions_in_a_patch(client: ApiClient) -> None:
    made = await client.create(PODS, "ns", named("a"))
    await client.patch_merge(PODS, "ns", "a", {"metadata": {"uid": made["metadata"]["uid"], "labels": {"x": "1"}}})
    with pytest.raises(Conflict):
        await client.patch_merge(PODS, "ns", "a", {"metadata": {"uid": "other", "labels": {"x": "2"}}})
    version = made["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await client.patch_merge(PODS, "ns", "a", {"metadata": {"resourceVersion": version, "labels": {"x": "3"}}})


async def test_json_patch_tests_before_it_writes(client: ApiClient) -> None:
    gates = [{"name": "one"}, {"name": "two"}]
    await client.create(PODS, "ns", named("a", spec={"schedulingGates": gates}))
    path = "/spec/schedulingGates/0"
    test = {"op": "test", "path": f"{path}/name", "value": "one"}
    after = await client.patch_json(PODS, "ns", "a", [test, {"op": "remove", "path": path}])
    assert after["spec"]["schedulingGates"] == [{"name": "two"}]
    with pytest.raises(Invalid):
        await client.patch_json(PODS, "ns", "a", [test, {"op": "remove", "path": path}])


async def test_apply_makes_or_merges_and_keeps_other_conditions(client: ApiClient) -> None:
    await client.apply(RESERVATIONS, "ns", "r", named("r", spec={"a": 1}))
    first = {"status": {"conditions": [{"type": "Theirs", "status": "True"}]}}
    await client.patch_merge(RESERVATIONS, "ns", "r", first, "status")
    ours = named("r", status={"conditions": [{"type": "Ours", "status": "False"}]})
    after = await client.apply(RESERVATIONS, "ns", "r", ours, "status")
    assert [condition["type"] for condition in after["status"]["conditions"]] == ["Theirs", "Ours"]
    assert after["spec"] == {"a": 1}


async def test_finalizers_hold_a_deleted_object(server: FakeApiServer, client: ApiClient) -> None:
    server.add(PODS, {"metadata": {"name": "a", "namespace": "ns", "finalizers": ["f"]}})
    marked = await client.delete(PODS, "ns", "a")
    assert marked["metadata"]["deletionTimestamp"]
    assert await client.delete(PODS, "ns", "a") == marked
    with pytest.raises(Conflict, match="being deleted"):
        await client.bind("ns", "a", marked["metadata"]["uid"], "n1")
    await client.patch_merge(PODS, "ns", "a", {"metadata": {"finalizers": None}})
    assert server.get_object(PODS, "ns", "a") is None


async def test_a_binding_is_refused_for_gated_pods_and_clears_the_nomination(
    server: FakeApiServer, client: ApiClient
) -> None:
    status = {"nominatedNodeName": "n1"}
    pod = server.add(PODS, named("a", spec={"schedulingGates": [{"name": "g"}]}, status=status))
    with pytest.raises(Conflict, match="schedulingGates"):
        await client.bind("ns", "a", pod["metadata"]["uid"], "n1")
    server.patch(PODS, "ns", "a", {"spec": {"schedulingGates": None}})
    await client.bind("ns", "a", pod["metadata"]["uid"], "n1")
    bound = server.get_object(PODS, "ns", "a")
    assert bound is not None
    assert bound["status"]["conditions"] == [{"type": "PodScheduled", "status": "True"}]
    assert "nominatedNodeName" not in bound["status"]


async def test_pages_keep_the_first_version_and_expire(server: FakeApiServer, client: ApiClient) -> None:
    for name in "abcde":
        server.add(PODS, named(name))
    first = await client.read(PODS.path(), {"limit": "2"})
    server.add(PODS, named("f"))
    second = await client.read(PODS.path(), {"limit": "2", "continue": first["metadata"]["continue"]})
    assert [pod["metadata"]["name"] for pod in first["items"] + second["items"]] == list("abcd")
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    server.compact()
    with pytest.raises(Gone):
        await client.read(PODS.path(), {"limit": "2", "continue": first["metadata"]["continue"]})


async def test_a_watch_tells_all_since_its_version(server: FakeApiServer, client: ApiClient) -> None:
    version = server.add(PODS, named("a"))["metadata"]["resourceVersion"]
    server.add(NODES, {"metadata": {"name": "n1"}})
    server.patch(PODS, "ns", "a", {"spec": {"x": 1}})
    server.add(PODS, named("b"))
    server.remove(PODS, "ns", "a")
    events = await read_watch(client, 3, resourceVersion=version)
    told = [(kind, obj["metadata"]["name"]) for kind, obj in events]
    assert told == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert events[-1][1]["metadata"]["resourceVersion"] == str(server.storage.revision)


async def test_a_streaming_list_ends_with_its_bookmark(server: FakeApiServer, client: ApiClient) -> None:
    server.add(PODS, named("a"))
    events = await read_watch(client, 2, sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
    assert [kind for kind, _ in events] == ["ADDED", "BOOKMARK"]
    metadata = events[1][1]["metadata"]
    assert metadata["annotations"] == {INITIAL_EVENTS_END: "true"}
    assert metadata["resourceVersion"] == str(server.storage.revision)


async def test_a_watch_from_a_forgotten_version_gets_410_in_band(server: FakeApiServer, client: ApiClient) -> None:
    server.add(PODS, named("a"))
    server.compact()
    ((kind, status),) = await read_watch(client, 1, resourceVersion="1")
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


async def test_an_older_server_refuses_streaming_lists(server: FakeApiServer, client: ApiClient) -> None:
    server.streaming = False
    with pytest.raises(Invalid, match="sendInitialEvents"):
        await read_watch(client, 1, sendInitialEvents="true")


async def test_a_watch_ends_when_it_was_told_to(client: ApiClient) -> None:
    assert await read_watch(client, 1, resourceVersion="100", timeoutSeconds="0") == []


async def test_what_is_not_served_is_404(server: FakeApiServer, client: ApiClient) -> None:
    server.served.discard(RESERVATIONS)
    with pytest.raises(NotFound):
        await client.read(RESERVATIONS.path())
    with pytest.raises(ApiError, match="405"):
        await client.request("DELETE", PODS.path("ns"))


POD = {"metadata": {"name": "a", "labels": {"app": "x", "tier": "1"}}, "status": {"phase": "Pending"}}


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        ("", ""),
        ("app=x", ""),
        ("app==x,tier!=2", ""),
        ("app,!gone", ""),
        ("app in (x, y),tier notin (2)", ""),
        ("gone notin (x)", ""),
        ("", "metadata.name=a"),
        ("", "status.phase!=Succeeded,status.phase!=Failed"),
        ("", "spec.nodeName="),
    ],
)
def test_selectors_that_match(labels: str, fields: str) -> None:
    assert match_selectors(labels, fields)(POD)


@pytest.mark.parametrize(
    ("labels", "fields"),
    [("app=y", ""), ("!app", ""), ("app notin (x)", ""), ("gone in (x)", ""), ("", "spec.nodeName=n1")],
)
def test_selectors_that_do_not(labels: str, fields: str) -> None:
    assert not match_selectors(labels, fields)(POD)


@pytest.mark.parametrize(("labels", "fields"), [("a b", ""), ("", "metadata.name")])
def test_what_is_no_selector_is_an_error(labels: str, fields: str) -> None:
    with pytest.raises(ValueError, match=r"selector|requirement"):
        match_selectors(labels, fields)
