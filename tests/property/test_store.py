"""The Store and the Ledger against a model that is rebuilt from scratch after every step.

The machine tells the Store changes in any order, as watches do after gaps: objects come twice, come back with another
UID before the old one is gone, and vanish without warning. Whatever came before, the answers must follow from what
exists now.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serried.api.group import PodGroup, Policy, Template, Workload
from serried.api.job import Job
from serried.api.kinds import PARENTS
from serried.api.layouts import LEADER, WORKERS, Stage
from serried.api.names import JOB, REPLICA, GroupKey, Key, OwnerRef
from serried.api.parent import WHOLE, OwnerKey, Parent, Place, owner_key_of
from serried.api.pod import ControllerRef, Phase, Pod, Shape
from serried.api.preference import Preference
from serried.api.reservation import Reservation, Slot
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.membership import provisional
from serried.cluster.usage import UsageSource
from serried.plan.quorum import GroupMembers, MemberState, find_member_state
from serried.rules.all import RULES
from tests.support.memory import read_memory

SCHEDULER = "serried"
SHAPES = (Shape((("cpu", 1), ("pods", 1))), Shape((("cpu", 3), ("memory", 2), ("pods", 1))))
JOBS = [Key("default", name) for name in ("j", "j", "k")]
GENERATIONS = ("1", "1", "1", "2")
"""UIDs of objects that are created again under the same name."""

FOLLOWED = "JobSet"
OWNER_KEYS = [OwnerKey(kind, Key("default", name)) for kind in PARENTS for name in ("s", "s", "u")]
STAGES = {"JobSet": ("a", "b"), "LeaderWorkerSet": (LEADER, WORKERS)}

Item = Pod | Job | Workload | PodGroup | Parent

NODES = st.sampled_from(["n1", "n2", "n3"])
POLICIES = st.sampled_from([Policy(None), Policy(2)])

jobs = st.builds(
    lambda key, generation, size, indexed: Job(
        key, f"{key.name}-{generation}", size, size, indexed=indexed, scheduler=SCHEDULER
    ),
    st.sampled_from(JOBS),
    st.sampled_from(GENERATIONS),
    st.sampled_from([1, 2, 2]),
    st.sampled_from([True, True, False]),
)
parents = st.builds(
    lambda owner_key, generation, sizes, staged, policy: Parent(
        owner_key.kind,
        owner_key.key,
        f"{owner_key.key.name}-{generation}",
        tuple(map(Stage, STAGES[owner_key.kind], sizes)),
        frozenset([SCHEDULER]),
        policy,
        staged,
    ),
    st.sampled_from(OWNER_KEYS),
    st.sampled_from(GENERATIONS),
    st.sampled_from([(1, 3), (2, 2), (1, 0)]),
    st.sampled_from(["", "", "startupPolicy"]),
    st.sampled_from(["JobSetAsGang", "ReplicaAsGang", ""]),
)
own_workloads = st.builds(
    lambda name, owner_key, templates, owner: Workload(
        Key("default", name),
        f"{name}-uid",
        None,
        tuple(Template(template, Policy(2)) for template in templates),
        ()
        if owner is None
        else (OwnerRef(owner_key.kind, owner_key.key.name, f"{owner_key.key.name}-{owner}", controller=True),),
        parent=(owner_key.kind, owner_key.key.name),
    ),
    st.sampled_from(["v", "v", "y"]),
    st.sampled_from(OWNER_KEYS),
    st.sampled_from([("t0",), ("t0",), ("b", WORKERS), ("t0", "t1")]),
    st.sampled_from([None, *GENERATIONS]),
)
own_groups = st.builds(
    lambda name, workload, template, replica, owner_key, owner: PodGroup(
        GroupKey("default", name),
        f"{name}-uid",
        Policy(2),
        workload=workload,
        template=template,
        owners=()
        if owner is None
        else (OwnerRef(owner_key.kind, owner_key.key.name, f"{owner_key.key.name}-{owner}", controller=True),),
        labels={REPLICA: replica} if replica else {},
    ),
    st.sampled_from(["e", "f"]),
    st.sampled_from(["v", "y"]),
    st.sampled_from(["t0", "b", WORKERS]),
    st.sampled_from(["", "0", "1"]),
    st.sampled_from(OWNER_KEYS),
    st.sampled_from([None, *GENERATIONS]),
)
places = st.builds(
    lambda owner_key, stage, replica, generation: Place(
        owner_key.kind,
        owner_key.key.name,
        STAGES[owner_key.kind][stage],
        replica if owner_key.kind == "LeaderWorkerSet" else "",
        f"{owner_key.key.name}-{generation}" if owner_key.kind == "JobSet" else "",
    ),
    st.sampled_from(OWNER_KEYS),
    st.sampled_from([0, 1]),
    st.sampled_from(["0", "1"]),
    st.sampled_from(GENERATIONS),
)
workloads = st.builds(
    lambda name, job, templates, owner, deleting: Workload(
        Key("default", name),
        f"{name}-uid",
        job,
        tuple(Template(f"t{place}", policy) for place, policy in enumerate(templates)),
        () if owner is None else (OwnerRef("Job", job or "j", f"{job}-{owner}", controller=True),),
        deleting=deleting,
    ),
    st.sampled_from(["w", "w", "x"]),
    st.sampled_from(["j", "j", "k", None]),
    st.sampled_from([(Policy(2),), (Policy(2),), (Policy(None),), (), (Policy(2), Policy(2))]),
    st.sampled_from([None, *GENERATIONS]),
    st.sampled_from([False, False, True]),
)
groups = st.builds(
    lambda name, workload, policy, deleting, owner, alone_in: PodGroup(
        GroupKey("default", name),
        f"{name}-uid",
        policy,
        workload=workload,
        template="t0",
        deleting=deleting,
        topology_key=alone_in,
        preference=Preference(exclusive=alone_in is not None),
        # Its name is that of no Job here: what is tried is who may join, not which group a Job is left with.
        owners=() if owner is None else (OwnerRef("Job", "gone", f"j-{owner}", controller=True),),
    ),
    st.sampled_from(["g", "h"]),
    st.sampled_from(["w", "w", "x", None]),
    POLICIES,
    st.sampled_from([False, False, True]),
    st.sampled_from([None, None, *GENERATIONS]),
    st.sampled_from([None, "rack", "zone"]),
)
pods = st.builds(
    lambda number, generation, shape, group, owner, node, nominated, phase, deleting, place: Pod(
        "default",
        f"p{number}",
        f"p{number}-{generation}",
        shape,
        SCHEDULER,
        node=node,
        nominated=nominated,
        phase=phase,
        group=group,
        owner=owner,
        deleting=deleting,
        place=place,
    ),
    st.integers(0, 4),
    st.sampled_from(GENERATIONS),
    st.sampled_from(SHAPES),
    st.sampled_from([None, None, None, GroupKey("default", "g")]),
    st.builds(
        lambda kind, job, generation: ControllerRef(kind, job.name, f"{job.name}-{generation}") if kind else None,
        st.sampled_from(["Job", "Job", "Job", "ReplicaSet", ""]),
        st.sampled_from(JOBS),
        st.sampled_from(GENERATIONS),
    ),
    st.sampled_from(["", "", "n1", "n2"]),
    st.sampled_from(["", "n1", "n3"]),
    st.sampled_from([Phase.ACTIVE, Phase.ACTIVE, Phase.SUCCEEDED, Phase.FAILED]),
    st.booleans(),
    st.none() | places,
)


class Model:
    """The same answers, from the objects alone, without any index."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[Key, Job] = {}
        self.parents: dict[OwnerKey, Parent] = {}
        self.workloads: dict[Key, Workload] = {}
        self.groups: dict[GroupKey, PodGroup] = {}
        self.assumed: dict[str, str] = {}
        self.slots: dict[str, tuple[GroupKey, str]] = {}

    def group_of(self, pod: Pod) -> GroupKey | None:
        """The group by the rules of docs/contributing/workload-api.md."""
        if pod.group is not None:
            return pod.group.non_members if self._may_not_join(pod, pod.group) else pod.group
        if pod.place is not None:
            owner_key = OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent))
            parent = self.parents.get(owner_key)
            if parent is None and pod.place.kind is FOLLOWED:
                return provisional(owner_key)
            if parent is not None and pod.place.uid in {"", parent.uid}:
                found = self._find_workloads(parent)
                if found or self._find_left(parent, pod.place) or self._is_gang(parent):
                    return self._group_in(parent, found, pod.place)
        if pod.owner is None or pod.owner.kind != "Job":
            return None
        key = Key(pod.namespace, pod.owner.name)
        job = self.jobs.get(key)
        return (
            self._group_of_job(job) if job is not None and job.uid == pod.owner.uid else provisional(OwnerKey(JOB, key))
        )

    def _may_not_join(self, pod: Pod, key: GroupKey) -> bool:
        group = self.groups.get(key)
        jobs = {owner.uid for owner in group.owners if owner.kind == "Job"} if group and group.policy.is_gang else set()
        return bool(jobs) and (pod.owner is None or pod.owner.uid not in jobs)

    def _group_of_job(self, job: Job) -> GroupKey | None:
        found = [w for w in self.workloads.values() if not w.deleting and self._refers(w, job)]
        if not found:
            return provisional(OwnerKey(JOB, job.key)) if self._eligible(job) else None
        if len(found) > 1 or len(found[0].templates) != 1:
            return None
        named = [g for g in self.groups.values() if g.workload == found[0].key.name]
        made = [g for g in named if not g.deleting] or named
        if len(made) == 1:
            return made[0].key
        return provisional(OwnerKey(JOB, job.key)) if not made and found[0].templates[0].policy.is_gang else None

    def _find_workloads(self, parent: Parent) -> list[Workload]:
        named = (w for w in self.workloads.values() if w.parent == (parent.kind, parent.key.name))
        return [w for w in named if all(owner.uid == parent.uid for owner in w.owners)]

    def _find_left(self, parent: Parent, place: Place) -> list[PodGroup]:
        mine = OwnerRef(parent.kind, parent.key.name, parent.uid, controller=True)
        return [g for g in self.groups.values() if mine in g.owners and g.labels.get(REPLICA, "") == place.replica]

    def _is_gang(self, parent: Parent) -> bool:
        word = "JobSetAsGang" if parent.kind == "JobSet" else "ReplicaAsGang"
        own = [p for p in self.pods.values() if p.place and (p.place.kind, p.place.parent) == self._name(parent)]
        started = any(
            p.place
            and (p.place.uid == parent.uid or (not p.place.uid and not p.deleting))
            and (p.node or p.phase is not Phase.ACTIVE)
            for p in own
        )
        sizes = [stage.size for stage in parent.stages]
        return parent.gang_policy == word and not started and (max(sizes) if parent.staged else sum(sizes)) > 1

    def _name(self, parent: Parent) -> tuple[str, str]:
        return parent.kind, parent.key.name

    def _group_in(self, parent: Parent, found: list[Workload], place: Place) -> GroupKey | None:
        if len(found) > 1:
            return None
        if not found:
            return self._group_without(parent, place)
        names = [template.name for template in found[0].templates]
        if place.stage in names:
            template, gang = place.stage, place.stage
        elif len(names) == 1 and not parent.staged:
            template, gang = names[0], WHOLE
        else:
            return None
        wanted = (found[0].key.name, template, place.replica)
        made = [g.key for g in self.groups.values() if (g.workload, g.template, g.labels.get(REPLICA, "")) == wanted]
        if not made:
            return provisional(owner_key_of(parent), gang, place.replica)
        return made[0] if len(made) == 1 else None

    def _group_without(self, parent: Parent, place: Place) -> GroupKey | None:
        left = self._find_left(parent, place)
        templates = {group.template for group in left}
        only = None if parent.staged or len(templates) != 1 else next(iter(templates))
        made = [g.key for g in left if g.template == (place.stage if place.stage in templates else only)]
        if made:
            return made[0] if len(made) == 1 else None
        own_gang = any(stage.size > 1 for stage in parent.stages if stage.name == place.stage)
        if not self._is_gang(parent) or (parent.staged and not own_gang):
            return None
        return provisional(owner_key_of(parent), place.stage if parent.staged else WHOLE, place.replica)

    def _refers(self, workload: Workload, job: Job) -> bool:
        return workload.job == job.key.name and all(owner.uid == job.uid for owner in workload.owners)

    def _eligible(self, job: Job) -> bool:
        own = [pod for pod in self.pods.values() if pod.owner == ControllerRef("Job", job.key.name, job.uid)]
        started = any(pod.node or pod.phase is not Phase.ACTIVE for pod in own)
        return job.indexed and job.parallelism > 1 and not started

    def used(self) -> dict[str, Counter[str]]:
        """Return the requests of all pods by node: where a pod is bound, else where it is assumed, else its slot's."""
        amounts: dict[str, Counter[str]] = {}
        for uid in self.pods.keys() | self.assumed.keys() | self.slots.keys():
            place = self._place(uid)
            if place is not None:
                amounts.setdefault(place[0], Counter()).update(dict(place[1].requests))
        return amounts

    def _place(self, uid: str) -> tuple[str, Shape] | None:
        pod = self.pods.get(uid)
        if pod is None:
            return None
        slot = self.slots[uid][1] if uid in self.slots else ""
        node = pod.node if pod.bound else self.assumed.get(uid, slot)
        return (node, pod.shape) if node else None

    def forget(self, uid: str) -> None:
        """Drop the slot and the assumed node of a pod that has ended."""
        self.assumed.pop(uid, None)
        self.slots.pop(uid, None)


LISTED = (MemberState.BOUND, MemberState.TERMINATING, MemberState.WAITING, MemberState.GATED, MemberState.REFUSED)


def list_standing(found: GroupMembers) -> dict[str, MemberState]:
    """Return the state of each member, by its UID."""
    return {pod.uid: standing for standing in LISTED for pod in getattr(found, standing.value)}


class StoreMachine(RuleBasedStateMachine):
    """Random histories."""

    @initialize(first=st.lists(pods, min_size=2, max_size=6))
    def start(self, first: list[Pod]) -> None:
        self.store = Store([SCHEDULER], rules=RULES)
        self.store.membership.followed.add(FOLLOWED)
        self.ledger = Ledger(self.store.occupancy, self.store.pending_victims)
        self.model = Model()
        for pod in first:
            self._put_pod(pod)

    # --- the watches -------------------------------------------------------------------------------------------

    # Few rules with several kinds each: Hypothesis leaves rules out of a run, and a run without pods shows nothing.
    @rule(item=pods | pods | jobs | workloads | groups | parents | own_workloads | own_groups)
    def put(self, item: Item) -> None:
        match item:
            case Pod():
                self._put_pod(item)
            case Job():
                self.model.jobs[item.key] = item
                self.store.put_job(item)
            case Workload():
                self.model.workloads[item.key] = item
                self.store.put_workload(item)
            case PodGroup():
                self.model.groups[item.key] = item
                self.store.put_group(item)
            case Parent():
                self.model.parents[owner_key_of(item)] = item
                self.store.put_parent(item)

    @rule(data=st.data(), kind=st.sampled_from(["pod", "pod", "job", "workload", "group", "parent"]))
    def drop(self, data: st.DataObject, kind: str) -> None:
        match kind:
            case "pod" if self.model.pods:
                uid = self._draw_pod(data).uid
                del self.model.pods[uid]
                self.model.forget(uid)
                self.store.drop_pod(uid)
                self.ledger.drop(uid)
            case "job" if self.model.jobs:
                self.store.drop_job(self._take(data, self.model.jobs))
            case "workload" if self.model.workloads:
                self.store.drop_workload(self._take(data, self.model.workloads))
            case "group" if self.model.groups:
                self.store.drop_group(self._take(data, self.model.groups))
            case "parent" if self.model.parents:
                self.store.drop_parent(self._take(data, self.model.parents))

    @precondition(lambda self: self.model.pods)
    @rule(data=st.data(), node=NODES)
    def bind(self, data: st.DataObject, node: str) -> None:
        pod = self._draw_pod(data)
        if pod.pending:
            self._put_pod(replace(pod, node=node))

    def _put_pod(self, pod: Pod) -> None:
        old = self.model.pods.get(pod.uid)
        if old is not None:  # what the API server keeps: a node is never taken back, and the end is the end
            phase = pod.phase if old.phase is Phase.ACTIVE else old.phase
            pod = replace(pod, node=old.node or pod.node, phase=phase)
        self.model.pods[pod.uid] = pod
        if pod.node and pod.phase is not Phase.ACTIVE:
            self.model.forget(pod.uid)
            self.ledger.drop(pod.uid)
        self.store.put_pod(pod)

    def _take(self, data: st.DataObject, objects: dict[Any, Any]) -> Any:
        key = data.draw(st.sampled_from(sorted(objects)))
        del objects[key]
        return key

    @rule(data=st.data())
    def list_again(self, data: st.DataObject) -> None:
        """List all existing objects once more, in another order."""
        everything = [
            *((self.store.put_pod, pod) for pod in self.model.pods.values()),
            *((self.store.put_job, job) for job in self.model.jobs.values()),
            *((self.store.put_workload, workload) for workload in self.model.workloads.values()),
            *((self.store.put_group, group) for group in self.model.groups.values()),
            *((self.store.put_parent, parent) for parent in self.model.parents.values()),
        ]
        for put, item in data.draw(st.permutations(everything)):
            put(item)  # type: ignore[operator]

    # --- what we do ourselves --------------------------------------------------------------------------------

    @precondition(lambda self: self.model.pods)
    @rule(data=st.data(), node=NODES)
    def assume(self, data: st.DataObject, node: str) -> None:
        pod = self._draw_pod(data)
        if pod.pending:
            self.model.assumed[pod.uid] = node
            self.store.occupancy.add_usage(pod.uid, UsageSource.ASSUMED, node, pod.shape.requests)

    @precondition(lambda self: self.model.assumed)
    @rule(data=st.data())
    def fail_to_bind(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.model.assumed)))
        del self.model.assumed[uid]
        self.store.occupancy.release(uid, UsageSource.ASSUMED)

    @rule(name=st.sampled_from(["g", "h"]), data=st.data())
    def reserve(self, name: str, data: st.DataObject) -> None:
        group = GroupKey("default", name)
        waiting = {pod.uid: pod for pod in self.model.pods.values() if pod.pending}
        if self.ledger.of_group(group) is not None or not waiting:
            return
        chosen = data.draw(st.sets(st.sampled_from(sorted(waiting)), min_size=1))
        slots = {uid: Slot(uid, waiting[uid].name, data.draw(NODES)) for uid in sorted(chosen)}
        self.ledger.reserve(Reservation(group, "uid", "", len(slots), slots), waiting)
        for uid, slot in slots.items():
            self.model.slots[uid] = (group, slot.node)

    @rule(name=st.sampled_from(["g", "h"]))
    def release(self, name: str) -> None:
        group = GroupKey("default", name)
        self.ledger.unreserve(group)
        self.model.slots = {uid: slot for uid, slot in self.model.slots.items() if slot[0] != group}

    def _draw_pod(self, data: st.DataObject) -> Pod:
        return self.model.pods[data.draw(st.sampled_from(sorted(self.model.pods)))]

    # --- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def every_pod_is_in_the_group_that_the_objects_say(self) -> None:
        for pod in self.model.pods.values():
            expected = self.model.group_of(pod)
            assert self.store.members.group_of(pod.uid) == expected, pod
            assert self.store.membership.find_group(pod) == expected, pod

    @invariant()
    def no_pod_is_a_member_that_nothing_on_it_could_make_one(self) -> None:
        # What marks pods for an isolated scheduler sees the pod alone (manifests/kustomize/marker).
        for pod in self.model.pods.values():
            assert pod.may_be_member or self.store.members.group_of(pod.uid) is None, pod

    @invariant()
    def members_and_groups_are_two_sides_of_one_thing(self) -> None:
        listed = {pod.uid: key for key in self.store.members.groups() for pod in self.store.members.of_group(key)}
        expected = {uid: key for uid, pod in self.model.pods.items() if (key := self.model.group_of(pod)) is not None}
        assert listed == expected

    @invariant()
    def members_are_counted_as_a_look_at_each_of_them_would(self) -> None:
        members = self.store.members
        for key in [*members.groups(), GroupKey("default", "g")]:
            found = members.classify(key)
            assert members.count_placed(key) == found.placed_by_leaf
            without = {pod.uid for pod in members.of_group(key)[::2]}
            assert members.count_placed(key, without) == members.classify(key, without).placed_by_leaf
            assert list_standing(members.classify(key, without)) == {
                pod.uid: find_member_state(pod, self.store.schedulers)
                for pod in members.of_group(key)
                if pod.uid not in without and find_member_state(pod, self.store.schedulers) in LISTED
            }
            assert found.waiting == members.sort_for_placement(key, found.waiting)
            for standing in LISTED:
                listed = {pod.uid for pod in members.iterate_in_state(key, standing)}
                assert listed == {pod.uid for pod in getattr(found, standing.value)}
            disrupted = {pod.uid for pod in members.of_group(key) if pod.disruption}
            assert {pod.uid for pod in members.iterate_disrupted(key)} == disrupted

    @invariant()
    def exclusive_gangs_that_run_are_those_with_a_bound_member(self) -> None:
        for key in ("rack", "zone"):
            found = {group.key: {pod.uid for pod in bound} for group, bound in self.store.exclusives.iterate(key)}
            expected: dict[GroupKey, set[str]] = {}
            for pod in self.model.pods.values():
                group = self.model.groups.get(self.model.group_of(pod) or GroupKey("", ""))
                if pod.bound and group is not None and group.preference.exclusive and group.topology_key == key:
                    expected.setdefault(group.key, set()).add(pod.uid)
            assert found == expected

    @invariant()
    def a_jobs_pods_are_those_that_name_it(self) -> None:
        for key in JOBS:
            expected = {
                p.uid for p in self.model.pods.values() if p.owner and (p.owner.kind, p.owner.name) == ("Job", key.name)
            }
            assert {pod.uid for pod in self.store.owners.pods_of(OwnerKey(JOB, key))} == expected

    @invariant()
    def each_node_is_used_by_each_pod_once(self) -> None:
        assert self.store.occupancy.used == self.model.used()

    @invariant()
    def the_ledger_knows_each_slot_by_pod_and_by_group(self) -> None:
        held = {slot.uid: (r.group, slot.node) for r in self.ledger for slot in r.slots.values()}
        assert held == self.model.slots
        for uid, (group, _) in held.items():
            reservation = self.ledger.of_pod(uid)
            assert reservation is not None
            assert reservation.group == group

    def teardown(self) -> None:
        """Remove all objects, and assert that the Store keeps nothing of them."""
        if not hasattr(self, "store"):
            return
        for reservation in self.ledger:
            self.ledger.unreserve(reservation.group)
        for uid in list(self.store.pods):
            self.store.drop_pod(uid)
        for job in list(self.store.jobs):
            self.store.drop_job(job)
        for workload in list(self.store.workloads):
            self.store.drop_workload(workload)
        for group in list(self.store.groups):
            self.store.drop_group(group)
        for parent in list(self.store.parents):
            self.store.drop_parent(parent)
        self.store.dirty.groups.clear()
        self.store.dirty.orphans.clear()
        parts: list[object] = [self.store.members, self.store.nominations, self.store.membership]
        parts += [read_memory(self.store)["owners"]]
        left = {name for part in parts for name, value in vars(part).items() if value == {}}
        assert {"_group_of", "_leaf_of", "_members", "_pods", "_started"} <= left
        assert vars(self.store.nominations)["_pods"] == {}
        assert {"_workloads_by_owner", "_groups_by_workload", "_groups_by_replica"} <= left
        assert "_groups_by_controller" in left
        occupancy = vars(self.store.occupancy)
        assert (occupancy["_used"], occupancy["_usages"]) == ({}, {})
        others = {"_occupancy": None, "_pending_victims": None}
        assert vars(self.ledger) | others == others | {"_by_group": {}, "_by_uid": {}, "_by_node": {}}
        assert not len(self.store.pending_victims)


TestStore = StoreMachine.TestCase
