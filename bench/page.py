"""Measure the cost of the live page: the bytes that its readers get, and how long filter waits meanwhile.

The extender's core runs in one process with 5,000 nodes and 1,000 gangs, and no API server. The page's stream is served
on a real socket to readers in other processes. Every second a hundred plain pods end and others start, and twenty gangs
change between running and waiting. A probe calls filter for a plain pod every few milliseconds; its wait is the time
for which the event loop was blocked, plus the time of the answer. If a Chromium is installed, it shows the page, and
the result has the longest tasks of its main thread.

    python -m bench.page                 JSON to bench/results/, a table to standard output; milliseconds
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from fastapi import FastAPI

from bench.load.figures import percentile
from bench.loop import BLOCK, RESULTS, Stage
from bench.machine import describe_machine, measure_noise
from extender.core.scheduling.group import GroupState
from extender.features.status.reports import LoggedDecision
from extender.look.page import Broadcast, live_routes
from extender.look.sketch import Sketch
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey, write_time
from serried.api.pod import Pod, Shape
from serried.api.verdict import DomainShortage, Reason, Verdict, render
from serried.ops.server import make_server
from tests.support.browser import find_chromium, open_browser, open_page
from tests.support.builders import RACK

_PODS, _GANGS, _SIZE = 20_000, 1_000, 8
_PROBE_INTERVAL = 0.004
_TURN, _PODS_A_TURN, _GANGS_A_TURN = 0.1, 10, 2
"""Seconds between two turns of changes, and the pods and gangs that change in each turn."""

_WARM_UP, _SECONDS = 1.0, 9.0
READERS = (0, 3)
"""The numbers of readers that are measured."""

_SMALL = Shape((("cpu", 1_000), ("pods", 1)))
_FINISH = b'"complete":true'
"""The last bytes of the whole state in the stream; changes follow."""

_OBSERVE_TASKS = (
    "globalThis.tasks = []; new PerformanceObserver((list) => tasks.push(...list.getEntries()"
    ".map((task) => task.duration))).observe({type: 'longtask'})"
)


@dataclass(slots=True)
class Run:
    """The figures of one run."""

    waits: list[float] = field(default_factory=list)
    """The wait of each filter call, in milliseconds."""

    first_bytes: list[int] = field(default_factory=list)
    """By reader: the bytes of the whole state, which the stream begins with."""

    first_ms: list[float] = field(default_factory=list)
    """By reader: the milliseconds from the request to the end of the whole state."""

    bytes_a_second: list[float] = field(default_factory=list)
    """By reader: the bytes per second of the changes that follow."""


class BusyCluster:
    """A full cluster with gangs that run or wait, and the broadcast of its live page. `churn` makes changes."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.fill(_PODS)
        self.decisions: deque[LoggedDecision] = deque(maxlen=1000)
        self._turn = 0
        for number in range(_GANGS):
            key = GroupKey(f"team-{number % 20}", f"gang-{number:04}")
            topology_key = (RACK, BLOCK, None)[number % 3]
            self.stage.store.put_group(PodGroup(key, f"uid-{key}", Policy(_SIZE), topology_key=topology_key))
            self.stage.core.groups.states[key] = GroupState(self.stage.core.clock())
            self._put_gang(number, key, running=number % 10 > 0)
        self.broadcast = Broadcast(lambda: Sketch(self.stage.core, self.decisions), {"version": "bench"})

    def _put_gang(self, number: int, key: GroupKey, *, running: bool) -> None:
        for index in range(_SIZE):
            name = f"{key.name}-{index}"
            at = f"n{number // 10 * 50 + index}" if running else ""
            member = Pod(key.namespace, name, f"{key}-{name}", _SMALL, "serried", at, group=key, index=index)
            self.stage.store.put_pod(member)
        short = tuple(DomainShortage(f"rack-{number % 50 + each}", 7 - each) for each in range(5))
        waits = Verdict(Reason.NO_DOMAIN_FITS, need=_SIZE, key=RACK, domains=short, domain_count=50)
        verdict = Verdict(Reason.SCHEDULED, have=_SIZE) if running else waits
        self.stage.core.groups.states[key].verdict = verdict
        self.decisions.append(LoggedDecision(write_time(time.time()), key, verdict.reason.value, render(verdict)))

    async def churn(self) -> None:
        """Change pods and gangs in each turn, until cancelled."""
        while True:
            await asyncio.sleep(_TURN)
            self._turn += 1
            for each in range(_PODS_A_TURN):
                self._replace_pod((self._turn * _PODS_A_TURN + each) * 13 % _PODS)
            for each in range(_GANGS_A_TURN):
                number = (self._turn * _GANGS_A_TURN + each) * 7 % _GANGS
                key = GroupKey(f"team-{number % 20}", f"gang-{number:04}")
                state = self.stage.core.groups.states[key].verdict
                self._put_gang(number, key, running=state is not None and state.reason is not Reason.SCHEDULED)

    def _replace_pod(self, index: int) -> None:
        pod = self.stage.store.pods[f"p{index}"]
        node = f"n{(index + self._turn) % len(self.stage.store.nodes)}"
        self.stage.store.drop_pod(pod.uid)
        self.stage.store.put_pod(Pod(pod.namespace, pod.name, pod.uid, pod.shape, pod.scheduler, node))


def read_stream(port: int, seconds: float, pipe: Connection) -> None:
    """Read the stream for some seconds, in a process of its own.

    Send bytes and milliseconds of the whole state through the pipe, and at the end the bytes per second after it.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
        begun, first, tail = time.time(), 0, b""
        connection.sendall(b"GET /debug/stream HTTP/1.1\r\nHost: bench\r\n\r\n")
        while _FINISH not in tail:
            chunk = connection.recv(1 << 18)
            first += len(chunk)
            tail = tail[-len(_FINISH) :] + chunk
        finished, total = time.time(), 0
        pipe.send((first, (finished - begun) * 1000))
        connection.settimeout(0.2)
        while time.time() < finished + seconds:
            try:
                total += len(connection.recv(1 << 18))
            except TimeoutError:
                continue
    pipe.send(total / seconds)


@asynccontextmanager
async def serving(busy: BusyCluster) -> AsyncIterator[int]:
    """Serve the page while the body runs; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = FastAPI()
    app.include_router(live_routes(busy.broadcast))
    server = make_server(app, "127.0.0.1", 0)
    task = asyncio.create_task(server.serve([listener]))
    yield listener.getsockname()[1]
    await busy.broadcast.close()
    server.should_exit = True
    await task


async def watch(readers: int) -> Run:
    """Run a number of readers for some seconds, and return their figures and the waits of filter."""
    busy, run = BusyCluster(), Run()
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    churn = asyncio.create_task(busy.churn())
    async with serving(busy) as port:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe(duplex=False) for _ in range(readers)]
        clients = [context.Process(target=read_stream, args=(port, _SECONDS, pipe[1])) for pipe in pipes]
        for client, pipe in zip(clients, pipes, strict=True):
            client.start()
            pipe[1].close()
        for receiver, _ in pipes:
            size, took = await asyncio.to_thread(receiver.recv)
            run.first_bytes.append(size)
            run.first_ms.append(took)
        await probe(busy, Run(), _WARM_UP)
        await probe(busy, run, _SECONDS - _WARM_UP)
        run.bytes_a_second = [await asyncio.to_thread(receiver.recv) for receiver, _ in pipes]
        for client in clients:
            await asyncio.to_thread(client.join)
    churn.cancel()
    await asyncio.gather(churn, return_exceptions=True)
    return run


async def probe(busy: BusyCluster, run: Run, seconds: float) -> None:
    """Call filter for a plain pod every few milliseconds, and add the waits to ``run``."""
    plain = Pod("load", "plain", "plain", Shape((("cpu", 1), ("pods", 1))), "serried")
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await asyncio.sleep(_PROBE_INTERVAL)
        busy.stage.service.filter(plain, ["n1"])
        run.waits.append((time.perf_counter() - begun - _PROBE_INTERVAL) * 1000)


async def measure_browser() -> dict[str, Any]:
    """Show the page in a browser for some seconds.

    Return the number of tasks that blocked the browser's main thread for more than 50 ms after the whole state had
    arrived, and the longest of them in milliseconds.
    """
    busy = BusyCluster()
    churn = asyncio.create_task(busy.churn())
    async with (
        serving(busy) as port,
        open_browser() as browser,
        open_page(browser, f"http://127.0.0.1:{port}/debug/") as (page, _),
    ):
        await page.evaluate(_OBSERVE_TASKS)
        await asyncio.sleep(_SECONDS)
        tasks: list[float] = await page.evaluate("tasks")
    churn.cancel()
    await asyncio.gather(churn, return_exceptions=True)
    return {"seconds": _SECONDS, "tasks_above_50_ms": len(tasks), "longest_ms": round(max(tasks, default=0.0), 1)}


def measure(readers: int, runs: int) -> dict[str, Any]:
    """Return the row for a number of readers: medians over some runs."""
    found: list[Run] = []
    for _ in range(runs):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found.append(runner.run(watch(readers)))
        gc.unfreeze()
    row: dict[str, Any] = {"readers": readers}
    for mark in (50, 99):
        row[f"filter_p{mark}"] = _median([percentile(sorted(run.waits), mark) or 0.0 for run in found])
    row["filter_longest"] = _median([max(run.waits) for run in found])
    if readers:
        row["first_kilobytes"] = _median([max(run.first_bytes) / 1000 for run in found])
        row["first_ms"] = _median([max(run.first_ms) for run in found])
        row["kilobytes_a_second"] = _median([statistics.mean(run.bytes_a_second) / 1000 for run in found])
    return row


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure with each number of readers, and in a browser if one is installed; write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="runs with each number of readers, for medians")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows = measure_noise(), []
    print("| readers | filter p50, ms | p99 | longest | first state, kB | after, ms | then kB/s |")
    print("|---|---|---|---|---|---|---|")
    for readers in READERS:
        rows.append(measure(readers, options.runs))
        print("|", " | ".join(str(value) for value in rows[-1].values()), "|", flush=True)
    machine = {**describe_machine(), "busy_with_other_work_before": round(noise, 2), "runs": options.runs}
    result = {"date": options.date, "machine": machine, "nodes": 5_000, "gangs": _GANGS, "rows": rows}
    if find_chromium():
        result["browser"] = asyncio.run(measure_browser())
        print(result["browser"], file=sys.stderr)
    path: Path = options.results / f"page-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
