"""The cache of the cluster (`Store`): the objects from the watches, and everything that is derived from them.

`serried.feed` calls the ``put_*`` and ``drop_*`` methods. Readers get those of the Store's maps and derived objects
(such as the `Occupancy`) that they need.

An API level is a version of the API of PodGroups, such as v1alpha2. A group is identified by its name, whichever level
its object is at. So pods stay members when the cluster switches to another level. If there are two objects with one
name, that of the level in use counts (docs/decisions/0030-objects-of-both-levels.md).
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from serried.api.budget import DisruptionBudget
from serried.api.device import NOTHING, DeviceClass, HypotheticalClaims
from serried.api.group import Composite, IgnoredTopology, PodGroup, Workload
from serried.api.job import GangJobs, Job
from serried.api.level import NATIVE, ApiLevel
from serried.api.names import JOB, REPLICA, GroupKey, GroupKind, Key
from serried.api.node import Node, Protection
from serried.api.parent import OwnerKey, Parent, owner_key_of
from serried.api.pod import Link, Phase, Pod, Shape, is_about_one_node
from serried.api.priority import HIGHEST_GROUP_PRIORITY, PriorityClass
from serried.api.topology import LevelTable, TopologyLevels, may_change_labels
from serried.cluster.domain_use import DomainUse, list_keys
from serried.cluster.earlier_slots import EarlierSlots
from serried.cluster.forest import Forest
from serried.cluster.index import key_of_group
from serried.cluster.levels import Levels
from serried.cluster.members import Dirty, Members
from serried.cluster.membership import (
    Membership,
    Obstacles,
    Owners,
    build_counted,
    build_groups,
    ends_with_its_pods,
    find_job_controller,
    workload_of,
)
from serried.cluster.priorities import DisruptionGroups, Exclusives, GroupPriorities
from serried.cluster.rule import Ground, KindState, R, Rule, RuleChanges, RuleType, make_rules
from serried.cluster.run_times import Endings
from serried.cluster.usage import Nominations, Occupancy, PendingVictims, Snapshots, UsageSource, Vacancies
from serried.plan.capacity import Capacity
from serried.plan.eviction import STAYING_OWNERS

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Layers(Generic[K, V]):
    """The objects of one kind, such as PodGroups, that are read at two API levels (two versions of the PodGroup API).

    The level in use is usually Kubernetes' own API. The second level is then Serried's CRD (`ApiLevel.second_level`),
    for gangs that were created before the cluster switched. If both have an object of one key, that of the level in use
    counts. ``identify`` returns the key of an object. ``put`` and ``drop`` are methods of the Store, which are called
    with the objects that count. `serried.feed` owns one instance for each kind.
    """

    def __init__(self, identify: Callable[[V], K], put: Callable[[V], None], drop: Callable[[K], None]) -> None:
        self.upper: dict[K, V] = {}
        """The objects of the API level in use."""

        self.lower: dict[K, V] = {}
        """The objects of the second level (`ApiLevel.second_level`)."""

        self._identify = identify
        self._put = put
        self._drop = drop

    @property
    def above(self) -> tuple[dict[K, V], Callable[[V], None], Callable[[K], None]]:
        """The parts for a watch at the API level in use: its objects by key, `put_upper` and `drop_upper`."""
        return self.upper, self.put_upper, self.drop_upper

    @property
    def below(self) -> tuple[dict[K, V], Callable[[V], None], Callable[[K], None]]:
        """The parts for a watch at the second API level: its objects by key, `put_lower` and `drop_lower`."""
        return self.lower, self.put_lower, self.drop_lower

    def put_upper(self, item: V) -> None:
        """Add or replace an object that was read at the API level in use. It always counts."""
        self.upper[self._identify(item)] = item
        self._put(item)

    def drop_upper(self, key: K) -> None:
        """Remove an object that was read at the API level in use.

        If there is one with the same key at the second level, this one counts from now on.
        """
        self.upper.pop(key, None)
        below = self.lower.get(key)
        if below is None:
            self._drop(key)
        else:
            self._put(below)

    def put_lower(self, item: V) -> None:
        """Add or replace an object that was read at the second API level (Serried's CRD).

        It counts only if the level in use has none with its key.
        """
        key = self._identify(item)
        self.lower[key] = item
        if key not in self.upper:
            self._put(item)

    def drop_lower(self, key: K) -> None:
        """Remove an object that was read at the second API level (Serried's CRD)."""
        self.lower.pop(key, None)
        if key not in self.upper:
            self._drop(key)


class EndedMembers(Enum):
    """The setting for the slot of a gang's bound member that has ended without success.

    KEEP_SLOTS: the slot becomes a vacancy, kept for the member's replacement. FREE_SLOTS: the slot is free at once.
    """

    KEEP_SLOTS = "keep"
    """The slot becomes a vacancy, which `extender.features.repair` closes in the end."""

    FREE_SLOTS = "free"
    """The slot is free at once."""


MAX_UPDATES = 32
"""The number of updated nodes and pods after which one call of `Store.apply_rule_changes` stops: some milliseconds.

The call may update some more, because it lets each rule finish its turn.
"""


DEFERRED_COST = 4
"""The share of MAX_UPDATES that one piece of a rule's deferred work uses up (`Rule.run_deferred`).

For instance a call of `Store.apply_rule_changes` that runs one piece stops after about 28 updates instead of 32.
"""


@dataclass(eq=False, repr=False)
class Store:
    """The cache of one cluster. It has maps and derived objects to read, and methods to write.

    API objects are in one map for each kind. Derived data is in objects such as ``occupancy`` (the usage of nodes) or
    ``members``. Both live as long as the Store, so readers are given those that they need instead of the Store.

    Only `serried.feed` calls the ``put_*`` and ``drop_*`` methods. Each is one change of one object, and takes time in
    proportion to what it affects. When it returns, all maps and derived objects are consistent.

    ``level`` is the API level (version) at which PodGroups are read; those read at another one have it in
    `PodGroup.api`. ``rules`` change pods and nodes because of other objects (`serried.cluster.rule`).
    """

    served: InitVar[Collection[str]]
    gang_jobs: GangJobs = GangJobs.BY_SHAPE
    ended: EndedMembers = EndedMembers.FREE_SLOTS
    level: ApiLevel = NATIVE
    other_profiles: InitVar[Collection[str]] = ()
    rules: InitVar[Sequence[RuleType]] = field(kw_only=True)

    schedulers: frozenset[str] = field(init=False)
    """The schedulerNames that Serried serves."""

    profiles: frozenset[str] = field(init=False)
    """The schedulerNames of all profiles of our kube-scheduler, including those that Serried does not serve.

    kube-scheduler respects nominations among the pods of its own profiles only (``responsibleForPod`` in
    pkg/scheduler/eventhandlers.go).
    """

    # The objects, by kind.
    nodes: dict[str, Node] = field(default_factory=dict, init=False)
    protections: dict[str, Protection] = field(default_factory=dict, init=False)
    """By node name: how the node is protected from removal by autoscalers.

    Only nodes with Serried's marker are in it.
    """

    pods: dict[str, Pod] = field(default_factory=dict, init=False)
    groups: dict[GroupKey, PodGroup] = field(default_factory=dict, init=False)

    _unconstrained: dict[GroupKey, str] = field(default_factory=dict, init=False)
    """The PodGroups whose topology key is ignored, each with the reason, a phrase (`ignore_topology`)."""

    workloads: dict[Key, Workload] = field(default_factory=dict, init=False)
    jobs: dict[Key, Job] = field(default_factory=dict, init=False)
    parents: dict[OwnerKey, Parent] = field(default_factory=dict, init=False)
    priority_classes: dict[str, PriorityClass] = field(default_factory=dict, init=False)
    budgets: dict[Key, DisruptionBudget] = field(default_factory=dict, init=False)
    budgets_in: dict[str, dict[Key, DisruptionBudget]] = field(default_factory=dict, init=False)
    """The PodDisruptionBudgets by namespace, then by key."""

    # Pods outside of gangs.
    running_priorities: Counter[int] = field(default_factory=Counter, init=False)
    """The number of bound pods by priority."""

    running_elsewhere: int = field(default=0, init=False)
    """The number of bound pods of other schedulers that could be victims: no DaemonSets', no system priorities."""

    rivals: Counter[Shape] = field(default_factory=Counter, init=False)
    """The number of unschedulable pods of other schedulers that might use freed resources (`is_rival`).

    They are counted by shape, i.e. by requests, node affinity and the like.
    """

    levels: Levels = field(init=False)

    schedules_gangs: bool = field(default=False, init=False)
    """True once the conditions of a PodGroup have shown that our kube-scheduler schedules gangs natively."""

    dirty: Dirty = field(default_factory=Dirty, init=False)

    def __post_init__(
        self, served: Collection[str], other_profiles: Collection[str], rules: Sequence[RuleType]
    ) -> None:
        self.schedulers = frozenset(served)
        self.profiles = self.schedulers | frozenset(other_profiles)
        # The rules, which change the shapes of pods because of other objects.
        ground = Ground(self.nodes, self.pods)
        self.all_rules = make_rules(rules, ground)
        self._kinds = {kind.type: kind for rule in self.all_rules for kind in rule.kinds}
        self._followers = {
            kind: [rule for rule in self.all_rules if kind in rule.reads or about in rule.kinds]
            for kind, about in self._kinds.items()
        }
        self._unruled: dict[str, Pod] = {}
        """The pods that rules (`serried.cluster.rule`) have changed, as the watch showed them.

        ``pods`` has the changed ones.
        """

        self._unruled_nodes: dict[str, Node] = {}
        """The nodes that rules (`serried.cluster.rule`) have changed, as the watch showed them.

        ``nodes`` has the changed ones.
        """

        self.shown_nodes = ChainMap(self._unruled_nodes, self.nodes)
        """All nodes by name, as the watch showed them."""

        self._pending_rules: dict[Rule, None] = {}
        """The rules that may have changes to report (`Rule.take_changes`), as an ordered set."""

        self._has_backlog = False
        """True while rules have changes that are left for later calls of `apply_rule_changes`."""

        self.levels = Levels(self.nodes, ground.held.get(DeviceClass, {}))
        # The usage of nodes, and snapshots of it for plans.
        self.occupancy = Occupancy(self._note_used)
        self.capacity = Capacity(self.nodes, self.occupancy.used, Capacity(self.nodes, {}))
        self.domain_use = DomainUse(self.nodes, self.occupancy.used)
        self.vacancies = Vacancies(self.occupancy)
        self.nominations = Nominations(self.occupancy)
        self.snapshots = Snapshots(
            self.nodes, self.occupancy, self.nominations, [each.plan for each in rules if each.plan is not None]
        )
        self.endings = Endings(self.jobs)
        # Groups and their members.
        self.forest = Forest(self.groups)
        self.owners = owners = Owners(self.pods, self.jobs, self.parents)
        self.obstacles = Obstacles(self.level.native_problem)
        self.membership = Membership(
            self.workloads, self.forest, owners, self.obstacles, self.schedulers, self.gang_jobs
        )
        self.members = Members(self.pods, self.groups, self.parents, self.membership, self.schedulers)
        self.disruption_groups = DisruptionGroups(self.pods, self.groups, self.members)
        self.exclusives = Exclusives(self.groups, self.members, self.occupancy.note_freed_anywhere)
        self.priorities = GroupPriorities(self.groups, self.members, self.priority_classes, self.level)
        self.pending_victims = PendingVictims(self.dirty, self.pods)
        self.earlier_slots = EarlierSlots(
            self.nodes,
            self.pods,
            self.groups,
            self.vacancies,
            members=self.members,
            membership=self.membership,
            owners=owners,
            pending_victims=self.pending_victims.uids,
        )

    # --- what cannot be seen -----------------------------------------------------------------------------------

    def set_obstacle(self, what: str) -> None:
        """Set the reason why Workloads and PodGroups of the API level in use cannot be read at present.

        ``what`` is a phrase. "" means that they can be read, for the first time or again.
        """
        turned = bool(self.obstacles.native) is not bool(what)
        self.obstacles.native = what
        if turned:
            self._rejoin(self.owners.with_pods())
        self._touch_missing()

    def set_plan_obstacle(self, what: str) -> None:
        """Set the reason why a kind that every plan needs cannot be read at present.

        ``what`` is a phrase; no gang is planned while it is set. "" means that all such kinds can be read.
        """
        if self.obstacles.needed != what:
            self.obstacles.needed = what
            self.dirty.update(self.groups, self.members.groups())

    def set_native_obstacle(self, what: str) -> None:
        """Set the reason why Serried does not use the PodGroups of scheduling.k8s.io that the API server serves.

        ``what`` is a phrase; "" if Serried uses them, or if they are not served.
        """
        if self.obstacles.unread != what:
            self.obstacles.unread = what
            self._touch_missing()

    def set_compatible_obstacle(self, what: str) -> None:
        """Set the reason why PodGroups of scheduler-plugins cannot be read at present.

        ``what`` is a phrase. "" means that they can be read, for the first time or again.
        """
        self.obstacles.compatible = what
        self._touch_missing()

    def _touch_missing(self) -> None:
        self.dirty.update(group for group in self.members.groups() if group not in self.groups)

    # --- nodes -------------------------------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        """Add or replace a node. A heartbeat without relevant changes only costs a comparison."""
        if node.protection is not None:
            self.protections[node.name] = node.protection
        else:
            self.protections.pop(node.name, None)
        old = self.shown_nodes.get(node.name)
        if old is not None and _node_facts(old) == _node_facts(node):
            return
        before = self.nodes.get(node.name)
        if old is None or old.labels != node.labels:
            self.nodes[node.name] = node
            for rule in self.all_rules:
                rule.note_labels(node.name)
        self._queue_all_rules()
        self._extend_node(before, node)
        self._apply_rule_changes_if_few()

    def _extend_node(self, old: Node | None, shown: Node) -> None:
        """Store a node with what rules add to it in memory, and update what is derived from it.

        Rules add labels, and resources that Kubernetes does not know (pseudo resources): e.g. the number of volumes of
        a CSI driver that may be attached to the node. So a rule's limit is checked like any other resource.
        ``shown`` is the node from the watch, ``old`` is the node as stored before; None if it is new.
        """
        node = shown
        for rule in self.all_rules:
            node = rule.extend_node(node)
        if node is not shown:
            self._unruled_nodes[node.name] = shown
        elif self._unruled_nodes:
            self._unruled_nodes.pop(node.name, None)
        self.levels.note_node(node)
        if old is not None and _node_facts(old) == _node_facts(node):
            self.nodes[node.name] = old
            return
        self.nodes[node.name] = node
        self.capacity.note_node(old, node)
        self.domain_use.changed.add(node.name)
        self.occupancy.note_freed(node.name)
        for rule in self.all_rules:
            rule.note_node(old, node)

    def drop_node(self, name: str) -> None:
        """Remove a node. Its pods count as using it until they are removed themselves."""
        old = self.nodes.pop(name, None)
        self.protections.pop(name, None)
        self._unruled_nodes.pop(name, None)
        self.levels.drop_node(name)
        self.capacity.note_node(old, None)
        self.domain_use.forget(name)
        for rule in self.all_rules:
            rule.note_labels(name)
            rule.note_node(old, None)
        self._queue_all_rules()
        self._apply_rule_changes_if_few()

    def _note_used(self, name: str) -> None:
        self.capacity.note_used(name)
        self.domain_use.changed.add(name)

    def put_levels(self, levels: TopologyLevels) -> None:
        """Add or replace a TopologyLevels object."""
        before = self.levels.published
        self.levels.put(self.levels.declared, levels)
        self._note_published(before)

    def drop_levels(self, name: str) -> None:
        """Remove a TopologyLevels object."""
        before = self.levels.published
        self.levels.drop(self.levels.declared, name)
        self._note_published(before)

    def _note_published(self, before: LevelTable | None) -> None:
        if may_change_labels(before, self.levels.published):
            self._touch_missing()

    # --- pods --------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Add or replace a pod from the watch. Rules may change its shape (what decides on which nodes it fits)."""
        self._put_pod(pod)
        self._apply_rule_changes_if_few()

    def _put_pod(self, pod: Pod) -> None:
        raw, pod = pod, self._apply_rules(pod)
        if pod.objection and self.schedules_gangs and pod.link is Link.FIELD:
            pod = replace(pod, wants_room=True)  # the reasons may be about one domain only, which kube-scheduler tried
        if is_about_one_node(pod.objection) and len(self.nodes) > 1:
            pod = replace(pod, objection="", wants_room=False)
        if pod is not raw:
            self._unruled[raw.uid] = raw
        elif self._unruled:
            self._unruled.pop(raw.uid, None)
        old = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        if old is not None and old.bound and pod.phase is Phase.FAILED:
            self._vacate(replace(old, disruption=pod.disruption, disrupted=pod.disrupted), pod.refusal)
        self._count_usage(pod)
        self._count_running(old, pod)
        if pod.bound:
            self.vacancies.fill(pod.uid, pod.node)
        elif not pod.pending:
            self.vacancies.forget_replacement(pod.uid)
        self.nominations.update_pod(pod.uid, pod if pod.nominated and pod.pending else None)
        if pod.phase is Phase.SUCCEEDED and (old is None or old.phase is not Phase.SUCCEEDED):
            self.endings.learn(pod)
        turned = self.owners.update_pod(old, pod)
        self._join(pod)
        self._rejoin(turned)
        self.pending_victims.update_pod(pod.uid)
        self._note_reached(old, pod)

    def shape_hypothetical(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Pod:
        """Return a hypothetical pod, of a what-if question, with what the rules add to it in this cluster.

        For instance node affinity to the nodes that its volumes reach, or for its devices requests of resources that
        only Serried knows. ``coming`` are the claims that would be created with the pod. The call may change the shapes
        of existing pods, until `forget_hypothetical` is called.
        """
        for rule in self.all_rules:
            pod = rule.shape_hypothetical(pod, coming)
        self._queue_all_rules()
        self._apply_rule_changes_if_few()
        return pod

    def forget_hypothetical(self) -> None:
        """Forget the hypothetical pods of `shape_hypothetical`."""
        for rule in self.all_rules:
            rule.forget_hypothetical()
        self._queue_all_rules()
        self._apply_rule_changes_if_few()

    def drop_pod(self, uid: str) -> None:
        """Remove a pod."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        if pod.bound:
            self._vacate(pod)
        self._count_running(pod, None)
        self.vacancies.forget_replacement(uid)
        self.occupancy.forget(uid)
        for rule in self._list_concerned(pod):
            rule.forget_pod(pod)
        self._unruled.pop(uid, None)
        self.nominations.update_pod(uid, None)
        turned = self.owners.update_pod(pod, None)
        self._leave(uid)
        self._rejoin(turned)
        self.pending_victims.update_pod(uid)
        self._note_reached(pod, None)
        self._apply_rule_changes_if_few()

    def _note_reached(self, old: Pod | None, new: Pod | None) -> None:
        """Record that waiting pods with rules about a bound pod, such as affinity to it, may fit on other nodes now.

        The record is in ``occupancy``, so that their gangs are planned again. ``old`` is the bound pod before the
        change, None if it is new; ``new`` is the pod now, None if it was deleted.
        """
        bound = [each for each in (old, new) if each is not None and each.bound]
        stays = len(bound) > 1 and bound[0].node == bound[1].node
        if not bound or (stays and bound[0].shape.requests == bound[1].shape.requests):
            return
        for rule in self._list_concerned(bound[-1]):
            reached = [set(rule.list_reached(each.shape)) for each in bound]
            self.occupancy.note_reached(reached[0] ^ reached[1] if stays else set().union(*reached))

    # --- rules -------------------------------------------------------------------------------------------------

    def _apply_rules(self, raw: Pod) -> Pod:
        """Return a pod from the watch with what the rules add to it because of other objects (`Rule.shape_pod`).

        For instance node affinity to the nodes that its volumes reach. Rules that do not concern the pod are skipped.
        """
        pod = raw
        for rule in self.all_rules:
            if _is_concerned(rule, pod):
                self._pending_rules[rule] = None
                pod = rule.shape_pod(raw, pod)
        if raw.phase is not Phase.ACTIVE:
            # Update the nodes before the pod's resources count as free: its ResourceClaims stay allocated for a while.
            for rule in list(self._pending_rules):
                self._extend_again(rule)
        return pod

    def _list_concerned(self, pod: Pod) -> list[Rule]:
        found = [rule for rule in self.all_rules if _is_concerned(rule, pod)]
        self._pending_rules.update(dict.fromkeys(found))
        return found

    def is_ruled(self, pod: Pod) -> bool:
        """Return whether a rule limits the nodes of a pod: more than resources, node labels and taints decides then.

        For instance a rule about the pod's volumes, about its devices, or about affinity to other pods.
        """
        return pod.uid in self._unruled or pod.shape.neighbours is not None

    def list_caveats(self, pods: Collection[Pod]) -> list[str]:
        """Return phrases that say why kube-scheduler may reject a plan for these pods.

        For instance volume claims that are not bound yet. Each rule of the Store (about volumes, devices and so on) may
        add phrases.
        """
        return [said for rule in self.all_rules for said in rule.list_caveats(pods)]

    def rule(self, rule_type: type[R]) -> R:
        """Return the one rule of this class, e.g. `Volumes`. A rule changes pods or nodes because of other objects.

        Raises LookupError if the Store was created without it.
        """
        for rule in self.all_rules:
            if isinstance(rule, rule_type):
                return rule
        raise LookupError(f"this Store was made without {rule_type.__name__}")

    def _note_keys(self, before: Collection[str], after: Collection[str]) -> None:
        """Tell the rules of the Store (`Rule`) that the topology keys of a PodGroup have changed.

        ``before`` and ``after`` are its required and preferred keys before and after the change.
        """
        if before != after:
            for rule in self.all_rules:
                rule.note_keys(before, after)
            self._queue_all_rules()
            self._apply_rule_changes_if_few()

    def put_object(self, item: Any) -> None:
        """Add or replace an object of a kind that only rules use, such as a ResourceSlice or a PersistentVolume.

        A rule (`Rule`) is a part of the Store that changes its copies of pods or nodes because of such objects.
        """
        self._kinds[type(item)].put(item)
        self._note_object(type(item))

    def drop_object(self, kind: type, key: Key | str) -> None:
        """Remove an object of a kind that only rules use, such as a ResourceSlice or a PersistentVolume.

        A rule (`Rule`) is a part of the Store that changes its copies of pods or nodes because of such objects. ``key``
        is the object's name, or its `Key` if the kind is namespaced.
        """
        self._kinds[kind].drop(key)
        self._note_object(kind)

    def _note_object(self, kind: type) -> None:
        for rule in self._followers[kind]:
            self._pending_rules[rule] = None
            if kind in rule.reads:
                rule.note_read(kind)
        if kind is DeviceClass:
            self.levels.note_classes()
        self._apply_rule_changes_if_few()

    def note_state(self, kind: type, state: KindState, why: str = "") -> None:
        """Tell the rules that use a kind, such as ResourceSlice, if its objects are being listed, known or unreadable.

        A rule (`Rule`) changes the Store's copies of pods or nodes because of such objects. ``why`` says why the kind
        cannot be read, a phrase; "" if it can.
        """
        for rule in self._followers[kind]:
            self._pending_rules[rule] = None
            rule.note_state(kind, state, why)
        self._apply_rule_changes_if_few()

    def _queue_all_rules(self) -> None:
        self._pending_rules.update(dict.fromkeys(self.all_rules))

    def _apply_rule_changes_if_few(self) -> None:
        """Call `apply_rule_changes` once if earlier calls have left no nodes or pods to update; else do nothing.

        If some are left, the loop that calls `apply_rule_changes` again and again will apply the new changes after
        them.
        """
        if not self._has_backlog:
            self.apply_rule_changes()

    def apply_rule_changes(self) -> bool:
        """Compute again what rules add to nodes and pods that need it. Return whether more are left.

        One call stops when it has updated about MAX_UPDATES nodes and pods, once each rule has had its turn.
        For instance a new PersistentVolume changes on which nodes many pods fit: one object may change thousands of
        pods. The loop that plans calls this again and again, so that no other change waits for all of them.
        """
        left = MAX_UPDATES
        while self._pending_rules and left > 0:
            stirred, self._pending_rules = self._pending_rules, {}
            rules = [rule for rule in self.all_rules if rule in stirred]
            left -= sum(map(self._run_deferred, rules))
            left -= 1 + sum(map(self._extend_again, rules))
            for rule in rules:
                if (changes := rule.take_changes()) is not None:
                    self._pending_rules[rule] = None
                    left -= self._apply_changes(changes)
        self._has_backlog = bool(self._pending_rules)
        return self._has_backlog

    def _run_deferred(self, rule: Rule) -> int:
        """Let a rule do one piece of the work that it has put off because it takes long (`Rule.run_deferred`).

        Return DEFERRED_COST: a piece takes about as long as so many updates of pods, and counts as so many of the
        MAX_UPDATES after which one call of `apply_rule_changes` stops. Return 0 if there was no work.
        """
        if not rule.run_deferred():
            return 0
        self._pending_rules[rule] = None
        return DEFERRED_COST

    def _extend_again(self, rule: Rule) -> int:
        """Compute again what all rules add to the nodes that one rule reports as changed (`Rule.take_changed_nodes`).

        For instance one rule adds the volume limits of CSI drivers to a node's allocatable. Return the number of these
        nodes; there may be more for a next call.
        """
        names = rule.take_changed_nodes()
        for name in names:
            if name in self.nodes:
                self._extend_node(self.nodes[name], self.shown_nodes[name])
        if names:
            self._pending_rules[rule] = None
        return len(names)

    def _apply_changes(self, changes: RuleChanges) -> int:
        """Update the pods that a rule reports in ``changes``, e.g. after a volume has been bound. Return their number.

        Gangs that may fit because of these changes are planned again.
        """
        for uid in changes.pods:
            if (pod := self._unruled.get(uid) or self.pods.get(uid)) is not None:
                self._put_pod(pod)
        for pod in changes.recounted:
            old = self.pods[pod.uid]
            if self._unruled.setdefault(pod.uid, old) == pod:
                del self._unruled[pod.uid]
            self.pods[pod.uid] = pod
            self.occupancy.recount(pod.uid, pod.shape.requests)
            self._count_running(old, pod)
            self._join(pod)
        self.occupancy.note_reached(changes.reached)
        if changes.members:
            self.occupancy.note_freed_anywhere()
            for uid in changes.members:
                if (group := self.members.group_of(uid)) is not None:
                    self.dirty.add(group, uid)
        return len(changes.pods) + len(changes.recounted) + len(changes.members)

    def _vacate(self, pod: Pod, refusal: str = "") -> None:
        # Called before the pod is removed from the occupancy, so that no plan sees the slot as free. Repairs may close
        # the vacancy.
        if self.ended is EndedMembers.FREE_SLOTS or pod.uid in self.pending_victims:
            return  # the resources of a victim belong to the preemptor's gang
        key = self.members.group_of(pod.uid)
        group = self.groups.get(key) if key is not None else None
        if group is not None and group.policy.is_gang and pod.scheduler in self.schedulers:
            self.vacancies.open(group.key, pod, refusal, self.members.leaf_of(pod.uid))

    def _count_running(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.bound:
            self.running_priorities[new.priority] += 1
        if old is not None and old.bound:
            self.running_priorities[old.priority] -= 1
            if not self.running_priorities[old.priority]:
                del self.running_priorities[old.priority]
        self.running_elsewhere += self._runs_elsewhere(new) - self._runs_elsewhere(old)
        if new is not None and is_rival(new, self.profiles):
            self.rivals[new.shape] += 1
        if old is not None and is_rival(old, self.profiles):
            self.rivals[old.shape] -= 1
            if not self.rivals[old.shape]:
                del self.rivals[old.shape]

    def list_foreign(self, nodes: Collection[str]) -> list[Pod]:
        """Return the bound pods of other schedulers on these nodes. O(pods of the cluster)."""
        bound = (pod for pod in self.pods.values() if pod.node in nodes and pod.bound)
        return [pod for pod in bound if pod.scheduler not in self.profiles] if nodes else []

    def _runs_elsewhere(self, pod: Pod | None) -> bool:
        if pod is None or not pod.bound or pod.scheduler in self.profiles:
            return False
        stays = pod.owner is not None and pod.owner.kind in STAYING_OWNERS
        return not stays and pod.priority <= HIGHEST_GROUP_PRIORITY

    def _count_usage(self, pod: Pod) -> None:
        if pod.bound:
            self.occupancy.add_usage(pod.uid, UsageSource.BOUND, pod.node, pod.shape.requests)
        elif pod.node:
            self.occupancy.forget(pod.uid)
        else:
            self.occupancy.release(pod.uid, UsageSource.BOUND)
        self.occupancy.resize(pod.uid, pod.shape.requests)

    def _join(self, pod: Pod) -> None:
        own = self.membership.resolve(pod)
        group = self.forest.find_tree_key(own) if own is not None else None
        before = self.members.group_of(pod.uid)
        if before != group:
            self._leave(pod.uid)
            if group is not None:
                self.members.join(pod.uid, group)
                self._note_named(group)
        self.members.set_leaf(pod.uid, own if own != group else None)
        if group is not None:
            self.members.update(pod)
            self.exclusives.note_pod(pod, group)
            self.dirty.add(group, pod.uid)
            self.priorities.mark_changed(group)
        elif before is not None or pod.held_by_gate:
            self.dirty.orphans.add(pod.uid)

    def _leave(self, uid: str) -> None:
        group = self.members.leave(uid)
        if group is not None:
            self.dirty.add(group, uid)
            self.priorities.mark_changed(group)
            if group not in self.members and ends_with_its_pods(group):
                self.drop_group(group)

    def _note_named(self, group: GroupKey) -> None:
        if group.kind is GroupKind.COUNTED and group not in self.groups:
            self.put_group(build_counted(group))
        key = workload_of(group)
        workload = self.workloads.get(key) if key is not None else None
        if workload is not None and workload.inline and group not in self.groups:
            self._put_inline(workload, [group])

    def _put_inline(self, workload: Workload, named: Iterable[GroupKey]) -> None:
        for group in build_groups(workload, named).values():
            if self.groups.get(group.key) != group:
                self.put_group(group)

    def _rejoin(self, owner_keys: Iterable[OwnerKey]) -> None:
        for owner_key in owner_keys:
            for sibling in self.owners.pods_of(owner_key):
                self._join(sibling)

    def _rejoin_replicas(self, places: Iterable[tuple[OwnerKey, str]]) -> None:
        for owner_key, replica in places:
            for sibling in self.owners.pods_at(owner_key, replica):
                self._join(sibling)

    # --- groups, workloads, jobs -------------------------------------------------------------------------------

    def ignore_topology(self, key: GroupKey, why: str) -> None:
        """Ignore the topology key of a PodGroup, for the reason ``why``, a phrase; with "" the key counts again.

        It stays ignored when the object changes. Raises KeyError if the group does not exist.
        """
        group = self.groups[key]
        if why:
            self._unconstrained[key] = why
        else:
            self._unconstrained.pop(key, None)
        self.put_group(replace(group, topology_key=group.named_topology, ignored=None))

    def put_group(self, group: PodGroup) -> None:
        """Add or replace a PodGroup. While it is being deleted, it still counts."""
        why = self._unconstrained.get(group.key, "") if self._unconstrained else ""
        if why and group.topology_key is not None:
            group = replace(group, topology_key=None, ignored=IgnoredTopology(group.topology_key, why))
        old = self.groups.get(group.key)
        self.groups[group.key] = group
        if group.told_natively and not self.schedules_gangs:
            self.schedules_gangs = any(pod.scheduler in self.schedulers for pod in self.members.of_group(group.key))
        self.exclusives.note_group(old, group)
        self.domain_use.note_group(old, group)
        self._note_keys(list_keys(old), list_keys(group))
        self.dirty.add(group.key)
        self.priorities.mark_changed(group.key)
        if old is not None and old.api == group.api and old.uid != group.uid:
            self.vacancies.close_group(group.key)
        if old is None or _group_facts(old) != _group_facts(group):
            self._rejoin_replicas(self.membership.index_group(old, group))
        moved = old is None or old.parent != group.parent
        self._rebuild_trees(self.forest.index_group(old, group), *([group.key] if moved else []))
        self._resolve_named(old, group)
        if self.earlier_slots.awaiting:
            self.earlier_slots.move_inherited()

    def drop_group(self, key: GroupKey) -> None:
        """Remove a PodGroup. Its unbound members stay pending from now on, with reason PodGroupMissing."""
        old = self.groups.pop(key, None)
        self._unconstrained.pop(key, None)
        if old is not None:
            self.exclusives.note_group(old, None)
            self.domain_use.note_group(old, None)
            self._note_keys(list_keys(old), ())
            self.dirty.add(key)
            self.priorities.mark_changed(key)
            self.vacancies.close_group(key)
            self._rejoin_replicas(self.membership.index_group(old, None))
            trees = self.forest.index_group(old, None)
            self._rebuild_trees(trees, *trees)
            self._resolve_named(old, None)

    def _resolve_named(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Decide again which of the pods that name a PodGroup are its members, if another Job controls it now.

        Only pods of that Job may be members. So members may have to leave, and other pods that name the PodGroup may
        join now. ``old`` and ``new`` are the PodGroup before and after the change; None if there was or is none.
        """
        if find_job_controller(old) == find_job_controller(new):
            return
        key = key_of_group(old, new)
        for pod in [*self.members.of_group(self.forest.find_tree_key(key)), *self.members.of_group(key.non_members)]:
            if self.membership.find_named(pod) == key:
                self._join(pod)

    def put_composite(self, composite: Composite) -> None:
        """Add or replace a CompositePodGroup."""
        trees = self.forest.put_composite(composite)
        self._rebuild_trees(trees, *trees)

    def drop_composite(self, key: Key) -> None:
        """Remove a CompositePodGroup. The unbound members of its tree stay pending from now on."""
        trees = self.forest.drop_composite(key)
        self._rebuild_trees(trees, *trees)

    def _rebuild_trees(self, trees: Iterable[GroupKey], *moved: GroupKey) -> None:
        """Build those trees again in which a PodGroup or CompositePodGroup has changed; ``trees`` are the trees' keys.

        ``moved`` are groups or trees whose pods may belong to another one now, for instance because a PodGroup has got
        another CompositePodGroup as its parent. Find out for each of these pods again to which group it belongs.
        """
        for tree in trees:
            self.dirty.add(tree)
            built = self.forest.build(tree)
            if built is None:
                self.drop_group(tree)
            elif self.groups.get(tree) != built:
                self.put_group(built)
        for key in moved:
            for pod in self.members.of_group(key):
                self._join(pod)

    def put_workload(self, workload: Workload) -> None:
        """Add or replace a Workload."""
        old = self.workloads.get(workload.key)
        self.workloads[workload.key] = workload
        if workload.inline:
            self._put_inline(workload, [group for group in self.members.groups() if workload_of(group) == workload.key])
        elif old is not None and old.inline:
            self._drop_inline(workload.key)
        self._rejoin(self.membership.index_workload(old, workload))
        if self.earlier_slots.awaiting:
            self.earlier_slots.move_inherited()

    def drop_workload(self, key: Key) -> None:
        """Remove a Workload."""
        old = self.workloads.pop(key, None)
        if old is None:
            return
        owner_keys = self.membership.index_workload(old, None)
        if old.inline:
            self._drop_inline(key)
        self._rejoin(owner_keys)

    def _drop_inline(self, key: Key) -> None:
        for group in [group for group in self.groups if workload_of(group) == key]:
            self.drop_group(group)

    def put_budget(self, budget: DisruptionBudget) -> None:
        """Add or replace a PodDisruptionBudget."""
        self.budgets[budget.key] = budget
        self.budgets_in.setdefault(budget.key.namespace, {})[budget.key] = budget

    def drop_budget(self, key: Key) -> None:
        """Remove a PodDisruptionBudget."""
        if self.budgets.pop(key, None) is not None:
            here = self.budgets_in[key.namespace]
            del here[key]
            if not here:
                del self.budgets_in[key.namespace]

    def put_priority_class(self, found: PriorityClass) -> None:
        """Add or replace a PriorityClass."""
        self.drop_priority_class(found.name)
        self.priority_classes[found.name] = found
        self._touch_naming(found)

    def drop_priority_class(self, name: str) -> None:
        """Remove a PriorityClass."""
        found = self.priority_classes.pop(name, None)
        if found is not None:
            self._touch_naming(found)

    def _touch_naming(self, found: PriorityClass) -> None:
        for key in self.priorities.list_naming(found):
            self.dirty.add(key)
            self.priorities.mark_changed(key)

    def put_job(self, job: Job) -> None:
        """Add or replace a Job."""
        old = self.jobs.get(job.key)
        self.jobs[job.key] = job
        self.membership.index_job(old, job)
        if old is None:
            for pod in self.owners.pods_of(OwnerKey(JOB, job.key)):  # pods may be listed before their Job
                if pod.phase is Phase.SUCCEEDED:
                    self.endings.learn(pod)
        if old is None or _job_facts(old) != _job_facts(job):
            self._rejoin([OwnerKey(JOB, job.key)])
        elif _progress(old) != _progress(job):
            # The pods stay in their group, but the scheduling loop has to process the group.
            groups = {self.members.group_of(pod.uid) for pod in self.owners.pods_of(OwnerKey(JOB, job.key))}
            groups.update(group.key for group in self.membership.groups_controlled_by(job))
            self.dirty.update(key for key in groups if key is not None)

    def drop_job(self, key: Key) -> None:
        """Remove a Job."""
        old = self.jobs.pop(key, None)
        if old is not None:
            self.membership.index_job(old, None)
            self._rejoin([OwnerKey(JOB, key)])

    def put_parent(self, parent: Parent) -> None:
        """Add or replace a parent of pods, such as a JobSet."""
        owner_key = owner_key_of(parent)
        old = self.parents.get(owner_key)
        self.parents[owner_key] = parent
        if old != parent:
            self._rejoin([owner_key])
        if old is not None and old.suspended != parent.suspended:
            # Its pods may be gone already, so its groups, which the loop has to process, are found by their owner.
            self.dirty.update(group.key for group in self.membership.groups_controlled_by(parent))

    def drop_parent(self, owner_key: OwnerKey) -> None:
        """Remove a parent of pods, such as a JobSet."""
        if self.parents.pop(owner_key, None) is not None:
            self._rejoin([owner_key])


def _node_facts(node: Node) -> tuple[object, ...]:
    return node.allocatable, node.labels, node.taints, node.unschedulable, node.features


def _is_concerned(rule: Rule, pod: Pod) -> bool:
    """Return whether a rule has to be called for a pod, because the pod uses what the rule is about, such as volumes.

    For most pods no rule has to.
    """
    return rule.watches_all or pod.uid in rule.remembered or bool(rule.concerns(pod))


def _group_facts(group: PodGroup) -> tuple[object, ...]:
    return group.workload, group.template, group.labels.get(REPLICA), group.owners, group.deleting, group.api


def _job_facts(job: Job) -> tuple[object, ...]:
    return (
        *(job.uid, job.parallelism, job.completions, job.indexed, job.group, job.gang_policy, job.scheduler),
        *(job.owner, job.delegation, job.finished, job.deleting),
    )


def _progress(job: Job) -> tuple[object, ...]:
    return job.completed, job.given_up, job.suspended, job.ending


def is_rival(pod: Pod, profiles: Collection[str]) -> bool:
    """Return whether a waiting pod of another scheduler might use resources that Serried frees by evicting victims.

    Its scheduler must have tried it and found no node. A pod that was not tried yet does not count, because its
    scheduler may not exist. Nor does a pod of which the scheduler's message says that free resources would not help it.
    ``profiles`` are the schedulerNames of our kube-scheduler.
    """
    foreign = pod.pending and pod.unschedulable and pod.scheduler not in profiles
    return foreign and (not pod.objection or pod.wants_room)
