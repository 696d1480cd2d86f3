"""Pods of no gang, which a setting keeps off the nodes that are kept for the head of the queue (docs/queue.md).

Which nodes these are is looked up when filter is asked. kube-scheduler tries a pod that was turned away again when
anything happens in the cluster; only where nothing does, somebody has to wake it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from extender.answers import MAX_COMPLETE_LIST
from extender.scheduling.backfill import Backfill, Head
from extender.scheduling.effects import Activate, Outbox
from serried.cluster.ledger import Ledger
from serried.model.group import GroupKey
from serried.model.pod import Pod

_MAX_WOKEN = 8
"""How many pods are woken at a time, twice a second."""

_MAX_TURNED_AWAY = 50_000
"""How many pods are remembered; of more, the oldest are forgotten."""

_STRANGER_SECONDS = 360.0
"""How long a pod is remembered that the watch does not show: kube-scheduler asks again before that."""

_TIDY_SECONDS = 30.0
"""How often those that are gone are forgotten."""

_NONE: frozenset[str] = frozenset()


class PlainRule(StrEnum):
    """What the nodes that are kept for the head are to pods of no gang."""

    PASS = "pass"  # noqa: S105 - no password
    """Nodes like all others."""

    WAIT = "wait"
    """Kept from them as they are from gangs behind the head."""


@dataclass(slots=True)
class _TurnedAway:
    """A pod that was left no node."""

    closed: frozenset[str]
    """The nodes that were kept from it."""

    at: float
    """When, in loop seconds."""

    tries: int
    """How often in a row it was turned away for these nodes."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """What a gang has got that was the head and is not bound yet."""

    priority: int
    nodes: frozenset[str]


class PlainPods:
    """Keeps pods of no gang off nodes, and wakes them. Synchronous. ``clock`` gives loop seconds.

    ``pods`` is the Store's own map, ``schedulers`` are those whose pods are ours to keep off.
    """

    def __init__(
        self,
        pods: Mapping[str, Pod],
        schedulers: Collection[str],
        backfill: Backfill,
        ledger: Ledger,
        *,
        outbox: Outbox,
        clock: Callable[[], float],
        rule: PlainRule = PlainRule.PASS,
    ) -> None:
        self._pods = pods
        self._schedulers = schedulers
        self._backfill = backfill
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self._rule = rule
        self._head: Head | None = None
        self._placed: dict[GroupKey, _Placed] = {}

        self._united: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        """Nodes of the head and of some of ``_placed``, and all of them: hundreds of pods may be asked about them."""

        self._united_for: frozenset[str] = _NONE
        """The nodes of the head with which ``_united`` was made."""

        self._turned_away: dict[str, _TurnedAway] = {}

        self._due: dict[str, None] = {}
        """Those of them that are to be woken."""

        self._seen: tuple[frozenset[str], ...] = ()
        """The nodes that were kept from anybody at the last review, or since."""

        self._tidied = 0.0

    # --- filter and preempt ------------------------------------------------------------------------------------

    def narrow(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Those of the offered nodes that a pod may use; None for all of them."""
        if self._rule is not PlainRule.WAIT:
            return None
        closed = self.closed_to(pod)
        # Whoever is nominated has had others evicted for it: the node by itself is offered first.
        evicted_for = len(names) == 1 and names[0] == pod.nominated
        left = [name for name in names if name not in closed] if closed and not evicted_for else names
        if left or not names:
            self._turned_away.pop(pod.uid, None)
            return None if len(left) == len(names) else left
        self._note(pod, closed, len(names))
        return left

    def closed_to(self, pod: Pod) -> frozenset[str]:
        """The nodes that a pod must not use."""
        if self._rule is not PlainRule.WAIT or pod.scheduler not in self._schedulers:
            return _NONE
        self._follow()
        kept = self._backfill.kept_from(pod)
        placed = (each.nodes for each in self._placed.values() if pod.priority <= each.priority)
        return self._unite(tuple(nodes for nodes in (kept, *placed) if nodes))

    def _follow(self) -> None:
        """Keep the nodes of each gang that is the head no more, as it has got them: until it is bound, or fails."""
        head = self._backfill.head
        if head is not self._head:
            former = self._head
            self._head = head
            reservation = self._ledger.of_group(former.group) if former is not None else None
            if former is not None and reservation is not None:
                nodes = frozenset(slot.node for slot in reservation.slots.values())
                self._placed[former.group] = _Placed(former.waiting.priority, nodes)
                self._united.clear()
        for group in [each for each in self._placed if self._ledger.of_group(each) is None]:
            del self._placed[group]
            self._united.clear()

    def _unite(self, parts: tuple[frozenset[str], ...]) -> frozenset[str]:
        """All these nodes; the same object as long as the parts are the same."""
        if len(parts) <= 1:
            return parts[0] if parts else _NONE
        head = self._backfill.head
        kept = _NONE if head is None else head.forecast.nodes
        if kept is not self._united_for:
            self._united_for = kept
            self._united.clear()
        known = self._united.get(parts)
        if known is None:
            known = self._united[parts] = frozenset().union(*parts)
        return known

    def _note(self, pod: Pod, closed: frozenset[str], offered: int) -> None:
        before = self._turned_away.pop(pod.uid, None)
        tries = before.tries + 1 if before is not None and before.closed is closed else 1
        self._turned_away[pod.uid] = _TurnedAway(closed, self._clock(), tries)
        if all(closed is not each for each in self._seen):
            # A head may come and go between two reviews: the next one has to see that its nodes are open.
            self._seen = (*self._seen, closed)
        # The scheduler has tried some of many nodes, and tries others the next time: there may be room on these.
        if offered >= MAX_COMPLETE_LIST and tries <= len(closed) // offered + 1:
            self._due[pod.uid] = None
        if len(self._turned_away) > _MAX_TURNED_AWAY:
            self._forget(next(iter(self._turned_away)))

    # --- waking ------------------------------------------------------------------------------------------------

    def review(self) -> None:
        """Have those woken that nodes are open to by now. Called about twice a second."""
        if self._rule is not PlainRule.WAIT:
            return
        self._follow()
        head = self._backfill.head
        kept = () if head is None else (head.forecast.nodes,)
        now = (*kept, *(placed.nodes for placed in self._placed.values()))
        if now != self._seen:
            self._seen = now
            self._note_opened(frozenset().union(*now))
        self._wake()
        if self._clock() - self._tidied >= _TIDY_SECONDS:
            self._tidied = self._clock()
            self._tidy()

    def _note_opened(self, closed: frozenset[str]) -> None:
        """Have one pod of each kind woken; if it is bound, kube-scheduler tries all the others."""
        opened: dict[frozenset[str], bool] = {}
        woken: set[tuple[int, int]] = set()
        for uid, turned in self._turned_away.items():
            if turned.closed not in opened:
                opened[turned.closed] = not turned.closed <= closed
            pod = self._pods.get(uid)
            if not opened[turned.closed] or pod is None or not pod.pending:
                continue
            kind = id(pod.shape), pod.priority  # shapes are shared, and slow to hash
            if kind not in woken:
                woken.add(kind)
                self._due[uid] = None

    def _wake(self) -> None:
        for uid in list(islice(self._due, _MAX_WOKEN)):
            del self._due[uid]
            pod = self._pods.get(uid)
            # Whoever was asked about again meanwhile needs nobody to wake it.
            if uid in self._turned_away and pod is not None and pod.pending:
                self._outbox.put(Activate(pod))

    def _tidy(self) -> None:
        since = self._clock() - _STRANGER_SECONDS
        for uid, turned in list(self._turned_away.items()):
            pod = self._pods.get(uid)
            if turned.at < since if pod is None else not pod.pending:
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._turned_away.pop(uid, None)
        self._due.pop(uid, None)
