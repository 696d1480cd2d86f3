"""The rule about devices (`DeviceClaims`): plans count devices like resources that pods request and nodes have.

The rule follows kube-scheduler's plugin DynamicResources. The Store calls it for each pod and node, and it adds pseudo
resources for devices to the pod's requests and to the node's allocatable. The code calls them amounts. Each stands for
the devices that requests with the same class, selectors and tolerations may use, or for a union of such devices
(`DeviceUnion`). A pod requests what its claims request; a bound pod requests the devices allocated to its claims. A
node has all devices that it reaches, also those allocated to a claim that one known active pod uses alone, as this pod
requests them. Devices allocated to other claims (of several pods, or of an unknown or ended pod) are left out. So plans
see which devices are free, and which ones victims would free.

Requests for all devices of a node have pseudo resources of their own. So have claims that numbers do not describe:
those with constraints, alternatives, partitions or shared devices. What cannot be expressed like this is left to
kube-scheduler, and `Pod.uncountable` says why.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter

from serried.api.cel import Broken
from serried.api.device import (
    NOTHING,
    Amount,
    ClaimRef,
    DeviceClass,
    DeviceId,
    DeviceTaintRule,
    HypotheticalClaims,
    Request,
    ResourceClaim,
    ResourceSlice,
    SubRequest,
    decode_device_taint_rule,
    decode_resource_claim,
    decode_resource_slice,
)
from serried.api.interpod import AffinityRule, InterPodRules, share_claim
from serried.api.names import Key, is_label_value
from serried.api.node import Node
from serried.api.pod import Phase, Pod, Shape, may_fit_later
from serried.api.resources import PROVIDED
from serried.api.selectors import Terms, Toleration, intersect_terms
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, Rule, RuleChanges, RuleKind
from serried.plan.fit import admits
from serried.rules.devices.amounts import (
    Allocations,
    AllRequest,
    Alternative,
    Amounts,
    ClaimRequests,
    ClaimSet,
    CountRequest,
    Demand,
)
from serried.rules.devices.inventory import Criteria, Inventory, Match, SelectedDevices

_KINDS = (DeviceClass, ResourceSlice, ResourceClaim, DeviceTaintRule)
"""The kinds of which all objects must be known before devices are counted."""


class DeviceClaims(Rule):
    """The rule about devices: adds pseudo resources for devices to requests of pods and to allocatable of nodes.

    A pseudo resource is a name that Kubernetes does not know. Serried adds it to its own copies of pods and nodes, so
    that plans count devices as they count CPU.

    The Store owns and calls it. Without pods that claim devices it does nothing.
    """

    reads = (DeviceClass,)
    concerns = staticmethod(attrgetter("claims_devices"))

    def __init__(self, ground: Ground) -> None:
        self.claims: dict[Key, ResourceClaim] = {}
        self.inventory = Inventory(ground.nodes)
        self.kinds = self._list_kinds()

        self.known = False
        """True if all objects of `_KINDS` are known; otherwise nothing is counted."""

        self._states: dict[type, KindState] = {}
        self._reading = ""
        """A phrase about the objects that are being listed, so that pods have to wait; "" if they need not."""

        self._nodes = ground.nodes
        self._classes: Mapping[str, DeviceClass] = ground.held[DeviceClass]
        self._pods: dict[str, Pod] = {}
        self.remembered = self._pods.keys()
        self._demands: dict[str, Demand] = {}
        self._users: dict[Key, dict[str, None]] = {}
        self._leaders: dict[Key, str] = {}
        """By claim that existing pods name: the UID of its leader.

        If several pods share the claim, only the leader requests its devices.
        """

        self._holders: dict[DeviceId, Key] = {}
        self._shares: dict[DeviceId, dict[Key, tuple[Amount, ...]]] = {}
        self._reserved: dict[str, dict[Key, None]] = {}
        self._changed_pods = Due[str]()
        self._pods_of: dict[SelectedDevices, dict[str, None]] = {}
        """The UIDs of the pods that request or use devices, by set of devices."""

        self._selections_of: dict[str, frozenset[SelectedDevices]] = {}
        self._amounts = Amounts(self.inventory)
        self._keys: Counter[str] = Counter()
        """The topology keys of PodGroups that may be attributes of devices, with the number of PodGroups."""

        self._epoch = 0

    # --- pods --------------------------------------------------------------------------------------------------

    def shape_pod(self, raw: Pod, pod: Pod) -> Pod:
        """Return the pod with pseudo resources in its requests for the devices that it claims, and remember it.

        A pseudo resource is a request that Serried adds so that plans count devices like a resource. ``raw`` is the pod
        from the watch, ``pod`` is the same pod as changed by the rules before this one. A pod that claims no devices,
        or whose devices do not matter for plans (`_is_ignored`), is forgotten and returned as it is.
        """
        if not pod.claims_devices or _is_ignored(raw):
            self.forget_pod(raw)
            return pod
        if not self.known and raw.counted:
            return pod  # a pod of a recorded snapshot has its amounts already
        self.wanted = self.wanted or (raw.pending and raw.may_be_member)
        before = self._pods.get(raw.uid)
        self._pods[raw.uid] = raw
        if before is None or _claim_state(before) != _claim_state(raw):
            self._leave_claims(before)
            for key in _list_claims(raw):
                self._join_claim(key, raw)
        demand, old = self._resolve(pod), self._demands.get(raw.uid)
        if before is None or before.phase is not raw.phase or old is None or old.claim_set != demand.claim_set:
            self._mark_reserved_changed(raw.uid)
        self._amounts.register(demand, 1)
        self._release(raw.uid)
        self._demands[raw.uid] = demand
        held = self._list_held(pod) if pod.bound else None
        self._index_selections(
            raw.uid, frozenset(demand.selections).union(*(match.selections for match, _ in held or ()))
        )
        self._read_inventory()
        if not _is_counted(demand) and self.known:
            pod = replace(pod, awaits=pod.awaits or f"Serried is counting the devices that {pod.name} claims")
        return self._apply_amounts(pod, demand, held)

    def shape_hypothetical(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Pod:
        """Return a hypothetical pod, of a what-if question, with pseudo resources for the devices that it claims.

        The pod does not exist: a user asks whether it would fit. A pseudo resource is a request that Serried adds so
        that plans count devices like a resource. ``coming`` are the claims that would be created with the pod. The pod
        is not remembered.
        """
        if not pod.claims_devices:
            return pod
        self.wanted = True
        demand = self._resolve(pod, coming)
        if not _is_counted(demand):
            self.inventory.finish()
            for selection in demand.selections:
                self.inventory.release(selection)
            demand = self._resolve(pod, coming)
        # Nodes only have those pseudo resources that existing pods request.
        if demand.claim_set or demand.all_requests or demand.admin_requests:
            demand.add_uncountable("its claims ask for more than numbers of devices")
            demand.claim_set, demand.all_requests, demand.admin_requests = None, [], []
        self._amounts.register(demand, 1)
        shown = self._apply_amounts(pod, demand, None)
        self._amounts.register(demand, -1)
        return shown

    def forget_pod(self, pod: Pod) -> None:
        """Forget a deleted pod."""
        raw = self._pods.pop(pod.uid, None)
        if raw is None:
            return
        self._leave_claims(raw)
        self._changed_pods.discard(raw.uid)
        self._index_selections(raw.uid, frozenset())
        self._release(raw.uid)
        self._mark_reserved_changed(raw.uid)

    def _join_claim(self, key: Key, raw: Pod) -> None:
        users = self._users.setdefault(key, {})
        leader, alone = self._pods[self._leaders[key]] if users else None, len(users) == 1
        users[raw.uid] = None
        if leader is None or _leader_key(raw) < _leader_key(leader):
            self._leaders[key] = raw.uid
            self._note_leader(key, leader, raw)
        elif alone:
            self._changed_pods.add(leader.uid)

    def _leave_claims(self, raw: Pod | None) -> None:
        for key in _list_claims(raw) if raw is not None else ():
            discard(self._users, key, raw.uid)  # type: ignore[union-attr]
            users = self._users.get(key, {})
            if not users:
                self._leaders.pop(key, None)
            elif self._leaders[key] == raw.uid:  # type: ignore[union-attr]
                leader = min((self._pods[uid] for uid in users), key=_leader_key)
                self._leaders[key] = leader.uid
                self._note_leader(key, raw, leader)
            if len(users) == 1:
                self._changed_pods.update(users)

    def _note_leader(self, key: Key, before: Pod | None, leader: Pod) -> None:
        """Queue the pods whose requests for devices change, because the leader of a claim has changed from ``before``.

        The leader is the one pod that requests the devices of a claim that several pods share. If both leaders have the
        same gang, owner and shape, only these two are queued for `take_changes`, otherwise all pods of the claim. If
        ``before`` is None, the claim had no leader, and no pod is queued.
        """
        if before is not None and not _are_alike(before, leader):
            self._changed_pods.update(self._users[key])
        elif before is not None:
            self._changed_pods.update(uid for uid in (before.uid, leader.uid) if uid in self._users[key])

    def take_changes(self) -> RuleChanges | None:
        """Return up to AT_ONCE pods that may request other devices than before; None if there are no more."""
        self._read_inventory()
        return RuleChanges(self._changed_pods.take(AT_ONCE)) if self._changed_pods else None

    def _release(self, uid: str) -> None:
        demand = self._demands.pop(uid, None)
        if demand is not None:
            self._amounts.register(demand, -1)

    def _read_inventory(self) -> None:
        selections, self.inventory.changed_selections = self.inventory.changed_selections, set()
        if self._epoch != self.inventory.epoch or (selections and self._amounts.any_all_requests):
            self._epoch = self.inventory.epoch
            self._changed_pods.update(self._pods)
            self.inventory.mark_all_changed()
        else:
            for selection in selections:
                self._changed_pods.update(self._pods_of.get(selection, ()))
        for selection in self.inventory.take_counted():
            self._changed_pods.update(self._pods_of.get(selection, ()))

    def _index_selections(self, uid: str, selections: frozenset[SelectedDevices]) -> None:
        before = self._selections_of.pop(uid, frozenset())
        if selections:
            self._selections_of[uid] = selections
        for selection in before - selections:
            discard(self._pods_of, selection, uid)
        for selection in selections - before:
            self._pods_of.setdefault(selection, {})[uid] = None

    # --- nodes -------------------------------------------------------------------------------------------------

    def run_deferred(self) -> bool:
        """Do one piece of deferred work: find out for some devices which requests may use them.

        Return whether there was any work.
        """
        return self.inventory.run_deferred()

    def take_changed_nodes(self) -> Collection[str]:
        """Return up to AT_ONCE nodes whose devices may have changed. They need `extend_node` again."""
        self._read_inventory()
        rematched, self.inventory.rematched = self.inventory.rematched, {}
        for device in rematched:
            if (key := self._holders.get(device)) is not None:
                self._changed_pods.update(uid for uid in self.claims[key].consumers if uid in self._pods)
        return self.inventory.changed.take(AT_ONCE)

    def extend_node(self, node: Node) -> Node:
        """Return the node with pseudo resources for its devices in its allocatable.

        A pseudo resource is a resource that Serried adds so that plans count devices. Attributes of its devices that
        are a topology key of some PodGroup are added as labels. The API server's node is not changed.
        """
        if not self.known:
            return node
        if self._keys:
            node = self._add_labels(node)
        if self.inventory.find(node.name) or self._amounts.any_resources:
            amounts = self._amounts.count_node(node.name, node.allocatable, self._list_allocations(node.name))
            return replace(node, allocatable={**node.allocatable, **amounts}) if amounts else node
        return node

    def _add_labels(self, node: Node) -> Node:
        lent: dict[str, str] = {}
        for key in self._keys.keys() - node.labels.keys():
            value = self.inventory.find_attribute(node.name, *key.rsplit("/", 1))
            if isinstance(value, str | int) and not isinstance(value, bool) and is_label_value(str(value)):
                lent[key] = str(value)
        return replace(node, labels={**node.labels, **lent}) if lent else node

    def _list_allocations(self, node: str) -> Allocations:
        counted: dict[DeviceId, bool] = {}
        claim_sets: list[tuple[str, ClaimSet, Match]] = []
        for device, match in self.inventory.find(node).items():
            key = self._holders.get(device)
            for each in [key] if key is not None else self._shares.get(device, ()):
                pod = self._find_consumer(self.claims[each])
                demand = self._demands.get(pod.uid) if pod is not None else None
                if pod is not None and demand is not None and demand.claim_set is not None:
                    claim_sets.append((pod.uid, demand.claim_set, match))
                if key is not None:
                    counted[device] = demand is not None
        return Allocations(counted, claim_sets, self._holders, self._shares)

    def _find_consumer(self, claim: ResourceClaim) -> Pod | None:
        """Return the pod that uses a claim alone; None if several pods do, or if the pod is unknown or has ended."""
        pod = self._pods.get(claim.consumers[0]) if len(claim.consumers) == 1 else None
        return pod if pod is not None and pod.phase is Phase.ACTIVE else None

    # --- what there is -----------------------------------------------------------------------------------------

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - all kinds are needed
        """Handle a new state of the watch for a kind, e.g. that all its objects are known now.

        Devices are counted as soon as all DeviceClasses, ResourceSlices, ResourceClaims and DeviceTaintRules are known.
        While a kind is being listed, gangs whose members claim devices wait. DeviceTaintRules may be missing, because
        the API server 1.36 does not serve them by default. ``why`` is not used.
        """
        self._states[kind] = state
        states = {each: self._states.get(each, KindState.IDLE) for each in _KINDS}
        if KindState.IDLE in states.values():
            return
        listing = KindState.LISTING in states.values()
        if states[DeviceTaintRule] is KindState.UNSERVED:
            del states[DeviceTaintRule]
        known = not listing and set(states.values()) == {KindState.KNOWN}
        reading = "Serried is listing the devices" if listing else ""
        if (known, reading) != (self.known, self._reading):
            self.known, self._reading = known, reading
            self._changed_pods.update(self._pods)

    def note_labels(self, name: str) -> None:
        """Handle that a node was added or deleted, or has other labels: it may reach other devices."""
        self.inventory.note_node(name)

    def note_keys(self, before: Collection[str], after: Collection[str]) -> None:
        """Handle that a PodGroup had the topology keys ``before`` and has the keys ``after``.

        Attributes of devices whose name is a topology key become labels of nodes.
        """
        if before != after:
            known = set(self._keys)
            self._keys.update(key for key in after if "/" in key)
            self._keys.subtract(key for key in before if "/" in key)
            self._keys = +self._keys
            if known != set(self._keys) and self.known:
                self.inventory.mark_all_changed()

    def note_read(self, kind: type) -> None:  # noqa: ARG002 - it reads DeviceClasses only
        """Handle a change of a DeviceClass: pods that claim devices may request other devices.

        ``kind`` is always DeviceClass, the only kind that this rule reads and that is watched elsewhere.
        """
        self._changed_pods.update(self._pods)

    def _list_kinds(self) -> tuple[RuleKind, ...]:
        group, found = "resource.k8s.io", self.inventory
        slices = RuleKind(
            *(ResourceSlice, group, "v1", "resourceslices", decode_resource_slice),
            *(found.slices, found.put_slice, found.drop_slice),
            namespaced=False,
            lazy=True,
        )
        taints = RuleKind(
            *(DeviceTaintRule, group, "v1", "devicetaintrules", decode_device_taint_rule),
            *(found.taint_rules, found.put_taint_rule, found.drop_taint_rule),
            namespaced=False,
            lazy=True,
        )
        claims = RuleKind(
            *(ResourceClaim, group, "v1", "resourceclaims", decode_resource_claim),
            *(self.claims, self._put_claim, self._drop_claim),
            lazy=True,
        )
        return slices, taints, claims

    def _put_claim(self, claim: ResourceClaim) -> None:
        old = self.claims.get(claim.key)
        self.claims[claim.key] = claim
        if old is None or replace(old, version=claim.version) != claim:
            self._index(old, claim)

    def _drop_claim(self, key: Key) -> None:
        old = self.claims.pop(key, None)
        if old is not None:
            self._index(old, None)

    def _index(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim in filter(None, (old, new)):
            self._changed_pods.update(self._users.get(claim.key, {}))
            self._changed_pods.update(uid for uid in claim.consumers if uid in self._pods)
            self._mark_changed(claim)
        if old is not None:
            self._remove_devices(old)
            for uid in old.consumers:
                discard(self._reserved, uid, old.key)
        if new is not None:
            self._add_devices(new)
            for uid in new.consumers:
                self._reserved.setdefault(uid, {})[new.key] = None

    def _add_devices(self, claim: ResourceClaim) -> None:
        self._holders.update(dict.fromkeys(claim.devices, claim.key))
        for device, takes in claim.shares:
            before = self._shares.setdefault(device, {}).get(claim.key, ())
            self._shares[device][claim.key] = (*before, *takes)

    def _remove_devices(self, claim: ResourceClaim) -> None:
        for device in claim.devices:
            if self._holders.get(device) == claim.key:
                del self._holders[device]
        for device in dict.fromkeys(device for device, _ in claim.shares):
            del self._shares[device][claim.key]
            if not self._shares[device]:
                del self._shares[device]

    def _mark_changed(self, claim: ResourceClaim) -> None:
        for pool in {device.pool for device in (*claim.devices, *(device for device, _ in claim.shares))}:
            self.inventory.changed.update(self.inventory.nodes_of(pool))

    def _mark_reserved_changed(self, uid: str) -> None:
        for key in self._reserved.get(uid, ()):
            self._mark_changed(self.claims[key])

    # --- claims ------------------------------------------------------------------------------------------------

    def _resolve(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Demand:
        demand = Demand()
        if not self.known:
            return demand
        for ref in pod.claim_refs:
            self._add_claim(demand, pod, ref, coming)
        if not pod.bound or not self._reserved.get(pod.uid):
            self._add_resources(demand, pod)
        if _is_searched(demand):
            demand.claim_set = ClaimSet(
                tuple(demand.specs), any(selection.searched and selection.limited for selection in demand.selections)
            )
            demand.add_uncountable(
                "its devices can be chosen in too many ways" if demand.claim_set in self._amounts.too_complex else ""
            )
        for selection in demand.selections:
            demand.add_uncountable(selection.uncertain)
            failure = (
                self.inventory.find_failure(selection, partial(admits, pod.shape)) if not demand.obstacle else None
            )
            if failure is not None:
                said, node = failure
                demand.obstacle = f"the selector {said} (node {node})"
        return demand

    def _add_claim(self, demand: Demand, pod: Pod, ref: ClaimRef, coming: HypotheticalClaims) -> None:
        key = Key(pod.namespace, ref.claim)
        claim = self.claims.get(key, coming.devices.get(key))
        if claim is None and ref.template:
            spec = coming.templates.get(key._replace(name=ref.template))
            if spec is None:
                demand.add_uncountable(f"no claim is made yet from ResourceClaimTemplate {ref.template}")
                return
            claim = ResourceClaim(key._replace(name=f"from template {ref.template}"), "", spec)
        if claim is None or claim.deleting:
            why = "does not exist" if claim is None else "is being deleted"
            demand.obstacle = demand.obstacle or f"ResourceClaim {ref.claim} {why}"
            return
        origin = f"template {ref.template}" if ref.template else "claim"
        if claim.allocated and claim.consumers != (pod.uid,):
            demand.counted[origin] += 1
            if claim.terms is not None:
                demand.terms.append(claim.terms)
        elif not claim.allocated and key in coming.shared:
            demand.add_uncountable(f"several of them name ResourceClaim {ref.claim}")
        elif not claim.allocated and len(self._users.get(key, ())) > 1:
            self._add_shared(demand, pod, claim, self._pods[self._leaders[key]])
            demand.counted[origin] += not demand.uncountable
        elif self._add_spec(demand, claim):
            demand.counted[origin] += 1

    def _add_shared(self, demand: Demand, pod: Pod, claim: ResourceClaim, leader: Pod) -> None:
        """Add an unallocated claim, which several pods share, to the ``demand`` of one of them.

        The demand is all devices that this pod requests. When the first of the sharing pods is scheduled, its node's
        devices are allocated for all. So only one pod, the ``leader``, requests the devices, and all of them get an
        affinity to each other, by which they are placed on one node. Pods with the same gang, owner and shape as the
        leader are placed after the leader (``Demand.follows``). For pods with other requests or constraints other nodes
        may be feasible, so any of them may be the first.
        """
        rest, leads = Demand(), pod.uid == leader.uid
        self._add_spec(demand if leads else rest, claim)
        demand.selections += rest.selections
        demand.obstacle = demand.obstacle or rest.obstacle
        demand.add_uncountable(rest.uncountable)
        if pod.shape.neighbours is not None and pod.shape.neighbours.beside is not None:
            demand.add_uncountable("pods that share a claim have affinity to others, too")
        elif demand.shared_claim not in {None, claim.key}:
            demand.add_uncountable("pods share several claims")
        else:
            demand.shared_claim = claim.key
            demand.follows = not leads and _are_alike(self._pods.get(pod.uid, pod), leader)

    def _add_spec(self, demand: Demand, claim: ResourceClaim) -> bool:
        """Add the requests of a claim to ``demand``, which holds all devices that a pod requests.

        Return whether Serried can count all of them, as resources that it adds to its own copies of pods and nodes.
        """
        spec = claim.spec
        if demand.add_uncountable(spec.unsupported and f"a claim asks for {spec.unsupported}"):
            return False
        demand.unallocated = demand.unallocated or not claim.allocated
        requests = [(request.name, self._add_request(demand, claim, request)) for request in spec.requests]
        named = any(each.requests for each in spec.constraints)
        demand.specs.append(
            ClaimRequests(tuple((name if named else "", options) for name, options in requests), spec.constraints)
        )
        return not demand.uncountable

    def _add_request(self, demand: Demand, claim: ResourceClaim, request: Request) -> tuple[Alternative, ...]:
        """Add one request of a claim to ``demand``, which holds all devices that a pod requests.

        The alternatives are the entries of the request's ``firstAvailable``, or its only one (``exactly``). If they are
        for different numbers of devices, the smallest number is added. Return those whose DeviceClass exists and whose
        selectors are valid.
        """
        options = []
        for ask in request.alternatives:
            selection = self._find_selection(demand, claim, ask)
            tainted = (
                self._find_selection(demand, claim, replace(ask, tolerations=TOLERATES_ALL)) if not ask.count else None
            )
            if selection is not None:
                options.append(Alternative(selection, tainted, ask.count, ask.admin, ask.capacity, ask.name))
        if len(options) < len(request.alternatives) or not all(option.selection.limited for option in options):
            return tuple(options)
        need = CountRequest(frozenset(option.selection for option in options), min(option.number for option in options))
        first = options[0]
        if first.admin:
            demand.admin_requests.append(replace(need, count=max(1, need.count)))
        elif need.count:
            (demand.held_requests if claim.allocated else demand.count_requests).append(need)
        elif len(options) == 1 and first.tainted is not None:
            demand.all_requests.append(AllRequest(first.selection, first.tainted))
        return tuple(options)

    def _find_selection(self, demand: Demand, claim: ResourceClaim, ask: SubRequest) -> SelectedDevices | None:
        found = self._classes.get(ask.device_class)
        if found is None:
            why = f"ResourceClaim {claim.key.name} names DeviceClass {ask.device_class}, which does not exist"
            demand.obstacle = demand.obstacle or why
            return None
        try:
            selection = self.inventory.acquire(Criteria(found.name, found.selectors, ask.selectors, ask.tolerations))
        except Broken as error:
            demand.obstacle = demand.obstacle or f"the selector {error}"
            return None
        demand.selections.append(selection)
        return selection

    def _add_resources(self, demand: Demand, pod: Pod) -> None:
        """Add the extended resources of a pod that devices of a DeviceClass provide to ``demand``.

        ``demand`` holds all devices that the pod requests.
        """
        for name, count in pod.shape.requests:
            resource = name.removeprefix(PROVIDED)
            if resource not in pod.uncounted:
                continue
            classes = [found for found in self._classes.values() if resource in found.provides]
            if len(classes) != 1:
                demand.add_uncountable(
                    "several DeviceClasses name a resource" if classes else "no DeviceClass provides a resource"
                )
                continue
            try:
                selection = self.inventory.acquire(Criteria(classes[0].name, classes[0].selectors, (), ()))
            except Broken as error:
                demand.obstacle = demand.obstacle or f"the selector {error}"
                continue
            demand.selections.append(selection)
            option = Alternative(selection, None, count, admin=False, capacity=(), name="")
            demand.specs.append(ClaimRequests((("", (option,)),), (), resource))
            demand.unallocated = True
            if selection.limited:
                demand.count_requests.append(CountRequest(frozenset([selection]), count))
                demand.resources.append((selection, resource))

    # --- shapes ------------------------------------------------------------------------------------------------

    def _apply_amounts(self, pod: Pod, demand: Demand, held: list[tuple[Match, bool]] | None) -> Pod:
        if not self.known:
            return replace(pod, obstacle=pod.obstacle or self._reading)
        amounts = self._amounts.count_demand(demand, held)
        terms = tuple(dict.fromkeys(demand.terms))
        shape = _count_shape(pod.shape, tuple(sorted(demand.counted.items())), tuple(sorted(amounts.items())), terms)
        if demand.shared_claim is not None and not demand.uncountable:
            shape = _add_affinity(shape, replace(share_claim(*demand.shared_claim), follows=demand.follows))
        return replace(
            pod,
            shape=shape,
            counted=not demand.uncountable,
            uncountable=demand.uncountable or pod.uncountable,
            obstacle=pod.obstacle or demand.obstacle,
            wants_room=pod.wants_room or (bool(pod.objection) and may_fit_later(pod.objection, shape)),
        )

    def _list_held(self, pod: Pod) -> list[tuple[Match, bool]]:
        """Return the devices that are allocated to a bound pod, in claims that no other pod uses.

        Each is given by its `Match` (which requests may use it), and True if the pod has only a share of it.
        """
        matches = self.inventory.find(pod.node)
        claims = [self.claims[key] for key in self._reserved.get(pod.uid, ())]
        own = [claim for claim in claims if claim.consumers == (pod.uid,)]
        held = [(device, False) for claim in own for device in claim.devices]
        held += [(device, True) for claim in own for device, _ in claim.shares]
        return [(matches[device], shared) for device, shared in held if device in matches]


def _is_ignored(pod: Pod) -> bool:
    """Return whether the devices of a pod do not matter for plans: it is pending, not nominated, and names no group."""
    return pod.pending and not pod.may_be_member and not pod.nominated


def _list_claims(pod: Pod) -> list[Key]:
    """Return the keys of a pod's claims. Those that still have to be created from their template are left out."""
    return [Key(pod.namespace, ref.claim) for ref in pod.claim_refs if ref.claim]


def _is_counted(demand: Demand) -> bool:
    """Return whether all devices that a pod requests, ``demand``, are counted on all nodes already.

    That needs time: each device has to be checked against the selectors of the request.
    """
    return all(selection.counted for selection in demand.selections)


def _is_searched(demand: Demand) -> bool:
    """Return whether a search as in kube-scheduler has to find the devices of a pod, because numbers do not suffice."""
    if demand.uncountable or demand.obstacle or not demand.specs:
        return False
    options = [options for spec in demand.specs for _, options in spec.requests]
    return (
        any(spec.constraints for spec in demand.specs)
        or any(selection.searched for selection in demand.selections)
        or any(len({option.number or None for option in each}) > 1 for each in options)
        or any(option.capacity or (not option.number and len(each) > 1) for each in options for option in each)
        or (len(options) > 1 and any(option.admin or not option.number for each in options for option in each))
    )


def _leader_key(pod: Pod) -> tuple[bool, str, str]:
    """Return the sort key of a pod among those that share a claim. Pods that can still be scheduled come first.

    The first of all pods is the leader, which requests the devices for all.
    """
    return pod.phase is not Phase.ACTIVE or pod.deleting or pod.gated_by_others, pod.name, pod.uid


def _are_alike(one: Pod, other: Pod) -> bool:
    """Return whether two pods have the same group, owner and shape, so that the same nodes are feasible for both."""
    return (one.group, one.owner, one.shape) == (other.group, other.owner, other.shape)


def _claim_state(pod: Pod) -> tuple[object, ...]:
    """Return the properties of a pod that decide if it is the leader of a shared claim, or is placed after the leader.

    The leader is the one pod that requests the devices for all pods of the claim.
    """
    return pod.claim_refs, _leader_key(pod), pod.group, pod.owner, pod.shape


TOLERATES_ALL = (Toleration("", "Exists", "", ""),)


@lru_cache(maxsize=1024)
def _add_affinity(shape: Shape, affinity: AffinityRule) -> Shape:
    requests = tuple(sorted((*shape.requests, (affinity.matching.amount, 1))))
    return replace(shape, requests=requests, neighbours=replace(shape.neighbours or InterPodRules(), beside=affinity))


_Counted = tuple[tuple[str, int], ...]


@lru_cache(maxsize=1024)
def _count_shape(shape: Shape, less: _Counted, more: _Counted, terms: tuple[Terms, ...]) -> Shape:
    """Return a pod's shape (requests and constraints) in which its claims request devices, and not placeholders.

    A placeholder is a resource of which a pod requests 1 for each claim at first. It is unlimited on each node, so only
    kube-scheduler decides. ``less`` are the placeholders to take out, as pairs of origin and number: the origin is
    "claim", or "template" and the template's name. ``more`` are the pseudo resources to add, as pairs of name and
    amount: Serried adds them so that plans count devices. The pod's node affinity becomes stricter: a node must match
    all ``terms``, too.
    """
    amounts: Counter[str] = Counter(dict(shape.requests))
    amounts.subtract({PROVIDED + origin: count for origin, count in less})
    amounts.update(dict(more))
    node_terms = shape.node_terms
    for each in terms:
        node_terms = intersect_terms(node_terms, each)
    requests = tuple(sorted((name, amount) for name, amount in amounts.items() if amount > 0))
    return replace(shape, requests=requests, node_terms=node_terms)
