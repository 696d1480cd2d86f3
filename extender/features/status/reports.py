"""Reports about gangs: one reason in the PodGroup's condition, in an event and on ``/debug/decisions``.

The core calls `Reports.say` with each verdict; `Reports.run` writes a verdict once it has settled.
"""

import asyncio
import heapq
import logging
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from extender.features.status.conditions import Conditions, tell_time
from serried.api.group import Composite, PodGroup, list_leaves
from serried.api.kinds import OWNER_KINDS
from serried.api.level import ApiLevel
from serried.api.names import GroupKey, GroupKind, Key
from serried.api.parent import api_version_of, kind_of
from serried.api.pod import HELD
from serried.api.reservation import Victim
from serried.api.verdict import (
    Mark,
    Reason,
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
from serried.kube.retry import Backoff, Turns
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.8
"""The time for which a reason has to hold before it is reported (decision 4), in seconds."""

_PASSING_SECONDS = 0.9
"""The time for which a reason has to hold that usually ends within a moment, such as Planning, in seconds."""

_RESTLESS_SECONDS = 0.9
"""The time after which a reason is reported even if reasons change faster than they settle."""

_PROGRESS_SECONDS = 2.0
"""The time after which a reason of progress, or new numbers of a reported reason, are reported at the latest."""

_BURST_SECONDS = 5.0
"""The longest time for which good news waits while gangs are bound, from the first of it."""

_LOOK_SECONDS = 0.25
"""The pause before it is checked again whether gangs are still being bound."""

_NOBODY_SECONDS = 30.0
"""The time for which a reason has to hold if no pod waits: its pods do not exist yet, or are all bound."""

_OUTAGE = Backoff(first=1.0, cap=30.0)
"""The pauses after writes that the API server did not answer: it will sooner or later."""

_REFUSAL = Backoff(first=1.0, cap=300.0)
"""The pauses after writes that the API server refused (403, 422): an administrator has to act first."""

_HOLD_SECONDS = 60.0
"""The shortest time for which filter gives held pods the same reason. A new text costs a write and a try per pod."""

_MAX_WRITES = 8
"""The number of groups whose conditions are written at the same time."""

_MAX_GONE = 1000
"""The number of groups remembered beyond twice the number of existing ones, before deleted ones are forgotten."""


PRIORITY_MISMATCH = "PriorityMismatch"
"""The event of a group whose priority differs from that of its members; once per group."""

TOPOLOGY_IGNORED = "TopologyIgnored"
"""The event of a group whose topology key is ignored; once per group."""

INVALID_TREE = "TreeInvalidIn138"
"""The event of a tree that kube-scheduler 1.38 rejects as invalid; once per tree."""

GANG_BROKEN = "GangBroken"
"""The event of a gang that stays below its quorum; there is no condition for it (decision 13)."""

GANG_DISRUPTED = "GangDisrupted"
"""The event of a gang whose members are ended because one of them is disrupted (decision 25)."""


PREEMPTION = "PreemptionBegun"
"""The event of a gang for which victims are evicted."""

PREEMPTED_EVENT = "Preempted"
"""The event of a victim, and of a group that is evicted as a whole; kube-scheduler's word."""


@dataclass(frozen=True, slots=True)
class Said:
    """One decision, as ``/debug/decisions`` shows it."""

    at: str
    """The time of the decision, RFC 3339."""

    group: GroupKey
    reason: str
    text: str

    id: str = ""
    """The id of the decision in the log and on ``/debug/decisions``."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A verdict that is not reported yet. Times are loop seconds."""

    verdict: Verdict

    due: float
    """The time at which it is written to condition and event, unless it has changed by then."""

    begun: float
    """The time since which the group has a verdict to be reported; infinite if no pod waits for it."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The failures to write a group's condition."""

    times: int
    """The number of failures in a row."""

    until: float
    """The loop time of the next try."""


@dataclass(slots=True, eq=False)
class Reports:
    """Writes the conditions and events of verdicts once they have settled. One instance per extender.

    The writes of one group follow each other, and each writes the newest verdict. Groups do not wait for each other. If
    several are due, their namespaces take turns. A condition that cannot be written is tried again after a pause, which
    a new verdict does not shorten; events are emitted all the same. Good news waits while gangs are bound, as each
    write competes with their Bindings, and is often outdated by then.
    """

    _conditions: Conditions
    _events: EventWriter
    _level: ApiLevel
    _clock: Callable[[], float]
    _store: Store

    _gives_way: Callable[[], bool] = lambda: False
    """Returns True while gangs are being bound."""

    decisions: deque[Said] = field(default_factory=lambda: deque(maxlen=1000), init=False)
    """The last decisions, the oldest first."""

    _pending: dict[GroupKey, _Pending] = field(default_factory=dict, init=False)
    """The verdicts that are not reported yet."""

    _agenda: list[tuple[float, GroupKey]] = field(default_factory=list, init=False)
    """A heap of the times at which a verdict may be due."""

    _in_turn: Turns[tuple[float, GroupKey]] = field(default_factory=Turns, init=False)
    """The entries of the agenda whose time has come."""

    _writing: set[GroupKey] = field(default_factory=set, init=False)
    """The groups whose verdicts are being written."""

    _refused: dict[GroupKey, _Refusal] = field(default_factory=dict, init=False)
    """The groups whose condition could not be written."""

    _told: dict[GroupKey, tuple[str, Verdict]] = field(default_factory=dict, init=False)
    """The last event of each group: the UID of its object, and the verdict."""

    _pods_told: dict[GroupKey, tuple[str, Reason]] = field(default_factory=dict, init=False)
    """The last event about a member of each group: the UID of the pod, and the reason."""

    _holds: dict[GroupKey, tuple[Reason, float]] = field(default_factory=dict, init=False)
    """The reason in filter's answers to held members of each group, and the loop time since which it is used."""

    _warned: dict[tuple[GroupKey, str], str] = field(default_factory=dict, init=False)
    """The UID of a group's object, by the group and the warning for which there was an event."""

    _token: str = field(default_factory=lambda: uuid.uuid4().hex[:6], init=False)
    """The prefix of this process's decision ids."""

    _count: int = field(default=0, init=False)
    """The number of decisions so far."""

    _terms: int = field(default=0, init=False)
    """The number of terms that have ended."""

    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when a verdict may be due."""

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        """Log a verdict, and write it to condition and events once it has settled."""
        self._record(group, verdict.reason.value, render(verdict))
        before = self._pending.get(group)
        pending = self._settle(group, verdict)
        self._pending[group] = pending
        if before is None or before.due != pending.due:
            self._schedule(group, pending.due)

    def end_term(self) -> None:
        """Drop verdicts that were not written, as another instance may lead from now on.

        Written verdicts are forgotten, too, so that the next term of this instance writes them again.
        """
        self._terms += 1
        self._pending.clear()
        self._refused.clear()
        self._told.clear()
        self._pods_told.clear()
        self._holds.clear()
        self._warned.clear()
        self._conditions.forget()

    def describe_hold(self, group: GroupKey) -> str:
        """Return the text of filter for a held member: its gang, and the last reason to wait that was reported.

        Before the first report the text names only the owner, which is the same before and after the PodGroup is
        created. So pods of a gang that starts at once are not written twice.
        """
        owner, name = self._store.membership.name_owner(group), self._store.membership.name_group(group)
        reason = self._choose_hold(group)
        if reason is None:
            return f"{HELD}: see the events of {owner or name or 'this pod'}"
        return f"{HELD}: {f'{owner} ({name})' if owner and name else owner or name} waits: {reason}"

    def _choose_hold(self, group: GroupKey) -> Reason | None:
        told, now = self._told.get(group), self._clock()
        new = told[1].reason if told is not None and Mark.GOOD not in told[1].reason.marks else None
        held, since = self._holds.get(group, (None, -math.inf))
        if held is None and new is None:
            new = _read_reason(self._store.groups.get(group))  # as an earlier process wrote it
        if new is not None and new is not held and now >= since + _HOLD_SECONDS:
            self._holds[group] = new, now
            return new
        return held

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """Emit the event that a gang stays broken."""
        self._report(group, GANG_BROKEN, render(verdict))

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Emit the event that members of a gang are ended because one was disrupted."""
        self._report(group, GANG_DISRUPTED, text)

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Emit the event that victims are evicted for a gang; the reason Preempting may be too short to be reported."""
        self._report(group, PREEMPTION, text, "Normal")

    def report_victim(self, victim: Victim, text: str) -> None:
        """Emit the event of a pod that is evicted for a gang."""
        about = _reference("v1", "Pod", Key(victim.namespace, victim.name), victim.uid)
        self._events.emit(about, "Normal", PREEMPTED_EVENT, text)

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write the condition and emit the event of a group that is evicted as a whole for a gang."""
        self._record(group, PREEMPTED_EVENT, text)
        found = self._conditions.find(group)
        if found is not None:
            subject = self._subject(group, None) if group.kind is GroupKind.COUNTED else self._refer(found)
            for about in filter(None, (subject, _owner_of(found))):
                self._events.emit(about, "Warning", PREEMPTED_EVENT, text)
        await _try(group, self._conditions.set_disruption_target(group, text))

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Remove the condition, as the group is not evicted."""
        await _try(group, self._conditions.remove_disruption_target(group))

    def _refer(self, found: PodGroup | Composite) -> dict[str, str]:
        if isinstance(found, Composite):
            version = self._level.of(found.api).composite_api_version
            return _reference(version, GroupKind.COMPOSITE.value, found.key, found.uid)
        holder = found.holder(self._level.api_version, self._level.composite_api_version)
        return _reference(holder.api_version, holder.kind, Key(found.key.namespace, holder.name), found.uid)

    def _report(self, group: GroupKey, reason: str, text: str, kind: str = "Warning") -> None:
        """Emit an event about the PodGroup, and the same about its owner."""
        self._record(group, reason, text)
        found = self._store.groups.get(group)
        subject = self._subject(group, found)
        for about in (*([subject] if subject is not None else ()), *self._list_owners(found)):
            self._events.emit(about, kind, reason, text)

    def _record(self, group: GroupKey, reason: str, text: str) -> None:
        """Keep a decision, and log it: at debug level if only numbers of a pending reason have changed."""
        self._count += 1
        said = Said(tell_time(), group, reason, text, f"{self._token}-{self._count}")
        self.decisions.append(said)
        before = self._pending.get(group)
        repeated = before is not None and before.verdict.reason.value == reason
        level = logging.DEBUG if repeated else logging.INFO
        log.log(level, "decided", extra=name_group(group) | {"decision": said.id, "reason": reason, "text": text})

    def _settle(self, group: GroupKey, verdict: Verdict) -> _Pending:
        now = self._clock()
        before = self._pending.get(group)
        through = verdict.reason is Reason.BINDING and verdict.have >= verdict.need
        if through or not self._store.members.of_group(group):
            return _Pending(verdict, now + _NOBODY_SECONDS, math.inf)
        passing = Mark.PASSES in verdict.reason.marks
        due = now + (_PASSING_SECONDS if passing else _SETTLE_SECONDS)
        told = self._told.get(group)
        news = told is None or told[1].reason is not verdict.reason
        if before is None or before.begun == math.inf or _is_overtaken(before, verdict, now):
            return _Pending(verdict, due, now)
        if news and before.verdict.reason is verdict.reason is not Reason.BINDING:
            # New numbers must not delay the reason. Binding may be delayed, as its last numbers say most.
            return _Pending(verdict, before.due, before.begun)
        latest = before.begun + (_RESTLESS_SECONDS if news and not passing else _PROGRESS_SECONDS)
        return _Pending(verdict, min(due, latest), before.begun)

    def _schedule(self, group: GroupKey, due: float) -> None:
        if group not in self._writing:  # else `_tell` schedules the rest when it is done
            heapq.heappush(self._agenda, (due, group))
            self.wake()

    def wake(self) -> None:
        """Let `run` check at once whether a verdict is due."""
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                while len(self._writing) < _MAX_WRITES and (key := self._next()) is not None:
                    self._writing.add(key)
                    tasks.create_task(self._tell_safely(key, self._pending.pop(key).verdict))
                self._wake.clear()
                try:
                    async with asyncio.timeout(self._seconds_to_next()):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _next(self) -> GroupKey | None:
        """Return the next group whose verdict is due; None if there is none. Outdated entries are passed over."""
        now = self._clock()
        while self._agenda and self._agenda[0][0] <= now:
            entry = heapq.heappop(self._agenda)
            self._in_turn.add(entry[1].namespace, entry)
        while (turn := self._in_turn.take()) is not None:
            due, key = turn
            if key not in self._pending or self._pending[key].due != due or key in self._writing:
                continue
            if not self._waits_for_bindings(self._pending[key]):
                return key
            self._pending[key] = replace(self._pending[key], due=now + _LOOK_SECONDS)
            heapq.heappush(self._agenda, (now + _LOOK_SECONDS, key))
        return None

    def _waits_for_bindings(self, pending: _Pending) -> bool:
        """Return whether a verdict is good news that has to wait for Bindings, which compete for the API server."""
        recent = pending.begun <= self._clock() < pending.begun + _BURST_SECONDS
        return recent and _is_good(pending.verdict) and self._gives_way()

    def _seconds_to_next(self) -> float | None:
        if not self._agenda or len(self._writing) >= _MAX_WRITES:
            return None
        return max(0.0, self._agenda[0][0] - self._clock())

    async def _tell_safely(self, key: GroupKey, verdict: Verdict) -> None:
        try:
            await self._tell(key, verdict)
        except Exception:
            # A failure of one group must not stop the reports of all others.
            log.exception("could not report the reason of a gang because of an internal error", extra=name_group(key))
            self._writing.discard(key)
            self.wake()

    async def _tell(self, key: GroupKey, verdict: Verdict) -> None:
        group = self._store.groups.get(key)
        term = self._terms
        self._emit(key, group, verdict)
        if group is not None:
            self._emit_warnings(key, group)
        try:
            if group is not None and not self._is_paused(key):
                await self._conditions.write(group, verdict)
                self._refused.pop(key, None)
        except ApiError as error:
            text = "could not write the reason of a gang into its condition; trying again"
            log.warning(text, extra=name_group(key) | {"err": str(error)})
            if term == self._terms:
                self._pause(key, error)
        finally:
            self._writing.discard(key)
            if term == self._terms:
                self._try_later(key, group, verdict)
            if key in self._pending:
                self._schedule(key, self._pending[key].due)
            self.wake()

    def _is_paused(self, key: GroupKey) -> bool:
        return key in self._refused and self._clock() < self._refused[key].until

    def _pause(self, key: GroupKey, error: ApiError) -> None:
        times = self._refused[key].times + 1 if key in self._refused else 1
        backoff = _OUTAGE if isinstance(error, TooMany | Unavailable) else _REFUSAL
        self._refused[key] = _Refusal(times, self._clock() + backoff.delay(times))

    def _try_later(self, key: GroupKey, group: PodGroup | None, verdict: Verdict) -> None:
        if group is None:
            self._refused.pop(key, None)
        elif key in self._refused:
            # With ``begun`` infinite, a new verdict settles as if none were pending.
            self._pending.setdefault(key, _Pending(verdict, self._refused[key].until, math.inf))

    def _emit(self, key: GroupKey, group: PodGroup | None, verdict: Verdict) -> None:
        about = self._subject(key, group)
        if about is None or self._is_old(key, about["uid"], group, verdict):
            return
        self._told[key] = (about["uid"], verdict)
        if len(self._told) > 2 * len(self._store.groups) + _MAX_GONE:
            self._forget_gone()
        kind = "Normal" if Mark.GOOD in verdict.reason.marks else "Warning"
        self._events.emit(about, kind, verdict.reason.value, render(verdict))
        if Mark.GOOD not in verdict.reason.marks:
            self._emit_pod(key, about["uid"], verdict)
        if Mark.PASSES not in verdict.reason.marks:
            # Users look at the Job that they submitted. Its status belongs to the Job controller, so it gets an event.
            for owner in self._list_owners(group):
                self._events.emit(owner, kind, verdict.reason.value, render(verdict))

    def _emit_pod(self, key: GroupKey, told_uid: str, verdict: Verdict) -> None:
        """Emit the event once per reason about the first waiting member, as users describe pods (decision 4).

        ``told_uid`` is the UID of the object that has the event already.
        """
        found = self._store.members.classify(key)
        pod = next(iter((*found.waiting, *found.refused, *found.gated)), None)
        if pod is None or pod.uid == told_uid or self._pods_told.get(key) == (pod.uid, verdict.reason):
            return
        self._pods_told[key] = (pod.uid, verdict.reason)
        about = _reference("v1", "Pod", Key(pod.namespace, pod.name), pod.uid)
        self._events.emit(about, "Warning", verdict.reason.value, render(verdict))

    def _emit_warnings(self, key: GroupKey, group: PodGroup) -> None:
        """Emit warnings about a group's mistakes that do not prevent its plan; each warning once per group."""
        about = self._subject(key, group)
        mismatch = self._store.priorities.find_mismatch(key)
        invalid = self._store.forest.find_invalid(key)
        warnings = {
            PRIORITY_MISMATCH: describe_mismatch(mismatch) if mismatch is not None else "",
            INVALID_TREE: describe_invalid_tree(invalid) if invalid else "",
            TOPOLOGY_IGNORED: describe_ignored(*group.ignored) if group.ignored is not None else "",
        }
        for reason, text in warnings.items():
            if about is not None and text and self._warned.get((key, reason)) != group.uid:
                self._warned[key, reason] = group.uid
                self._events.emit(about, "Warning", reason, text)

    def _is_old(self, key: GroupKey, uid: str, group: PodGroup | None, verdict: Verdict) -> bool:
        """Return whether an event would repeat the last one about this object."""
        told_uid, told = self._told.get(key, ("", None))
        if told is None or told_uid != uid:
            # A gang that was scheduled by an earlier process needs no event.
            return verdict.reason is Reason.SCHEDULED and group is not None and group.scheduled
        return told == verdict or told.reason is verdict.reason is Reason.SCHEDULED

    def _list_owners(self, group: PodGroup | None) -> list[dict[str, str]]:
        """Return references to the Jobs or parents that control a group and the PodGroups of its tree."""
        if group is None:
            return []
        below = [group.key.leaf(leaf.name) for leaf in list_leaves(group.tree)]
        owners = (_owner_of(each) for each in (group, *map(self._store.groups.get, below)))
        return list({owner["uid"]: owner for owner in owners if owner is not None}.values())

    def _forget_gone(self) -> None:
        known = self._store.groups.keys() | set(self._store.members.groups())
        self._told = {key: told for key, told in self._told.items() if key in known}
        self._pods_told = {key: told for key, told in self._pods_told.items() if key in known}
        self._holds = {key: held for key, held in self._holds.items() if key in known}
        self._warned = {about: uid for about, uid in self._warned.items() if about[0] in known}

    def _subject(self, key: GroupKey, group: PodGroup | None) -> dict[str, str] | None:
        if group is not None and key.kind is not GroupKind.COUNTED:
            return self._refer(group)
        member = next(iter(self._store.members.of_group(key)), None)
        if member is None:
            return None  # its pods are gone, or have found their PodGroup
        owner_key = owner_of_provisional(key)
        owner = self._store.owners.find(owner_key) if owner_key is not None else None
        if owner is not None:
            return _reference(api_version_of(owner), kind_of(owner), owner.key, owner.uid)
        return _reference("v1", "Pod", Key(member.namespace, member.name), member.uid)


async def _try(group: GroupKey, write: Awaitable[None]) -> None:
    try:
        await write
    except ApiError as error:
        log.warning(
            "could not patch the condition DisruptionTarget of a group", extra=name_group(group) | {"err": str(error)}
        )


def _read_reason(group: PodGroup | None) -> Reason | None:
    """Return the reason to wait in a group's condition; None if there is none."""
    said = group.condition[2].partition(":")[0] if group is not None and group.condition is not None else ""
    found = find_reason(said)
    return None if found is None or Mark.GOOD in found.marks else found


def _is_good(verdict: Verdict) -> bool:
    return Mark.GOOD in verdict.reason.marks and not (verdict.reason is Reason.BINDING and verdict.detail)


def _is_overtaken(before: _Pending, verdict: Verdict, now: float) -> bool:
    """Return whether a reason to wait replaces good news that was delayed by Bindings: it has to settle anew."""
    return _is_good(before.verdict) and not _is_good(verdict) and now > before.begun + _RESTLESS_SECONDS


def _owner_of(group: PodGroup | Composite | None) -> dict[str, str] | None:
    """Return a reference to the Job or parent that controls the group; None if there is none."""
    owners = group.owners if group is not None else ()
    owner = next((owner for owner in owners if owner.controller and owner.kind in OWNER_KINDS), None)
    if group is None or owner is None:
        return None
    return _reference(OWNER_KINDS[owner.kind].api_version, owner.kind, Key(group.key.namespace, owner.name), owner.uid)


def _reference(api_version: str, kind: str, key: Key, uid: str) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "namespace": key.namespace, "name": key.name, "uid": uid}
