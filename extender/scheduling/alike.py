"""Members that are judged by one of their kind.

kube-scheduler's opportunistic batching does so among plain pods (KEP-5598).

A filter call says which nodes take a pod by all of the scheduler's own rules, and the scheduler assumes no other pod
before it has the answer. If the planned members that are left differ in nothing that it looks at, what it has just said
of one of them holds for all: they are bound while the answer waits, so most of them never come to the scheduler. The
member that it asks about goes its usual way, to its bind call.

What the scheduler knows and Serried does not are the pods of its own that it has placed and that are not bound yet. A
node takes several members on one word only if there is room for the waiting plain pods beside them.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from cachetools import FIFOCache

from extender.options import Alike
from extender.scheduling.binding_cycle import BindingCycle, CycleStage, MemberStage
from extender.scheduling.effects import Context
from extender.scheduling.permit import Obstacle, Refusal
from serried.api.pod import Pod, Shape
from serried.api.resources import add, capacity
from serried.plan.fit import slots

_Kind = tuple[int, int, str]
"""The identity of a shape (equal shapes are one object), a priority, and a schedulerName."""

_MAX_KINDS = 1000
"""How many kinds are remembered that have come to bind; of more, the oldest are forgotten."""

_PATIENCE_SECONDS = 1.0
"""For how long after an answer Bindings wait for the next one; then the scheduler has nobody of theirs to try."""

_COMING = 4
"""How many members are left to the scheduler, which comes to them next: meanwhile it learns who else is bound."""

_MAX_SENT = 80
"""How many Bindings are sent while the scheduler waits for one answer; two cores send as many in 250 ms."""


class AlikeMembers:
    """Says who is bound with a member that the scheduler asks about. Synchronous."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._on = context.options.alike is Alike.TOGETHER
        self._groups = context.groups
        self._held = context.groups.held
        self._clock = context.clock
        self._passed: FIFOCache[_Kind, Pod] = FIFOCache(_MAX_KINDS)
        """The last member of each kind that has come to its bind call."""

        self._judged: list[BindingCycle] = []
        """The cycles with members that were judged by another one and that our watch does not show bound."""

        self._sent: dict[str, float] = {}
        """Those of these members (UIDs) whose Bindings are sent."""

        self._asked: BindingCycle | None = None
        """The last one that was judged by a member of its own: the scheduler goes on with it."""

        self._coming: set[str] = set()
        """The members (UIDs) that are left to the scheduler: those to which it comes next, and those without room."""

        self._left = 0
        """How many more Bindings may be sent while the scheduler waits."""

        self._opened = -math.inf
        """When it last began to wait, in loop seconds."""

        self._closed = -math.inf
        """Since when it waits no more, in loop seconds; infinite while it does."""

    def note_at_bind(self, uid: str) -> None:
        """A member has passed all that the scheduler does before it binds: so do those that are alike."""
        pod = self._store.pods.get(uid)
        if self._on and pod is not None and is_judged_alone(pod):
            self._passed[_kind_of(pod)] = pod

    def judge(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> bool:
        """Have the members that are left bound with this one, to which the scheduler offers these nodes.

        So are whole gangs of its kind that are planned. Returns whether the answer to the scheduler has to wait for
        them. Slots move to offered nodes where any node will do. Nothing changes for a gang whose quorum does not come
        about so.
        """
        if cycle.judged:
            if pod.uid in self._sent:
                return False  # the scheduler must assume it before it learns of its Binding
            if not any(self._store.waiting_plain.total.values()):  # plain pods come before more gangs
                self._judge_others(cycle, pod, names, 0)
            return True
        if not self._has_passed(pod) or not self._judge(cycle, pod, names):
            return False
        self._asked, self._closed = cycle, self._clock()
        self._judge_others(cycle, pod, names, len(cycle.judged))
        return True

    def _judge_others(self, cycle: BindingCycle, pod: Pod, names: Sequence[str], count: int) -> None:
        """Judge whole gangs with a member of another one, until with these ``count`` so many are as one answer has."""
        if not self._has_passed(pod):
            return
        for other in self._iterate_others(pod.shape):
            if count >= _MAX_SENT:
                return
            if other is not cycle and self._judge(other, pod, names):
                count += len(other.judged)

    def _judge(self, cycle: BindingCycle, pod: Pod, names: Sequence[str]) -> bool:
        if not self._may_judge(cycle):
            return False
        mates = list(self._iterate_alike(cycle, pod))
        coming = [uid for uid in cycle.reservation.slots if cycle.member(uid).reached and uid not in cycle.bound]
        if not mates or cycle.reservation.lacks({*mates, *coming, *cycle.bound}):
            return False
        nodes = self._find_nodes(cycle, pod, mates, names)
        if nodes is None:
            return False
        for uid, node in nodes.items():
            self._ledger.move(self._store.pods[uid], node)
        cycle.note_judged((*mates, *coming))
        self._judged.append(cycle)
        return True

    def _iterate_others(self, shape: Shape) -> Iterator[BindingCycle]:
        """The cycles of gangs that may be of members with this shape only, the oldest plan first."""
        for reservation in self._ledger:
            first = self._find_one(reservation.slots)
            cycle = self._groups.cycle_of(first.uid) if first is not None and first.shape is shape else None
            if cycle is not None and cycle.any_node:
                yield cycle

    def _find_one(self, uids: Iterable[str]) -> Pod | None:
        return next((pod for uid in uids if (pod := self._store.pods.get(uid)) is not None), None)

    def find_first(self, cycle: BindingCycle) -> Collection[str] | None:
        """The members that have to be woken for all to be judged by one of them (UIDs), None if that cannot be.

        Nobody has to if the scheduler is about to try one by itself.
        """
        slots_of = cycle.reservation.slots
        first = self._find_one(slots_of)
        if first is None or not cycle.any_node or not self._may_judge(cycle) or not self._has_passed(first):
            return None
        if sum(1 for _ in self._iterate_alike(cycle, first)) < len(slots_of) - 1:
            return None
        aside = [uid for uid in slots_of if cycle.member(uid).stage is MemberStage.UNSCHEDULABLE]
        return aside[:1] if len(aside) == len(slots_of) else ()

    def open_window(self) -> None:
        """The scheduler waits for an answer from now on: Bindings of judged members may be sent."""
        self._left, self._opened, self._closed = _MAX_SENT, self._clock(), math.inf
        for cycle in self._judged:
            cycle.changed.set()

    def close_window(self) -> None:
        """It waits no more."""
        self._left, self._closed = 0, self._clock()

    def is_at_work(self) -> bool:
        """Whether the scheduler waits for Bindings of judged members, or did so a moment ago: more may be judged."""
        return self._clock() - self._closed < _PATIENCE_SECONDS

    def is_binding(self) -> bool:
        """Whether some of the Bindings that may be sent are not, or our watch does not show their pods bound."""
        judged, self._judged = self._judged, []
        for each in judged:
            if not each.over and any(map(self._is_pending, each.judged)):
                self._judged.append(each)
                continue
            self._coming -= each.judged
            for uid in each.judged:
                self._sent.pop(uid, None)
        return any(self._is_binding(each, uid) for each in self._judged for uid in each.judged)

    def _is_binding(self, cycle: BindingCycle, uid: str) -> bool:
        if uid not in self._sent:
            return self._left > 0 and uid not in self._coming and self._waits(cycle, uid)
        if self._sent[uid] < self._opened:
            return False  # the answer before waited for it long enough
        return self._is_pending(uid) and not cycle.member(uid).failure

    def let_go(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Those of these members whose Bindings may be sent now.

        While the scheduler does not wait it may be about to try a judged one. It fails to assume one that it learns is
        bound, and writes so; what it has to write of one that filter has turned away must not come after the Binding.
        Where a plain pod that has come meanwhile could need the room, members come to the scheduler themselves. A gang
        is not begun before as many can be sent as one answer waits for: it would stand half begun meanwhile.
        """
        if not cycle.judged:
            return list(uids)
        now, waiting = self._clock(), [uid for uid in uids if self._waits(cycle, uid)]
        late, slots_of = not self.is_at_work(), cycle.reservation.slots
        full = {name for name in {slots_of[uid].node for uid in waiting} if self._may_be_needed(name)}
        following = waiting[-_COMING:] if cycle is self._asked and not late else ()
        self._coming.difference_update(waiting)
        self._coming.update(following, [uid for uid in waiting if slots_of[uid].node in full])
        ready = [uid for uid in waiting if uid not in self._coming]
        written = [uid for uid in ready if self._held.is_written(self._store.pods[uid], now)]
        most = self._left if cycle.binding_sent or not self._left else _MAX_SENT
        sent = written if late else written[:most]
        if not (cycle.binding_sent or late) and len(sent) < min(len(ready), _MAX_SENT):
            return []
        self._left = max(0, self._left - len(sent))
        self._sent.update(dict.fromkeys(sent, now))
        kept = set(waiting) - set(sent)
        return [uid for uid in uids if uid not in kept]

    def refuse(self, cycle: BindingCycle) -> Refusal | None:
        """Why a commit with judged members must not be begun: a plain pod that has come since could need the room."""
        nodes = (cycle.reservation.slots[uid].node for uid in cycle.judged if self._waits(cycle, uid))
        for name in dict.fromkeys(nodes):
            if self._may_be_needed(name):
                return Refusal(Obstacle.SLOT, f"a pod that is in no group could need the room on node {name}")
        return None

    def _waits(self, cycle: BindingCycle, uid: str) -> bool:
        """Whether a member was judged by another one and is not bound, and the scheduler has not come to it since."""
        if uid not in cycle.judged or uid not in cycle.reservation.slots:
            return False
        return not cycle.member(uid).reached and self._is_pending(uid)

    def _is_pending(self, uid: str) -> bool:
        pod = self._store.pods.get(uid)
        return pod is not None and pod.pending

    def _may_judge(self, cycle: BindingCycle) -> bool:
        if not self._on or cycle.judged or cycle.waves or cycle.preempted:
            return False
        if self._store.schedules_gangs or cycle.group.told_natively:
            return False  # a call may be about a cluster that is not (`extender.service`)
        fresh = cycle.stage in (CycleStage.RECORDING, CycleStage.GATHERING) and not cycle.reservation.committed
        return fresh and bool(cycle.reservation.need)

    def _has_passed(self, pod: Pod) -> bool:
        passed = self._passed.get(_kind_of(pod))
        return passed is not None and is_alike(passed, pod) and is_judged_alone(pod)

    def _iterate_alike(self, cycle: BindingCycle, pod: Pod) -> Iterator[str]:
        """The members with slots to which the scheduler has not come, and that it would judge as it does ``pod``."""
        for uid in cycle.reservation.slots:
            mate = self._store.pods.get(uid)
            if mate is None or uid == pod.uid or cycle.member(uid).reached:
                continue
            if is_alike(mate, pod) and is_judged_alone(mate) and mate.pending and not mate.gates and not mate.objection:
                yield uid

    def _find_nodes(
        self, cycle: BindingCycle, pod: Pod, mates: Sequence[str], names: Sequence[str]
    ) -> Mapping[str, str] | None:
        """To which of the offered nodes the slots of these mates have to move; None if there is no room for all."""
        offered, slots_of = set(names), cycle.reservation.slots
        away = [uid for uid in mates if slots_of[uid].node not in offered]
        if away and not cycle.any_node:
            return None
        stay = {slots_of[uid].node for uid in slots_of.keys() - set(away)}
        out = self._groups.states[cycle.reservation.group].find_exclusions([pod], self._clock(), self._store.nodes)
        left = [name for name in dict.fromkeys([*sorted(stay & offered), *names]) if name not in out.nodes]
        room = self._iterate_room(cycle, pod.shape, left)
        moved = dict(zip(away, room, strict=False))
        if len(moved) < len(away) or not all(self._has_room_beside(name) for name in stay):
            return None
        return moved

    def _iterate_room(self, cycle: BindingCycle, shape: Shape, names: Sequence[str]) -> Iterator[str]:
        """These nodes, each as often as it takes one more member and the plain pods that wait."""
        key = cycle.group.topology_key
        for name in names:
            node = self._store.nodes.get(name)
            if node is None or name in cycle.closed:
                continue
            if key is not None and node.labels.get(key) != cycle.reservation.domain:
                continue
            used = add(self._store.occupancy.used.get(name, {}), self._store.waiting_plain.total)
            yield from repeat(name, slots(shape, node, used))

    def _has_room_beside(self, name: str) -> bool:
        """Whether a node, with all that is planned on it, takes all plain pods that wait."""
        return self._has_room(name, self._store.waiting_plain.total)

    def _may_be_needed(self, name: str) -> bool:
        """Whether the plain pods that wait have no room on a node that has room for all that is planned there.

        What is planned on other nodes is in nobody's way there: it cannot be bound, and gets another node.
        """
        return self._has_room(name, {}) and not self._has_room_beside(name)

    def _has_room(self, name: str, more: Mapping[str, int]) -> bool:
        node = self._store.nodes.get(name)
        used = add(self._store.occupancy.used.get(name, {}), more)
        return node is not None and all(used[each] <= capacity(node.allocatable, each) for each in used)


def is_judged_alone(pod: Pod) -> bool:
    """Whether all that the scheduler looks at is in the pod's shape, and nothing of it depends on other pods.

    Amounts with a colon in their names are no resources: host ports, and who counts for rules about pods.
    """
    shape = pod.shape
    if pod.device_claims or pod.uncounted or pod.claims or pod.beyond_shape or shape.volumes or shape.neighbours:
        return False
    return not any(":" in name for name, _ in shape.requests)


def is_alike(one: Pod, other: Pod) -> bool:
    """Whether two pods differ in nothing that the scheduler's filters look at, if each `is_judged_alone`."""
    return one.shape is other.shape and one.priority == other.priority and one.scheduler == other.scheduler


def _kind_of(pod: Pod) -> _Kind:
    return id(pod.shape), pod.priority, pod.scheduler
