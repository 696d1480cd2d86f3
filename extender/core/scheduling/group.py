"""The state of each group, and the pods to which filter has answered no node.

`Groups` is one per core (``Context.groups``). It has one `GroupState` for each group that was considered.
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
    """The objects in which features remember facts about one group, by the class of the object.

    A feature is a part of the extender that the core knows only by an interface, such as preemption. Each defines a
    subclass of `Memory` for what it remembers. Empty for a group about which no feature remembers anything.
    """

    def get_or_create(self, kind: type[M]) -> M:
        """Return the object of class ``kind`` in which a feature remembers facts about the group.

        Create it if there is none yet.
        """
        found = self.find(kind)
        if found is None:
            found = kind()
            self[kind] = found
        return found

    def find(self, kind: type[M]) -> M | None:
        """Return the object of class ``kind``, in which a feature remembers facts about the group.

        Return None if there is no such object.
        """
        found = self.get(kind)
        return found if isinstance(found, kind) else None

    def end_wait(self) -> None:
        """Drop the memories that only matter while the group waits for free resources (`Memory.for_wait`)."""
        for kind in [kind for kind in self if kind.for_wait]:
            del self[kind]


@dataclass(slots=True)
class GroupState:
    """The state of one group, from the time it was considered first until PodGroup and pods are gone.

    `GroupScheduler` creates and drops it. Times are loop seconds.
    """

    first_seen: float
    verdict: Verdict | None = None

    had_members: bool = False
    """True if the group had any pod when the verdict was last reported."""

    awaited: AwaitedOwner | None = None
    """The pods that wait for an owner which no watch has shown; None if no pod of the group does."""

    reason_since: float = 0.0
    """The time since when the verdict has had its present reason."""

    waiting_since: float = 0.0
    """The time when the verdict last changed from none, or from Scheduled, to another reason."""

    quorum_since: float | None = None
    """The time since when the quorum exists, which decides the place in the queue; None without a quorum.

    It follows from the members' creation times, so that all instances agree.
    """

    ran: bool = False
    """True once a member was placed since ``quorum_since``.

    A gang that has run does not keep its place in the queue when it loses its quorum.
    """

    hindered: float = -math.inf
    """The last time when something other than the number of members prevented the quorum, such as a scheduling gate.

    ``quorum_since`` is never earlier, whatever the members' creation times say. -infinite if there was no such time.
    """

    cycle: BindingCycle | None = None

    entry: QueueEntry = field(default_factory=QueueEntry)
    """The group's entry in the queue, which says when the group is planned again."""

    refusals: Refusals = field(default_factory=Refusals)
    """The nodes that kube-scheduler or a kubelet has rejected for members, and until when each is avoided."""

    started: bool = False
    """True if the quorum was bound at any time, as far as this instance knows."""

    assigned_domain: str = ""
    """The domain in which members of the group run, or ran last; "" if none has run.

    It stays when the members' nodes are deleted.
    """

    memory: Memories = field(default_factory=Memories)
    """The facts that features remember about the group."""

    def end_term(self) -> None:
        """Drop the verdict, the time of the quorum and whatever else may change while another instance leads."""
        self.verdict = None  # its report may not have been written yet
        self.awaited = None  # the owner may be created and deleted unseen
        self.quorum_since = None  # the quorum may be lost and found unseen
        self.ran = False
        self.entry.force_retry()  # else the next term would neither plan nor report a gang that waits

    def find_exclusions(self, pods: Collection[Pod], now: float, cluster: Cluster) -> Exclusions:
        """Return the nodes that a plan must avoid for these members.

        kube-scheduler or a kubelet has refused these nodes for them, or for members with equal requests and
        constraints.
        """
        return self.refusals.find_exclusions(pods, now, cluster) if self.refusals.excluded else NO_EXCLUSIONS

    def list_unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Return the nodes that kube-scheduler's last filter calls did not offer to any of these members.

        Empty if for some member no complete list of offered nodes was noted lately: that member might get any node.
        """
        return self.refusals.find_unoffered(pods, now, nodes) if self.refusals.offers else frozenset()

    def find_rejection(self, waiting: Iterable[Pod], now: float, cluster: Cluster) -> str:
        """Return kube-scheduler's message if it had no node for one member while other members had theirs, else "".

        Such a gang could not start even with free resources. The message no longer counts when that member is not in
        ``waiting`` (the members without a node), or when the rejection has ended: by time, or in most cases as soon as
        kube-scheduler says that only resources are missing for the member. The next try after that plans the gang even
        if nothing else has changed.
        """
        if self.refusals.rejection is None:
            return ""
        found = self.refusals.find_rejection(waiting, now, cluster)
        if not found:
            self.entry.force_retry()
        return found

    def learn_offer(self, shape: Shape, names: Iterable[str], now: float) -> bool:
        """Note the complete list of nodes that kube-scheduler offers to members of one `Shape`.

        A `Shape` is the requests and constraints of a pod. Return whether any node is new for them, so that a plan may
        succeed now. A new node ends the backoff of a gang that was rejected while some members had nodes.
        """
        offered = frozenset(names)
        rested = self.cycle is None and self.refusals.note_offer_while_rejected(offered)
        if rested:
            self.entry.end_backoff()
        return self.refusals.note_offer(shape, offered, now) or rested


_UNSEEN_SECONDS = 360.0
"""The seconds for which a pod is remembered that got no node from filter, and that the watch does not show.

kube-scheduler tries a pod again, and so calls filter, within 5.5 minutes.
"""

_MAX_UNSEEN = 50_000


class HeldPods:
    """The *held* pods: those to which filter has answered no node, so that kube-scheduler treats them as unschedulable.

    They are remembered by UID, so that a pod which turns out to belong to no gang can be activated. If the watch does
    not show a pod, the watch may be late, or the pod deleted: the pod is then remembered for _UNSEEN_SECONDS only, and
    at most _MAX_UNSEEN such pods are. ``len`` and iteration leave out pods that the watch does not show. ``pods`` is
    the Store's live map.
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
        """Note that filter has answered no node to a pod. ``now`` is in loop seconds."""
        self._now = now
        self._unseen.pop(uid, None)
        (self._known if uid in self._pods else self._unseen)[uid] = None

    def discard(self, uid: str) -> bool:
        """Forget that filter has answered no node to a pod. Return whether it was remembered."""
        # Called for each filter answer, nearly always while no pod is unseen. A pop would read the clock first.
        was_unseen = self._unseen.currsize > 0 and self._unseen.pop(uid, "") is None
        return was_unseen or self._known.pop(uid, "") is None

    def needs_activation(self, pod: Pod) -> bool:
        """Return whether kube-scheduler tries a pod soon only if Serried writes to the pod.

        That is so if filter has answered no node to it, or kube-scheduler has rejected it.
        """
        return pod.unschedulable or pod.uid in self

    def prune(self, now: float) -> None:
        """Forget pods that are bound, have ended or are deleted.

        Pods that the watch did not show at first are kept without a limit of time once it shows them. ``now`` is in
        loop seconds.
        """
        self._now = now
        for uid in [uid for uid in self._unseen if uid in self._pods]:
            del self._unseen[uid]
            self._known[uid] = None
        self._known = {uid: None for uid in self._known if uid in self._pods and self._pods[uid].pending}


@dataclass(slots=True, eq=False)
class Groups:
    """The states of all groups, and the event that wakes the loop which considers them. One per core."""

    _store: Store
    _ledger: Ledger
    _status: StatusSink
    _timelines: Timelines
    _clock: Callable[[], float]
    _metrics: ExtenderMetrics

    states: dict[GroupKey, GroupState] = field(default_factory=dict, init=False)
    """The state of each group that was considered, by the group's key."""

    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when any group has to be considered. The loop waits for it and clears it."""

    held: HeldPods = field(init=False)
    """The pods to which filter has answered no node."""

    activity: SchedulerActivity = field(init=False)
    """The record of when kube-scheduler was last seen working."""

    def __post_init__(self) -> None:
        self.held = HeldPods(self._store.pods)
        self.activity = SchedulerActivity(self._store, self._clock)

    def wake(self) -> None:
        """Wake the loop that considers groups."""
        self.changed.set()

    def pass_on_changes(self) -> None:
        """Mark members and PodGroups that have changed in the Store as changed in their binding cycles.

        They are then removed from the Store's list of changes (`Dirty`).
        """
        for key, uid in self._store.dirty.take_members():
            state = self.states.get(key)
            # A committed cycle may outlast its PodGroup, so the cycle in which the pod has its slot is noted, too.
            cycles = (state.cycle if state is not None else None), self.find_cycle(uid)
            for cycle in cycles:
                if cycle is not None:
                    cycle.mark_changed(uid)

    def mark_dirty(self, key: GroupKey) -> None:
        """Have the loop consider a group soon.

        Its binding cycle is not told that any member has changed (`BindingCycle.mark_changed`).
        """
        self._store.dirty.groups.add(key)
        self.wake()

    def pop_due(self, state: GroupState) -> bool:
        """Return whether a group has to be considered, because its backoff has ended or its time to retry has come.

        Each of these times leads to True once. The retry time does not count while the group has a binding cycle.
        """
        now = self._clock()
        rested = state.entry.pop_backoff(now)
        if rested and state.cycle is not None:
            state.cycle.note_refill(())
        again = state.cycle is None and state.entry.pop_retry(now)
        return rested or again

    def note_tried_again(self, key: GroupKey) -> None:
        """Note that kube-scheduler called filter for a pod of this group that has no slot.

        If the last cycle timed out because kube-scheduler had tried none of its members, the group is planned again at
        once.
        """
        state = self.states.get(key)
        if state is not None and state.entry.pop_unattended():
            self.mark_dirty(key)

    def note_task_done(self, key: GroupKey) -> None:
        """Note that a planning task of a group has ended, and have the group considered again.

        If the group has a binding cycle, its members without a slot are planned again.
        """
        state = self.states.get(key)
        if state is not None and state.cycle is not None:
            state.cycle.note_refill(())
        self.mark_dirty(key)

    def report(self, key: GroupKey, verdict: Verdict) -> None:
        """Record the verdict of a group, and have it written to condition and events.

        Nothing happens if the group has no state, or if the verdict has not changed. But if the group had no pods at
        the last verdict and has some now, an unchanged verdict is written, too.
        """
        state = self.states.get(key)
        if state is None:
            return
        has_members = key in self._store.members
        if state.verdict != verdict or (has_members and not state.had_members):
            self._measure(state, key.namespace, verdict.reason)
            state.verdict = verdict
            state.had_members = has_members
            self._timelines.note_verdict(key, verdict)
            self._status.report_verdict(key, verdict)

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
        """Return the binding cycle in which a pod (UID) has a slot; None if it has none."""
        reservation = self._ledger.of_pod(uid)
        state = self.states.get(reservation.group) if reservation is not None else None
        return state.cycle if state is not None else None
