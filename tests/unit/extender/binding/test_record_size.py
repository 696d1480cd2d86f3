"""The record of all but small gangs is packed, so that the API server takes it, or refused with a sentence."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from extender.core.binding.records import Records
from serried.api.reservation import MAX_RECORD_BYTES, Reservation, Victim
from serried.kube.errors import Invalid
from serried.kube.wire import Resource
from tests.support.extender_harness import GANG, gang
from tests.support.fake_api import FakeApi
from tests.support.older_records import OLDER
from tests.support.records import Names, large_reservation

GROUP = gang(2).value()


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def records(api: FakeApi) -> Records:
    return Records(api.client(), "scheduling.serried.dev/v1beta1", "one")


def weigh(api: FakeApi) -> int:
    ((_, record),) = api.records.items()
    return len(orjson.dumps(record))


@pytest.mark.parametrize(
    ("members", "names", "most"),
    [
        pytest.param(20, Names.SHORT, 2_000, id="20 members with names of 20 characters"),
        pytest.param(5_000, Names.SHORT, 700_000, id="5,000 members with names of 20 characters"),
        pytest.param(10_000, Names.LABEL, 600_000, id="10,000 members with names of 63 characters"),
        pytest.param(10_000, Names.LONGEST, 700_000, id="10,000 members with names of 253 characters"),
        pytest.param(20_000, Names.LONGEST, 1_400_000, id="20,000 members with names of 253 characters"),
    ],
)
async def test_a_gang_of_thousands_has_one_record_that_says_all(
    api: FakeApi, records: Records, members: int, names: Names, most: int
) -> None:
    held = large_reservation(GANG, GROUP.uid, members, names)
    await records.write(GROUP, held)
    assert weigh(api) < most < MAX_RECORD_BYTES
    (found,) = await Records(api.client(), "scheduling.serried.dev/v1beta1", "two").take_over()
    assert (found.slots, found.need, found.committed) == (held.slots, members, frozenset())


async def test_its_commit_is_packed_as_well_and_names_the_committed_alone(api: FakeApi, records: Records) -> None:
    held = large_reservation(GANG, GROUP.uid, 10_000, Names.LABEL)
    await records.write(GROUP, held)
    held.commit(sorted(held.slots)[:9_000])
    await records.write(GROUP, held)
    assert await records.is_committed(held)
    (found,) = await Records(api.client(), "scheduling.serried.dev/v1beta1", "two").take_over()
    assert found.slots.keys() == found.committed == held.committed


async def test_victims_and_the_parts_of_a_tree_are_packed_with_it(api: FakeApi, records: Records) -> None:
    victims = [Victim(f"uid-{at}", "batch", f"victim-{at}", "g") for at in range(20_000)]
    parts = {f"leaf-{at}": 1 for at in range(5_000)}
    held = Reservation(GANG, GROUP.uid, "r1", 5_000, {}, parts=parts, victims=victims)
    await records.write(GROUP, held)
    ((_, record),) = api.records.items()
    assert not record["spec"].keys() & {"slots", "victims", "parts"}
    (found,) = await Records(api.client(), "scheduling.serried.dev/v1beta1", "two").take_over()
    assert (found.victims, found.parts) == (held.victims, parts)


@pytest.mark.parametrize(
    ("members", "names"),
    [
        pytest.param(8, Names.SHORT, id="8 members with names of 20 characters"),
        pytest.param(4, Names.LABEL, id="4 with names of 63 characters"),
        pytest.param(1, Names.LONGEST, id="1 with names of 253 characters"),
    ],
)
async def test_a_short_one_can_be_read_by_people_and_by_a_release_that_does_not_unpack(
    api: FakeApi, records: Records, members: int, names: Names
) -> None:
    held = large_reservation(GANG, GROUP.uid, members, names)
    await records.write(GROUP, held)
    ((_, record),) = api.records.items()
    assert "packed" not in record["spec"]
    assert len(record["spec"]["slots"]) == members
    assert OLDER["decode_reservation"](record).slots == held.slots


async def test_a_record_of_a_later_format_is_neither_read_nor_deleted(api: FakeApi, records: Records) -> None:
    await records.write(GROUP, large_reservation(GANG, GROUP.uid, 2, Names.SHORT))
    api.records[GANG.object_key]["spec"] |= {"format": 3, "phase": "Committed"}
    with pytest.raises(Invalid, match="the Reservation has format 3 of a later release"):
        await Records(api.client(), "scheduling.serried.dev/v1beta1", "two").take_over()
    assert api.records[GANG.object_key]["spec"]["format"] == 3


async def test_what_no_packing_helps_is_refused_with_a_sentence_and_nothing_is_sent(
    api: FakeApi, records: Records
) -> None:
    held = large_reservation(GANG, GROUP.uid, 10_000, Names.RANDOM)
    with pytest.raises(Invalid, match=r"the Reservation of 10000 members has [0-9,]+ bytes, but the API server"):
        await records.write(GROUP, held)
    assert api.calls == []
    await records.remove(held)
    await records.write(GROUP, large_reservation(GANG, GROUP.uid, 2, Names.SHORT))


class OldDefinition(FakeApi):
    """An API server whose CRD is of a release that packed nothing: it drops unknown fields silently."""

    async def create(self, resource: Resource, namespace: str, obj: Mapping[str, Any]) -> dict[str, Any]:
        spec = {name: value for name, value in obj["spec"].items() if name != "packed"}
        return await super().create(resource, namespace, {**obj, "spec": spec})


async def test_a_definition_that_drops_what_is_packed_is_noticed() -> None:
    api = OldDefinition()
    records = Records(api.client(), "scheduling.serried.dev/v1beta1", "one")
    held = large_reservation(GANG, GROUP.uid, 10_000, Names.LABEL)
    with pytest.raises(Invalid, match="apply the CRDs of this release"):
        await records.write(GROUP, held)
    await records.remove(held)
    assert api.records == {}


@pytest.mark.parametrize(
    "packed",
    ["no base64", "bm8gemxpYg==", "eJw=", "eJwDAAAAAAE=", 7, ["x"], {"x": 1}],
    ids=["no base64", "no zlib", "half of it", "empty", "a number", "a list", "an object"],
)
async def test_a_record_that_cannot_be_unpacked_is_deleted_like_any_that_cannot_be_read(
    api: FakeApi, records: Records, packed: Any
) -> None:
    await records.write(GROUP, large_reservation(GANG, GROUP.uid, 10_000, Names.SHORT))
    api.records[GANG.object_key]["spec"]["packed"] = packed
    assert await Records(api.client(), "scheduling.serried.dev/v1beta1", "two").take_over() == []
    assert api.records == {}
