"""Measure how long filter waits while fifty readers request pages and metrics in a loop, and compare TLS with HTTP.

The extender's core runs in one process with 5,000 nodes, 1,000 gangs that change (`bench.page`), and a waiting gang of
10,000 members. Its pages are served by the operations listener, whose guard demands a token of every client; a stub API
server reviews the tokens. The readers run in other processes, on kept connections by plain HTTP, in one case by TLS. In
two cases they are strangers, which send no token, or another invented one with each request. A probe calls filter for a
plain pod every few milliseconds.

The second part calls the listener of the extender's verbs over one kept connection, as kube-scheduler does: by plain
HTTP, and by TLS with certificates on both sides.

    python -m bench.readers              JSON to bench/results/, a table to standard output; milliseconds
"""

import argparse
import asyncio
import gc
import http.client
import json
import multiprocessing
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Literal, cast

import uvloop
from fastapi import FastAPI

from bench.load.figures import percentile
from bench.loop import RESULTS
from bench.machine import describe_machine, measure_noise
from bench.page import BusyCluster, Run, probe
from extender.core.http.server import Listener, Reply, Routes, Security
from extender.core.scheduling.group import GroupState
from extender.features.status.reports import Reports
from extender.lead.leadership import Leadership
from extender.look.page import live_routes
from extender.look.routes import Gauges, debug_routes
from serried.api.group import PodGroup, Policy
from serried.api.level import NATIVE
from serried.api.names import GroupKey
from serried.api.pod import Pod, Shape
from serried.api.verdict import Reason, Verdict
from serried.ops.access import OPEN_PATHS, Guard, Reviews, TokenDemand
from serried.ops.metrics import ExtenderMetrics
from serried.ops.server import make_server, ops_routes
from serried.ops.slices import Pace, Paced
from serried.ops.tls import CertificateFiles, ReloadingContext, make_self_signed
from tests.support.access_reviews import FakeReviews
from tests.support.certificates import Authority

_READERS = 50
_PROCESSES = 2
_WARM_UP, _SECONDS = 1.0, 8.0
_CALLS = 3_000
_BODY = b'{"pod":{}}' + b" " * 30_000
"""The body of a call, as long as one with the names of a thousand nodes."""

_READER = "system:serviceaccount:team:reader"
_TOKEN = "a-good-token"  # noqa: S105 - only the stub API server accepts it
_REVIEW_SECONDS = 30.0
"""Seconds for which the review of a token is cached, as by the default of `--ops-auth-cache`."""

_HUGE = GroupKey("team-0", "huge")
_HUGE_SIZE = 10_000

Scheme = Literal["http", "https"]
Credential = Literal["good", "invented", "none"]
"""The token that a reader sends: one that the guard accepts, a new random one with each request, or none."""


@dataclass(frozen=True, slots=True)
class Case:
    """The requests of the readers."""

    paths: tuple[str, ...]
    """The paths that each reader requests in turn; without any, there are no readers."""

    scheme: Scheme = "http"
    credential: Credential = "good"


_MANY = (
    *("/metrics", "/debug/groups", "/debug/nodes", "/debug/domains", "/debug/decisions?limit=1000"),
    *("/debug/queue", "/debug/", "/debug/groups/team-1/gang-0001"),
)

CASES = {
    "nothing": Case(()),
    "metrics": Case(("/metrics",)),
    "groups": Case(("/debug/groups",)),
    "all nodes": Case(("/debug/nodes?limit=100000",)),
    "domains": Case(("/debug/domains",)),
    "a gang of 10,000": Case((f"/debug/groups/{_HUGE.namespace}/{_HUGE.name}",)),
    "a pod looked up": Case((f"/debug/lookup/{_HUGE.namespace}/pod/{_HUGE.name}-0",)),
    "many pages by turns": Case(_MANY),
    "many pages by TLS": Case(_MANY, "https"),
    "strangers without a token": Case(("/metrics",), credential="none"),
    "strangers with invented tokens": Case(("/metrics",), credential="invented"),
}


def connect(port: int, scheme: Scheme) -> http.client.HTTPConnection:
    """Return a connection of a reader; it is opened by the first request."""
    if scheme == "http":
        return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is self-signed, as in an extender without certificate files
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)


def fetch_status(connection: http.client.HTTPConnection, path: str, credential: Credential) -> int:
    """Send one request, read the answer to its end, and return its status."""
    token = {"good": _TOKEN, "none": "", "invented": token_hex(16)}[credential]
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def run_readers(port: int, case: Case, readers: int, ended: Event, counted: Any) -> None:
    """Run some readers in this process until ``ended`` is set.

    ``counted`` is a shared array: the number of answers with status 200, and of all others.
    """
    import threading  # noqa: PLC0415 - only the processes of the readers need it

    def read(offset: int) -> None:
        connection = connect(port, case.scheme)
        turn = offset
        while not ended.is_set():
            turn += 1
            try:
                status = fetch_status(connection, case.paths[turn % len(case.paths)], case.credential)
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            with counted.get_lock():
                counted[0 if status == 200 else 1] += 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def add_huge_gang(busy: BusyCluster) -> None:
    """Add a gang of 10,000 members that waits, because the cluster has no capacity for it."""
    busy.stage.store.put_group(PodGroup(_HUGE, str(_HUGE), Policy(_HUGE_SIZE)))
    shape = Shape((("cpu", 1_000), ("pods", 1)))
    for index in range(_HUGE_SIZE):
        name = f"{_HUGE.name}-{index}"
        busy.stage.store.put_pod(Pod(_HUGE.namespace, name, name, shape, "serried", group=_HUGE, index=index))
    state = busy.stage.core.groups.states[_HUGE] = GroupState(busy.stage.core.clock())
    state.verdict = Verdict(Reason.NO_CAPACITY, need=_HUGE_SIZE)


def make_app(busy: BusyCluster) -> FastAPI:
    """Return the app with the extender's pages and metrics."""
    metrics = ExtenderMetrics()
    stubs = {"feed": SimpleNamespace(show=lambda _: None), "isolation": SimpleNamespace(list_unmarked=list)}
    leadership = cast("Leadership", SimpleNamespace(active=True))
    gauges = Gauges(busy.stage.core, level=NATIVE, leadership=leadership, metrics=metrics, **cast("Any", stubs))
    metrics.before_render(gauges.sample)
    app = FastAPI()
    app.include_router(ops_routes(dict, metrics.render))
    reports = cast("Reports", SimpleNamespace(decisions=busy.decisions))
    app.include_router(debug_routes(busy.stage.core, reports, NATIVE, dict))
    app.include_router(live_routes(busy.broadcast))
    return app


@asynccontextmanager
async def serving(app: FastAPI, case: Case) -> AsyncIterator[int]:
    """Serve an app behind the guard while the body runs, as `serried.ops.process` does; yield the port."""
    pace, fake_reviews = Pace(), FakeReviews()
    fake_reviews.users[_TOKEN] = _READER
    fake_reviews.grants = {(_READER, "get", path.partition("?")[0]) for path in case.paths}
    reviews = Reviews(fake_reviews.client(), _REVIEW_SECONDS)
    paced = Paced(Guard(app, TokenDemand.ALWAYS, reviews, pace.throttle), pace, OPEN_PATHS)
    tls = make_self_signed() if case.scheme == "https" else None
    server = make_server(paced, "127.0.0.1", 0, tls=tls, throttle=pace.throttle)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task


async def watch(case: Case) -> tuple[Run, int, int]:
    """Run the readers of a case for some seconds.

    Return the waits of filter, the number of answers with status 200, and the number of others.
    """
    busy, run = BusyCluster(), Run()
    add_huge_gang(busy)
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    churn = asyncio.create_task(busy.churn())
    context = multiprocessing.get_context("spawn")
    ended, counted = context.Event(), context.Array("q", 2)
    paths = case.paths
    async with serving(make_app(busy), case) as port:
        work = (port, case, _READERS // _PROCESSES, ended, counted)
        clients = [context.Process(target=run_readers, args=work) for _ in range(_PROCESSES if paths else 0)]
        for client in clients:
            client.start()
        while paths and counted[0] + counted[1] < _READERS:  # noqa: ASYNC110 - other processes count
            await asyncio.sleep(0.05)
        await probe(busy, Run(), _WARM_UP)
        before = tuple(counted[:])
        await probe(busy, run, _SECONDS)
        answered, refused = (now - then for now, then in zip(counted[:], before, strict=True))
        ended.set()
        for client in clients:
            await asyncio.to_thread(client.join)
        await busy.broadcast.close()
    churn.cancel()
    await asyncio.gather(churn, return_exceptions=True)
    return run, answered, refused


def measure(name: str, case: Case) -> dict[str, Any]:
    """Run a case once, and return its row of the result. Waits are in milliseconds."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run, answered, refused = runner.run(watch(case))
    gc.unfreeze()
    waits = sorted(run.waits)
    return {
        "case": name,
        "filter_p50": round(percentile(waits, 50) or 0.0, 2),
        "filter_p99": round(percentile(waits, 99) or 0.0, 2),
        "filter_longest": round(waits[-1], 1),
        "answers_a_second": round(answered / _SECONDS, 1),
        "refused": refused,
    }


def time_calls(port: int, context: ssl.SSLContext | None) -> list[float]:
    """Return the milliseconds of calls on one kept connection, sorted. Without a context, use plain HTTP."""
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection("127.0.0.1", port)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, context=context)
    )
    took = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        connection.request("POST", "/filter", _BODY)
        connection.getresponse().read()
        took.append((time.perf_counter() - begun) * 1000)
    connection.close()
    return sorted(took)


async def time_verb(security: Security | None, context: ssl.SSLContext | None) -> list[float]:
    """Open a listener of the extender's verbs in this process, and return the sorted milliseconds of calls to it."""
    listener = Listener(Routes({b"/filter": lambda _: Reply(b'{"nodenames":["n1"]}')}, {}, 1 << 20), security=security)
    port = await listener.open("127.0.0.1", 0)
    took = await asyncio.to_thread(time_calls, port, context)
    await listener.close()
    return took


def measure_tls() -> list[dict[str, Any]]:
    """Measure calls by plain HTTP and by TLS. Return a row for each."""
    rows = []
    with TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        certificate, key = authority.sign("serried")
        security = Security(
            ReloadingContext(CertificateFiles(str(certificate), str(key), client_ca=str(authority.file))),
            lambda _: True,
        )
        trusting = ssl.create_default_context(cafile=str(authority.file))
        trusting.load_cert_chain(*authority.sign("scheduler"))
        by_way = {"plain": partial(time_verb, None, None), "tls": partial(time_verb, security, trusting)}
        for name, work in by_way.items():
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(work())
                took = runner.run(work())
            rows.append(
                {
                    "way": name,
                    "call_p50": round(percentile(took, 50) or 0.0, 3),
                    "call_p99": round(percentile(took, 99) or 0.0, 3),
                }
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write the result; with names of cases, measure only these and write none."""
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only these")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    asked = parser.parse_args(arguments)
    noise = measure_noise()
    rows = []
    for name, case in CASES.items():
        if not asked.cases or name in asked.cases:
            rows.append(measure(name, case))
            print(rows[-1], flush=True)
    ways = measure_tls()
    print(ways, flush=True)
    if not asked.cases:
        machine = {**describe_machine(), "busy_with_other_work_before": round(noise, 2)}
        result = {
            "date": asked.date,
            "machine": machine,
            "nodes": 5_000,
            "readers": _READERS,
            "rows": rows,
            "ways": ways,
        }
        (asked.results / f"readers-{asked.date}.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
