"""The size of etcd's content is counted by resource, page after page."""

import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from bench.stored import Stored, count, describe, name_resource, read_pairs

KEYS = {
    "/registry/jobs/team/a": "1234",
    "/registry/jobs/team/b": "12",
    "/registry/podgroups/team/a": "1",
    "/registry/scheduling.serried.dev/podgroups/team/a-0": "123",
    "/registry/scheduling.serried.dev/workloads/team/a": "",
}


@pytest.mark.parametrize(
    ("key", "resource"),
    [
        ("/registry/podgroups/team/a", "podgroups"),
        ("/registry/scheduling.serried.dev/podgroups/team/a", "podgroups"),
        ("/registry/ranges/serviceips", "ranges"),
    ],
)
def test_a_key_names_its_resource_with_its_group_or_without(key: str, resource: str) -> None:
    assert name_resource(key) == resource


@pytest.fixture
def etcd() -> Iterator[httpx.Client]:
    """An etcd that gives two keys at a time, whatever it is asked for."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        begin = base64.b64decode(asked["key"]).decode()
        found = [key for key in sorted(KEYS) if key >= begin]
        pairs = [{"key": _encode(key), "value": _encode(KEYS[key])} for key in found[:2]]
        return httpx.Response(200, json={"kvs": pairs, "more": len(found) > 2})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://etcd") as client:
        yield client


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_every_key_and_value_counts_once(etcd: httpx.Client) -> None:
    found = count(read_pairs(etcd))
    assert {name: stored.objects for name, stored in found.items()} == {"jobs": 2, "podgroups": 2, "workloads": 1}
    assert sum(stored.bytes for stored in found.values()) == sum(len(key) + len(value) for key, value in KEYS.items())


def test_a_row_has_the_bytes_of_one_gang() -> None:
    rows = describe({"jobs": Stored(10, 4_004)}, "native", 10)
    assert rows[0] == {"api": "native", "resource": "jobs", "objects": 10, "bytes": 4004, "bytes_a_gang": 400}
    assert [row["objects"] for row in rows[1:]] == [0, 0, 0]
