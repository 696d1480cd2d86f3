"""The record of a gang that is bound waits for an idle moment: its delete shall not compete with the next gangs."""

import asyncio
from copy import deepcopy

import pytest

from extender.core.binding import records
from serried.api.names import GroupKey, Key
from tests.support.builders import PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members
from tests.support.fake_api import error

BUSY = GroupKey("default", "busy")


def pair(name: str) -> list[PodBuilder | PodGroupBuilder]:
    """A gang of two, each of one CPU."""
    pods = [pod(f"{name}-{index}").cpu(1).scheduler(SCHEDULER).in_group(name) for index in range(2)]
    return [pod_group(name).gang(2), *pods]


async def bind(world: Harness, *names: str) -> None:
    """kube-scheduler brings these pods to their nodes, and the watch shows them bound."""
    for name in names:
        world.bind(name)
    await world.run_until_idle()
    assert all(world.node_of(name) for name in names)


@pytest.fixture
async def busy(world: Harness) -> Harness:
    """Gang g is bound while another gang waits for the scheduler."""
    nodes = [node(f"n{index}").cpu(2) for index in range(1, 9)]
    await world.add(*nodes, *pair("busy"), gang(2), *members(2)).run_until_idle()
    await bind(world, "m0", "m1")
    return world


async def until_removed(world: Harness) -> None:
    """Until no records are there; it must not take long."""
    async with asyncio.timeout(2):
        while world.api.records:  # noqa: ASYNC110 - the state under test has no event
            await asyncio.sleep(0.05)


async def test_it_waits_while_another_gang_is_on_its_way_and_holds_nothing(busy: Harness) -> None:
    assert busy.api.record_phase() == "Committed"
    assert busy.api.list_calls("delete") == []
    assert [reservation.group for reservation in busy.ledger] == [BUSY]


async def test_it_is_deleted_once_the_others_are_bound_too(busy: Harness) -> None:
    await bind(busy, "busy-0", "busy-1")
    await until_removed(busy)


async def test_it_does_not_wait_for_long(busy: Harness) -> None:
    busy.clock.advance(records._MAX_WAIT_SECONDS)  # noqa: SLF001 - the rule itself
    await until_removed(busy)
    assert len(busy.ledger) == 1


async def test_no_more_of_them_wait_than_a_takeover_may_find(busy: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MAX_WAITING", 2)
    for name in ("a", "b", "c"):
        await busy.add(*pair(name)).run_until_idle()
        await bind(busy, f"{name}-0", f"{name}-1")
    assert set(busy.api.records) == {Key("default", "b"), Key("default", "c")}


async def test_it_does_not_wait_if_a_restart_would_give_room_to_somebody_whom_it_names(world: Harness) -> None:
    nodes = [node(f"n{index}").cpu(1) for index in range(1, 5)]
    await world.add(*nodes, *pair("busy"), gang(1), *members(2)).run_until_idle()
    await bind(world, "m0")
    await world.pass_time(3600.0)
    assert len(world.ledger)  # else it was deleted because nothing goes on
    assert world.api.record_phase() is None


async def make_anew(world: Harness) -> None:
    """Gang g is deleted and made anew under its name."""
    for name in ("m0", "m1"):
        world.delete(name)
    world.store.drop_group(GANG)
    await world.run_until_idle()
    again = [each.uid(f"{each.raw()['metadata']['name']}-again") for each in members(2)]
    await world.add(gang(2).uid("g-again"), *again).run_until_idle()


async def test_a_gang_that_comes_again_under_its_name_gets_a_record_of_its_own(busy: Harness) -> None:
    await make_anew(busy)
    await bind(busy, "m0", "m1")
    record = busy.api.records[GANG.object_key]
    assert record["metadata"]["ownerReferences"][0]["uid"] == "g-again"
    await bind(busy, "busy-0", "busy-1")
    await until_removed(busy)


async def test_that_the_old_record_went_with_its_podgroup_is_no_failure(busy: Harness) -> None:
    busy.api.records.clear()
    await make_anew(busy)
    await bind(busy, "m0", "m1")
    assert "RecordFailed" not in busy.reasons()
    assert busy.api.record_phase() == "Committed"


async def test_that_the_old_record_cannot_be_deleted_keeps_nobody_waiting(busy: Harness) -> None:
    busy.api.reject("delete", GANG.object_key, error(403))
    await make_anew(busy)
    await bind(busy, "m0", "m1")
    assert busy.api.record_phase() == "Committed"


async def test_the_next_leader_deletes_what_was_left_and_the_old_one_nothing(busy: Harness) -> None:
    busy.core.end_term()
    busy.term.holds_lease = lambda: False
    new = Harness(api=busy.api)
    new.add(*[node(f"n{index}").cpu(2) for index in range(1, 9)], gang(2), pod_group("busy").gang(2))
    for raw in busy.api.pods.values():
        new.store.put_pod(PodBuilder(deepcopy(raw)).value())
    assert await new.recovery.recover()
    await until_removed(new)
    assert len(new.ledger) == 0
    await new.close()
    assert len(busy.api.list_calls("delete")) == 1


async def test_the_end_of_the_process_leaves_none(busy: Harness) -> None:
    await busy.core.runner.finished_records.remove_all()
    assert busy.api.records == {}


async def test_the_end_of_the_process_leaves_none_for_one_that_cannot_be_deleted(busy: Harness) -> None:
    await busy.add(*pair("a")).run_until_idle()
    await bind(busy, "a-0", "a-1")
    busy.api.reject("delete", GANG.object_key, error(403))
    await busy.core.runner.finished_records.remove_all()
    assert set(busy.api.records) == {GANG.object_key}


async def test_the_end_of_the_process_waits_for_none_that_stays(busy: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_STOP_SECONDS", 0.05)
    busy.api.hold("delete")
    await busy.core.runner.finished_records.remove_all()
    assert busy.api.record_phase() == "Committed"
