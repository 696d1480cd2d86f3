"""Writes of the controller: the API level of the objects, and their preconditions."""

from dataclasses import replace

import pytest

from controller.writes import Writes
from serried.api.group import PROTECTION, PodGroup, decode_pod_group
from serried.api.level import FALLBACK, NATIVE
from serried.kube.errors import Conflict
from serried.kube.events import EventWriter
from serried.kube.wire import pod_groups
from tests.support.apiserver import NATIVE_SERVED, SERVED, FakeApiServer
from tests.support.builders import pod_group

BESIDE = pod_groups(FALLBACK.group, FALLBACK.version)


async def test_the_protection_of_a_pod_group_beside_the_level_in_use_is_taken_off_there() -> None:
    protected = pod_group("g").finalizer("example.com/mine").finalizer(PROTECTION).raw()
    async with FakeApiServer((*SERVED, *NATIVE_SERVED)) as server, server.client() as client:
        made = server.add(BESIDE, protected | {"apiVersion": FALLBACK.api_version})
        group = decode_pod_group(made)
        assert isinstance(group, PodGroup)
        beside = replace(group, api=FALLBACK.api_version)
        await Writes(client, NATIVE, EventWriter(client, "controller")).set_finalizers(beside, ["example.com/mine"])
        (left,) = server.list_objects(BESIDE)
    assert left["metadata"]["finalizers"] == ["example.com/mine"]


async def test_a_group_that_has_changed_meanwhile_gets_no_priority_by_what_it_was() -> None:
    async with FakeApiServer() as server, server.client() as client:
        group = decode_pod_group(server.add(BESIDE, pod_group("g").raw()))
        assert isinstance(group, PodGroup)
        server.patch(BESIDE, "default", "g", {"spec": {"priorityClassName": "high"}})
        with pytest.raises(Conflict):
            await Writes(client, FALLBACK, EventWriter(client, "controller")).set_priority(group, 5)
        (left,) = server.list_objects(BESIDE)
    assert "priority" not in left["spec"]
