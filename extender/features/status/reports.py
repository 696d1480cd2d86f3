"""Reports about gangs: one reason in the PodGroup's condition, in events and on ``/debug/decisions``.

The core calls `Reports.report_verdict` with each verdict. Each verdict appears in the log and on ``/debug/decisions``
at once. Only a verdict that has *settled*, i.e. has not been replaced for about a second, is written to condition and
events: by `Reports.run`.
"""

import asyncio
import heapq
import logging
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from extender.features.status.conditions import Conditions, format_now
from serried.api.group import Composite, PodGroup, list_leaves
from serried.api.kinds import OWNER_KINDS
from serried.api.level import ApiLevel
from serried.api.names import GroupKey, GroupKind, Key
from serried.api.parent import api_version_of, kind_of
from serried.api.pod import HELD
from serried.api.reservation import Victim
from serried.api.verdict import (
    Reason,
    Trait,
    Verdict,
    describe_ignored,
    describe_invalid_tree,
    describe_mismatch,
    find_reason,
    render,
)
from serried.cluster.cache import Store
from serried.cluster.membership import owner_of_provisional
from serried.kube.errors import ApiError, TooMany, Unavailable
from serried.kube.events import EventWriter
from serried.kube.retry import Backoff, FairQueue
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.8
"""The time for which a reason must stay the same before it is written to condition and events (decision 4)."""

_PASSING_SECONDS = 0.9
"""The time for which a reason that usually passes in a moment (`Trait.TRANSIENT`) must stay the same to be written."""

_MAX_SETTLE_SECONDS = 0.9
"""The longest wait for a reason to stay the same.

Afterwards the present reason is written even if reasons keep changing.
"""

_PROGRESS_SECONDS = 2.0
"""The longest wait of a verdict for its reason to stay the same, in two cases.

The reason usually ends within a moment (`Trait.TRANSIENT`), or it is written already and only its numbers are new.
"""

_BURST_SECONDS = 5.0
"""The longest wait of a verdict of a gang that makes progress (`Trait.PROGRESS`) for the Bindings of other gangs.

It is counted from the group's first verdict that is not written yet.
"""

_BINDING_CHECK_SECONDS = 0.25
"""The pause between checks whether gangs are still being bound."""

_NO_PODS_SECONDS = 30.0
"""The time for which a reason must stay the same if no pod of the group waits: none exists yet, or all are bound."""

_UNAVAILABLE_BACKOFF = Backoff(first=1.0, cap=30.0)
"""The pauses between tries of a write that failed because the API server was unavailable, or limited the rate."""

_REJECTED_BACKOFF = Backoff(first=1.0, cap=300.0)
"""The pauses between tries of a write that the API server rejected (403, 422): an administrator has to act first."""

_HOLD_SECONDS = 60.0
"""The shortest time for which filter's answers give a group's held pods the same reason.

With a new text, kube-scheduler writes each pod's condition and retries the pod.
"""

_MAX_WRITES = 8
"""The most groups whose conditions are written at the same time."""

_MAX_GONE = 1000
"""The deleted groups in memory are forgotten once they exceed the existing groups by this number."""


PRIORITY_MISMATCH = "PriorityMismatch"
"""The reason of the event that a group's priority differs from that of its members. Emitted once per group."""

TOPOLOGY_IGNORED = "TopologyIgnored"
"""The reason of the event that a group's topology key is ignored. Emitted once per group."""

INVALID_TREE = "TreeInvalidIn138"
"""The reason of the event that kube-scheduler 1.38 rejects the group's tree as invalid. Emitted once per tree."""

GANG_BROKEN = "GangBroken"
"""The reason of the event that a gang has stayed below its quorum since members were lost.

There is no condition for it (decision 13).
"""

GANG_DISRUPTED = "GangDisrupted"
"""The reason of the event that Serried deletes a gang's members because one of them was disrupted (decision 25)."""


PREEMPTION = "PreemptionBegun"
"""The reason of the event that victims are evicted for the gang."""

PREEMPTED_EVENT = "Preempted"
"""The reason of the event of a victim, and of a group that is evicted as a whole; the one that kube-scheduler uses."""


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """One entry of ``/debug/decisions``: a verdict or an event about a group, with its time."""

    at: str
    """The time of the decision, in RFC 3339."""

    group: GroupKey
    reason: str
    text: str

    id: str = ""
    """The id that log and ``/debug/decisions`` show for this decision; "" for none."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A verdict that is not written to condition and events yet. Times are loop seconds."""

    verdict: Verdict

    due: float
    """The time at which it is written, in loop seconds.

    A newer verdict of the group replaces it, maybe with a later time.
    """

    begun: float
    """The time since which the group has had a verdict to be written, for the upper limits of the wait.

    Infinite if no pod of the group waits, or if the verdict is tried again after a failed write: no limit applies.
    """


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failed writes of one group's condition: how many in a row, and when the next try is."""

    times: int
    """The number of failures in a row."""

    until: float
    """The loop time of the next try."""


@dataclass(slots=True, eq=False)
class Reports:
    """Writes verdicts to conditions and events once they have settled. There is one instance per extender.

    The writes of one group follow each other, and each writes the newest verdict. Groups do not wait for each other,
    but at most eight are written at a time; namespaces take turns. If a condition cannot be written, it is tried again
    after a pause, which a new verdict does not shorten; events are emitted all the same. Verdicts of gangs that make
    progress (`Trait.PROGRESS`) wait while gangs are being bound: their writes would compete with the Bindings, and are
    often outdated soon.
    """

    _conditions: Conditions
    _events: EventWriter
    _level: ApiLevel
    _clock: Callable[[], float]
    _store: Store

    _is_binding: Callable[[], bool] = lambda: False
    """Returns True while gangs are being bound."""

    decisions: deque[LoggedDecision] = field(default_factory=lambda: deque(maxlen=1000), init=False)
    """The last 1000 decisions, the oldest first."""

    _pending: dict[GroupKey, _Pending] = field(default_factory=dict, init=False)
    """The verdicts that are not written yet."""

    _due_times: list[tuple[float, GroupKey]] = field(default_factory=list, init=False)
    """A heap of the times at which a verdict may be due. An entry is outdated if ``_pending`` has another time."""

    _due_entries: FairQueue[tuple[float, GroupKey]] = field(default_factory=FairQueue, init=False)
    """The entries of ``_due_times`` whose time has come, in turns by namespace."""

    _writing: set[GroupKey] = field(default_factory=set, init=False)
    """The groups whose verdicts are being written."""

    _failures: dict[GroupKey, _Failure] = field(default_factory=dict, init=False)
    """The groups whose condition could not be written at the last try."""

    _last_events: dict[GroupKey, tuple[str, Verdict]] = field(default_factory=dict, init=False)
    """The last event of each group: the UID of the object that it is about, and the verdict."""

    _last_pod_events: dict[GroupKey, tuple[str, Reason]] = field(default_factory=dict, init=False)
    """The last event about a member of each group: the UID of the pod, and the reason."""

    _hold_reasons: dict[GroupKey, tuple[Reason, float]] = field(default_factory=dict, init=False)
    """The reason in filter's answers to the held members of each group, and the loop time since which it is used."""

    _emitted_warnings: dict[tuple[GroupKey, str], str] = field(default_factory=dict, init=False)
    """The UID of the PodGroup for which a warning was emitted, by group and reason of the event."""

    _id_prefix: str = field(default_factory=lambda: uuid.uuid4().hex[:6], init=False)
    """The prefix of this process's decision ids."""

    _decision_count: int = field(default=0, init=False)
    """The number of decisions so far."""

    _ended_terms: int = field(default=0, init=False)
    """The number of terms that have ended.

    A write that began in an earlier term must not change the state of this one.
    """

    _due_event: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when a verdict may be due."""

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Log a group's present verdict at once, and write it to condition and events once it has settled."""
        self._record(group, verdict.reason.value, render(verdict))
        before = self._pending.get(group)
        pending = self._make_pending(group, verdict)
        self._pending[group] = pending
        if before is None or before.due != pending.due:
            self._schedule(group, pending.due)

    def end_term(self) -> None:
        """Drop the verdicts that are not written yet, as another instance may lead from now on.

        Also forget what was written, so that the next term of this instance writes it again.
        """
        self._ended_terms += 1
        self._pending.clear()
        self._failures.clear()
        self._last_events.clear()
        self._last_pod_events.clear()
        self._hold_reasons.clear()
        self._emitted_warnings.clear()
        self._conditions.forget_written()

    def describe_hold(self, group: GroupKey) -> str:
        """Return the text with which filter rejects a held member: its gang, and the last reported reason to wait.

        The reason changes at most once a minute. Until a reason was reported, the text names only the gang's owner,
        which is the same before and after its PodGroup is created; without an owner, the gang. A changed text would
        make kube-scheduler write each pod again, also those of gangs that start at once.
        """
        owner, name = self._store.membership.name_owner(group), self._store.membership.name_group(group)
        reason = self._choose_hold_reason(group)
        if reason is None:
            return f"{HELD}: see the events of {owner or name or 'this pod'}"
        return f"{HELD}: {f'{owner} ({name})' if owner and name else owner or name} waits: {reason}"

    def _choose_hold_reason(self, group: GroupKey) -> Reason | None:
        told, now = self._last_events.get(group), self._clock()
        new = told[1].reason if told is not None and Trait.PROGRESS not in told[1].reason.traits else None
        held, since = self._hold_reasons.get(group, (None, -math.inf))
        if held is None and new is None:
            new = _read_reason(self._store.groups.get(group))  # the condition that an earlier process wrote
        if new is not None and new is not held and now >= since + _HOLD_SECONDS:
            self._hold_reasons[group] = new, now
            return new
        return held

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """Emit the event that a gang has stayed below its quorum since members were lost.

        The verdict is its message.
        """
        self._emit_about_group(group, GANG_BROKEN, render(verdict))

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Emit the event that Serried deletes a gang's members because one was disrupted. ``text`` is the message."""
        self._emit_about_group(group, GANG_DISRUPTED, text)

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Emit the event that victims are evicted for a gang, with ``text`` as the message.

        The verdict with the reason Preempting alone may be replaced before it has settled.
        """
        self._emit_about_group(group, PREEMPTION, text, "Normal")

    def report_victim(self, victim: Victim, text: str) -> None:
        """Emit the event about a pod that is evicted for a gang, with ``text`` as the message."""
        about = _reference("v1", "Pod", Key(victim.namespace, victim.name), victim.uid)
        self._events.emit(about, "Normal", PREEMPTED_EVENT, text)

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write the condition DisruptionTarget and emit the event of a group that is evicted as a whole.

        ``text`` is the message of both. If the condition cannot be written, that is only logged.
        """
        self._record(group, PREEMPTED_EVENT, text)
        found = self._conditions.find_object(group)
        if found is not None:
            subject = (
                self._find_subject(group, None) if group.kind is GroupKind.COUNTED else self._refer_to_group(found)
            )
            for about in filter(None, (subject, _refer_to_owner(found))):
                self._events.emit(about, "Warning", PREEMPTED_EVENT, text)
        await _log_failure(group, self._conditions.set_disruption_target(group, text))

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Remove the condition DisruptionTarget of a group that is not evicted after all. An error is only logged."""
        await _log_failure(group, self._conditions.remove_disruption_target(group))

    def _refer_to_group(self, found: PodGroup | Composite) -> dict[str, str]:
        if isinstance(found, Composite):
            version = self._level.level_of(found.api).composite_api_version
            return _reference(version, GroupKind.COMPOSITE.value, found.key, found.uid)
        holder = found.object_reference(self._level.api_version, self._level.composite_api_version)
        return _reference(holder.api_version, holder.kind, Key(found.key.namespace, holder.name), found.uid)

    def _emit_about_group(self, group: GroupKey, reason: str, text: str, kind: str = "Warning") -> None:
        """Emit an event about the PodGroup, and one with the same reason and text about each of its owners.

        ``kind`` is the type of the events: Warning or Normal. They also appear in the log and on ``/debug/decisions``.
        """
        self._record(group, reason, text)
        found = self._store.groups.get(group)
        subject = self._find_subject(group, found)
        for about in (*([subject] if subject is not None else ()), *self._list_owners(found)):
            self._events.emit(about, kind, reason, text)

    def _record(self, group: GroupKey, reason: str, text: str) -> None:
        """Add a decision (``reason`` and its sentence) to ``decisions``, and log it.

        The log level is debug if the last verdict on the group has the same reason and is not written to condition and
        events yet: then only numbers have changed. Else it is info.
        """
        self._decision_count += 1
        decision = LoggedDecision(format_now(), group, reason, text, f"{self._id_prefix}-{self._decision_count}")
        self.decisions.append(decision)
        before = self._pending.get(group)
        repeated = before is not None and before.verdict.reason.value == reason
        level = logging.DEBUG if repeated else logging.INFO
        log.log(level, "decided", extra=name_group(group) | {"decision": decision.id, "reason": reason, "text": text})

    def _make_pending(self, group: GroupKey, verdict: Verdict) -> _Pending:
        now = self._clock()
        before = self._pending.get(group)
        through = verdict.reason is Reason.BINDING and verdict.have >= verdict.need
        if through or not self._store.members.of_group(group):
            return _Pending(verdict, now + _NO_PODS_SECONDS, math.inf)
        passing = Trait.TRANSIENT in verdict.reason.traits
        due = now + (_PASSING_SECONDS if passing else _SETTLE_SECONDS)
        told = self._last_events.get(group)
        news = told is None or told[1].reason is not verdict.reason
        if before is None or before.begun == math.inf or _replaces_delayed(before, verdict, now):
            return _Pending(verdict, due, now)
        if news and before.verdict.reason is verdict.reason is not Reason.BINDING:
            # New numbers must not delay a reason, except Binding: its last numbers matter most.
            return _Pending(verdict, before.due, before.begun)
        latest = before.begun + (_MAX_SETTLE_SECONDS if news and not passing else _PROGRESS_SECONDS)
        return _Pending(verdict, min(due, latest), before.begun)

    def _schedule(self, group: GroupKey, due: float) -> None:
        if group not in self._writing:  # else `_write` schedules the next report when it is done
            heapq.heappush(self._due_times, (due, group))
            self.wake()

    def wake(self) -> None:
        """Let `run` check at once whether a verdict is due."""
        self._due_event.set()

    async def run(self) -> None:
        """Write verdicts as they become due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                while len(self._writing) < _MAX_WRITES and (key := self._take_due()) is not None:
                    self._writing.add(key)
                    tasks.create_task(self._write_safely(key, self._pending.pop(key).verdict))
                self._due_event.clear()
                try:
                    async with asyncio.timeout(self._seconds_to_next()):
                        await self._due_event.wait()
                except TimeoutError:
                    continue

    def _take_due(self) -> GroupKey | None:
        """Return the next group whose verdict is due to be written; None if there is none.

        Due times of verdicts that were replaced since are skipped. A verdict that has to wait for Bindings gets a later
        due time.
        """
        now = self._clock()
        while self._due_times and self._due_times[0][0] <= now:
            entry = heapq.heappop(self._due_times)
            self._due_entries.add(entry[1].namespace, entry)
        while (turn := self._due_entries.take()) is not None:
            due, key = turn
            if key not in self._pending or self._pending[key].due != due or key in self._writing:
                continue
            if not self._waits_for_bindings(self._pending[key]):
                return key
            self._pending[key] = replace(self._pending[key], due=now + _BINDING_CHECK_SECONDS)
            heapq.heappush(self._due_times, (now + _BINDING_CHECK_SECONDS, key))
        return None

    def _waits_for_bindings(self, pending: _Pending) -> bool:
        """Return whether the write of a verdict has to wait because gangs are being bound.

        Only verdicts of gangs that make progress (`Trait.PROGRESS`) wait, and at most five seconds.
        """
        recent = pending.begun <= self._clock() < pending.begun + _BURST_SECONDS
        return recent and _is_good(pending.verdict) and self._is_binding()

    def _seconds_to_next(self) -> float | None:
        if not self._due_times or len(self._writing) >= _MAX_WRITES:
            return None
        return max(0.0, self._due_times[0][0] - self._clock())

    async def _write_safely(self, key: GroupKey, verdict: Verdict) -> None:
        try:
            await self._write(key, verdict)
        except Exception:
            # A failure of one group must not stop the reports of all others.
            log.exception("could not report the reason of a gang because of an internal error", extra=name_group(key))
            self._writing.discard(key)
            self.wake()

    async def _write(self, key: GroupKey, verdict: Verdict) -> None:
        group = self._store.groups.get(key)
        term = self._ended_terms
        self._emit(key, group, verdict)
        if group is not None:
            self._emit_warnings(key, group)
        try:
            if group is not None and not self._is_paused(key):
                await self._conditions.write(group, verdict)
                self._failures.pop(key, None)
        except ApiError as error:
            text = "could not write the reason of a gang into its condition; trying again"
            log.warning(text, extra=name_group(key) | {"err": str(error)})
            if term == self._ended_terms:
                self._note_failure(key, error)
        finally:
            self._writing.discard(key)
            if term == self._ended_terms:
                self._retry_later(key, group, verdict)
            if key in self._pending:
                self._schedule(key, self._pending[key].due)
            self.wake()

    def _is_paused(self, key: GroupKey) -> bool:
        return key in self._failures and self._clock() < self._failures[key].until

    def _note_failure(self, key: GroupKey, error: ApiError) -> None:
        times = self._failures[key].times + 1 if key in self._failures else 1
        backoff = _UNAVAILABLE_BACKOFF if isinstance(error, TooMany | Unavailable) else _REJECTED_BACKOFF
        self._failures[key] = _Failure(times, self._clock() + backoff.delay(times))

    def _retry_later(self, key: GroupKey, group: PodGroup | None, verdict: Verdict) -> None:
        if group is None:
            self._failures.pop(key, None)
        elif key in self._failures:
            # With ``begun`` infinite, a new verdict settles as if none were pending.
            self._pending.setdefault(key, _Pending(verdict, self._failures[key].until, math.inf))

    def _emit(self, key: GroupKey, group: PodGroup | None, verdict: Verdict) -> None:
        about = self._find_subject(key, group)
        if about is None or self._is_repeated(key, about["uid"], group, verdict):
            return
        self._last_events[key] = (about["uid"], verdict)
        if len(self._last_events) > 2 * len(self._store.groups) + _MAX_GONE:
            self._forget_gone()
        kind = "Normal" if Trait.PROGRESS in verdict.reason.traits else "Warning"
        self._events.emit(about, kind, verdict.reason.value, render(verdict))
        if Trait.PROGRESS not in verdict.reason.traits:
            self._emit_pod(key, about["uid"], verdict)
        if Trait.TRANSIENT not in verdict.reason.traits:
            # Users look at the Job that they submitted. Its status belongs to the Job controller, so it gets an event.
            for owner in self._list_owners(group):
                self._events.emit(owner, kind, verdict.reason.value, render(verdict))

    def _emit_pod(self, key: GroupKey, reported_uid: str, verdict: Verdict) -> None:
        """Emit an event with the verdict about the gang's first waiting member, for ``kubectl describe pod``.

        The caller has emitted an event with this verdict already, about the object with the UID ``reported_uid``. If
        that is the member itself, no second event is emitted. An event is not repeated for the same member and reason.
        """
        found = self._store.members.classify(key)
        pod = next(iter((*found.waiting, *found.refused, *found.gated)), None)
        if pod is None or pod.uid == reported_uid or self._last_pod_events.get(key) == (pod.uid, verdict.reason):
            return
        self._last_pod_events[key] = (pod.uid, verdict.reason)
        about = _reference("v1", "Pod", Key(pod.namespace, pod.name), pod.uid)
        self._events.emit(about, "Warning", verdict.reason.value, render(verdict))

    def _emit_warnings(self, key: GroupKey, group: PodGroup) -> None:
        """Emit warnings about mistakes in a PodGroup that do not prevent its plan.

        Each is emitted only once for a PodGroup in a term.
        """
        about = self._find_subject(key, group)
        mismatch = self._store.priorities.find_mismatch(key)
        invalid = self._store.forest.find_invalid(key)
        warnings = {
            PRIORITY_MISMATCH: describe_mismatch(mismatch) if mismatch is not None else "",
            INVALID_TREE: describe_invalid_tree(invalid) if invalid else "",
            TOPOLOGY_IGNORED: describe_ignored(*group.ignored) if group.ignored is not None else "",
        }
        for reason, text in warnings.items():
            if about is not None and text and self._emitted_warnings.get((key, reason)) != group.uid:
                self._emitted_warnings[key, reason] = group.uid
                self._events.emit(about, "Warning", reason, text)

    def _is_repeated(self, key: GroupKey, uid: str, group: PodGroup | None, verdict: Verdict) -> bool:
        """Return whether an event with this verdict would repeat the last event about the same object (``uid``).

        An event with the same reason but other numbers is no repetition, except that Scheduled repeats Scheduled.

        If the last event of this process was not about this object, or there was none, the answer is True only for the
        verdict Scheduled, and only if the PodGroup's condition says already that it is scheduled: then an earlier
        process has emitted the event.
        """
        last_uid, last = self._last_events.get(key, ("", None))
        if last is None or last_uid != uid:
            # A gang that was scheduled by an earlier process needs no event.
            return verdict.reason is Reason.SCHEDULED and group is not None and group.scheduled
        return last == verdict or last.reason is verdict.reason is Reason.SCHEDULED

    def _list_owners(self, group: PodGroup | None) -> list[dict[str, str]]:
        """Return references to the owners (Job, JobSet, LeaderWorkerSet) that control a PodGroup; [] for None.

        For a tree they are the owners of the tree and of all its PodGroups, each once.
        """
        if group is None:
            return []
        below = [group.key.leaf(leaf.name) for leaf in list_leaves(group.tree)]
        owners = (_refer_to_owner(each) for each in (group, *map(self._store.groups.get, below)))
        return list({owner["uid"]: owner for owner in owners if owner is not None}.values())

    def _forget_gone(self) -> None:
        known = self._store.groups.keys() | set(self._store.members.groups())
        self._last_events = {key: told for key, told in self._last_events.items() if key in known}
        self._last_pod_events = {key: told for key, told in self._last_pod_events.items() if key in known}
        self._hold_reasons = {key: held for key, held in self._hold_reasons.items() if key in known}
        self._emitted_warnings = {about: uid for about, uid in self._emitted_warnings.items() if about[0] in known}

    def _find_subject(self, key: GroupKey, group: PodGroup | None) -> dict[str, str] | None:
        if group is not None and key.kind is not GroupKind.COUNTED:
            return self._refer_to_group(group)
        member = next(iter(self._store.members.of_group(key)), None)
        if member is None:
            return None  # its pods were deleted, or belong to a PodGroup by now
        owner_key = owner_of_provisional(key)
        owner = self._store.owners.find(owner_key) if owner_key is not None else None
        if owner is not None:
            return _reference(api_version_of(owner), kind_of(owner), owner.key, owner.uid)
        return _reference("v1", "Pod", Key(member.namespace, member.name), member.uid)


async def _log_failure(group: GroupKey, write: Awaitable[None]) -> None:
    try:
        await write
    except ApiError as error:
        log.warning(
            "could not patch the condition DisruptionTarget of a group", extra=name_group(group) | {"err": str(error)}
        )


def _read_reason(group: PodGroup | None) -> Reason | None:
    """Return the reason in a PodGroup's condition, if it says why the gang waits; else None."""
    said = group.condition[2].partition(":")[0] if group is not None and group.condition is not None else ""
    found = find_reason(said)
    return None if found is None or Trait.PROGRESS in found.traits else found


def _is_good(verdict: Verdict) -> bool:
    return Trait.PROGRESS in verdict.reason.traits and not (verdict.reason is Reason.BINDING and verdict.detail)


def _replaces_delayed(before: _Pending, verdict: Verdict, now: float) -> bool:
    """Return whether ``verdict`` replaces one whose write was delayed because gangs are being bound.

    So ``before`` is about a gang that made progress (`Trait.PROGRESS`), and ``verdict`` says why it waits. The new
    verdict must settle from the beginning: the time of the delay does not count. ``now`` is in loop seconds.
    """
    return _is_good(before.verdict) and not _is_good(verdict) and now > before.begun + _MAX_SETTLE_SECONDS


def _refer_to_owner(group: PodGroup | Composite | None) -> dict[str, str] | None:
    """Return a reference to the Job, JobSet or LeaderWorkerSet that controls the group; None if there is none."""
    owners = group.owners if group is not None else ()
    owner = next((owner for owner in owners if owner.controller and owner.kind in OWNER_KINDS), None)
    if group is None or owner is None:
        return None
    return _reference(OWNER_KINDS[owner.kind].api_version, owner.kind, Key(group.key.namespace, owner.name), owner.uid)


def _reference(api_version: str, kind: str, key: Key, uid: str) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "namespace": key.namespace, "name": key.name, "uid": uid}
