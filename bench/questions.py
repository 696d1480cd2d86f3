"""Measure how long filter waits while a client requests ``/debug/snapshot``, ``/whatif`` or ``/cache/diff`` in a loop.

The extender's core runs in one process, as in `bench.loop`, with 5,000 nodes and 50,000 pods. A probe calls filter for
a plain pod every few milliseconds. After that, the work of an answer and its longest slice are measured alone, in
processor time, so that other work on the machine does not count.

    python -m bench.questions            JSON to bench/results/, a table to standard output; milliseconds
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvloop
from fastapi import FastAPI

from bench.lister import NODES, PODS, make_node, make_pod, serve_lists
from bench.load.figures import percentile
from bench.loop import RESULTS, Run, Stage, probe
from bench.machine import describe_machine, measure_noise
from extender.look.routes import ProcessPages
from extender.look.simulations import snapshot_routes, whatif_routes
from serried.api.level import NATIVE
from serried.api.node import decode_node
from serried.api.pod import decode_pod
from serried.drift import Comparison
from serried.feed import Feed, Kind
from serried.kube.auth import Credentials
from serried.kube.client import ApiClient
from serried.ops.slices import Slices
from serried.settings import extender_settings
from tests.support.builders import RACK, require_valid
from tests.support.priorities import priority_class

_PODS = 50_000
_WARM_UP_SECONDS = 1.0
_SECONDS = 8.0
_ANSWERS = 5
_DIFF = "/cache/diff"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request."""

    name: str
    path: str = ""
    """The path with its query, "" for no requests at all."""

    manifests: Sequence[dict[str, Any]] = ()
    """The objects in the body of a POST; without any, the request is a GET."""


def make_job(members: int, cpu: int, priority: str = "") -> dict[str, Any]:
    """Return the manifest of a Job whose pods are a gang that needs one rack."""
    container = {"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}
    spec = {"schedulerName": "serried", "containers": [container], "priorityClassName": priority}
    size = {"parallelism": members, "completions": members, "completionMode": "Indexed"}
    metadata = {"name": "train", "annotations": {"scheduling.serried.dev/required-topology": RACK}}
    return {"kind": "Job", "metadata": metadata, "spec": {**size, "template": {"spec": spec}}}


CASES = (
    Case("nobody asks"),
    Case("snapshots", "/snapshot"),
    Case("snapshots by gzip", "/snapshot?form=gzip"),
    Case("a gang of 64 that fits", "/whatif", [make_job(64, 8)]),
    Case("a gang of 1,000 that fits nowhere", "/whatif", [make_job(1_000, 12)]),
    Case("a gang of 64 for which others would go", "/whatif", [make_job(64, 24, "high")]),
    Case("the same with 100 more nodes and one drained", "/whatif?add=100*n1&drain=n2", [make_job(64, 24, "high")]),
    Case("the cache against the API server", _DIFF),
)


@dataclass(slots=True)
class Answers:
    """The figures of all answers in one run."""

    seconds: list[float] = field(default_factory=list)
    """Wall time of each answer."""

    longest: list[float] = field(default_factory=list)
    """Processor time of each answer's longest slice, in milliseconds."""

    work: list[float] = field(default_factory=list)
    """Processor time of each answer, in milliseconds."""

    sizes: list[int] = field(default_factory=list)
    """Bytes of each answer."""


async def watch(case: Case) -> tuple[Run, Answers]:
    """Send requests in a loop for some seconds. Return the waits of filter meanwhile, and figures of the answers."""
    stage, run, answers = Stage(), Run(), Answers()
    if case.path == _DIFF:
        fill_from_lists(stage)
    else:
        stage.fill(_PODS)
    stage.store.put_priority_class(priority_class("high", 100).value())
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    async with open_client(stage, case, Slices()) as http:
        if case.path == _DIFF:
            await _request(http, case)  # so that the stub API server makes its pages now
        await probe(stage, Run(), _WARM_UP_SECONDS)
        requesting = asyncio.create_task(_request_in_loop(http, case, answers))
        await probe(stage, run, _SECONDS)
        requesting.cancel()
        await asyncio.gather(requesting, return_exceptions=True)
        if case.path == _DIFF:
            await _measure_answer(http, case, answers)
            return run, answers
    async with open_client(stage, case, Slices(time.thread_time, _continue_at_once)) as http:
        for _ in range(_ANSWERS if case.path else 0):
            await _measure_answer(http, case, answers)
    return run, answers


def fill_from_lists(stage: Stage) -> None:
    """Put the objects of the stub API server into the cache, as a watch would."""
    for index in range(NODES):
        stage.store.put_node(require_valid(decode_node(make_node(index, "1"))))
    for index in range(PODS):
        stage.store.put_pod(require_valid(decode_pod(make_pod(index))))


@asynccontextmanager
async def open_client(stage: Stage, case: Case, slices: Slices) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the case's routes while the body runs; yield a client of them.

    The routes work in ``slices``, except for the comparison of the cache, which has slices of its own.
    """
    app = FastAPI()
    app.include_router(snapshot_routes(stage.core, NATIVE, slices))
    app.include_router(whatif_routes(stage.core))
    async with AsyncExitStack() as stack:
        if case.path == _DIFF:
            url = stack.enter_context(serve_lists())
            client = await stack.enter_async_context(ApiClient(Credentials(url), component="bench"))
            feed = Feed(client, NATIVE, stage.store, (Kind.NODES, Kind.PODS))
            app.add_api_route(_DIFF, ProcessPages(extender_settings([], {}), Comparison(client, feed)).compare)
        transport = httpx.ASGITransport(app)
        yield await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://debug", timeout=120)
        )


async def _request_in_loop(http: httpx.AsyncClient, case: Case, answers: Answers) -> None:
    while case.path:
        begun = time.perf_counter()
        await _request(http, case)
        answers.seconds.append(time.perf_counter() - begun)


async def _request(http: httpx.AsyncClient, case: Case) -> httpx.Response:
    body = orjson.dumps(list(case.manifests))
    answer = await (http.post(case.path, content=body) if case.manifests else http.get(case.path))
    return answer.raise_for_status()


async def _measure_answer(http: httpx.AsyncClient, case: Case, answers: Answers) -> None:
    """Send one request while nothing else runs, and add size, work and longest slice of its answer."""
    begun = time.thread_time()
    answer = await _request(http, case)
    spent = time.thread_time() - begun
    answers.sizes.append(len(answer.content))
    if case.path == _DIFF:
        if not answer.json()["equal"]:
            raise RuntimeError(answer.text[:1000])
        answers.work.append(1000 * spent)
        answers.longest.append(1000 * await find_longest_turn(_request(http, case)))
    elif case.manifests:
        answers.longest.append(answer.json()["longestSliceSeconds"] * 1000)
        answers.work.append(answer.json()["workSeconds"] * 1000)
    else:
        answers.longest.append(float(answer.headers["X-Longest-Slice-Milliseconds"]))
        answers.work.append(float(answer.headers["X-Work-Milliseconds"]))


async def find_longest_turn(call: Awaitable[object]) -> float:
    """Await a call. Return the longest turn of the event loop until it was done, in seconds of processor time."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest = max(longest, now - before)
            before = now

    watching = asyncio.create_task(watch())
    try:
        await call
    finally:
        watching.cancel()
    return longest


async def _continue_at_once(_: float) -> None:
    """Stand in for the pause between two slices."""


def measure(case: Case) -> dict[str, Any]:
    """Run a case once, and return its row of the result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run, answers = runner.run(watch(case))
    gc.unfreeze()
    waits = sorted(run.waits)
    return {
        "case": case.name,
        "filter_p50": _round(percentile(waits, 50)),
        "filter_p99": _round(percentile(waits, 99)),
        "filter_longest": _round(waits[-1]),
        "answers": len(answers.seconds),
        "answer_seconds": _median(answers.seconds),
        "work": _median(answers.work),
        "longest_slice": _median(answers.longest),
        "kilobytes": round(_median(answers.sizes) / 1000) if answers.sizes else None,
    }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2) if values else 0.0


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case, print the rows and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.questions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], help="cases with one of these in their name")
    parser.add_argument("--name", default="questions", help="part of the file's name")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows = measure_noise(), []
    for case in CASES:
        if any(word in case.name for word in options.only):
            rows.append(measure(case))
            print("|", " | ".join(map(str, rows[-1].values())), "|", flush=True)
    machine = {**describe_machine(), "busy_with_other_work_before": round(noise, 2)}
    result = {"date": options.date, "machine": machine, "nodes": 5_000, "pods": _PODS, "rows": rows}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
