"""A new term whose watch of pods is behind the records: who is not shown yet is not taken for gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extender.core.binding import committed as unseen
from extender.core.binding.committed import UndecidedError
from serried.api.names import Key
from serried.kube.retry import Backoff
from serried.kube.wire import PODS
from tests.support.builders import pod
from tests.support.extender_harness import Harness, gang, members, small_nodes
from tests.support.fake_api import error
from tests.support.leftover_records import add_leftover_record


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen, "_CHECK_PAUSE", Backoff(0.0, 0.0))
    monkeypatch.setattr(unseen, "_MAX_CHECKS", 100_000)


@pytest.fixture
def cluster(world: Harness) -> Harness:
    return world.add(*small_nodes(2), gang(2), *members(2))


@asynccontextmanager
async def recovering(world: Harness) -> AsyncIterator[asyncio.Task[bool]]:
    """A recovery, as far as it gets with what the watch has shown."""
    task = asyncio.create_task(world.recovery.recover())
    async with asyncio.timeout(5):
        while not (asked(world) or task.done()):
            await world.run_tasks()
        await world.run_tasks()
        yield task
        await task
    await world.run_tasks()


def asked(world: Harness) -> list[str]:
    """The pods that were asked for."""
    return sorted(call.name for call in world.api.list_calls("get") if call.resource == PODS.plural)


def hide(world: Harness, *names: str) -> None:
    """The watch has not shown these pods yet."""
    for name in names:
        world.store.drop_pod(world.pod(name).uid)


@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(["m0"], id="the first member"),
        pytest.param(["m1"], id="the last one"),
        pytest.param(["m0", "m1"], id="all of them"),
    ],
)
async def test_a_gang_whose_watch_is_behind_its_commit_is_bound_whole(cluster: Harness, hidden: list[str]) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, *hidden)
    async with recovering(cluster):
        assert cluster.api.record_phase() == "Committed"
        assert not cluster.api.list_calls("bind")
        cluster.sync_pods()
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")
    assert cluster.nothing_reserved


async def test_so_is_one_of_which_the_watch_does_not_show_who_is_bound(cluster: Harness) -> None:
    """The PodGroup is gone: if no member were bound, the commit would be withdrawn."""
    cluster.add(members(1)[0].on("n1"))
    cluster.store.drop_group(gang(2).value().key)
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, "m0")
    async with recovering(cluster):
        cluster.sync_pods()
    await cluster.run_until_idle()
    assert cluster.node_of("m1") == "n1"


async def test_only_those_that_are_not_shown_are_asked_for(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, "m1")
    async with recovering(cluster):
        cluster.sync_pods()
    assert set(asked(cluster)) == {"m1"}


async def test_nobody_waits_for_members_of_a_plan_which_is_dropped(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1")
    hide(cluster, "m1")
    async with recovering(cluster):
        pass
    assert cluster.nothing_reserved


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param(None, id="its name is free"),
        pytest.param(members(1)[0].uid("another"), id="another pod has its name"),
        pytest.param(members(1)[0].phase("Failed"), id="it has failed"),
        pytest.param(members(1)[0].deleting(), id="it goes without having had a node"),
        pytest.param(members(1)[0].with_field("-1", "spec", "containers"), id="it is no pod that any watch could show"),
    ],
)
async def test_a_member_that_is_gone_is_not_waited_for(cluster: Harness, instead: object) -> None:
    cluster.add(members(1, first=1)[0].on("n1"))
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, "m0")
    if instead is None:
        del cluster.api.pods[Key("default", "m0")]
    else:
        assert isinstance(instead, type(pod("m0")))
        cluster.api.pods[Key("default", "m0")] = instead.raw()
    async with recovering(cluster):
        pass
    assert cluster.nothing_reserved


async def test_a_record_of_whose_members_the_api_server_does_not_say_whether_they_exist_is_judged_later(
    cluster: Harness,
) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, "m0")
    cluster.api.fail("get", error(500))
    with pytest.raises(UndecidedError, match="default/m0"):
        await cluster.recovery.recover()
    assert (cluster.api.record_phase(), cluster.api.list_calls("bind"), cluster.api.list_calls("delete")) == (
        "Committed",
        [],
        [],
    )
    async with recovering(cluster):
        cluster.sync_pods()
    await cluster.run_until_idle()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")


async def test_so_is_one_whose_member_the_watch_does_not_show_for_long(
    cluster: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unseen, "_MAX_CHECKS", 3)
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, "m0")
    with pytest.raises(UndecidedError, match="default/m0"):
        async with asyncio.timeout(5):
            await cluster.recovery.recover()
    assert cluster.api.record_phase() == "Committed"


async def test_the_end_of_the_term_ends_the_wait_and_leaves_the_record_to_the_next_leader(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1", committed=True)
    hide(cluster, "m0")
    async with recovering(cluster) as recovery:
        cluster.term.holds_lease = lambda: False
    assert recovery.result() is False
    assert (cluster.api.record_phase(), cluster.api.list_calls("delete")) == ("Committed", [])
