"""The numbers of the Job integration: what is created when, what is counted, and what is called met."""

import asyncio
import math
import os
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from bench.jobs.creation import Creation, create_jobs
from bench.jobs.figures import (
    Marks,
    Memory,
    Phase,
    Rest,
    Restart,
    Syncs,
    describe_syncs,
    mark,
    mark_since,
    without_leases,
)
from bench.jobs.objects import Batch
from bench.jobs.run import pin_api_server
from bench.jobs.scrape import Scrape
from bench.jobs.sightings import Sightings
from bench.jobs.verdicts import (
    Verdict,
    is_sustained,
    judge_creates,
    judge_creation,
    judge_flood,
    judge_ladder,
    judge_manager_syncs,
    judge_memory,
    judge_own_cpu,
    judge_own_syncs,
    judge_rest,
    judge_restart,
    render_phases,
    render_verdicts,
)
from serried.kube.reflector import Deleted, Upserted
from serried.kube.wire import PODS

METRICS = """# TYPE syncs_seconds histogram
syncs_seconds_bucket{mode="Indexed",le="0.01"} 90
syncs_seconds_bucket{mode="Indexed",le="0.1"} 98
syncs_seconds_bucket{mode="Indexed",le="+Inf"} 98
syncs_seconds_sum{mode="Indexed"} 1.0
syncs_seconds_count{mode="Indexed"} 98
syncs_seconds_bucket{mode="NonIndexed",le="0.01"} 1
syncs_seconds_bucket{mode="NonIndexed",le="0.1"} 1
syncs_seconds_bucket{mode="NonIndexed",le="+Inf"} 2
syncs_seconds_sum{mode="NonIndexed"} 9.0
syncs_seconds_count{mode="NonIndexed"} 2
# TYPE writes_total counter
writes_total{verb_resource="create workloads"} 3
writes_total{verb_resource="create events"} 4
"""

FAST = Marks(100, 0.01, 0.02, 0.5, 0.6)
SLOW = Marks(100, 0.01, 0.02, 1.5, 1.6)
PARTIAL = Marks(99, 0.01, 0.02, 0.5, 0.6)


def phase(**fields: Any) -> Phase:
    two_each = {"POST workloads": 100, "POST podgroups": 100}
    base = Phase("p", "gang", "suspended", 100, 50.0, FAST, FAST, FAST, FAST, 2.5, None, None, two_each, {}, 50.0)
    return replace(base, **fields)


def met(verdicts: Any) -> list[bool]:
    return [verdict.met for verdict in verdicts]


def test_a_gang_job_is_indexed_and_says_nothing_of_gangs() -> None:
    job = Batch("b", 3).make_jobs()[0]

    assert "annotations" not in job["metadata"]
    assert (job["spec"]["completionMode"], job["spec"]["parallelism"], job["spec"]["suspend"]) == ("Indexed", 2, True)


def test_a_plain_job_has_the_same_shape_and_says_that_it_is_none() -> None:
    [plain], [gang] = Batch("b", 1, "plain", "running").make_jobs(), Batch("b", 1, "gang", "running").make_jobs()

    assert plain["metadata"]["annotations"] == {"scheduling.serried.dev/gang-policy": "NoGang"}
    assert plain["spec"] == gang["spec"]
    assert not plain["spec"]["suspend"]


def test_only_gangs_are_to_have_objects() -> None:
    assert (Batch("b", 3).gangs, Batch("b", 3, "plain").gangs) == (3, 0)


class Client:
    """Takes creates, and answers each in its own time."""

    def __init__(self) -> None:
        self.created: list[str] = []

    async def create(self, _resource: object, _namespace: str, job: Any) -> None:
        self.created.append(job["metadata"]["name"])
        await asyncio.sleep(0)


@pytest.mark.parametrize("rate", [200.0, math.inf], ids=["paced", "at once"])
async def test_each_job_is_created_once_and_not_before_it_is_due(rate: float) -> None:
    client, jobs, begun = Client(), Batch("b", 10).make_jobs(), time.monotonic()

    creation = await create_jobs(client, jobs, rate)  # type: ignore[arg-type] # the one method that is called

    names = [job["metadata"]["name"] for job in jobs]
    assert sorted(client.created) == names
    # The clock of the event loop may wake a sleeper a moment early.
    assert all(creation.sent[name] >= begun + index / rate - 0.001 for index, name in enumerate(names))
    assert creation.sent.keys() == creation.answered.keys()


def test_the_rate_of_a_creation_is_the_one_that_was_reached() -> None:
    creation = Creation({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 3.0})

    assert creation.per_second == 1.0
    assert creation.seconds == [0.5, 1.0]


def test_the_first_sight_of_each_jobs_object_counts() -> None:
    now = [1.0]
    sightings = Sightings(lambda: now[0])
    take = sightings.sink(PODS)
    pod = {"metadata": {"name": "j-0", "ownerReferences": [{"kind": "Job", "name": "j"}]}}

    take(Upserted({"metadata": {"name": "bare"}}))
    take(Upserted(pod))
    now[0] = 2.0
    take(Upserted(pod))
    take(Deleted(pod))

    assert sightings.of(PODS) == {"j": 1.0}


async def test_all_objects_are_awaited() -> None:
    sightings = Sightings(lambda: 1.0)
    take = sightings.sink(PODS)
    waiting = asyncio.create_task(sightings.await_all(PODS, ["a", "b"]))

    for name in ("a", "b"):
        await asyncio.sleep(0)
        assert not waiting.done()
        take(Upserted({"metadata": {"name": "x", "ownerReferences": [{"kind": "Job", "name": name}]}}))

    await asyncio.wait_for(waiting, 1.0)


def test_a_histogram_is_summed_over_its_labels() -> None:
    found = Scrape(METRICS).histogram("syncs_seconds")

    assert (found.count, found.total, found.mean) == (100, 10.0, 0.1)
    assert (found.bound(91), found.bound(99), found.bound(100)) == (0.01, 0.1, math.inf)


def test_a_histogram_since_itself_has_nothing_to_say() -> None:
    found = Scrape(METRICS).histogram("syncs_seconds")

    assert describe_syncs(found.since(found)) is None
    assert describe_syncs(Scrape("").histogram("syncs_seconds")) is None
    assert describe_syncs(found) == Syncs(100, 0.1, 0.1)


def test_counters_are_read_by_a_label_or_in_all() -> None:
    scrape = Scrape(METRICS)

    assert scrape.by_label("writes_total", "verb_resource") == {"create workloads": 3, "create events": 4}
    assert (scrape.total("writes_total"), scrape.total("unknown")) == (7, 0)


def test_marks_are_of_what_was_seen() -> None:
    assert mark([]) is None
    assert mark_since({"a": 1.0, "b": 1.0, "never": 1.0}, {"a": 2.0, "b": 4.0, "other": 9.0}) == Marks(
        2, 1.0, 3.0, 3.0, 3.0
    )


def test_leases_and_what_was_not_written_are_left_out() -> None:
    assert without_leases({"PUT leases": 5, "POST jobs": 2, "POST pods": 0}) == {"POST jobs": 2}


@pytest.mark.parametrize(
    ("workloads", "fine"),
    [(FAST, True), (SLOW, False), (PARTIAL, False), (None, False)],
    ids=["all in time", "too late", "one is missing", "none was seen"],
)
def test_the_slo_holds_if_every_job_has_its_workload_and_nearly_all_in_time(
    workloads: Marks | None,
    fine: bool,  # noqa: FBT001
) -> None:
    assert met(judge_creation(phase(workloads=workloads))) == [fine]


@pytest.mark.parametrize(
    ("kind", "writes", "fine"),
    [
        ("gang", {"POST workloads": 100, "POST podgroups": 100}, True),
        ("gang", {"POST workloads": 101, "POST podgroups": 100}, False),
        ("plain", {"POST events": 100}, True),
        ("plain", {"POST workloads": 1}, False),
    ],
    ids=["two for a gang", "one that was refused", "none for others", "one for another"],
)
def test_creates_are_counted_exactly(kind: str, writes: dict[str, int], fine: bool) -> None:  # noqa: FBT001
    assert met(judge_creates(phase(kind=kind, writes=writes))) == [fine]


@pytest.mark.parametrize(("mean", "fine"), [(0.0110, True), (0.0112, False)], ids=["a tenth more", "more than a tenth"])
def test_syncs_may_take_a_tenth_longer(mean: float, fine: bool) -> None:  # noqa: FBT001
    before, after = Syncs(10, 0.01, 0.02), Syncs(10, mean, 0.02)

    assert met(judge_own_syncs(phase(controller_syncs=after), phase(controller_syncs=before))) == [fine]
    assert met(judge_manager_syncs([phase(manager_syncs=before)], phase(manager_syncs=after))) == [fine]


def test_syncs_that_take_long_may_not_take_ten_milliseconds_longer() -> None:
    before, after = phase(manager_syncs=Syncs(10, 0.5, 1.0)), phase(manager_syncs=Syncs(10, 0.51, 1.0))

    [verdict] = judge_manager_syncs([before, before], after)

    assert not verdict.met
    assert verdict.found == "500.00 to 510.00 ms (+2%)"


@pytest.mark.parametrize(("seconds", "fine"), [(0.2, True), (0.21, False)], ids=["2 ms", "more than 2 ms"])
def test_a_gang_job_may_cost_the_controller_two_milliseconds(seconds: float, fine: bool) -> None:  # noqa: FBT001
    assert met(judge_own_cpu(phase(cpu_seconds={"controller": seconds}))) == [fine]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_the_api_server_has_its_core_alone_and_all_else_the_others() -> None:
    cores = os.sched_getaffinity(0)
    sleepers = [subprocess.Popen(["sleep", "30"]) for _ in range(2)]
    try:
        server, other = (sleeper.pid for sleeper in sleepers)
        with pin_api_server({"kube-apiserver": server, "controller": other}):
            assert os.sched_getaffinity(server) == {min(cores)}
            assert os.sched_getaffinity(other) == os.sched_getaffinity(0) == cores - {min(cores)}
        assert os.sched_getaffinity(0) == cores
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_syncs_that_were_not_counted_are_not_judged() -> None:
    assert not list(judge_own_syncs(phase(), phase()))
    assert not list(judge_manager_syncs([phase()], phase(manager_syncs=Syncs(1, 1.0, 1.0))))


def test_a_flood_is_met_when_all_of_it_exists() -> None:
    assert met(judge_flood(phase())) == [True]
    assert met(judge_flood(phase(pod_groups=PARTIAL))) == [False]
    assert met(judge_flood(phase(pod_groups=None, last=None))) == [False]


def test_rest_memory_and_restart_are_judged_by_what_is_wanted() -> None:
    assert met(judge_memory(100, Memory(100e6, 150e6))) == [True]
    assert met(judge_memory(100, Memory(100e6, 150.1e6))) == [False]
    assert met(judge_rest(Rest(30.0, {}, {"PATCH nodes": 3}))) == [True]
    assert met(judge_rest(Rest(30.0, {"create events": 1}, {}))) == [False]
    assert met(judge_restart(100, Restart(2.0, {}, 1e8))) == [True]
    assert met(judge_restart(100, Restart(2.0, {"create workloads": 1}, 1e8))) == [False]


def test_the_highest_rate_at_which_pods_come_in_time_is_the_sustained_one() -> None:
    rungs = [phase(rate=rate, wanted_rate=rate, pods=pods) for rate, pods in ((5.0, FAST), (10.0, FAST), (20.0, SLOW))]

    assert [is_sustained(rung) for rung in rungs] == [True, True, False]
    assert not is_sustained(phase(rate=9.0, wanted_rate=10.0))
    [verdict] = judge_ladder(rungs)
    assert "at 10/s" in verdict.what
    assert met(judge_ladder(rungs[2:])) == [False]


def test_what_is_missed_is_said() -> None:
    table = render_verdicts([Verdict("a", "1", "1", met=True), Verdict("b", "1", "2", met=False)])

    assert table.splitlines()[2:] == ["| a | 1 | 1 | met |", "| b | 1 | 2 | MISSED |"]


def test_phases_are_shown_in_milliseconds() -> None:
    table = render_phases([phase(pods=None, manager_syncs=Syncs(1, 0.0125, 0.1))])

    head, _, line = table.splitlines()
    assert line == "| p | 50 | 500.0 | 10.0 | 20.0 | 500.0 | 600.0 | 500.0 |  | 12.5 |  |"
    assert head.count("|") == line.count("|")
