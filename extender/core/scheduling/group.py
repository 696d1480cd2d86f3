"""The state of each group, the set of dirty groups, and the pods that filter holds.

`Groups` is one per core (``Context.groups``); it has one `GroupState` per group that was considered.
"""

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
    """The state that features keep of one group, by class; empty for a gang to which no feature applies."""

    def get_or_create(self, kind: type[M]) -> M:
        """Return the memory of this class; make it if there is none yet."""
        found = self.find(kind)
        if found is None:
            found = kind()
            self[kind] = found
        return found

    def find(self, kind: type[M]) -> M | None:
        """Return the memory of this class; None if there is none."""
        found = self.get(kind)
        return found if isinstance(found, kind) else None

    def end_wait(self) -> None:
        """Drop the memories that are kept only while the group waits for room."""
        for kind in [kind for kind in self if kind.for_wait]:
            del self[kind]


@dataclass(slots=True)
class GroupState:
    """The state of one group, from its first assessment until the group is gone. Times are loop seconds."""

    first_seen: float
    verdict: Verdict | None = None

    had_members: bool = False
    """True if the group had members when the verdict was last reported."""

    awaited: AwaitedOwner | None = None
    """The state of the owner while no watch has shown it; None without such an owner."""

    reason_since: float = 0.0
    """The time since when the verdict has its reason."""

    waiting_since: float = 0.0
    """The time since when the verdict is not Scheduled."""

    quorum_since: float | None = None
    """The time since when the quorum exists, from the members' creation times; None if it does not."""

    ran: bool = False
    """True once a member was placed since ``quorum_since``: the gang does not keep its place in the queue then."""

    hindered: float = -math.inf
    """The last time when the quorum was missing for another reason than too few members.

    The quorum is not older than this, whatever the creation times say.
    """

    cycle: BindingCycle | None = None

    entry: QueueEntry = field(default_factory=QueueEntry)
    """The group's entry in the queue: when it is planned again."""

    refusals: Refusals = field(default_factory=Refusals)
    """The refusals by kube-scheduler and kubelets from which the group has learnt."""

    started: bool = False
    """True if the quorum was ever bound, as far as is known."""

    assigned_domain: str = ""
    """The domain in which its members run. It is kept when their nodes are deleted."""

    memory: Memories = field(default_factory=Memories)
    """The state that features keep of the group."""

    def end_term(self) -> None:
        """Drop what another leader may change from now on."""
        self.verdict = None  # it may not be reported yet
        self.awaited = None  # the owner may be created and deleted unseen
        self.quorum_since = None  # the quorum may be lost and found unseen
        self.ran = False
        self.entry.force_retry()  # else the next term would neither plan nor report a gang that waits

    def find_exclusions(self, pods: Collection[Pod], now: float, cluster: Cluster) -> Exclusions:
        """Return the nodes that earlier refusals close to these members."""
        return self.refusals.find_exclusions(pods, now, cluster) if self.refusals.closed else NO_EXCLUSIONS

    def list_unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Return the nodes that kube-scheduler has offered to none of these members; none while that is not known."""
        return self.refusals.unoffered(pods, now, nodes) if self.refusals.offers else frozenset()

    def find_rejection(self, waiting: Iterable[Pod], now: float, cluster: Cluster) -> str:
        """Return why the gang could not start even with free room, a phrase; "" if nothing says so.

        A rejection that has ended requeues the gang.
        """
        if self.refusals.rejection is None:
            return ""
        found = self.refusals.find_rejection(waiting, now, cluster)
        if not found:
            self.entry.force_retry()
        return found

    def learn_offer(self, shape: Shape, names: Iterable[str], now: float) -> bool:
        """Note the complete list of nodes that kube-scheduler has for a class. Return whether one is new.

        A new node ends the backoff after a rejection.
        """
        offered = frozenset(names)
        rested = self.cycle is None and self.refusals.try_new_nodes(offered)
        if rested:
            self.entry.end_backoff()
        return self.refusals.learn_offer(shape, offered, now) or rested


_UNSEEN_SECONDS = 360.0
"""The time for which a held pod that the watch does not show is remembered.

kube-scheduler tries a pod again after at most 5 minutes and 30 s. It calls filter again before this time is over.
"""

_MAX_UNSEEN = 50_000


class HeldPods:
    """The pods that filter holds, by UID, so that those that turn out to need no gang are activated.

    A pod that the watch does not show is a stranger: the watch may be late, or the pod deleted. Strangers are
    remembered until kube-scheduler would have called filter again by itself; of too many, the oldest are dropped.
    ``len`` and iteration are over the other pods. ``pods`` is the Store's live map.
    """

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._known: dict[str, None] = {}
        self._now = 0.0
        self._unseen: TTLCache[str, None] = TTLCache(_MAX_UNSEEN, _UNSEEN_SECONDS, timer=lambda: self._now)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known or uid in self._unseen

    def add(self, uid: str, now: float) -> None:
        """Note that filter holds a pod; ``now`` in loop seconds."""
        self._now = now
        self._unseen.pop(uid, None)
        (self._known if uid in self._pods else self._unseen)[uid] = None

    def discard(self, uid: str) -> bool:
        """Remove a pod that is not held any more. Return whether it was held."""
        # Called for each filter answer, nearly always without strangers. A pop would read the clock first.
        was_unseen = self._unseen.currsize > 0 and self._unseen.pop(uid, "") is None
        return was_unseen or self._known.pop(uid, "") is None

    def needs_activation(self, pod: Pod) -> bool:
        """Return whether kube-scheduler tries a pod again only after a write of Serried activates it."""
        return pod.unschedulable or pod.uid in self

    def prune(self, now: float) -> None:
        """Drop pods that do not wait any more. Strangers that the watch has shown meanwhile are known from now on."""
        self._now = now
        for uid in [uid for uid in self._unseen if uid in self._pods]:
            del self._unseen[uid]
            self._known[uid] = None
        self._known = {uid: None for uid in self._known if uid in self._pods and self._pods[uid].pending}


@dataclass(slots=True, eq=False)
class Groups:
    """The states of all groups, and the event that wakes the loop."""

    _store: Store
    _ledger: Ledger
    _status: StatusSink
    _timelines: Timelines
    _clock: Callable[[], float]
    _metrics: ExtenderMetrics

    states: dict[GroupKey, GroupState] = field(default_factory=dict, init=False)
    """The state of each group that was considered."""

    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when a group is dirty. The loop waits for it and clears it."""

    held: HeldPods = field(init=False)
    """The pods that filter holds."""

    activity: SchedulerActivity = field(init=False)
    """The observer of kube-scheduler's activity."""

    def __post_init__(self) -> None:
        self.held = HeldPods(self._store.pods)
        self.activity = SchedulerActivity(self._store, self._clock)

    def wake(self) -> None:
        """Wake the loop."""
        self.changed.set()

    def pass_on_changes(self) -> None:
        """Pass the changes of groups and members since the last call to their cycles."""
        for key, uid in self._store.dirty.take_members():
            state = self.states.get(key)
            # A committed cycle may outlast its PodGroup, so the cycle in which the pod has its slot is noted, too.
            cycles = (state.cycle if state is not None else None), self.find_cycle(uid)
            for cycle in cycles:
                if cycle is not None:
                    cycle.mark_changed(uid)

    def mark_dirty(self, key: GroupKey) -> None:
        """Mark a group dirty. Its cycle gets no news: it has caused the change itself."""
        self._store.dirty.groups.add(key)
        self.wake()

    def pop_due(self, state: GroupState) -> bool:
        """Return whether a backoff or retry time of a group has come. True once per time."""
        now = self._clock()
        rested = state.entry.pop_backoff(now)
        if rested and state.cycle is not None:
            state.cycle.note_refill(())
        again = state.cycle is None and state.entry.pop_retry(now)
        return rested or again

    def note_tried_again(self, key: GroupKey) -> None:
        """Note that kube-scheduler tries a held member. A gang that had timed out untried is requeued at once."""
        state = self.states.get(key)
        if state is not None and state.entry.pop_unattended():
            self.mark_dirty(key)

    def note_task_done(self, key: GroupKey) -> None:
        """Note that a planning task of this group is done, and requeue the group."""
        state = self.states.get(key)
        if state is not None and state.cycle is not None:
            state.cycle.note_refill(())
        self.mark_dirty(key)

    def report(self, key: GroupKey, verdict: Verdict) -> None:
        """Record and report the verdict of a group if it has changed, or if the group has members again."""
        state = self.states.get(key)
        if state is None:
            return
        has_members = key in self._store.members
        if state.verdict != verdict or (has_members and not state.had_members):
            self._measure(state, key.namespace, verdict.reason)
            state.verdict = verdict
            state.had_members = has_members
            self._timelines.note_verdict(key, verdict)
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

    def find_cycle(self, uid: str) -> BindingCycle | None:
        """Return the binding cycle in which a pod has a slot; None if it has none."""
        reservation = self._ledger.of_pod(uid)
        state = self.states.get(reservation.group) if reservation is not None else None
        return state.cycle if state is not None else None
