"""The steps of the demo. Each one checks that the promises about gangs are kept. The entry is `Story.run`."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from bench.cluster import Cluster
from bench.cluster.nodes import RACK
from bench.demo.board import Row, read_rows
from bench.demo.cast import GANGS, GIANT, LATE, LEAVES, PATIENT, PLAIN_PODS, RUN, STARTERS, make_load
from bench.demo.referee import Referee
from bench.demo.stage import Stage
from bench.load.objects import NAMESPACE, Gang, group_name, leading_objects, pod_objects
from bench.load.objects import RUN as RUN_LABEL
from bench.load.run import open_client, read_domains
from serried.kube.client import ApiClient
from serried.kube.reflector import Reflector
from serried.kube.wire import JOBS, PODS, Selection

_STEP_TIMEOUT = 30.0
_REFRESH_SECONDS = 0.25
_STEP_PAUSE = 3.0
"""Seconds after each step, in which a person can read the table."""


class BrokenPromiseError(Exception):
    """A promise was broken, or a step took too long. The message says what happened."""


class Story:
    """One run of the demo on one cluster."""

    def __init__(self, cluster: Cluster, stage: Stage) -> None:
        self._cluster = cluster
        self._stage = stage
        self._rows: list[Row] = []
        self._gone: list[str] = []
        self._summary: list[str] = []

    async def run(self) -> list[str]:
        """Run all steps, and return the lines of the summary. Raise BrokenPromiseError at the first broken promise."""
        async with open_client(self._cluster.kubeconfig) as client:
            self._referee = Referee(GANGS, await read_domains(client, RACK), time.monotonic)
            pods = Selection(NAMESPACE, labels=f"{RUN_LABEL}={RUN}")
            reflector = Reflector(client, PODS, self._referee, selection=pods)
            background = [asyncio.create_task(reflector.run()), asyncio.create_task(self._show())]
            try:
                await reflector.listed.wait()
                for step in (self._fill, self._overfill, self._make_room, self._leave_waiting):
                    await step(client)
                    await asyncio.sleep(_STEP_PAUSE)
                    self._require(not self._referee.find_breaches(), "; ".join(self._referee.find_breaches()))
                return self._summary
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)

    async def _fill(self, client: ApiClient) -> None:
        self._stage.announce(f"{len(STARTERS)} gang Jobs and {PLAIN_PODS} plain pods arrive")
        for gang in STARTERS[:2]:
            await self._submit(client, gang)
        for _, pod in pod_objects(make_load(plain=PLAIN_PODS)):
            await client.create(PODS, NAMESPACE, pod)
        for gang in STARTERS[2:]:
            await self._submit(client, gang)
        begun = time.monotonic()
        for gang in STARTERS:
            await self._until(lambda gang=gang: self._referee.whole(gang), f"{gang.name} to run")  # type: ignore[misc]
        await self._until(lambda: self._referee.plain == PLAIN_PODS, "the plain pods to run")
        bursts = [burst for gang in STARTERS if (burst := self._referee.burst(gang)) is not None]
        members = sum(gang.size for gang in STARTERS)
        self._summary.append(
            f"{len(STARTERS)} gangs of {members} pods ran whole {time.monotonic() - begun:.1f} s after the last of them"
            f" was submitted; first to last bind of one gang: {max(bursts):.2f} s at most"
        )

    async def _overfill(self, client: ApiClient) -> None:
        self._stage.announce(
            f"{GIANT.name} has {GIANT.size} members, but a rack fits 40; {PATIENT.name} needs more free nodes"
        )
        for gang in (GIANT, PATIENT):
            await self._submit(client, gang)
        for gang in (GIANT, PATIENT):
            await self._until(lambda gang=gang: self._waits(gang), f"a reason why {gang.name} waits")  # type: ignore[misc]
        self._summary.extend(f"{row.gang} waited whole: {row.reason}" for row in self._rows if row.state == "Waiting")

    async def _make_room(self, client: ApiClient) -> None:
        self._require(self._referee.bound(PATIENT) == 0, f"{PATIENT.name} started although it did not fit")
        self._stage.announce(f"{LEAVES.name} is deleted, so {PATIENT.name} fits")
        self._referee.expect_deletion(LEAVES)
        self._gone.append(LEAVES.name)
        # Without a propagation policy the API server would not delete the Job's pods.
        path, params = JOBS.path(NAMESPACE, group_name(make_load(), LEAVES)), {"propagationPolicy": "Background"}
        await client.request("DELETE", path, params=params)
        await self._until(lambda: self._referee.bound(LEAVES) == 0, f"the pods of {LEAVES.name} to go")
        freed = time.monotonic()
        await self._until(lambda: self._referee.whole(PATIENT), f"{PATIENT.name} to run")
        self._summary.append(
            f"{PATIENT.name} ran whole {time.monotonic() - freed:.1f} s after the last pod of {LEAVES.name} had ended"
        )
        self._require(self._referee.bound(GIANT) == 0, f"{GIANT.name} started although it fits into no rack")
        self._summary.append("no gang started in part, and no gang that asked for one rack ran in two")

    async def _leave_waiting(self, client: ApiClient) -> None:
        self._stage.announce(
            f"{LATE.name} does not fit; {LATE.name} and {GIANT.name} stay waiting, so that you can look at them"
        )
        await self._submit(client, LATE)
        await self._until(lambda: self._waits(LATE), f"a reason why {LATE.name} waits")

    async def _submit(self, client: ApiClient, gang: Gang) -> None:
        for resource, obj in leading_objects(make_load(gang)):
            await client.create(resource, NAMESPACE, obj)

    def _waits(self, gang: Gang) -> bool:
        return any(row.gang == gang.name and row.state == "Waiting" and _is_final(row) for row in self._rows)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _STEP_TIMEOUT
        while not holds():
            breaches = self._referee.find_breaches()
            self._require(not breaches, "; ".join(breaches))
            self._require(time.monotonic() < deadline, f"waited {_STEP_TIMEOUT:.0f} s in vain for {what}")
            await asyncio.sleep(_REFRESH_SECONDS / 5)

    def _require(self, holds: object, otherwise: str) -> None:
        if not holds:
            raise BrokenPromiseError(otherwise)

    async def _show(self) -> None:
        load = make_load(*GANGS)
        while True:
            groups = await _or_empty(lambda: asyncio.to_thread(_fetch, f"{self._cluster.debug_url}/groups"))
            self._rows = read_rows(groups, GANGS, load, self._gone)
            caption = f"{self._referee.plain} of {PLAIN_PODS} plain pods run · {self._cluster.debug_url}/"
            self._stage.show(self._rows, caption)
            await asyncio.sleep(_REFRESH_SECONDS)


def _is_final(row: Row) -> bool:
    # A gang whose pods are still being created has a reason, too, but the demo waits for the later one.
    return row.reason.startswith(("NoDomainFits", "NoCapacity"))


async def _or_empty(fetch: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    try:
        return await fetch()
    except OSError:
        return []


def _fetch(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url, timeout=2.0) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found
