import pkgutil
import re
from functools import partial
from importlib import import_module
from types import NoneType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import serried.api
from serried.api.device import decode_claim_template
from serried.api.level import NATIVE
from serried.api.names import GroupKey, GroupKind, Malformed
from serried.api.node_pool import decode_node_pool
from serried.api.pod import Pod, decode_pod
from serried.api.reservation import decode_reservation, name_record
from serried.api.resources import parse_cpu, parse_quantity
from serried.cluster.cache import Store
from serried.feed import Feed, Kind
from serried.kube import election
from serried.kube.auth import Credentials
from serried.kube.client import ApiClient
from serried.kube.election import decode_lease
from serried.rules.all import RULES
from tests.support.odd_objects import CLAIM_TEMPLATE, LEASE, NODE_POOL, RECORD, SPECIMENS, Json, Raw, odd_objects

OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


CHANNELS = Feed(
    ApiClient(Credentials("http://nowhere"), component="test"), NATIVE, Store([], rules=RULES), tuple(Kind)
).channels
DECODERS: dict[str, tuple[Any, tuple[Raw, ...]]] = {
    **{kind.value: (channel.decode, SPECIMENS[kind]) for kind, channel in CHANNELS.items()},
    "nodepools": (decode_node_pool, (NODE_POOL,)),
    "leases": (decode_lease, (LEASE,)),
    "reservations": (decode_reservation, (RECORD,)),
    "resourceclaimtemplates": (decode_claim_template, (CLAIM_TEMPLATE,)),
}
EACH = pytest.mark.parametrize("kind", DECODERS)


def name_decoder(decode: Any) -> str:
    return str((decode.func if isinstance(decode, partial) else decode).__name__)


def is_value_or_refusal(kind: str, raw: Any) -> bool:
    decode, specimens = DECODERS[kind]
    value = type(decode(specimens[0]))
    return isinstance(decode(raw), value | (NoneType if decode is decode_reservation else Malformed))


def test_every_decoder_of_an_object_is_held_to_what_follows() -> None:
    modules = [import_module(f"serried.api.{found.name}") for found in pkgutil.iter_modules(serried.api.__path__)] + [
        election
    ]
    # These decode a part, whose ValueError is that of the whole object, or call the decoder of an object.
    parts = {"decode_shape", "decode_group_key", "decode_or_malformed"}
    there = {
        name
        for module in modules
        for name, each in vars(module).items()
        if name.startswith("decode_") and each.__module__ == module.__name__
    }
    # `decode_second` wraps these for objects of the second API level.
    assert there - parts == {name_decoder(decode) for decode, _ in DECODERS.values()} - {"decode_second"}


@EACH
def test_what_is_not_odd_is_decoded(kind: str) -> None:
    decode, specimens = DECODERS[kind]
    assert not any(isinstance(decode(raw), Malformed | None) for raw in specimens)


@EACH
@given(raw=Json)
def test_any_json_decodes_to_a_value_or_to_malformed(kind: str, raw: Any) -> None:
    assert is_value_or_refusal(kind, raw)


@EACH
@given(data=st.data())
def test_a_spoiled_object_decodes_to_a_value_or_to_malformed(kind: str, data: st.DataObject) -> None:
    assert is_value_or_refusal(kind, data.draw(odd_objects(*DECODERS[kind][1])))


@given(raw=odd_objects(*SPECIMENS[Kind.PODS]))
def test_every_decoded_pod_is_hashable_and_takes_one_pod_slot(raw: Any) -> None:
    decoded = decode_pod(raw)
    if isinstance(decoded, Pod):
        hash(decoded)
        assert dict(decoded.shape.requests)["pods"] == 1


@given(
    before=st.sampled_from(SPECIMENS[Kind.PODS]),
    other=st.sampled_from(SPECIMENS[Kind.PODS]),
    after=odd_objects(*SPECIMENS[Kind.PODS]),
    data=st.data(),
)
def test_a_changed_pod_is_what_it_would_be_if_it_had_never_been_seen_before(
    before: Raw, other: Raw, after: Any, data: st.DataObject
) -> None:
    fields = data.draw(st.lists(st.sampled_from([*before["spec"], *other["spec"]]), max_size=3))
    spec = before["spec"] | {name: other["spec"][name] for name in fields if name in other["spec"]}
    part = data.draw(st.sampled_from(["spec", "status", "metadata"]))
    mixed = after[part] if isinstance(after, dict) and part in after else {}
    for raw in (before, before | {"spec": spec}, before | {part: mixed}, after, before):
        seen = decode_pod(raw)
        with patch("serried.api.pod._MAX_CACHED_BYTES", -1):  # nothing is recalled
            assert seen == decode_pod(raw)


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
