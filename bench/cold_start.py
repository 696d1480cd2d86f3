"""Measure the start of an extender in a large cluster: its time, its memory, and how long pods wait meanwhile.

Pods run on all nodes; they are created with a node name, so no scheduler binds them. The extender is killed, a gang is
created, and the extender is started again. From then on plain pods are created one after the other, until the extender
has listed all objects. Plain pods must not wait for the lists, and no member of the gang may be bound before the lists
are complete. JSON goes to `bench/results/`, the table to standard output.

    python -m bench.cold_start            5,000 nodes with 50,000 pods, 3 starts
    python -m bench.cold_start --quick    50 nodes with 500 pods, 1 start
"""

import argparse
import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.nodes import node_name
from bench.cluster.progress import Report, stderr_report
from bench.cluster.waiting import answers
from bench.load.figures import Life
from bench.load.objects import NAMESPACE, POD_GROUPS, RUN, Gang, Load, leading_objects, pod_objects
from bench.load.requests import read_writes
from bench.load.run import IN_FLIGHT, StuckError, open_client
from bench.load.watch import Watch
from bench.machine import describe_machine, measure_noise
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.reflector import Reflector
from serried.kube.wire import JSON, PODS, Selection

RESULTS = Path(__file__).with_name("results")
PER_NODE = 10
GANG_SIZE = 10
_SCHEDULER = "serried"
_PLAIN_INTERVAL = 0.25
"""Seconds between two plain pods."""

_POLL_INTERVAL = 0.02
"""Seconds between two checks of the extender or of the pods."""

_QUIET_INTERVAL = 5.0
"""Seconds between two counts of the API server's writes, while the pods of the cluster begin to run."""

_QUIET_WRITES = 50
"""Writes in `_QUIET_INTERVAL` below which the cluster counts as idle; Leases are renewed at all times."""

_LATE_SECONDS = 5.0
"""The longest time in seconds that a plain pod may wait if it is created during the lists. Scheduling one takes less
than a second."""

_BACKOFF_SECONDS = 10.0
"""The longest backoff in seconds of kube-scheduler, for a pod that it tried while no extender was running."""

_FILL_TIMEOUT = 900.0
_START_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Start:
    """The figures of one start of the extender. Times are seconds since the process was started."""

    answers: float
    """The time of the first answer on `/livez`."""

    listed: float
    """The time at which `/readyz` answered: all objects are listed."""

    gang_bound: float
    """The time at which the last member of the waiting gang was bound."""

    early: int
    """Number of the gang's members that were bound before all objects were listed."""

    plain: int
    """Number of plain pods created between the first answer and the end of the lists."""

    plain_slowest: float
    """The longest wait of these plain pods for their Binding, in seconds."""

    tried_slowest: float
    """The longest wait of plain pods that were created before the first answer, in seconds from that answer on."""

    peak_mib: float
    """Peak resident memory of the process until the gang was bound, in MiB."""


class Bench:
    """Fills one cluster with pods, and measures starts of its extender."""

    def __init__(self, cluster: Cluster, client: ApiClient, report: Report) -> None:
        self._cluster = cluster
        self._client = client
        self._report = report

    async def fill(self, nodes: int) -> None:
        """Create ten pods for each node, and return once they run and the API server is idle.

        Raise StuckError if that takes longer than `_FILL_TIMEOUT`.
        """
        load = Load("runs", _SCHEDULER, plain=nodes * PER_NODE)
        hosts = (node_name(index % nodes) for index in count())
        pods = (_with_node(pod, host) for (_, pod), host in zip(pod_objects(load), hosts, strict=False))
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(self._create_all(pods))
        self._report(f"{load.pods} pods are created")
        await self._await_quiet()

    async def measure(self, number: int) -> Start:
        """Kill the extender, create a gang, start the extender, and return the figures of this start.

        Raise StuckError if the start takes longer than `_START_TIMEOUT`.
        """
        run = f"start{number}"
        load = Load(run, _SCHEDULER, gangs=(Gang("gang", GANG_SIZE),))
        watch = Watch(GANG_SIZE, time.monotonic)
        reflector = Reflector(self._client, PODS, watch, selection=Selection(NAMESPACE, labels=f"{RUN}={run}"))
        following = asyncio.create_task(reflector.run())
        try:
            await reflector.listed.wait()
            self._cluster.kill("extender", signal.SIGKILL)
            await self._create_gang(load, watch)
            return await asyncio.wait_for(self._start(run, watch), _START_TIMEOUT)
        except TimeoutError:
            raise StuckError(f"the start is not over after {_START_TIMEOUT:.0f} s") from None
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _start(self, run: str, watch: Watch) -> Start:
        process = self._cluster.start("extender")
        begun = time.monotonic()
        creating = asyncio.create_task(self._create_plain_pods(run, watch))
        try:
            answered = await _await_answer(f"{self._cluster.ops_url}/livez")
            listed = await _await_answer(f"{self._cluster.ops_url}/readyz")
        finally:
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
        while not all(life.bound for life in watch.lives):  # noqa: ASYNC110 - the pods belong to another process
            await asyncio.sleep(_POLL_INTERVAL)
        members = [life.bound or 0.0 for life in watch.lives if life.gang]
        came = [life for life in watch.lives if not life.gang and life.created <= listed]
        plain = [life for life in came if life.created >= answered]
        return Start(
            answers=round(answered - begun, 2),
            listed=round(listed - begun, 2),
            gang_bound=round(max(members) - begun, 2),
            early=sum(bound < listed - 2 * _POLL_INTERVAL for bound in members),
            plain=len(plain),
            plain_slowest=_find_slowest(plain, answered),
            tried_slowest=_find_slowest([life for life in came if life.created < answered], answered),
            peak_mib=round(_read_peak(process.pid), 1),
        )

    async def _create_plain_pods(self, run: str, watch: Watch) -> None:
        """Create plain pods one after the other, until cancelled."""
        load = Load(run, _SCHEDULER, plain=1)
        for number in count():
            _, pod = next(pod_objects(load))
            pod["metadata"]["name"] = f"{run}-late-{number:04d}"
            watch.created(pod["metadata"]["name"], "")
            await self._client.create(PODS, NAMESPACE, pod)
            await asyncio.sleep(_PLAIN_INTERVAL)

    async def _create_gang(self, load: Load, watch: Watch) -> None:
        for _, group in leading_objects(load):
            await self._client.create(POD_GROUPS[load.link], NAMESPACE, group)
        for gang, pod in pod_objects(load):
            watch.created(pod["metadata"]["name"], gang)
            await self._client.create(PODS, NAMESPACE, pod)

    async def _create_all(self, pods: Iterator[JSON]) -> None:
        for pod in pods:
            await self._client.create(PODS, NAMESPACE, pod)

    async def _await_quiet(self) -> None:
        deadline = time.monotonic() + _FILL_TIMEOUT
        before = (await read_writes(self._client)).total()
        while time.monotonic() < deadline:
            await asyncio.sleep(_QUIET_INTERVAL)
            now = (await read_writes(self._client)).total()
            if now - before < _QUIET_WRITES:
                return
            before = now
        raise StuckError(f"the pods do not run after {_FILL_TIMEOUT:.0f} s")


def _with_node(pod: JSON, node: str) -> JSON:
    return pod | {"spec": pod["spec"] | {"nodeName": node}}


async def _await_answer(url: str) -> float:
    """Wait until the URL answers with status 200, and return that time in seconds of the monotonic clock."""
    while not await asyncio.to_thread(answers, url):  # noqa: ASYNC110 - the extender is another process
        await asyncio.sleep(_POLL_INTERVAL)
    return time.monotonic()


def _find_slowest(lives: Iterable[Life], answered: float) -> float:
    """Return the longest wait of a pod in seconds, counted from ``answered`` on if the pod was created before."""
    waits = ((life.bound or math.inf) - max(life.created, answered) for life in lives)
    return round(max(waits, default=0.0), 3)


def _read_peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def find_defects(starts: Sequence[Start]) -> list[str]:
    """Return one sentence for each promise that a start broke."""
    early = [f"{each.early} members were bound before all was listed" for each in starts if each.early]
    none = ["no plain pod came while the lists were read" for each in starts if not each.plain]
    slow = [f"a plain pod waited {each.plain_slowest:.1f} s" for each in starts if each.plain_slowest > _LATE_SECONDS]
    tried = [
        f"a plain pod that was tried before waited {each.tried_slowest:.1f} s"
        for each in starts
        if each.tried_slowest > _BACKOFF_SECONDS + _LATE_SECONDS
    ]
    return [*early, *none, *slow, *tried]


def summarize(starts: Sequence[Start]) -> dict[str, Any]:
    """Return median and maximum of each figure."""
    rows = [asdict(start) for start in starts]
    return {name: {"median": median(row[name] for row in rows), "max": max(row[name] for row in rows)}
            for name in rows[0]}  # fmt: skip


def render_table(starts: Sequence[Start]) -> str:
    """Return a Markdown table with a row for each start."""
    names = list(asdict(starts[0]))
    rows = [[f"{value:g}" for value in asdict(start).values()] for start in starts]
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *rows])


async def _measure_all(cluster: Cluster, nodes: int, repetitions: int, report: Report) -> list[Start]:
    async with open_client(cluster.kubeconfig) as client:
        bench = Bench(cluster, client, report)
        await bench.fill(nodes)
        starts: list[Start] = []
        for number in range(repetitions):
            starts.append(await bench.measure(number))
            report(f"start {number + 1} of {repetitions}: {starts[-1]}")
        return starts


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the starts and write the result.

    Return 1 if measuring failed, if a plain pod waited too long, or if a member was bound too early; else 0.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser().parse_args(arguments)
    nodes, repetitions = (50, 1) if options.quick else (options.nodes, options.repetitions)
    report, noise = stderr_report(), measure_noise()
    spec = Spec(f"bench-cold-start-{os.getpid()}", nodes, racks=max(2, nodes // 100), blocks=1)
    try:
        cluster = Cluster.up(spec, report)
        try:
            starts = asyncio.run(_measure_all(cluster, nodes, repetitions, report))
        finally:
            cluster.down()
    except (ClusterError, ApiError, StuckError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    defects = find_defects(starts)
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "noise_before": round(noise, 2),
        "nodes": nodes,
        "pods": nodes * PER_NODE,
        "defects": defects,
        "summary": summarize(starts),
        "starts": [asdict(start) for start in starts],
    }
    path: Path = options.results / f"cold-start-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(render_table(starts))
    print(*defects, f"written to {path}", sep="\n", file=sys.stderr)
    return 1 if defects else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cold_start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5000, help="how many nodes, of ten pods each")
    parser.add_argument("--repetitions", type=int, default=3, help="how many starts")
    parser.add_argument("--quick", action="store_true", help="50 nodes, 1 start")
    parser.add_argument("--date", default=f"{datetime.now(UTC):%Y-%m-%d}", help="second part of the result's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
