"""Measure how long filter and prioritize take over a real socket, with 1, 1,000 and 5,000 node names.

Filter gets a plain pod and a held member of a gang. Prioritize gets a plain pod while one rack is partly used, so that
nodes get different scores.

The client is a process of its own. It makes one call after the other on one kept connection, as kube-scheduler does,
and sends the pod as the API server has it. JSON goes to `bench/results/`, a table to standard output.

    python -m bench.latency                 a cluster of 5,000 nodes
    python -m bench.latency --nodes 100     the same names, but a smaller cluster behind them
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.nodes import RACK, node_name
from bench.cluster.progress import stderr_report
from bench.contenders import NODES_PER_RACK
from bench.load.figures import percentile
from bench.load.objects import NAMESPACE, POD_GROUPS, Gang, Load, member_object, pod_group_object, pod_objects
from bench.load.run import open_client
from bench.machine import describe_machine, measure_noise
from serried.cluster.domain_use import MAX_SCORE
from serried.kube.calls import JSON_TYPE
from serried.kube.errors import ApiError
from serried.kube.wire import JSON, PODS

RESULTS = Path(__file__).with_name("results")
SIZES = (1, 1000, 5000)
_WARM_UP = 200
_CLUSTER = f"bench-latency-{os.getpid()}"


class AnswerError(Exception):
    """The extender gave an unexpected answer, so that its latency would mean nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call that is measured."""

    name: str
    pod: JSON
    passes: bool
    """True if filter must return all nodes for the pod, False if it must return none."""

    verb: str = "filter"


def make_request(url: str, pod: JSON, names: Sequence[str]) -> bytes:
    """Return the bytes of one HTTP request, as kube-scheduler sends it with nodeCacheCapable."""
    body = orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": names})
    parts = urlsplit(url)
    head = (
        f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    return head.encode() + body


def call(connection: socket.socket, request: bytes) -> bytes:
    """Send one request and return the body of its answer.

    Raise AnswerError unless the answer has status 200 and a Content-Length.
    """
    connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += _receive(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    lengths = [int(value) for name, _, value in (line.partition(b":") for line in headers)
               if name.lower() == b"content-length"]  # fmt: skip
    if b" 200 " not in status + b" " or not lengths:
        raise AnswerError(f"{head.decode(errors='replace')}: {body[:200]!r}")
    parts, missing = [body], lengths[0] - len(body)
    while missing > 0:
        parts.append(_receive(connection))
        missing -= len(parts[-1])
    return b"".join(parts)


def _receive(connection: socket.socket) -> bytes:
    chunk = connection.recv(1 << 18)
    if not chunk:
        raise AnswerError("the connection was closed in the middle of an answer")
    return chunk


def measure_calls(url: str, request: bytes, calls: int) -> list[float]:
    """Open a connection, warm it up, and return the seconds of each measured call, sorted."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=30.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_WARM_UP):
            call(connection, request)
        return sorted(_time_call(connection, request) for _ in range(calls))


def _time_call(connection: socket.socket, request: bytes) -> float:
    begun = time.perf_counter()
    call(connection, request)
    return time.perf_counter() - begun


def check_answer(url: str, case: Case, names: Sequence[str]) -> None:
    """Raise AnswerError if the extender gives a wrong answer for a case."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=30.0) as connection:
        answer = orjson.loads(call(connection, make_request(url, case.pod, names)))
    if isinstance(answer, list):
        scores = {each["Score"] for each in answer}
        if len(answer) != len(names) or (len(names) > NODES_PER_RACK and scores != {0, MAX_SCORE}):
            raise AnswerError(f"{case.name}, {len(names)} names: {len(answer)} scores, {sorted(scores)} among them")
        return
    left = len(answer.get("NodeNames") or [])
    if answer.get("Error") or left != (len(names) if case.passes else 0):
        raise AnswerError(f"{case.name}, {len(names)} names: {left} nodes are left; {answer.get('Error', '')}")


def describe_calls(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p95, p99 and maximum in milliseconds. ``seconds`` must be sorted and not empty."""
    marks = {f"p{mark}": percentile(seconds, mark) or 0.0 for mark in (50, 95, 99)} | {"max": seconds[-1]}
    return {f"{name}_ms": round(value * 1000, 3) for name, value in marks.items()}


async def make_cases(kubeconfig: Path) -> list[Case]:
    """Return the cases, after creating the objects that they need.

    The plain pod comes from a dry run, so it never exists in the cluster. The held member is the only pod of a gang of
    two that needs one rack, so it is held for ever. Another pod runs in one rack.
    """
    load = Load("latency", "serried", plain=1, gangs=(Gang("pair", 2, RACK),))
    plain = next(pod for gang, pod in pod_objects(load) if not gang)
    async with open_client(kubeconfig) as client:
        answer = await client.request(
            "POST", PODS.path(NAMESPACE), body=orjson.dumps(plain), params={"dryRun": "All"}, content_type=JSON_TYPE
        )
        await client.create(POD_GROUPS[load.link], NAMESPACE, pod_group_object(load, load.gangs[0]))
        member = await client.create(PODS, NAMESPACE, member_object(load, load.gangs[0], 0))
        running = {"metadata": {"name": "running"}, "spec": plain["spec"] | {"nodeName": node_name(0)}}
        await client.create(PODS, NAMESPACE, plain | running)
    asked = _as_cached(orjson.loads(answer.body))
    return [Case("plain pod", asked, passes=True), Case("held member", _as_cached(member), passes=False),
            Case("plain pod, prioritize", asked, passes=True, verb="prioritize")]  # fmt: skip


def _as_cached(pod: JSON) -> JSON:
    # kube-scheduler's cache has no managedFields (NewInformerFactory in upstream's pkg/scheduler/scheduler.go), and
    # decoding drops kind and apiVersion.
    metadata = {name: value for name, value in pod["metadata"].items() if name != "managedFields"}
    return {"metadata": metadata, "spec": pod["spec"], "status": pod["status"]}


def measure(address: str, cases: Sequence[Case], calls: int) -> list[dict[str, Any]]:
    """Measure each case with each number of names, each in a new client process. Return the rows of the result."""
    rows = []
    for case in cases:
        url = f"{address}/{case.verb}"
        for size in SIZES:
            names = [node_name(index) for index in range(size)]
            check_answer(url, case, names)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds = pool.apply(measure_calls, (url, make_request(url, case.pod, names), calls))
            rows.append({"pod": case.name, "names": size, "calls": calls} | describe_calls(seconds))
    return rows


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    head = ["| pod | node names | p50, ms | p95, ms | p99, ms |", "|---|---|---|---|---|"]
    marks = ("p50_ms", "p95_ms", "p99_ms")
    cells = ([row["pod"], f"{row['names']:,}", *(f"{row[mark]:.2f}" for mark in marks)] for row in rows)
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in cells)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a cluster, measure, write the result and remove the cluster. Return 1 if that failed, else 0."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser().parse_args(arguments)
    noise = measure_noise()
    try:
        cluster = Cluster.up(
            Spec(_CLUSTER, options.nodes, racks=max(2, options.nodes // NODES_PER_RACK), blocks=1), stderr_report()
        )
        try:
            cases = asyncio.run(make_cases(cluster.kubeconfig))
            time.sleep(2.0)  # until the extender's watch has shown the gang
            rows = measure(cluster.filter_url, cases, options.calls)
        finally:
            cluster.down()
    except (ClusterError, ApiError, AnswerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    about = {"date": options.date, "machine": describe_machine(), "note": options.note, "nodes": options.nodes}
    result = about | {"noise_before": round(noise, 2)}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | {"rows": rows}, indent=2) + "\n")
    print(render_table(rows))
    print(f"written to {path}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--nodes", type=int, default=5000)
    add("--calls", type=int, default=2000, help="measured calls of each case")
    add("--note", default="", help="what a reader of the result has to know of the machine")
    add("--name", default="latency", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
