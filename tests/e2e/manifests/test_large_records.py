"""The record of a gang of thousands on a real API server: taken, committed and read back, up to its limit."""

from collections.abc import AsyncIterator

import pytest

from extender.core.binding.records import Records
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey
from serried.api.reservation import decode_reservation
from serried.kube.auth import load_credentials
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import RESERVATIONS
from tests.e2e.manifests.endpoint import ours
from tests.e2e.manifests.objects import gang
from tests.e2e.manifests.server import Server
from tests.support.records import Names, large_reservation

pytestmark = [pytest.mark.e2e, pytest.mark.full]

_OF_GROUPS = "scheduling.serried.dev/v1beta1"


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ApiClient]:
    async with ApiClient(load_credentials(str(server.cluster.kubeconfig)), component="test") as made:
        yield made


@pytest.mark.parametrize(
    ("members", "names"),
    [
        pytest.param(10_000, Names.LABEL, id="10,000 members with names of 63 characters"),
        pytest.param(20_000, Names.LONGEST, id="20,000 members with names of 253 characters"),
        pytest.param(3_005, Names.RANDOM, id="as large as a record may be"),
    ],
)
async def test_a_large_record_is_committed_and_read_back(
    server: Server, client: ApiClient, members: int, names: Names
) -> None:
    stored = ours(server.cluster).keep(gang(f"large-{names.name.lower()}"))["metadata"]
    group = PodGroup(GroupKey(stored["namespace"], stored["name"]), stored["uid"], Policy(members))
    held = large_reservation(group.key, group.uid, members, names)
    records = Records(client, _OF_GROUPS, "one")
    await records.write(group, held)
    held.commit(held.slots)
    await records.write(group, held)
    raw = await client.get(RESERVATIONS, group.key.namespace, group.key.name)
    found = decode_reservation(raw)
    assert found is not None
    assert (found.slots, found.committed) == (held.slots, held.committed)
    await records.remove(held)
    with pytest.raises(NotFound):
        await client.get(RESERVATIONS, group.key.namespace, group.key.name)


async def test_a_little_more_is_more_than_the_api_server_takes(client: ApiClient) -> None:
    spec = {"podGroup": "g", "podGroupUID": "u", "phase": "Planned", "minCount": 1, "packed": "x" * 1_600_000}
    body = {
        "apiVersion": RESERVATIONS.api_version,
        "kind": "Reservation",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": spec,
    }
    with pytest.raises(ApiError, match="too large"):
        await client.create(RESERVATIONS, "default", body)
