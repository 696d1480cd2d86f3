"""Two releases of Serried lead in turns, as in a rolling update: each takes over what the other one has written."""

import zlib
from base64 import b64encode
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest

from extender.core.binding.records import Records
from serried.api.reservation import Reservation, Slot
from serried.kube.errors import Invalid
from tests.support.builders import pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.leftover_records import add_leftover_record
from tests.unit.extender.binding.test_recovery import recover

Spec = dict[str, Any]
Rewrite = Callable[[Spec], Spec]
LISTS = ("slots", "parts", "victims")


def say_no_format(spec: Spec) -> Spec:
    return {name: value for name, value in spec.items() if name != "format"}


def pack(spec: Spec) -> Spec:
    lists = {name: spec[name] for name in LISTS if name in spec}
    packed = b64encode(zlib.compress(orjson.dumps(lists))).decode()
    rest = {name: value for name, value in spec.items() if name not in LISTS}
    return {**rest, "format": 2, "packed": packed}


def say_more(spec: Spec) -> Spec:
    return {**spec, "unheardOf": {"a": 1}}


READABLE = [
    pytest.param(say_no_format, id="by a release that knew no formats"),
    pytest.param(dict, id="in format 1"),
    pytest.param(pack, id="in format 2, packed"),
    pytest.param(say_more, id="by a later release, with a field that nobody needs"),
]


@pytest.fixture
def cluster(world: Harness) -> Harness:
    return world.add(*small_nodes(2), gang(2), *members(2))


@pytest.mark.parametrize("committed", [False, True], ids=["planned", "committed"])
@pytest.mark.parametrize("rewrite", READABLE)
async def test_its_gang_goes_whole_and_its_record_stays_as_it_was_but_for_the_term(
    cluster: Harness, rewrite: Rewrite, *, committed: bool
) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=committed)
    left = rewrite(cluster.api.records[GANG.object_key]["spec"])
    cluster.api.records[GANG.object_key]["spec"] = left
    await recover(cluster)
    # The instance that wrote it may be the next to lead, and has to find what it wrote.
    claim = cluster.api.list_calls("replace")[0]
    assert claim.body["spec"] == {**left, "term": cluster.records.term}

    calls = [] if committed else [cluster.bind("m0"), cluster.bind("m1")]
    await cluster.run_until_idle()
    assert not any(call.error for call in calls)
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")
    assert cluster.nothing_reserved


async def leave_two(cluster: Harness, later: int, phase: str) -> None:
    """The record of gang g is of a later format, that of gang h is not."""
    other = pod_group("h").gang(1)
    cluster.add(other, pod("h0").cpu(1).scheduler(SCHEDULER).in_group("h"))
    group = other.value()
    held = Reservation(group.key, group.uid, "", 1, {"pod-h0": Slot("pod-h0", "h0", "n2")})
    await Records(cluster.api.client(), "v1", "earlier").write(group, held)
    await add_leftover_record(cluster, "m0", "m1")
    cluster.api.records[GANG.object_key]["spec"] |= {"format": later, "phase": phase}


@pytest.mark.parametrize("phase", ["Planned", "Committed"])
@pytest.mark.parametrize("later", [3, 4, 1_000_000])
async def test_one_of_a_later_format_stops_the_takeover_before_anything_is_written(
    cluster: Harness, later: int, phase: str
) -> None:
    await leave_two(cluster, later, phase)
    cluster.term.active = False
    before = deepcopy(cluster.api.records)
    written = len(cluster.api.list_calls("replace"))
    with pytest.raises(
        Invalid, match=f"the Reservation has format {later} of a later release of Serried: run that release, or"
    ):
        await cluster.recovery.recover()
    await cluster.run_tasks()
    assert cluster.api.records == before
    assert len(cluster.api.list_calls("replace")) == written
    assert not cluster.api.list_calls("delete")
    assert not cluster.api.list_calls("bind")
    assert len(cluster.ledger) == 0


async def test_and_is_in_nobodys_way_once_it_is_gone(cluster: Harness) -> None:
    await leave_two(cluster, 3, "Planned")
    cluster.term.active = False
    with pytest.raises(Invalid):
        await cluster.recovery.recover()
    del cluster.api.records[GANG.object_key]
    assert await cluster.recovery.recover()
    cluster.term.active = True
    call = cluster.bind("h0")
    await cluster.run_until_idle()
    assert (call.error, cluster.node_of("h0")) == ("", "n2")
    for name in ("m0", "m1"):
        cluster.bind(name)
    await cluster.run_until_idle()
    assert all(cluster.node_of(name) for name in ("m0", "m1"))
    assert cluster.nothing_reserved
