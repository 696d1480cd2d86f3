"""The slots of dead members against a model: each counts as used exactly while it should be, and never twice."""

from collections import Counter
from dataclasses import dataclass, replace

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey
from serried.api.pod import ControllerRef, Phase, Pod, Shape
from serried.cluster.cache import EndedMembers, Store
from serried.cluster.usage import UsageSource, Vacancy, match_replacements
from serried.rules.all import RULES

SCHEDULER = "serried"
GROUP = GroupKey("default", "g")
SHAPES = (Shape((("cpu", 1), ("pods", 1))), Shape((("cpu", 3), ("pods", 1))))
NODES = st.sampled_from(["n1", "n2"])

newcomers = st.builds(
    lambda number, generation, shape, index, group: Pod(
        "default",
        f"p{number}",
        f"p{number}-{generation}",
        shape,
        SCHEDULER,
        group=group,
        owner=ControllerRef("Job", "j", "j"),
        index=index,
    ),
    st.integers(0, 4),
    st.integers(0, 9),
    st.sampled_from(SHAPES),
    st.sampled_from([None, None, 0, 1]),
    st.sampled_from([GROUP, GROUP, GROUP, None]),
)


@dataclass
class Kept:
    """A vacancy as the model has it; ``node`` "" if its node is not kept."""

    node: str
    shape: Shape
    replacement: str = ""


class VacancyMachine(RuleBasedStateMachine):
    """Random histories: pods start and end, replacements are found and lost, plans are made and dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store([SCHEDULER], ended=EndedMembers.KEEP_SLOTS, rules=RULES)
        self.store.put_group(PodGroup(GROUP, "g-uid", Policy(2)))
        self.pods: dict[str, Pod] = {}
        self.kept: dict[str, Kept] = {}
        self.slots: dict[str, str] = {}

    # --- the life of a pod -------------------------------------------------------------------------------------

    @rule(pod=newcomers)
    def create(self, pod: Pod) -> None:
        if pod.uid not in self.pods:
            self._put(pod)

    @precondition(lambda self: self._find(pending=True))
    @rule(data=st.data(), node=NODES)
    def bind(self, data: st.DataObject, node: str) -> None:
        self._put(replace(self._draw(data, pending=True), node=node))

    @precondition(lambda self: self._find(pending=False))
    @rule(data=st.data(), refusal=st.sampled_from(["", "", "OutOfcpu"]))
    def fail(self, data: st.DataObject, refusal: str) -> None:
        self._put(replace(self._draw(data, pending=False), phase=Phase.FAILED, refusal=refusal))

    @precondition(lambda self: self._find(pending=False))
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        self._put(replace(self._draw(data, pending=False), phase=Phase.SUCCEEDED))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def begin_deletion(self, data: st.DataObject) -> None:
        self._put(replace(self.pods[data.draw(st.sampled_from(sorted(self.pods)))], deleting=True))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def tell_again(self, data: st.DataObject) -> None:
        self._put(self.pods[data.draw(st.sampled_from(sorted(self.pods)))])

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        pod = self.pods.pop(data.draw(st.sampled_from(sorted(self.pods))))
        if pod.bound:
            self._vacate(pod, "")
        self._lose_replacement(pod.uid)
        self.slots.pop(pod.uid, None)
        self.store.drop_pod(pod.uid)

    def _put(self, pod: Pod) -> None:
        before = self.pods.get(pod.uid)
        if before is not None and before.bound and pod.phase is Phase.FAILED:
            self._vacate(before, pod.refusal)
        if pod.bound:
            self.kept = {uid: kept for uid, kept in self.kept.items() if kept.replacement != pod.uid}
        elif not pod.pending:
            self._lose_replacement(pod.uid)
        if pod.node and not pod.bound:
            self.slots.pop(pod.uid, None)
        self.pods[pod.uid] = pod
        self.store.put_pod(pod)

    def _vacate(self, pod: Pod, refusal: str) -> None:
        if pod.group is not None and GROUP in self.store.groups:
            self.kept[pod.uid] = Kept("" if refusal else pod.node, pod.shape)

    def _lose_replacement(self, uid: str) -> None:
        for kept in self.kept.values():
            if kept.replacement == uid:
                kept.replacement = ""
                if kept.node:  # the usage goes back to the kept slot, and takes the reservation with it
                    self.slots.pop(uid, None)

    # --- what the extender does --------------------------------------------------------------------------------

    @rule()
    def find_replacements(self) -> None:
        waiting = [pod for pod in self.pods.values() if pod.pending and pod.group and pod.uid not in self.slots]
        replacements = {kept.replacement for kept in self.kept.values()}
        free = [vacancy for vacancy in self.store.vacancies.of_group(GROUP) if not vacancy.replacement]
        for vacancy, pod in match_replacements(free, [pod for pod in waiting if pod.uid not in replacements]):
            self._check_holder(vacancy, pod)
            assert not self.kept[vacancy.pod.uid].replacement
            self.kept[vacancy.pod.uid].replacement = pod.uid
            self.store.vacancies.assign(vacancy, pod.uid)

    def _check_holder(self, vacancy: Vacancy, pod: Pod) -> None:
        if pod.name != vacancy.pod.name:
            assert pod.index == vacancy.pod.index
            assert pod.index is not None or pod.shape == vacancy.pod.shape

    @precondition(lambda self: self._find(pending=True))
    @rule(data=st.data(), node=NODES)
    def reserve(self, data: st.DataObject, node: str) -> None:
        pod = self._draw(data, pending=True)
        self.slots[pod.uid] = node
        self.store.occupancy.add_usage(pod.uid, UsageSource.RESERVED, node, pod.shape.requests)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.slots)))
        del self.slots[uid]
        self.store.occupancy.release(uid, UsageSource.RESERVED)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        vacancy = data.draw(st.sampled_from(self.store.vacancies.of_group(GROUP)))
        del self.kept[vacancy.pod.uid]
        self.store.vacancies.close(vacancy)

    @rule(exists=st.booleans())
    def remake_the_group(self, exists: bool) -> None:  # noqa: FBT001 - drawn
        self.kept.clear()
        self.store.drop_group(GROUP)
        if exists:
            self.store.put_group(PodGroup(GROUP, "g-uid", Policy(2)))

    # --- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def the_same_slots_are_kept_for_the_same_replacements(self) -> None:
        found = {vacancy.pod.uid: vacancy.replacement for vacancy in self.store.vacancies}
        assert found == {uid: kept.replacement for uid, kept in self.kept.items()}
        replacements = [replacement for replacement in found.values() if replacement]
        assert len(replacements) == len(set(replacements))
        for replacement in replacements:
            vacancy = self.store.vacancies.of_replacement(replacement)
            assert vacancy is not None
            assert vacancy.replacement == replacement

    @invariant()
    def the_nodes_of_slots_that_wait_for_a_replacement_are_counted(self) -> None:
        nodes = {kept.node for kept in self.kept.values() if kept.node and not kept.replacement}
        assert self.store.vacancies.count_nodes(GROUP.namespace) == len(nodes)

    @invariant()
    def each_pod_and_each_kept_slot_counts_once(self) -> None:
        used: dict[str, Counter[str]] = {}
        for uid, pod in self.pods.items():
            kept = next((kept for kept in self.kept.values() if kept.replacement == uid), None)
            if pod.bound:
                self._count(used, pod.node, pod.shape)
            elif uid in self.slots:
                self._count(used, self.slots[uid], pod.shape)
            elif kept is not None:
                self._count(used, kept.node, kept.shape)
        for kept in self.kept.values():
            if not kept.replacement:
                self._count(used, kept.node, kept.shape)
        assert dict(self.store.occupancy.used) == used

    def _count(self, used: dict[str, Counter[str]], node: str, shape: Shape) -> None:
        if node:
            used.setdefault(node, Counter()).update(dict(shape.requests))

    # --- drawing -----------------------------------------------------------------------------------------------

    def _find(self, *, pending: bool) -> list[str]:
        return sorted(uid for uid, pod in self.pods.items() if (pod.pending if pending else pod.bound))

    def _draw(self, data: st.DataObject, *, pending: bool) -> Pod:
        return self.pods[data.draw(st.sampled_from(self._find(pending=pending)))]


TestVacancies = VacancyMachine.TestCase
