"""Saying how a group stands: one reason in the PodGroup's condition, in an event and on ``/debug``."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from serried.cluster.membership import job_of_provisional
from serried.cluster.store import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.events import EventWriter
from serried.kube.wire import Resource
from serried.model.group import Key, PodGroup
from serried.model.verdict import Reason, Verdict, render
from serried.plan.quorum import size_up

log = logging.getLogger(__name__)

CONDITION = "PodGroupInitiallyScheduled"

_SETTLE_SECONDS = 0.8
"""A reason that holds this long is told. A gang that passes through in less costs one write, not four."""

_REMEMBERED = 1000
"""So many groups more than twice those that exist may be remembered."""

_OWN_FAULTS = frozenset({Reason.RECORD_FAILED, Reason.PLAN_OUTDATED, Reason.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True)
class Said:
    """One decision, as ``/debug/decisions`` shows it. ``at`` is RFC 3339."""

    at: str
    group: str
    reason: str
    text: str


class Reports:
    """Writes conditions and events after the decisions, at most once per group and settling time."""

    def __init__(
        self, client: ApiClient, store: Store, events: EventWriter, pod_groups: Resource, clock: Callable[[], float]
    ) -> None:
        self.decisions: deque[Said] = deque(maxlen=1000)
        self._client, self._store, self._events, self._pod_groups = client, store, events, pod_groups
        self._clock = clock
        self._pending: dict[Key, tuple[float, Verdict]] = {}
        self._told: dict[Key, Reason] = {}
        self._up: dict[Key, str] = {}
        self._wake = asyncio.Event()

    def say(self, group: Key, verdict: Verdict) -> None:
        """Note a verdict; it is written once it has settled."""
        self.decisions.append(Said(_now(), str(group), verdict.reason.value, render(verdict)))
        due = self._pending.get(group, (self._clock() + _SETTLE_SECONDS,))[0]
        self._pending[group] = (due, verdict)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            if not self._pending:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(max(0.0, min(due for due, _ in self._pending.values()) - self._clock()))
            now = self._clock()
            ready = [key for key, (due, _) in self._pending.items() if due <= now]
            await asyncio.gather(*(self._write(key) for key in ready))

    async def _write(self, key: Key) -> None:
        _, verdict = self._pending.pop(key)
        group = self._store.groups.get(key)
        if group is not None and not group.deleting:
            try:
                await self._write_condition(group, verdict)
            except NotFound:
                return
            except ApiError as error:
                log.warning("could not write a condition", extra={"podGroup": str(key), "err": str(error)})
                self._pending.setdefault(key, (self._clock() + 1.0, verdict))
        self._emit(key, group, verdict)

    async def _write_condition(self, group: PodGroup, verdict: Verdict) -> None:
        wanted = self._condition(group, verdict)
        # Once True it never goes back (facts C1); later reasons are told by events and /debug. Our own watch may not
        # have shown it True yet.
        if group.scheduled or self._up.get(group.key) == group.uid or group.condition == wanted:
            return
        status, reason, message = wanted
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": group.generation,
            "lastTransitionTime": _now(),
        }
        body: dict[str, Any] = {
            "apiVersion": self._pod_groups.api_version,
            "kind": "PodGroup",
            "metadata": {"name": group.key.name, "namespace": group.key.namespace},
            "status": {"conditions": [condition]},
        }
        await self._client.apply(self._pod_groups, group.key.namespace, group.key.name, body, "status")
        if status == "True":
            self._up[group.key] = group.uid

    def _condition(self, group: PodGroup, verdict: Verdict) -> tuple[str, str, str]:
        # Read off the members, not off the verdict: a gang that is up may have a late member that waits by now.
        standing = size_up(self._store.members(group.key), self._store.schedulers)
        if standing.placed >= (group.policy.min_count or 1):
            return "True", "Scheduled", ""
        return "False", "SchedulerError" if verdict.reason in _OWN_FAULTS else "Unschedulable", render(verdict)

    def _emit(self, key: Key, group: PodGroup | None, verdict: Verdict) -> None:
        if self._told.get(key) is verdict.reason and verdict.reason is Reason.SCHEDULED:
            return
        self._told[key] = verdict.reason
        if len(self._told) > 2 * len(self._store.groups) + _REMEMBERED:
            self._forget_gone()
        about = self._subject(key, group)
        if about is not None:
            kind = "Normal" if verdict.reason in (Reason.SCHEDULED, Reason.PLANNED, Reason.BINDING) else "Warning"
            self._events.emit(about, kind, verdict.reason.value, render(verdict))

    def _forget_gone(self) -> None:
        known = self._store.groups.keys() | set(self._store.member_groups())
        self._told = {key: reason for key, reason in self._told.items() if key in known}
        self._up = {key: uid for key, uid in self._up.items() if key in known}

    def _subject(self, key: Key, group: PodGroup | None) -> dict[str, str] | None:
        if group is not None:
            return _reference(self._pod_groups.api_version, "PodGroup", key, group.uid)
        job = self._store.jobs.get(job_of_provisional(key) or key)
        if job is not None and job_of_provisional(key) is not None:
            return _reference("batch/v1", "Job", job.key, job.uid)
        member = next(iter(self._store.members(key)), None)
        return None if member is None else _reference("v1", "Pod", Key(member.namespace, member.name), member.uid)


def _reference(api_version: str, kind: str, key: Key, uid: str) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "namespace": key.namespace, "name": key.name, "uid": uid}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
