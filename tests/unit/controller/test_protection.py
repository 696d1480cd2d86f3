import asyncio
from typing import cast

import pytest

from controller.protection import Protection, ReleaseTiming
from controller.writes import Writes
from serried.api.group import PROTECTION, PodGroup
from serried.api.names import GroupKey
from serried.cluster.cache import Store
from serried.kube.errors import ApiError, Conflict, NotFound, Unavailable
from serried.kube.retry import Backoff
from serried.kube.wire import Failure
from serried.rules.all import RULES
from tests.support.builders import job, pod, pod_group, workload

RELEASE_TIMING = ReleaseTiming(grace_seconds=5.0, pause=Backoff(first=1.0, cap=8.0))


class Cluster:
    """A Store, a clock, and an API server that records the requests to it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = Store(["serried"], rules=RULES)
        self.named: set[GroupKey] = set()
        self.reads: list[float] = []
        self.freed: list[str] = []
        self.kept: list[str] = []
        self.unreadable: ApiError | None = None
        self.refused: dict[str, ApiError] = {}
        self.reading = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()
        self.answered: list[float] = []
        self.protection = Protection(
            self.store,
            self._read,
            cast("Writes", self),
            lambda: self.now,
            record_progress=lambda: self.answered.append(self.now),
            timing=RELEASE_TIMING,
        )

    async def _read(self, namespace: str) -> frozenset[GroupKey]:
        assert namespace == "default"
        self.reads.append(self.now)
        named = frozenset(self.named)
        self.reading.set()
        await self.answer.wait()
        if self.unreadable:
            raise self.unreadable
        return named

    async def set_finalizers(self, group: PodGroup, finalizers: list[str]) -> None:
        if refusal := self.refused.get(group.key.name):
            raise refusal
        self.freed.append(group.key.name)
        self.kept += finalizers

    def delete(self, name: str) -> bool:
        self.store.put_group(pod_group(name).finalizer(PROTECTION).deleting().value())
        return self.protection.observe_group(GroupKey("default", name))

    async def pass_time(self, seconds: float) -> None:
        """Look whenever it is due, as the loop does."""
        until = self.now + seconds
        while (delay := self.protection.seconds_until_due("default")) is not None and self.now + delay <= until:
            self.now += delay
            await self.protection.release_due("default")
        self.now = until


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def refusal(kind: type[ApiError]) -> ApiError:
    return kind("call", Failure(500))


async def test_each_write_that_is_answered_is_a_sign_of_life(cluster: Cluster) -> None:
    cluster.refused["a"] = refusal(Conflict)
    for name in ("a", "b", "c"):
        cluster.delete(name)
    with pytest.raises(Conflict):
        await cluster.pass_time(5.0)
    assert cluster.answered == [105.0] * 3


async def test_a_group_that_nobody_names_is_freed_after_its_grace(cluster: Cluster) -> None:
    assert cluster.delete("g")
    await cluster.pass_time(4.9)
    assert (cluster.reads, cluster.freed) == ([], [])
    await cluster.pass_time(0.1)
    assert (cluster.reads, cluster.freed) == ([105.0], ["g"])
    assert cluster.protection.seconds_until_due("default") is None


async def test_a_group_that_is_named_is_looked_at_after_growing_pauses(cluster: Cluster) -> None:
    cluster.named = {GroupKey("default", "g")}
    cluster.delete("g")
    await cluster.pass_time(40)
    assert cluster.reads == [105.0, 106.0, 108.0, 112.0, 120.0, 128.0, 136.0]
    assert cluster.freed == []
    cluster.named = set()
    await cluster.pass_time(8)
    assert cluster.freed == ["g"]


async def test_the_end_of_a_pod_brings_the_look_forward(cluster: Cluster) -> None:
    cluster.named = {GroupKey("default", "g")}
    cluster.delete("g")
    await cluster.pass_time(21)
    cluster.named = set()
    assert cluster.protection.observe_pod_end(GroupKey("default", "g"))
    await cluster.pass_time(5)
    assert (cluster.reads[-1], cluster.freed) == (126.0, ["g"])


async def test_an_end_during_a_read_is_not_lost(cluster: Cluster) -> None:
    cluster.named = {GroupKey("default", "g")}
    cluster.delete("g")
    await cluster.pass_time(20)
    cluster.reading.clear()
    cluster.answer.clear()
    cluster.now = 128.0
    looking = asyncio.create_task(cluster.protection.release_due("default"))
    await cluster.reading.wait()
    cluster.named = set()
    assert cluster.protection.observe_pod_end(GroupKey("default", "g"))
    cluster.answer.set()
    await looking
    assert cluster.protection.seconds_until_due("default") == 5.0


async def test_a_pod_that_the_watch_shows_keeps_its_group_without_a_read(cluster: Cluster) -> None:
    member = pod("a").of_job("train", 0).in_group("g")
    cluster.store.put_pod(member.value())
    cluster.delete("g")
    await cluster.pass_time(60)
    assert (cluster.reads, cluster.freed) == ([], [])
    cluster.store.put_pod(member.phase("Succeeded").value())
    await cluster.pass_time(8)
    assert (len(cluster.reads), cluster.freed) == (1, ["g"])


async def test_a_pod_that_is_in_it_through_its_job_and_does_not_name_it_keeps_no_group(cluster: Cluster) -> None:
    group = GroupKey("default", "g")
    cluster.store.put_job(job("train").size(2).scheduler("serried").value())
    cluster.store.put_workload(workload("w").for_job("train").gang_template("t", 2).value())
    cluster.store.put_pod(pod("a").scheduler("serried").of_job("train", 0).value())
    cluster.store.put_group(pod_group("g").from_template("w", "t").gang(2).finalizer(PROTECTION).deleting().value())
    assert [each.name for each in cluster.store.members.of_group(group)] == ["a"]
    assert cluster.protection.observe_group(group)
    await cluster.pass_time(5)
    assert cluster.freed == ["g"]


async def test_deletions_within_a_tick_share_a_read_and_no_tick_has_two(cluster: Cluster) -> None:
    for number in range(200):
        cluster.delete(f"g-{number}")
        await cluster.pass_time(0.05)
    await cluster.pass_time(10)
    assert len(cluster.freed) == 200
    assert len(cluster.reads) == len(set(cluster.reads)) <= 11


async def test_a_group_deleted_during_a_read_is_not_judged_by_it(cluster: Cluster) -> None:
    cluster.delete("early")
    cluster.answer.clear()
    cluster.now = 105.0
    looking = asyncio.create_task(cluster.protection.release_due("default"))
    await cluster.reading.wait()
    cluster.named = {GroupKey("default", "late")}
    cluster.delete("late")
    cluster.now = 120.0
    cluster.answer.set()
    await looking
    assert cluster.freed == ["early"]
    await cluster.pass_time(0)
    assert (len(cluster.reads), cluster.freed) == (2, ["early"])


async def test_what_cannot_be_read_is_read_again_later_and_frees_nothing(cluster: Cluster) -> None:
    cluster.delete("g")
    cluster.unreadable = refusal(Unavailable)
    cluster.now = 105.0
    with pytest.raises(Unavailable):
        await cluster.protection.release_due("default")
    assert (cluster.freed, cluster.protection.seconds_until_due("default")) == ([], 1.0)
    await cluster.protection.release_due("default")
    assert len(cluster.reads) == 1, "a retry before the pause reads nothing"
    cluster.unreadable = None
    await cluster.pass_time(1)
    assert cluster.freed == ["g"]


async def test_a_group_that_cannot_be_freed_stops_no_other(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.delete(name)
    cluster.refused = {"a": refusal(Conflict), "b": refusal(NotFound)}
    cluster.now = 105.0
    with pytest.raises(Conflict):
        await cluster.protection.release_due("default")
    assert cluster.freed == ["c"]
    cluster.refused.clear()
    await cluster.pass_time(1)
    assert cluster.freed == ["c", "a"]


async def test_a_group_keeps_the_finalizers_of_others(cluster: Cluster) -> None:
    cluster.store.put_group(pod_group("g").finalizer("example.com/mine").finalizer(PROTECTION).deleting().value())
    assert cluster.protection.observe_group(GroupKey("default", "g"))
    await cluster.pass_time(10)
    assert (cluster.freed, cluster.kept) == (["g"], ["example.com/mine"])


async def test_a_group_that_went_or_is_not_leaving_is_forgotten(cluster: Cluster) -> None:
    cluster.delete("g")
    cluster.store.drop_group(GroupKey("default", "g"))
    assert not cluster.protection.observe_group(GroupKey("default", "g"))
    cluster.store.put_group(pod_group("stays").finalizer(PROTECTION).value())
    assert not cluster.protection.observe_group(GroupKey("default", "stays"))
    cluster.store.put_group(pod_group("bare").finalizer("example.com/mine").deleting().value())
    assert not cluster.protection.observe_group(GroupKey("default", "bare"))
    assert not cluster.protection.observe_pod_end(GroupKey("default", "stays"))
    assert cluster.protection.seconds_until_due("default") is None
