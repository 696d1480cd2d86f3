import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.decode.budgets import decode_budget
from serried.decode.compatible import decode_compatible_group
from serried.decode.groups import decode_pod_group, decode_workload
from serried.decode.jobs import decode_job
from serried.decode.lease import decode_lease
from serried.decode.malformed import Malformed
from serried.decode.nodes import decode_node
from serried.decode.parents import decode_job_set, decode_leader_worker_set
from serried.decode.pods import decode_pod
from serried.decode.quantity import parse_cpu, parse_quantity
from serried.decode.reservations import name_record
from serried.decode.volumes import decode_volume, decode_volume_claim
from serried.model.budget import DisruptionBudget
from serried.model.group import GroupKey, GroupKind, Job, PodGroup, Workload
from serried.model.lease import Lease
from serried.model.node import Node
from serried.model.parent import Parent
from serried.model.pod import Pod
from serried.model.volume import Volume, VolumeClaim
from tests.support.strategies import Json, odd_objects

DECODERS = [
    (decode_pod, Pod),
    (decode_node, Node),
    (decode_pod_group, PodGroup),
    (decode_compatible_group, PodGroup),
    (decode_workload, Workload),
    (decode_job, Job),
    (decode_lease, Lease),
    (decode_job_set, Parent),
    (decode_leader_worker_set, Parent),
    (decode_volume, Volume),
    (decode_volume_claim, VolumeClaim),
    (decode_budget, DisruptionBudget),
]
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
EACH = pytest.mark.parametrize(("decode", "kind"), DECODERS, ids=[decode.__name__ for decode, _ in DECODERS])


@EACH
@given(raw=Json)
def test_any_json_decodes_to_a_value_or_to_malformed(decode: Any, kind: type, raw: Any) -> None:
    assert isinstance(decode(raw), kind | Malformed)


@EACH
@given(raw=odd_objects())
def test_a_spoiled_object_decodes_to_a_value_or_to_malformed(decode: Any, kind: type, raw: Any) -> None:
    assert isinstance(decode(raw), kind | Malformed)


@given(raw=odd_objects())
def test_every_decoded_pod_is_hashable_and_takes_one_pod_slot(raw: Any) -> None:
    decoded = decode_pod(raw)
    if isinstance(decoded, Pod):
        hash(decoded)
        assert dict(decoded.shape.requests)["pods"] == 1


@given(name=st.from_regex(OBJECT_NAME, fullmatch=True).filter(lambda name: len(name) <= 253))
def test_two_groups_of_one_name_have_two_records_and_objects_may_have_their_names(name: str) -> None:
    ours = GroupKey("default", name)
    records = {name_record(ours), name_record(ours._replace(kind=GroupKind.COMPATIBLE))}
    assert len(records) == 2
    assert all(OBJECT_NAME.fullmatch(record) and len(record) <= 253 for record in records)


@given(text=st.text(alphabet="0123456789.+-eEinumkKMGTP", max_size=45) | st.text(max_size=12))
def test_a_quantity_is_an_int_or_a_value_error(text: str) -> None:
    for parse in (parse_cpu, parse_quantity):
        try:
            assert isinstance(parse(text), int)
        except ValueError:
            pass


@given(milli=st.integers(0, 10**12))
def test_millicores_survive_every_spelling(milli: int) -> None:
    whole, rest = divmod(milli, 1000)
    assert parse_cpu(f"{milli}m") == parse_cpu(f"{whole}.{rest:03d}") == parse_cpu(f"{milli}e-3") == milli


@given(milli=st.integers(0, 10**12))
def test_base_units_are_rounded_up_never_down(milli: int) -> None:
    assert parse_quantity(f"{milli}m") == (milli + 999) // 1000
