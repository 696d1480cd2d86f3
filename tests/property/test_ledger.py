"""Ledger and Store together against a model: no slot and no usage is ever lost, or counted twice.

Bind echoes, deletions and new lists come in any order with plans, moves, bind calls and failures of ours between them.
The model knows of every pod where it runs, where its bind call was seen and where it has a slot; everything that Store
and Ledger answer must follow from that.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serried.api.names import GroupKey, IllegalTransition
from serried.api.node import Node
from serried.api.pod import Phase, Pod, Shape
from serried.api.reservation import Reservation, ReservationPhase, Slot
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.usage import UsageSource
from serried.rules.all import RULES

SCHEDULER = "serried"
SHAPES = (Shape((("cpu", 1), ("pods", 1))), Shape((("cpu", 3), ("memory", 2), ("pods", 1))))
NAMES = ("n1", "n2", "n3")
NODES = st.sampled_from(NAMES)
GROUPS = st.sampled_from([GroupKey("default", "g"), GroupKey("default", "h")])
PRIORITIES = (0, 5)


@dataclass
class Truth:
    """One pod: its object in the API server, and the extender's records of it.

    ``told`` is the pod as the watch showed it.
    """

    pod: Pod
    told: Pod | None = None
    assumed: str = ""
    slot: tuple[GroupKey, str] | None = None

    @property
    def place(self) -> str:
        """The node on which the pod counts; "" for none."""
        if self.told is not None and self.told.bound:
            return self.told.node
        return self.assumed or (self.slot[1] if self.slot else "")


class ClaimsMachine(RuleBasedStateMachine):
    """Random histories."""

    pods: dict[str, Truth]

    @initialize(count=st.integers(2, 5))
    def start(self, count: int) -> None:
        self.store = Store([SCHEDULER], rules=RULES)
        self.ledger = Ledger(self.store.occupancy, self.store.pending_victims)
        self.pods = {}
        self.held: dict[GroupKey, Reservation] = {}
        self.committed: dict[GroupKey, frozenset[str]] = {}
        self.needs: dict[GroupKey, int] = {}
        self.born = 0
        self.used: dict[str, Counter[str]] = {}
        self.freed = 0
        for _ in range(count):
            self._give_birth(SHAPES[0], "", 0)

    # --- what happens in the API server ------------------------------------------------------------------------

    @rule(shape=st.sampled_from(SHAPES), nominated=st.sampled_from(["", *NAMES]), priority=st.sampled_from(PRIORITIES))
    def create(self, shape: Shape, nominated: str, priority: int) -> None:
        self._give_birth(shape, nominated, priority)

    def _give_birth(self, shape: Shape, nominated: str, priority: int) -> None:
        # Two pods share each name: one comes before the watch has said that the other is gone.
        self.born += 1
        uid = f"u{self.born}"
        pod = Pod("default", f"p{self.born // 2}", uid, shape, SCHEDULER, nominated=nominated, priority=priority)
        self.pods[uid] = Truth(pod)

    @rule(data=st.data(), node=NODES)
    def bind(self, data: st.DataObject, node: str) -> None:
        """Bind a pod to the node of its slot or bind call, or to another one: another scheduler was faster."""
        truth = self._draw(data)
        if truth is not None and truth.pod.pending:
            chosen = data.draw(st.sampled_from([truth.place or node, node]))
            truth.pod = replace(truth.pod, node=chosen, nominated="")

    @rule(data=st.data(), node=st.sampled_from(["", *NAMES]))
    def nominate(self, data: st.DataObject, node: str) -> None:
        truth = self._draw(data)
        if truth is not None and truth.pod.pending:
            truth.pod = replace(truth.pod, nominated=node)

    @rule(data=st.data(), phase=st.sampled_from([Phase.SUCCEEDED, Phase.FAILED]))
    def finish(self, data: st.DataObject, phase: Phase) -> None:
        truth = self._draw(data)
        if truth is not None and truth.pod.bound:
            truth.pod = replace(truth.pod, phase=phase)

    # --- what the watch says -----------------------------------------------------------------------------------

    @rule(data=st.data())
    def echo(self, data: st.DataObject) -> None:
        """Send the newest state of a pod by the watch, maybe once more."""
        truth = self._draw(data)
        if truth is not None:
            self._tell(truth)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        truth = self._draw(data)
        if truth is not None:
            self._bury(truth)

    @rule(data=st.data(), gone=st.booleans())
    def list_again(self, data: st.DataObject, gone: bool) -> None:  # noqa: FBT001
        """List again after a gap: a pod may have vanished without an event, and the others come in any order."""
        left = data.draw(st.permutations(list(self.pods.values())))
        if gone and left:
            self._bury(left[0])
        for truth in left[1:] if gone else left:
            self._tell(truth)

    def _tell(self, truth: Truth) -> None:
        truth.told = truth.pod
        self.store.put_pod(truth.pod)
        if truth.pod.node and truth.pod.phase is not Phase.ACTIVE:
            self._forget(truth)

    def _bury(self, truth: Truth) -> None:
        self.store.drop_pod(truth.pod.uid)
        self.store.occupancy.forget(truth.pod.uid)
        self._forget(truth)
        del self.pods[truth.pod.uid]

    def _forget(self, truth: Truth) -> None:
        truth.slot = None
        self.ledger.drop(truth.pod.uid)
        truth.assumed = ""

    # --- what we do ourselves --------------------------------------------------------------------------------

    @rule(data=st.data(), group=GROUPS)
    def hold(self, data: st.DataObject, group: GroupKey) -> None:
        waiting = {uid: truth for uid, truth in self.pods.items() if self._is_waiting(truth)}
        if group in self.held or not waiting:
            return
        chosen = sorted(data.draw(st.sets(st.sampled_from(sorted(waiting)), min_size=1)))
        slots = {uid: Slot(uid, waiting[uid].pod.name, data.draw(NODES)) for uid in chosen}
        reservation = Reservation(group, "uid", "", len(slots), slots)
        for uid in chosen:
            waiting[uid].slot = (group, slots[uid].node)
        self.held[group] = reservation
        self.needs[group] = len(slots)
        self.ledger.reserve(reservation, {uid: waiting[uid].pod for uid in chosen})

    @precondition(lambda self: self.held)
    @rule(data=st.data(), node=NODES)
    def add(self, data: st.DataObject, node: str) -> None:
        group, truth = data.draw(st.sampled_from(sorted(self.held))), self._draw(data)
        if truth is not None and self._is_waiting(truth):
            truth.slot = (group, node)
            self.ledger.add(self.held[group], truth.pod, node)

    @rule(data=st.data(), node=NODES)
    def move(self, data: st.DataObject, node: str) -> None:
        truth = self._draw(data)
        if truth is not None and truth.slot is not None:
            truth.slot = (truth.slot[0], node)
            self.ledger.move(truth.pod, node)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        truth = self._draw(data)
        if truth is not None:
            truth.slot = None
            self.ledger.drop(truth.pod.uid)

    @rule(group=GROUPS)
    def release(self, group: GroupKey) -> None:
        expected = self.held.pop(group, None)
        self.committed.pop(group, None)
        self.needs.pop(group, None)
        assert self.ledger.unreserve(group) is expected
        for truth in self.pods.values():
            if truth.slot is not None and truth.slot[0] == group:
                truth.slot = None

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Members of the reservation, maybe others, too; maybe again."""
        group = data.draw(st.sampled_from(sorted(self.held)))
        uids = data.draw(st.frozensets(st.sampled_from(sorted(self.pods)))) if self.pods else frozenset()
        before = self.committed.get(group)
        legal = before == uids if before else bool(uids) and self._slots_of(group) >= uids
        with nullcontext() if legal else pytest.raises(IllegalTransition):
            self.ledger.commit(self.held[group], uids)
        if legal:
            self.committed[group] = uids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit_all(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.held)))
        uids = frozenset(self._slots_of(group))
        if uids and group not in self.committed:
            self.ledger.commit(self.held[group], uids)
            self.committed[group] = uids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger.withdraw(self.held[group])
        self.committed.pop(group, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), need=st.integers(0, 3))
    def adjust_quorum(self, data: st.DataObject, need: int) -> None:
        group = data.draw(st.sampled_from(sorted(self.held)))
        legal = group not in self.committed
        with nullcontext() if legal else pytest.raises(IllegalTransition):
            self.ledger.adjust_quorum(self.held[group], {"": need})
        if legal:
            self.needs[group] = need

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def reserve_twice(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.held)))
        with pytest.raises(IllegalTransition):
            self.ledger.reserve(Reservation(group, "uid", "", 0), {})

    @rule(group=GROUPS)
    def change_what_is_not_held(self, group: GroupKey) -> None:
        with pytest.raises(IllegalTransition):
            self.ledger.withdraw(Reservation(group, "uid", "", 0))

    def _slots_of(self, group: GroupKey) -> set[str]:
        return {uid for uid, truth in self.pods.items() if truth.slot is not None and truth.slot[0] == group}

    @rule(data=st.data(), node=NODES)
    def assume(self, data: st.DataObject, node: str) -> None:
        """A bind call is seen, also again and for another node."""
        truth = self._draw(data)
        if truth is not None and self._is_waiting(truth):
            truth.assumed = node
            self.store.occupancy.add_usage(truth.pod.uid, UsageSource.ASSUMED, node, truth.pod.shape.requests)

    @rule(data=st.data())
    def fail_to_bind(self, data: st.DataObject) -> None:
        truth = self._draw(data)
        if truth is not None:
            truth.assumed = ""
            self.store.occupancy.release(truth.pod.uid, UsageSource.ASSUMED)

    def _draw(self, data: st.DataObject) -> Truth | None:
        return self.pods[data.draw(st.sampled_from(sorted(self.pods)))] if self.pods else None

    def _is_waiting(self, truth: Truth) -> bool:
        """Return whether the extender may still believe that the pod has no node."""
        return truth.told is not None and truth.told.pending

    # --- the nodes ---------------------------------------------------------------------------------------------

    @rule(name=NODES, cpu=st.sampled_from([4, 8]))
    def put_node(self, name: str, cpu: int) -> None:
        """Every change of a node may be room; a heartbeat is none."""
        old, freed = self.store.nodes.get(name), self.store.occupancy.freed
        node = Node(name, {"cpu": cpu, "pods": 10}, version=str(freed))
        self.store.put_node(node)
        same = old is not None and old.allocatable == node.allocatable
        assert (self.store.occupancy.freed == freed) == same

    @rule(name=NODES)
    def drop_node(self, name: str) -> None:
        self.store.drop_node(name)

    # --- what must hold ----------------------------------------------------------------------------------------

    def _count(self) -> dict[str, Counter[str]]:
        used: dict[str, Counter[str]] = {}
        for truth in self.pods.values():
            if truth.place:
                used.setdefault(truth.place, Counter()).update(dict(truth.pod.shape.requests))
        return used

    @invariant()
    def every_pod_counts_once_where_it_is(self) -> None:
        assert self.store.occupancy.used == self._count()
        for uid, truth in self.pods.items():
            assert (self.store.occupancy.node_of(uid) or "") == truth.place

    @invariant()
    def every_slot_is_in_one_reservation_and_no_slot_is_lost(self) -> None:
        slots = {uid: truth.slot for uid, truth in self.pods.items() if truth.slot is not None}
        assert {(each.group, uid): slot.node for each in self.ledger for uid, slot in each.slots.items()} == {
            (group, uid): node for uid, (group, node) in slots.items()
        }
        for uid in self.pods:
            reservation, slot = self.ledger.of_pod(uid), self.ledger.slot_of(uid)
            assert (reservation.group if reservation else None, slot.node if slot else None) == slots.get(
                uid, (None, None)
            )
        assert {(uid, name) for _, name in slots.values() for uid in self.ledger.list_on(name)} == {
            (uid, name) for uid, (_, name) in slots.items()
        }
        assert {each.group for each in self.ledger} == self.held.keys()
        assert len(self.ledger) == len(self.held)

    @invariant()
    def every_reservation_is_in_the_state_that_its_verbs_led_to(self) -> None:
        for group, reservation in self.held.items():
            committed = self.committed.get(group, frozenset())
            assert (reservation.committed, reservation.need) == (committed, self.needs[group])
            assert (reservation.phase is ReservationPhase.COMMITTED) == bool(committed)

    @invariant()
    def room_never_appears_in_silence(self) -> None:
        now, freed = self._count(), self.store.occupancy.freed
        if any(before - now.get(node, Counter()) for node, before in self.used.items()):
            assert freed > self.freed
        self.used, self.freed = now, freed

    @invariant()
    def a_snapshot_counts_the_nominations_of_others_of_no_lower_priority(self) -> None:
        own = [truth.pod for uid, truth in sorted(self.pods.items()) if truth.slot is None][:1]
        for priority in PRIORITIES:
            expected = self._count()
            for truth in self.pods.values():
                pod = truth.told
                if pod is None or not _counts_by_nomination(pod, priority) or truth.place or truth.pod in own:
                    continue
                expected.setdefault(pod.nominated, Counter()).update(dict(pod.shape.requests))
            assert _plain(self.store.snapshots.take(priority, own).used) == expected

    def teardown(self) -> None:
        """Remove everything. No resources are used then, and no reservation is left."""
        if not hasattr(self, "store"):
            return
        for group in list(self.held):
            self.ledger.unreserve(group)
        for truth in list(self.pods.values()):
            self._bury(truth)
        occupancy = vars(self.store.occupancy)
        assert (occupancy["_used"], occupancy["_usages"]) == ({}, {})
        others = {"_occupancy": None, "_pending_victims": None}
        assert vars(self.ledger) | others == others | {"_by_group": {}, "_by_uid": {}, "_by_node": {}}


def _counts_by_nomination(pod: Pod, priority: int) -> bool:
    return bool(pod.nominated) and pod.pending and pod.priority >= priority


def _plain(used: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {node: dict(amounts) for node, amounts in used.items()}


TestClaims = ClaimsMachine.TestCase
