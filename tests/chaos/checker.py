"""The invariant checker, a process of its own: watches the API server and `/debug`, and judges all the time.

    python -m tests.chaos.checker --server URL --pki DIRECTORY --ops URL --report FILE

On standard input it reads what the harness does, a JSON object a line: ``note`` says what, ``about`` whom. It writes
each violation to standard output when it is found first, and the report when the input ends. If a part of it ends
before, that is a violation, too: nobody would find any more what that part looks for.
"""

import argparse
import asyncio
import json
import ssl
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from bench.load.figures import percentile
from serried.api.names import composite_api_version
from tests.chaos.kubelet import Kubelets, Refusal
from tests.chaos.objects import read_name
from tests.chaos.observed import Observed
from tests.chaos.rules import Violation, judge, list_in_force

_JUDGE_SECONDS = 0.25
_DEBUG_SECONDS = 1.0
_PAUSE_SECONDS = 0.3
_WATCH_SECONDS = 240
_LONGEST_LINE = 8 * 1024 * 1024
_SHOWN_CHARACTERS = 300
_SHOWN_SECONDS = 60.0
"""The time below which a rule is reported as hardly in force: that it found nothing then says little."""


def list_paths(api_version: str) -> dict[str, str]:
    """Return the paths to watch, by the name under which `Observed.see` knows them."""
    return {
        "pods": "/api/v1/pods",
        "nodes": "/api/v1/nodes",
        "jobs": "/apis/batch/v1/jobs",
        "podgroups": f"/apis/{api_version}/podgroups",
        "compositepodgroups": f"/apis/{composite_api_version(api_version)}/compositepodgroups",
        "reservations": "/apis/scheduling.serried.dev/v1beta1/reservations",
    }


class Unseen(Exception):
    """An object that the checker could not take in: whatever is judged from now on is judged without it."""


class Follower:
    """Keeps one kind of objects equal to the API server: lists, watches, and lists again whenever a watch ends.

    What breaks off on the way is listed again; an object that cannot be taken in raises Unseen.
    """

    def __init__(self, kind: str, path: str, session: aiohttp.ClientSession, seen: Observed) -> None:
        self._kind = kind
        self._path = path
        self._session = session
        self._seen = seen
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                version = await self._list()
                await self._watch(version)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _list(self) -> str:
        async with self._session.get(self._path) as answer:
            if answer.status == 404:
                await asyncio.sleep(5)
            answer.raise_for_status()
            document = orjson.loads(await answer.read())
        # In the order of their changes: who has ended made room for who was bound after that.
        items = sorted(document["items"], key=lambda each: int(each["metadata"]["resourceVersion"]))
        there = {read_name(each): each for each in items}
        for name in self._known.keys() - there.keys():
            self._take("DELETED", self._known[name])
        for raw in there.values():
            self._take("MODIFIED", raw)
        return str(document["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(_WATCH_SECONDS)}
        async with self._session.get(self._path, params=params) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    return
                self._take(event["type"], event["object"])

    def _take(self, kind: str, raw: dict[str, Any]) -> None:
        try:
            self._note(kind, raw)
        except Exception as error:
            raise Unseen(f"{self._kind}: {str(raw)[:_SHOWN_CHARACTERS]}") from error

    def _note(self, kind: str, raw: dict[str, Any]) -> None:
        name = read_name(raw)
        known = self._known.get(name)
        now = time.monotonic()
        if kind == "DELETED":
            self._known.pop(name, None)
            self._seen.see(self._kind, raw, now, gone=True)
        elif known is None or known["metadata"]["resourceVersion"] != raw["metadata"]["resourceVersion"]:
            self._known[name] = raw
            self._seen.see(self._kind, raw, now)


class Recoveries:
    """The times from the end of a component to the first Binding after its restart, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._fallen: dict[str, float] = {}
        self._back: dict[str, tuple[float, int]] = {}

    def fall(self, component: str, now: float) -> None:
        """Record that a component is down."""
        self._fallen[component] = now
        self._back.pop(component, None)

    def rise(self, component: str, bindings: int) -> None:
        """Record that a component is ready again, and how many Bindings were seen until then."""
        if component in self._fallen:
            self._back[component] = (self._fallen.pop(component), bindings)

    def look(self, bindings: int, now: float) -> None:
        """So many Bindings were seen by now."""
        for component, (fallen, before) in list(self._back.items()):
            if bindings > before:
                self.seconds.setdefault(component, []).append(now - fallen)
                del self._back[component]


class Checker:
    """Judges what is seen, and remembers what it has found."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.seen = Observed()
        self.recoveries = Recoveries()
        self.found: dict[tuple[str, str], tuple[float, Violation]] = {}
        self.in_force: defaultdict[str, float] = defaultdict(float)
        """For how many seconds each rule was in force."""

        self._looked: float | None = None
        """The time of the last evaluation of the rules; None before the first."""

        self._say = say
        self._begun = time.monotonic()

    def note(self, said: Mapping[str, Any], now: float) -> None:
        """The harness has done something."""
        excuses = self.seen.excuses
        about = str(said.get("about", ""))
        match said["note"]:
            case "fall":
                excuses.fall(about, now)
                self.recoveries.fall(about, now)
            case "rise":
                excuses.rise(about, now)
                self.recoveries.rise(about, self.seen.bindings)
            case "tamper":
                excuses.tamper(about, now)
            case "fault":
                excuses.last_fault = now
            case "ends":
                self.seen.ending.add(about)
            case "rest":
                self.seen.rest_since = now
            case "work":
                self.seen.rest_since = None

    async def judge(self) -> None:
        """Look at everything again and again, until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(_JUDGE_SECONDS)

    def look(self, now: float) -> None:
        """Judge once."""
        for rule, seconds in list_in_force(self.seen, now if self._looked is None else self._looked, now):
            self.in_force[rule] += seconds
        self._looked = now
        self.recoveries.look(self.seen.bindings, now)
        for violation in judge(self.seen, now):
            self._find(violation, now)

    def _find(self, violation: Violation, now: float) -> None:
        key = (violation.rule, violation.subject)
        if key not in self.found:
            self.found[key] = (now, violation)
            self._say(json.dumps(self._show(now, violation)))

    def lose(self, part: str, why: str, now: float) -> None:
        """A part of the checker has ended: it is blind for what that one looks for."""
        self._find(Violation("checker", part, f"has ended, so nobody looks for what it finds: {why}"), now)

    def _show(self, at: float, violation: Violation) -> dict[str, Any]:
        return {
            "second": round(at - self._begun, 1),
            "rule": violation.rule,
            "subject": violation.subject,
            "text": violation.text,
        }

    def report(self) -> dict[str, Any]:
        """Return the totals of everything that was seen."""
        return {
            "violations": [self._show(at, violation) for at, violation in self.found.values()],
            "in_force_seconds": {rule: round(seconds) for rule, seconds in self.in_force.items()},
            "hardly_in_force": [rule for rule, seconds in self.in_force.items() if seconds < _SHOWN_SECONDS],
            "bindings": self.seen.bindings,
            "refused_by_kubelets": count_refused(self.seen.refused.values()),
            "plain_wait_seconds": summarize(self.seen.plain_waits),
            "preempted": len(self.seen.preempted),
            "gangs_whole": len(self.seen.climbed),
            "climb_seconds": summarize(self.seen.climbed),
            "recovery_seconds": {name: summarize(found) for name, found in self.recoveries.seconds.items()},
        }


def summarize(values: list[float]) -> dict[str, Any]:
    """Return the number of values, the median, the 99th percentile and the maximum."""
    ordered = sorted(values)
    shown = {"p50": percentile(ordered, 50), "p99": percentile(ordered, 99), "max": ordered[-1] if ordered else None}
    return {"count": len(ordered), **{name: None if each is None else round(each, 3) for name, each in shown.items()}}


def count_refused(refused: Iterable[Refusal]) -> dict[str, int]:
    """Count the pods that kubelets refused, by reason; apart those whose room another scheduler had just taken."""
    reasons = (f"{each.reason} beside another scheduler" if each.contested else each.reason for each in refused)
    return {"OutOfcpu": 0, **Counter(reasons)}


async def follow_debug(session: aiohttp.ClientSession, ops: str, seen: Observed) -> None:
    """Read the reasons on `/debug` again and again, until cancelled."""
    while True:
        try:
            async with session.get(f"{ops}/debug/groups?limit=10000", timeout=aiohttp.ClientTimeout(5)) as answer:
                groups = orjson.loads(await answer.read()) if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            groups = None
        if groups is not None:
            seen.told = {(each["namespace"], each["name"]): each["message"] for each in groups}
            seen.told_at = time.monotonic()
        await asyncio.sleep(_DEBUG_SECONDS)


@asynccontextmanager
async def at_work(parts: Mapping[str, Coroutine[Any, Any, None]], checker: Checker) -> AsyncIterator[None]:
    """All parts of the checker are at work for as long as the body runs; the checker hears of one that is not."""
    tasks = {asyncio.create_task(work, name=part) for part, work in parts.items()}

    def hear(task: asyncio.Task[None]) -> None:
        if task in tasks:
            tasks.remove(task)
            checker.lose(task.get_name(), _tell_end(task), time.monotonic())

    for task in list(tasks):
        task.add_done_callback(hear)
    try:
        yield
    finally:
        for task in [each for each in tasks if each.done()]:
            hear(task)  # it has ended just now
        left = list(tasks)
        tasks.clear()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _tell_end(task: asyncio.Task[None]) -> str:
    """Return why a task has ended. The traceback goes to the log."""
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    if error is None:
        return "it came to its end"
    traceback.print_exception(error)
    return repr(error)


async def read_lines() -> AsyncIterator[str]:
    """The lines of standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode()


async def check(options: argparse.Namespace) -> dict[str, Any]:
    """Check until the input ends; the report."""
    checker = Checker(lambda line: print(line, flush=True))
    tls = ssl.create_default_context(cafile=str(options.pki / "ca.crt"))
    tls.load_cert_chain(options.pki / "admin.crt", options.pki / "admin.key")
    patience = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_SECONDS + 30)
    async with (
        aiohttp.ClientSession(
            options.server,
            connector=aiohttp.TCPConnector(ssl=tls),
            timeout=patience,
            read_bufsize=_LONGEST_LINE,
        ) as api,
        aiohttp.ClientSession() as plain,
    ):
        paths = list_paths(options.api_version)
        parts = {kind: Follower(kind, path, api, checker.seen).run() for kind, path in paths.items()}
        kubelets = Kubelets(checker.seen.refused, checker.seen.pods)
        parts |= {"judge": checker.judge(), "/debug": follow_debug(plain, options.ops, checker.seen)}
        parts["kubelets"] = kubelets.run(api)
        async with at_work(parts, checker):
            async for line in read_lines():
                checker.note(json.loads(line), time.monotonic())
    return checker.report()


def main() -> int:
    """Check until the input ends; the exit code is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.checker")
    add = parser.add_argument
    add("--server", required=True)
    add("--pki", type=Path, required=True)
    add("--ops", required=True, help="the extender's probes, metrics and debug")
    add("--api-version", default="scheduling.k8s.io/v1beta1")
    add("--report", type=Path, required=True)
    options = parser.parse_args()
    report = asyncio.run(check(options))
    options.report.write_text(json.dumps(report, indent=2))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
