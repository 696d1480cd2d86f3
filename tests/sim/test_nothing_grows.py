"""Season after season other gangs come and go, and no part of a process holds more than it did seasons ago.

Every container that a process can reach is counted, whatever its owner. Each season has names of its own, so what
is kept by name and never dropped adds up.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import count
from string import ascii_letters
from typing import Any

import pytest

from controller import process
from extender.core import timeline
from extender.options import BackfillMode, DisruptionTrigger, EvictionMethod, PlainPodRule
from serried.api.interpod import Namespace
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster import priorities
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.kube.events import EventWriter
from serried.kube.wire import JOBS, PODS
from serried.plan import capacity
from serried.rules.all import RULES
from serried.rules.interpod import cluster as interpod
from tests.property.test_evictions import draw_owner
from tests.support.apiserver import FakeApiServer
from tests.support.builders import RACK, node, pod, pod_group
from tests.support.churn import Churn, LongHarness
from tests.support.containers import count_items, list_grown
from tests.support.controller_harness import (
    GROUPS,
    WORKLOADS,
    controller_on,
    events,
    gang,
    job_pod,
    wait_until,
    wait_until_idle,
)
from tests.support.devices import claim, claiming, device_class, devices, mark_devices_listed
from tests.support.extender_harness import SCHEDULER, Harness
from tests.support.faults import calls
from tests.support.storm import Storm, retry_without_delay
from tests.support.volumes import csi_driver, csi_node, storage_class, volume, volume_claim

PACKING = "scheduling.serried.dev/packing"

SEASONS = 16
LATER_SECONDS = 600.0
"""The seconds after which entries that are kept for a while have been dropped."""


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower all bounds, so that bounded containers are full in the first season."""
    retry_without_delay(monkeypatch)
    monkeypatch.setattr(timeline, "_MAX_GROUPS", 1)
    monkeypatch.setattr(priorities, "_MAX_CHANGED", 1)
    monkeypatch.setattr(capacity, "_MIN_NAMES_KEPT", 1)
    monkeypatch.setattr(interpod, "_MAX_IDLE", 1)
    monkeypatch.setattr(process, "EventWriter", partial(EventWriter, pause=0.0))


async def let_time_pass(world: Harness) -> None:
    for _ in range(10):
        await world.pass_time(LATER_SECONDS)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
async def test_storm_after_storm_the_extender_holds_no_more(seed: int) -> None:
    storm, looks = Storm(seed), []
    for season in range(SEASONS):
        storm.delete_gangs()
        storm.create_gangs(ascii_letters[3 * season : 3 * season + 3])
        await storm.run_random_actions()
        await storm.recover()
        assert any(call.verb == "bind" for call in storm.world.api.calls), "a season in which nothing happens"
        storm.delete_gangs()
        await let_time_pass(storm.world)
        looks.append(count_items(storm.world.core))
    await storm.world.close()
    assert list_grown(looks) == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="usual rules", marks=pytest.mark.full),
        pytest.param({"plain": PlainPodRule.WAIT, "share_percent": 34}, id="plain pods that wait and small shares"),
        pytest.param(
            {"preempt_by": EvictionMethod.DELETION, "spare_seconds": 30.0}, id="deletion, and newcomers spared"
        ),
        pytest.param(
            {"stopwatch": partial(next, count(step=0.004))}, id="looks that take long", marks=pytest.mark.full
        ),
        pytest.param(
            {"disrupted": DisruptionTrigger.ANY, "backfill": BackfillMode.OFF},
            id="gangs that go whole, and no backfill",
        ),
    ],
)
async def test_eviction_after_eviction_the_extender_holds_no_more(seed: int, options: dict[str, Any]) -> None:
    world = LongHarness(**options)
    churn, looks = Churn(world, nodes=6, seed=seed), []
    for season in range(SEASONS):
        for number in range(8):
            churn.add_owner(draw_owner(churn.source, f"s{season}o{number}"))
            await churn.run(2)
            world.filter_unknown(pod(f"unknown-{season}-{number}").scheduler(SCHEDULER))
        await churn.run(10)
        for name in list(churn.owners):
            churn.remove_owner(name)
        await churn.run(6)
        assert not world.api.pods
        await let_time_pass(world)
        looks.append(count_items(world.core))
    await world.close()
    assert len(churn.evictions) >= SEASONS, "a run in which nothing happens shows nothing"
    assert list_grown(looks) == []


async def test_job_after_job_the_controller_holds_no_more(server: FakeApiServer) -> None:
    looks: list[Counter[str]] = []
    async with controller_on(server) as controller:
        for season in range(SEASONS):
            names = [f"s{season}-{number}" for number in range(4)]
            await run_jobs(server, names)
            await wait_until_idle(controller, server)
            for name in names:
                end_job(server, name)
            await wait_until(partial(collect_garbage, server))
            # Who had not seen the end of a Job has made its objects anew by now, which is garbage as well.
            await wait_until_idle(controller, server)
            await wait_until(partial(collect_garbage, server))
            # The kinds are watched apart: the ends of Jobs may be seen before those of their objects.
            await wait_until(lambda: not controller.store.groups and not controller.store.workloads)
            await wait_until_idle(controller, server)
            looks.append(count_items(controller))
    assert list_grown(looks) == []


async def run_jobs(server: FakeApiServer, names: Sequence[str]) -> None:
    """Run Jobs with some failed writes: one gets new objects, one is changed too late, and one grows."""
    renewed, late, grown = names[0], names[1], names[2]
    server.reject(calls("POST", "/podgroups"))
    server.lose_answer(calls("POST", "/workloads"))
    for name in names:
        server.add(JOBS, (gang(name).suspended() if name == renewed else gang(name)).raw())
    await wait_until(lambda: len(server.list_objects(GROUPS)) == len(names))
    for name in set(names) - {renewed}:
        for index in range(3):
            server.add(PODS, job_pod(name, index, uid=f"{name}-{index}").raw())
    for name in (renewed, late):
        server.patch(JOBS, "default", name, {"metadata": {"annotations": {PACKING: "spread"}}})
    server.patch(JOBS, "default", grown, {"spec": {"parallelism": 5, "completions": 5}})
    await wait_until(
        lambda: any(PACKING in each["metadata"].get("annotations", ()) for each in server.list_objects(GROUPS))
    )
    await wait_until(lambda: tells(server, "GangChangeIgnored", late) and tells(server, "MinCountChanged", grown))


def tells(server: FakeApiServer, reason: str, job: str) -> bool:
    """Return whether there is an event with this reason about a Job or its objects."""
    return any(event["involvedObject"]["name"].startswith(job) for event in events(server, reason))


def end_job(server: FakeApiServer, name: str) -> None:
    """A Job is deleted with its pods."""
    for pod_name in [each["metadata"]["name"] for each in server.list_objects(PODS)]:
        if pod_name.startswith(f"{name}-"):
            server.remove(PODS, "default", pod_name)
    server.remove(JOBS, "default", name)


def collect_garbage(server: FakeApiServer) -> bool:
    """Delete what the Jobs owned; whether all of it is gone."""
    for kind in (GROUPS, WORKLOADS):
        for each in server.list_objects(kind):
            if "deletionTimestamp" not in each["metadata"]:
                server.remove(kind, "default", each["metadata"]["name"])
    return not server.list_objects(GROUPS) and not server.list_objects(WORKLOADS)


def test_nodes_pods_and_what_rules_follow_come_and_go_and_the_store_holds_no_more() -> None:
    """An autoscaler makes thousands of names a day, and nobody asks for scores in an isolated installation."""
    store, looks = Store([SCHEDULER], rules=RULES), []
    for kind in (VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode, Namespace):
        store.note_state(kind, KindState.KNOWN)
    mark_devices_listed(store)
    for season in range(SEASONS):
        live_through_a_season(store, f"s{season}")
        looks.append(count_items(store))
    assert list_grown(looks) == []


def live_through_a_season(store: Store, name: str) -> None:
    group, host, volume_name, claim_name = f"{name}-g", f"{name}-n", f"{name}-v", f"{name}-c"
    driver = csi_driver(f"{name}.example.com").value()
    objects: list[Any] = [
        device_class(name).extended_resource(f"{name}.example.com/gpu").value(),
        driver,
        csi_node(host, **{driver.name: 2}).value(),
        storage_class(name, driver.name).value(),
        volume(volume_name).local_to(host).available(name).value(),
        volume_claim(claim_name).requesting(name).value(),
        devices(host, 2).value(),
        claim(claim_name, 1).value(),
        Namespace(name),
    ]
    members = [pod(f"{name}-{index}").cpu(1).scheduler(SCHEDULER).in_group(group) for index in range(2)]
    members[0] = members[0].mounting(claim_name).label("app", name).spread({"app": name}, RACK)
    members[1] = (
        members[1].with_field(claiming(claim_name), "spec", "resourceClaims").anti_affinity({"app": name}, RACK)
    )
    store.put_node(node(host).cpu(8).rack(name).value())
    for each in objects:
        store.put_object(each)
    store.put_group(pod_group(group).gang(2).topology(f"{name}.example.com/numa").value())
    for each in members:
        store.put_pod(each.value())
        store.put_pod(each.on(host).value())
    for each in members:
        store.drop_pod(each.value().uid)
    store.drop_group(pod_group(group).value().key)
    for each in objects:
        key = getattr(each, "key", None)
        store.drop_object(type(each), each.name if key is None else key)
    store.drop_node(host)
    store.dirty.take_groups()
    list(store.dirty.take_members())
    store.dirty.take_orphans()
    for freed in (store.occupancy.freed_nodes, store.nominations.withdrawn_nodes):
        freed.take()
        freed.take_reached()
