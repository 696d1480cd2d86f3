"""Slots that change within a round: members that leave it, join it, or move in it. Synchronous, like the conductor."""

from collections.abc import Callable, Collection, Mapping, Sequence

from extender.gang import Gang, Mending, ask_for_more, find_offered
from extender.permit import Permit
from extender.repairs import Planner, Repairs
from extender.round import Round
from extender.steering import Steering
from extender.trees import find_parts_to_leave
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import Key, PodGroup
from serried.model.plan import Plan
from serried.model.pod import Pod
from serried.model.verdict import Verdict


class Moves:
    """Changes the slots of rounds. ``gangs`` is the conductor's own map, ``plan`` its planner."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        steering: Steering,
        repairs: Repairs,
        permit: Permit,
        gangs: Mapping[Key, Gang],
        plan: Planner,
        is_asleep: Callable[[Pod], bool],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._ledger, self._steering, self._repairs = store, ledger, steering, repairs
        self._permit = permit
        self._gangs, self._plan, self._is_asleep, self._clock = gangs, plan, is_asleep, clock

    def drop(self, round_: Round, uid: str, error: str) -> None:
        """Take a member out of a round: its call fails, its slot is free."""
        round_.close_call(uid, f"serried: {error}")
        self._ledger.drop(uid)
        self._steering.release([uid], [])

    def drop_surplus(self, round_: Round, error: str) -> None:
        """Take out whoever is not committed, not on its way, and has no slot that is kept for it."""
        kept = round_.reservation.committed | round_.bound | round_.sending
        for uid in round_.reservation.slots.keys() - kept:
            if not self._permit.has_own_slot(round_, uid):
                self.drop(round_, uid, error)

    def refill(self, gang: Gang, round_: Round, group: PodGroup) -> None:
        """Give members a slot that came after the plan, or in the place of one that died: in the same domain."""
        standing = self._store.stand(group.key)
        mending = self._repairs.settle(gang, group, standing)
        slots, parts = round_.reservation.slots.keys() | round_.bound, round_.reservation.parts
        late = tuple(pod for pod in standing.waiting if pod.uid not in slots)
        if group.tree is not None:  # the others' PodGroups are not in this round: each starts whole, in the next one
            late = tuple(pod for pod in late if self._store.leaf_of(pod.uid) in parts)
        if not round_.reservation.need or round_.reservation.committed:
            late = self._list_permitted(round_, group, late, mending)
        room = self._store.occupancy.freed, self._store.withdrawn, mending.seated
        tried = (room, tuple((pod.uid, pod.shape) for pod in late))
        if not late or tried == round_.refilled:
            return
        round_.refilled = tried
        excluded = gang.exclusions(late, self._clock(), self._store.nodes)
        answer = self._repairs.answer(ask_for_more(round_, late, 0, excluded, self._store), self._plan)
        if isinstance(answer, Plan):
            for pod in late:
                if pod.uid in answer.nodes:
                    part = self._store.leaf_of(pod.uid)
                    self._ledger.add(round_.reservation.group, pod, answer.nodes[pod.uid], part)
                    if self._is_asleep(pod):
                        round_.asleep.add(pod.uid)
            self._steering.steer(round_, answer.nodes)

    def _list_permitted(self, round_: Round, group: PodGroup, late: Sequence[Pod], mending: Mending) -> tuple[Pod, ...]:
        """Those that the door would let pass one by one; the others wait to be bound together."""
        if not late or (group.tree is None and not self._permit.count_missing(round_, group)):
            return tuple(late)
        return tuple(
            pod for pod in late if pod in mending.heirs or not self._permit.count_missing(round_, group, [pod.uid])
        )

    def relocate(self, round_: Round, uid: str, names: Sequence[str]) -> str | None:
        """Move a loose member's slot to one of the offered nodes; None if it stays where it is."""
        pod = self._store.pods.get(uid)
        if pod is None or not round_.loose or not round_.may_move(uid):
            return None
        node = find_offered(round_.reservation, pod, names, self._store, round_.closed)
        if node is not None:
            self._ledger.move(pod, node)
        return node

    def restamp(self, round_: Round, uid: str) -> None:
        """A sample had no node for a member: it is stamped (again).

        If the round was loose, so is everybody else: the next samples will not do better.
        """
        round_.restamped.add(uid)
        round_.confirmed.pop(uid, None)
        self._steering.steer(round_, [uid])
        if round_.loose:
            round_.loose = False
            here = round_.confirmed.keys() | round_.calls.keys() | round_.bound | round_.stamped
            self._steering.steer(round_, round_.reservation.slots.keys() - here - {uid})

    def replace(self, round_: Round, pod: Pod) -> bool:
        """Find one member another slot in the round's domain; whether there was one."""
        gang = self._gangs[round_.reservation.group]
        excluded = gang.exclusions([pod], self._clock(), self._store.nodes)
        answer = self._plan(ask_for_more(round_, [pod], 1, excluded, self._store))
        if isinstance(answer, Verdict):
            return False
        self._ledger.move(pod, answer.nodes[pod.uid])
        round_.confirmed.pop(pod.uid, None)
        round_.restamped.discard(pod.uid)
        self._steering.steer(round_, [pod.uid])
        return True

    def leave_out(self, round_: Round, present: Collection[str]) -> bool:
        """Go on without the PodGroups of which too few members are ``present`` (UIDs); whether the tree stands so."""
        left = find_parts_to_leave(round_, round_.reservation.find_short(present), self._store)
        if left is None:
            return False
        for uid in [uid for uid, slot in round_.reservation.slots.items() if slot.part in left]:
            self.drop(round_, uid, "the others of its PodGroup did not come")
        for part in left:
            del round_.reservation.parts[part]
        round_.reservation.need = sum(round_.reservation.parts.values())
        self._store.touched.add(round_.reservation.group)
        return True
