"""A slot is kept for the replacement of a deleted member while the cluster turns to another API level."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from extender.process import Extender, ExtenderFactory
from serried.api.level import FALLBACK, NATIVE, ApiLevel
from serried.cluster.usage import Vacancy
from serried.kube.client import ApiClient
from serried.kube.wire import NODES, PODS, pod_groups
from serried.ops import process
from serried.ops.metrics import ExtenderMetrics
from serried.ops.process import Process
from tests.support.apiserver import NATIVE_SERVED, FakeApiServer
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_process import make_settings

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)


class ProcessHarness:
    """An extender's process over a fake API server; only its operations listener is missing."""

    def __init__(self, client: ApiClient) -> None:
        self.extenders: list[Extender] = []
        self._settings = make_settings()
        self._metrics = ExtenderMetrics()
        self._process = Process("extender", self._settings, self._metrics)
        self.task = asyncio.create_task(self._process.run_work(client, ExtenderFactory(self._make).build))

    def _make(self, client: ApiClient, level: ApiLevel, kept: Sequence[Vacancy]) -> Extender:
        self.extenders.append(Extender(self._settings, client, level, self._metrics, kept=kept))
        return self.extenders[-1]

    @property
    def extender(self) -> Extender:
        """The one at work."""
        return self.extenders[-1]

    async def turns_to(self, level: ApiLevel) -> None:
        """Wait until it plans at this level."""
        await wait_until(lambda: self.extenders and self.extender.level == level and self.extender.core.term.plans)

    @property
    def kept(self) -> list[tuple[str, str | None]]:
        """The members whose slots are kept, each with the node on which its room is."""
        store = self.extender.store
        return [(each.pod.name, store.occupancy.node_of(each.holder)) for each in store.vacancies]

    def slot(self, name: str) -> str:
        """The node that a member is to have, "" for none."""
        found = self.extender.core.ledger.slot_of(f"pod-{name}")
        return found.node if found is not None else ""


def member(name: str, group: str) -> PodBuilder:
    return pod(name).cpu(1).scheduler("serried").labelled_group(group)


@asynccontextmanager
async def keeping(server: FakeApiServer) -> AsyncIterator[ProcessHarness]:
    """A gang of two on two full nodes has lost a member, whose slot is kept, at the fallback level."""
    for place, name in enumerate(("m0", "m1")):
        server.add(NODES, node(f"n{place}").cpu(1).raw())
        server.add(PODS, member(name, "g").on(f"n{place}").raw())
    server.add(GROUPS, pod_group("g").gang(2).condition("True", "Scheduled").raw())
    async with server.client() as client:
        harness = ProcessHarness(client)
        try:
            await harness.turns_to(FALLBACK)
            server.remove(PODS, "default", "m0")
            await wait_until(lambda: harness.kept == [("m0", "n0")])
            yield harness
        finally:
            harness.task.cancel()
            await asyncio.gather(harness.task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_SECONDS_BETWEEN_DISCOVERIES", 0.01)


async def test_the_replacement_gets_it_at_the_next_level_although_another_gang_waits_for_the_room() -> None:
    async with FakeApiServer() as server, keeping(server) as harness:
        server.served.update(NATIVE_SERVED)
        await harness.turns_to(NATIVE)
        assert harness.kept == [("m0", "n0")]
        server.add(GROUPS, pod_group("h").gang(1).raw())
        server.add(PODS, member("h0", "h").raw())
        await wait_until(lambda: len(harness.extender.core.groups.states) == 2)
        server.add(PODS, member("m2", "g").raw())
        await wait_until(lambda: harness.slot("m2"))
        assert (harness.slot("m2"), harness.slot("h0")) == ("n0", "")


async def test_it_survives_a_level_at_which_the_cluster_was_never_seen() -> None:
    """The API level changes twice, and between these nothing could be listed."""
    async with FakeApiServer() as server, keeping(server) as harness:
        gate = server.hold(lambda request: request.path.endswith("/nodes"))
        server.served.update(NATIVE_SERVED)
        await wait_until(lambda: harness.extender.level == NATIVE)
        server.served.difference_update(NATIVE_SERVED)
        await wait_until(lambda: len(harness.extenders) == 3)
        gate.open()
        await harness.turns_to(FALLBACK)
        assert harness.kept == [("m0", "n0")]
