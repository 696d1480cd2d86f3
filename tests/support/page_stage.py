"""The page at ``/debug/`` of an extender in memory with an example cluster, on a real socket, for a real browser."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

from fastapi import FastAPI

from extender.features.status.reports import LoggedDecision, Reports
from extender.look.page import Broadcast, live_routes
from extender.look.routes import debug_routes
from extender.look.sketch import Sketch
from serried.api.level import FALLBACK
from serried.api.names import GroupKey, write_time
from serried.api.verdict import Verdict, render
from serried.ops.server import make_server
from tests.support.builders import JobBuilder, NodeBuilder, PodBuilder, PodGroupBuilder, job, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, RecordingMetrics

ZONE = "topology.kubernetes.io/zone"
BLOCK = "topology.serried.dev/block"
RACK = "topology.serried.dev/rack"
RACKS = 12
JOB_GANGS = {
    "train-llm": "train-llm-6cfb954c4f",
    "hyper-sweep": "hyper-sweep-7549667c5d",
    "resnet": "resnet-5f6d8b9c4-r0-0",
}
"""By name of the Job: the PodGroup of each gang that belongs to a Job."""

NODES_OF_A_RACK = 20


class DecisionRecorder(RecordingMetrics):
    """Keeps decisions in memory, as `Reports` does."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[LoggedDecision] = []
        self.wall: Callable[[], float] = lambda: 0.0

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Keep one decision."""
        super().report_verdict(group, verdict)
        at, number = write_time(self.wall()), f"3fa1c2-{len(self.decisions)}"
        self.decisions.append(LoggedDecision(at, group, verdict.reason.value, render(verdict), number))


def make_world() -> Harness:
    """Return a harness that records the extender's decisions for the page."""
    listener = DecisionRecorder()
    world = Harness(heard=listener)
    listener.wall = world.wall_time
    return world


def example_nodes() -> Iterator[NodeBuilder]:
    """Build 240 nodes in two zones, four blocks and twelve racks of twenty nodes. Two nodes are cordoned."""
    for index in range(RACKS * NODES_OF_A_RACK):
        rack = index // NODES_OF_A_RACK
        built = node(f"node-{index:03}").cpu(32).memory("128Gi").pods(110)
        built = (
            built.label(ZONE, f"zone-{'ab'[rack // 6]}").label(BLOCK, f"block-{rack // 3}").label(RACK, f"rack-{rack}")
        )
        yield built.cordoned() if index in {47, 151} else built


class ExampleCluster:
    """Example workloads: running gangs, one that starts, and several that wait for different reasons."""

    def __init__(self, world: Harness) -> None:
        self.world = world
        self._serial = count()

    async def create_workloads(self) -> None:
        """Create all workloads."""
        world = self.world
        world.add(*example_nodes(), *self.plain_pods())
        for number, name in enumerate(("resnet", "bert", "diffusion", "whisper", "ranker", "fold-7")):
            self.add_running_gang(name, namespace=("vision", "language", "bio")[number % 3], rack=number, size=12)
        await self.run_scheduler()
        world.clock.advance(600)
        await self.add_waiting_gang("train-llm", 16, cpu=24, namespace="language", key=RACK)
        world.clock.advance(240)
        await self.add_waiting_gang("hyper-sweep", 240, cpu=20, namespace="vision")
        world.clock.advance(60)
        await self.add_waiting_gang("align-genome", 40, cpu=8, namespace="bio", key=RACK)
        await self.add_waiting_gang("dock-ligands", 8, cpu=4, namespace="bio", come=5)
        await self.add_waiting_gang("distil", 16, cpu=6, namespace="language", key=RACK)
        await self.add_waiting_gang("urgent-eval", 14, cpu=24, namespace="language", key=RACK, priority=1000)
        world.clock.advance(20)
        for member in ("ranker-3", "ranker-8"):
            self.delete_member("language", member)
        for _ in range(3):
            await self.run_scheduler()

    def plain_pods(self) -> Iterator[PodBuilder]:
        """Create plain pods, unevenly spread over the nodes."""
        for index in range(RACKS * NODES_OF_A_RACK):
            rack = index // NODES_OF_A_RACK
            cpus = (index * 7 + rack * 5) % 17 + (rack * 3) % 8
            if cpus > 3:
                built = pod(f"web-{index}").namespace("web").cpu(cpus).on(f"node-{index:03}")
                yield built.started(write_time(self.world.wall_time())).active_deadline(3600 + 60 * index)

    def add_running_gang(self, name: str, *, namespace: str, rack: int, size: int) -> None:
        """Create a gang whose members run in one rack."""
        self.world.add(*self._job(name, size, namespace), self._group(name, size, RACK, namespace))
        for index in range(size):
            place = f"node-{rack * NODES_OF_A_RACK + index:03}"
            self.world.add(self._member(name, index, 8, namespace).on(place))

    async def add_waiting_gang(
        self,
        name: str,
        size: int,
        *,
        cpu: int,
        namespace: str,
        come: int | None = None,
        key: str = "",
        priority: int = 0,
    ) -> None:
        """Create a gang of ``size``, ``come`` of whose members exist (None: all). Let the extender decide on it."""
        self.world.add(*self._job(name, size, namespace), self._group(name, size, key, namespace).priority(priority))
        for index in range(size if come is None else come):
            self.world.add(self._member(name, index, cpu, namespace).priority(priority))
        await self.run_scheduler()

    async def run_scheduler(self) -> None:
        """Run the group scheduler once and apply its decisions."""
        self.world.schedule_groups()
        await self.world.run_tasks()

    def delete_member(self, namespace: str, name: str) -> None:
        """Delete a running member."""
        uid = next(one.uid for one in self.world.store.pods.values() if (one.namespace, one.name) == (namespace, name))
        self.world.store.drop_pod(uid)

    def _job(self, name: str, size: int, namespace: str) -> list[JobBuilder]:
        return [job(name).namespace(namespace).size(size).scheduler(SCHEDULER)] if name in JOB_GANGS else []

    def _group(self, name: str, size: int, key: str, namespace: str) -> PodGroupBuilder:
        built = pod_group(JOB_GANGS.get(name, name)).namespace(namespace).uid(f"{namespace}-{name}").gang(size)
        built = built.controlled_by("Job", name) if name in JOB_GANGS else built
        return built.topology(key) if key else built

    def _member(self, name: str, index: int, cpu: int, namespace: str) -> PodBuilder:
        built = pod(f"{name}-{index}").uid(f"{namespace}-{name}-{index}-{next(self._serial)}").namespace(namespace)
        built = built.of_job(name, index) if name in JOB_GANGS else built
        return built.cpu(cpu).scheduler(SCHEDULER).in_group(JOB_GANGS.get(name, name))


def make_app(world: Harness, broadcast: Broadcast) -> FastAPI:
    """Return an app with the routes of ``/debug``."""
    app = FastAPI()
    app.include_router(debug_routes(world.core, _reports(world), FALLBACK, dict))
    app.include_router(live_routes(broadcast))
    return app


def _reports(world: Harness) -> Reports:
    listener: object = world.heard
    return listener  # type: ignore[return-value]


def make_broadcast(world: Harness) -> Broadcast:
    """Return the object that feeds the live page's routes."""
    assert isinstance(world.heard, DecisionRecorder)
    decisions = world.heard.decisions
    about = {"version": "0.1.0", "apiLevel": FALLBACK.name}
    return Broadcast(lambda: Sketch(world.core, decisions), about, world.wall_time)


@asynccontextmanager
async def serving(world: Harness, broadcast: Broadcast) -> AsyncIterator[str]:
    """Serve the page until the block ends; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server(make_app(world, broadcast), "127.0.0.1", 0)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/debug/"
    finally:
        await broadcast.close()
        server.should_exit = True
        await task
