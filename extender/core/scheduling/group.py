"""The groups that are looked at: what is remembered of each, which is to be looked at again, and which pods wait."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cachetools import TTLCache

from extender.core.feature import Memory
from extender.core.scheduling.activity import SchedulerActivity
from extender.core.scheduling.awaited_owner import AwaitedOwner
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.refusals import NO_EXCLUSIONS, Cluster, Exclusions, Refusals
from extender.core.scheduling.unschedulable import QueueEntry
from extender.core.timeline import StatusSink, Timelines
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.ops.metrics import ExtenderMetrics

M = TypeVar("M", bound=Memory)


class Memories(dict[type[Memory], Memory]):
    """The memories of one group, by class; empty for a gang that no feature is about."""

    def of(self, kind: type[M]) -> M:
        """Return the memory of this class; a new one if there is none yet."""
        found = self.find(kind)
        if found is None:
            found = kind()
            self[kind] = found
        return found

    def find(self, kind: type[M]) -> M | None:
        """Return the memory of this class, None if there is none."""
        found = self.get(kind)
        return found if isinstance(found, kind) else None

    def end_wait(self) -> None:
        """Drop what was remembered only while the group waited for room."""
        for kind in [kind for kind in self if kind.for_wait]:
            del self[kind]


@dataclass(slots=True)
class GroupState:
    """The memory of one group. Times are loop seconds."""

    first_seen: float
    verdict: Verdict | None = None

    had_members: bool = False
    """Whether it had members when the verdict was said last."""

    awaited: AwaitedOwner | None = None
    """What is known of the owner while no watch has shown it."""

    reason_since: float = 0.0
    """Since when the verdict has its reason."""

    waiting_since: float = 0.0
    """Since when it is not Scheduled."""

    quorum_since: float | None = None
    """Since when its members are enough, as far as their creation times tell; None if they are not."""

    ran: bool = False
    """Whether a member has been placed since ``quorum_since``: then the gang does not keep its place in the queue."""

    hindered: float = -math.inf
    """When it was seen last that more than members was missing: their creation times say nothing of that."""

    cycle: BindingCycle | None = None

    entry: QueueEntry = field(default_factory=QueueEntry)
    """When it is planned again."""

    refusals: Refusals = field(default_factory=Refusals)
    """The refusals of kube-scheduler and of kubelets that the group has met."""

    started: bool = False
    """Whether its quorum has ever stood, as far as can be told."""

    assigned_domain: str = ""
    """Where its members run; it outlasts nodes that are gone."""

    memory: Memories = field(default_factory=Memories)
    """What features remember of it."""

    def end_term(self) -> None:
        """Another instance may lead from now on; what that one does and says, nobody here sees."""
        self.verdict = None  # it may not be told yet
        self.awaited = None  # it may come, and go, unseen
        self.quorum_since = None  # it may break, and stand again
        self.ran = False
        self.entry.ask_again()  # else a gang that waits would not be planned when our turn comes again, nor told of

    def find_exclusions(self, pods: Collection[Pod], now: float, cluster: Cluster) -> Exclusions:
        """Return the nodes that are closed to these members by what was refused."""
        return self.refusals.find_exclusions(pods, now, cluster) if self.refusals.closed else NO_EXCLUSIONS

    def unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Return the nodes that kube-scheduler has offered to none of these members; none while that is not known."""
        return self.refusals.unoffered(pods, now, nodes) if self.refusals.offers else frozenset()

    def find_rejection(self, waiting: Iterable[Pod], now: float, cluster: Cluster) -> str:
        """Return why the gang cannot run whatever room there is, a phrase; "" if nothing (more) is known of that.

        A rejection that has ended has the gang planned again.
        """
        if self.refusals.rejection is None:
            return ""
        found = self.refusals.find_rejection(waiting, now, cluster)
        if not found:
            self.entry.ask_again()
        return found

    def learn_offer(self, shape: Shape, names: Iterable[str], now: float) -> bool:
        """Note that kube-scheduler has these nodes, and no others, for a class. Return whether one is new.

        A new node ends the rest after a rejection.
        """
        offered = frozenset(names)
        rested = self.cycle is None and self.refusals.try_new_nodes(offered)
        if rested:
            self.entry.end_backoff()
        return self.refusals.learn_offer(shape, offered, now) or rested


_STRANGER_SECONDS = 360.0
"""How long a pod that is not known is remembered.

Longer than kube-scheduler leaves a pod alone (5 minutes, looked at every 30 s): it asks again before that.
"""

_MAX_STRANGERS = 50_000


class HeldPods:
    """The pods that filter has turned away, by UID, so that those which turn out to need no gang can be woken.

    A pod that our watch does not show is a stranger: the watch may be late, or the pod gone. It is remembered until
    kube-scheduler would have asked about it again by itself; of too many, the oldest are forgotten. ``len`` and
    iteration are over the pods that are known. ``pods`` is the Store's own map.
    """

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._known: dict[str, None] = {}
        self._now = 0.0
        self._strangers: TTLCache[str, None] = TTLCache(_MAX_STRANGERS, _STRANGER_SECONDS, timer=lambda: self._now)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known or uid in self._strangers

    def note(self, uid: str, now: float) -> None:
        """Filter has turned this pod away at this time."""
        self._now = now
        self._strangers.pop(uid, None)
        (self._known if uid in self._pods else self._strangers)[uid] = None

    def forget(self, uid: str) -> bool:
        """This pod is held no longer; whether it was."""
        # Asked for each filter answer, when nearly always nobody is a stranger: a pop would look at the clock first.
        was_stranger = self._strangers.currsize > 0 and self._strangers.pop(uid, "") is None
        return was_stranger or self._known.pop(uid, "") is None

    def needs_activation(self, pod: Pod) -> bool:
        """Whether the scheduler has put a pod aside, and tries it again only when a write of ours wakes it."""
        return pod.unschedulable or pod.uid in self

    def review(self, now: float) -> None:
        """Keep only pods that may still be waiting; strangers that the watch has shown meanwhile are known now."""
        self._now = now
        for uid in [uid for uid in self._strangers if uid in self._pods]:
            del self._strangers[uid]
            self._known[uid] = None
        self._known = {uid: None for uid in self._known if uid in self._pods and self._pods[uid].pending}


@dataclass(slots=True, eq=False)
class Groups:
    """The memory of each group, and whether there is something to look at."""

    _store: Store
    _ledger: Ledger
    _status: StatusSink
    _timelines: Timelines
    _clock: Callable[[], float]
    _metrics: ExtenderMetrics

    states: dict[GroupKey, GroupState] = field(default_factory=dict, init=False)
    """What is remembered of each group that was looked at."""

    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there is something to look at."""

    held: HeldPods = field(init=False)
    """The pods that filter has turned away."""

    activity: SchedulerActivity = field(init=False)
    """When kube-scheduler was seen at work last."""

    def __post_init__(self) -> None:
        self.held = HeldPods(self._store.pods)
        self.activity = SchedulerActivity(self._store, self._clock)

    def wake(self) -> None:
        """Something changed: look again."""
        self.changed.set()

    def note_news(self) -> None:
        """Cycles hear of the changes of their groups, and of their members, since the last call."""
        for key, uid in self._store.dirty.take_members():
            state = self.states.get(key)
            cycles = (state.cycle if state is not None else None), self.cycle_of(uid)  # a commit outlasts its group
            for cycle in cycles:
                if cycle is not None:
                    cycle.note_news(uid)

    def look_again(self, key: GroupKey) -> None:
        """This group is to be looked at. That is no news of it to its cycle, which knows what has happened in it."""
        self._store.dirty.groups.add(key)
        self.wake()

    def is_due(self, state: GroupState) -> bool:
        """Whether a time has come for which a gang waits. Once: who cannot be planned then waits for a change."""
        now = self._clock()
        rested = state.entry.pop_backoff(now)
        if rested and state.cycle is not None:
            state.cycle.note_refill(())
        again = state.cycle is None and state.entry.pop_retry(now)
        return rested or again

    def note_return(self, key: GroupKey) -> None:
        """The scheduler asks about a member that is held: a gang that it let wait in vain has its turn at once."""
        state = self.states.get(key)
        if state is not None and state.entry.pop_unattended():
            self.look_again(key)

    def note_task(self, key: GroupKey) -> None:
        """The answer to a planning task of this group is there: it asks again."""
        state = self.states.get(key)
        if state is not None and state.cycle is not None:
            state.cycle.note_refill(())
        self.look_again(key)

    def say(self, key: GroupKey, verdict: Verdict) -> None:
        """Record and publish how a group stands; the same once more when it has members, for now somebody waits."""
        state = self.states.get(key)
        if state is None:
            return
        has_members = key in self._store.members
        if state.verdict != verdict or (has_members and not state.had_members):
            self._measure(state, key.namespace, verdict.reason)
            state.verdict = verdict
            state.had_members = has_members
            self._timelines.take(key, verdict)
            self._status.say(key, verdict)

    def _measure(self, state: GroupState, namespace: str, reason: Reason) -> None:
        before = state.verdict.reason if state.verdict is not None else None
        if before is reason:
            return
        now = self._clock()
        if before is None or before is Reason.SCHEDULED:
            state.waiting_since = now
        else:
            self._metrics.waited(before.value, now - state.reason_since)
            if reason is Reason.SCHEDULED:
                self._metrics.started(now - state.waiting_since, namespace)
        state.reason_since = now

    def cycle_of(self, uid: str) -> BindingCycle | None:
        """The cycle in which a pod has a slot."""
        reservation = self._ledger.of_pod(uid)
        state = self.states.get(reservation.group) if reservation is not None else None
        return state.cycle if state is not None else None
