"""Restricts pods to nodes that their volume claims allow (`Volumes`), by the rules of kube-scheduler 1.37.

The Store calls `Volumes` for each pod with volume claims.

- VolumeBinding: the volume of a bound claim determines which nodes reach it. A claim that waits for its first consumer
  may get any fitting volume (FindMatchingVolume), or one that is provisioned where its StorageClass, and the capacity
  reported by the driver, allow it. Any other claim must be bound first.
- VolumeZone: the zone labels of a volume must be those of the node, if the node has any.
- NodeVolumeLimits: the limit of a node for a driver's volumes counts like a resource (`serried.rules.volumes.supply`).
- VolumeRestrictions: only one pod may use a ReadWriteOncePod claim. A pod of lower priority may be preempted for it.

Objects that Serried cannot read do not restrict anything. Then kube-scheduler may reject a planned node, and the member
is planned again without that node.
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

from serried.api.device import NOTHING, HypotheticalClaims
from serried.api.names import Key, count_things
from serried.api.node import Node
from serried.api.pod import Pod, Shape, may_fit_later
from serried.api.priority import PreemptionPolicy
from serried.api.resources import ATTACHED, ONCE, SHARES
from serried.api.selectors import MAX_TERMS, NodeSelectorTerm, Requirement, Terms, intersect_terms
from serried.api.volume import (
    READ_WRITE_ONCE_POD,
    SHARED,
    ZONE_LABELS,
    ClaimRequirements,
    CSIDriver,
    CSINode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeChoice,
    VolumeClaim,
    decode_csi_driver,
    decode_csi_node,
    decode_storage_capacity,
    decode_storage_class,
    decode_volume,
    decode_volume_claim,
)
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, Rule, RuleChanges, RuleKind
from serried.rules.volumes.supply import AllowedNodes, Attachments, Supply, at_node, unite

Storage: TypeAlias = VolumeClaim | Volume | StorageClass | StorageCapacity | CSIDriver | CSINode
"""The kinds of objects about storage."""

_LAZY = (StorageClass, StorageCapacity, CSIDriver, CSINode)
"""The kinds that are watched only once a pending pod that may be a gang member mounts a volume claim."""

_Put = Callable[[Any], list[Pod]]
_Drop = Callable[[Any], list[Pod]]


class Volumes(Rule):
    """The rule about volume claims: restricts a pod to nodes on which its claims get their volumes.

    It also adds to the pod what its claims request of the volume limits of nodes, and the claims for which a plan has
    to choose a volume. A pod with claims is remembered while it is pending or bound. Pods without claims cost nothing.
    The Store owns and calls it.
    """

    concerns = staticmethod(attrgetter("claims"))

    def __init__(self, ground: Ground) -> None:
        self._nodes = ground.nodes
        self.supply = Supply()
        self.attachments = Attachments()
        self.claims: dict[Key, VolumeClaim] = {}
        self.reading = False
        """True while a kind of `_LAZY`, such as StorageClass, is being listed, so that pods with claims wait."""

        self._listing: set[type] = set()
        self.kinds = self._list_kinds()
        self._pods: dict[str, Pod] = {}
        self.remembered = self._pods.keys()
        self._users: dict[Key, dict[str, None]] = {}
        self._claims_of: dict[str, dict[Key, None]] = {}
        self._unbound: dict[str, dict[Key, None]] = {}
        self._changed_pods = Due[str]()
        self._on: dict[str, dict[str, None]] = {}
        self._changed_nodes = Due[str]()
        self._may_fit = Due[str]()

    # --- pods ---------------------------------------------------------------------------------------------------

    def shape_pod(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - the result of the rules before is remembered
        """Return the pod restricted to nodes on which its volume claims get their volumes, and remember it.

        ``pod`` is the pod as changed by the rules before this one; ``raw``, the pod from the watch, is not used.
        """
        if not pod.claims:
            return pod
        self.wanted = self.wanted or (pod.pending and pod.may_be_member)
        self._note(pod.uid, pod if pod.pending or pod.bound else None)
        shared = {key for key in _keys(pod) if self._is_shared(key)}
        return self._restrict_pod(pod, self._list_known(pod), shared, self._find_missing(pod, _keys(pod)))

    def shape_hypothetical(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Pod:
        """Return a pod of a what-if question restricted to nodes on which its volume claims get their volumes.

        ``coming`` are the claims that would be created with it. The pod is not remembered.
        """
        if not pod.claims:
            return pod
        self.wanted = True
        there = ChainMap(self.claims, dict(coming.volumes))
        known = [there[key] for key in _keys(pod) if key in there]
        left = next((why for claim in known if (why := self._find_unknown(claim, coming))), "")
        missing = next((key.name for key in _keys(pod) if key not in there), "")
        if missing:
            left = (
                f"volume claim {missing} does not exist, so Serried cannot tell where its volume will be: send "
                "the claim, too"
            )
        shared = {key for key in _keys(pod) if key in coming.shared or self._is_shared(key)}
        counted = [claim for claim in known if claim.volume or not self._find_unknown(claim, coming)]
        return replace(self._restrict_pod(pod, counted, shared, ""), uncountable=left)

    def _find_unknown(self, claim: VolumeClaim, coming: HypotheticalClaims) -> str:
        """Return a phrase why it is not known on which nodes a claim of a what-if question gets a volume; "" if it is.

        ``coming`` are the claims that would be created with the pod. If their StorageClass does not wait for a
        consumer, their volumes may be provisioned anywhere.
        """
        if claim.volume:
            return ""
        name = claim.key.name
        if StorageClass not in self.supply.seen:
            return (
                f"Serried cannot tell where volume claim {name} can be before it has listed the StorageClasses: "
                "ask again"
            )
        found = self.supply.classes.get(claim.wish.storage_class)
        if found is not None and not found.waits_for_consumer and claim.key in coming.volumes:
            return (
                f"Serried cannot tell where volume claim {name} will be, because StorageClass {found.name} does "
                "not wait for the first consumer"
            )
        return ""

    def forget_pod(self, pod: Pod) -> None:
        """Forget a deleted pod."""
        if pod.uid in self._pods:
            self._note(pod.uid, None)

    def take_changes(self) -> RuleChanges | None:
        """Return up to AT_ONCE pods that need `shape_pod` again, and waiting pods for which a volume has become free.

        The latter are up to AT_ONCE as well (``members`` of the result). None if there are no more.
        """
        if not (self._changed_pods or self._may_fit):
            return None
        return RuleChanges(self._changed_pods.take(AT_ONCE), members=self._may_fit.take(AT_ONCE))

    def take_changed_nodes(self) -> Collection[str]:
        """Return and forget up to AT_ONCE nodes that need `extend_node` again.

        Their volume limits have changed, or the volumes that several of their pods share.
        """
        return self._changed_nodes.take(AT_ONCE)

    def extend_node(self, node: Node) -> Node:
        """Return the node with its volume limit for each CSI driver added to its allocatable.

        So volumes count like a resource: Serried adds to each pod a request for the volumes of a driver that the pod
        mounts. Volumes that several pods on the node share are subtracted from the limit instead.
        """
        pods = (self._pods[uid] for uid in self._on.get(node.name, ()))
        claims = {claim.key: claim for pod in pods for claim in self._list_known(pod) if self._is_shared(claim.key)}
        return self.attachments.add_limits(node, Counter(self.supply.find_driver(claim) for claim in claims.values()))

    def list_caveats(self, pods: Collection[Pod]) -> Iterable[str]:
        """Yield a phrase for messages if some of these pods mount volume claims that are not bound yet."""
        unbound = sum(any(key in self.claims and not self.claims[key].volume for key in _keys(pod)) for pod in pods)
        if unbound:
            yield f"{count_things(unbound, 'member', 'mount')} volume claims that are not bound yet"

    def _restrict_pod(self, pod: Pod, known: list[VolumeClaim], shared: Collection[Key], missing: str) -> Pod:
        """Return the pod restricted to nodes on which its claims get their volumes.

        ``known`` are its existing claims, ``shared`` the keys of those that several pods mount. ``missing`` is a phrase
        why the pod fits on no node, for instance a claim that does not exist; "" without such a reason.
        """
        reaches = [self.supply.find_allowed_nodes(claim, shared=claim.key in shared) for claim in known]
        users = [self._restrict_once(pod, claim) for claim in known if claim.is_single_pod]
        obstacles = (missing, *(each.obstacle for each in (*reaches, *users)))
        shape = pod.shape
        for terms in dict.fromkeys(each.terms for each in (*reaches, *users)):
            if terms is not None:
                shape = _restrict(shape, terms)
        zones = self._find_zones(pod, known)
        if zones is not None:
            shape = _restrict(shape, zones)
        amounts = self._find_amounts(known, shared) if pod.pending or pod.bound else ()
        choices = self._find_choices(known, shared) if pod.pending else ()
        if choices:
            shape = _add_choices(shape, choices)
        if amounts:
            shape = _add_requests(shape, amounts)
        obstacle = next(filter(None, obstacles), "")
        if shape is pod.shape and not obstacle:
            return pod
        wants_room = pod.wants_room or bool(
            (amounts or choices) and pod.objection and may_fit_later(pod.objection, shape)
        )
        outranked = any(each.by_member for each in users)
        return replace(pod, shape=shape, obstacle=obstacle, outranked=outranked, wants_room=wants_room)

    def _find_missing(self, pod: Pod, keys: list[Key]) -> str:
        if VolumeClaim not in self.supply.seen:
            return ""
        if self.reading:
            return "Serried is reading the storage of the cluster"
        for key in keys:
            claim, own = self.claims.get(key), key.name in pod.own_claims
            if claim is None:
                return f"volume claim {key.name} {'is still to be made' if own else 'does not exist'}"
            if own and claim.owner != pod.uid:
                return f"volume claim {key.name} was not made for this pod"
        return ""

    def _find_zones(self, pod: Pod, claims: list[VolumeClaim]) -> Terms | None:
        """Return the nodes that kube-scheduler's VolumeZone leaves a pod, by the zones of its bound volumes.

        None for all nodes. Claims of ephemeral volumes do not count, as upstream.
        """
        named = (claim for claim in claims if claim.volume and claim.key.name not in pod.own_claims)
        volumes = (self.supply.volumes.get(claim.volume) for claim in named)
        zones = dict.fromkeys(zone for volume in volumes if volume is not None for zone in volume.zones)
        return _in_zones(tuple(zones)) if zones else None

    # --- claims that one pod may use ----------------------------------------------------------------------------

    def _restrict_once(self, pod: Pod, claim: VolumeClaim) -> AllowedNodes:
        """Return the nodes on which a pod may use its ReadWriteOncePod claim, which only one pod may use at a time.

        If bound pods of lower priority use it, these are their nodes, because the pod may preempt them there. If a pod
        uses it that cannot be preempted, or if an older member of the same gang mounts it, there are none.
        """
        others = [self._pods[uid] for uid in self._users.get(claim.key, ()) if uid != pod.uid]
        if not others or not pod.pending:
            return AllowedNodes()
        said = f"volume claim {claim.key.name} is {READ_WRITE_ONCE_POD}, and"
        users = [other for other in others if other.bound]
        stays = pod.preemption is PreemptionPolicy.NEVER
        lasting = next((user for user in users if stays or user.priority >= pod.priority), None)
        if lasting is not None:
            return AllowedNodes(obstacle=f"{said} {lasting.name} uses it")
        if users:
            return AllowedNodes(unite(at_node(user.node) for user in users))
        later = any(_are_in_one_gang(mate, pod) and _precedence(mate) < _precedence(pod) for mate in others)
        return AllowedNodes(
            obstacle=f"{said} another member of the gang mounts the claim, too" if later else "", by_member=later
        )

    def _find_amounts(self, claims: list[VolumeClaim], shared: Collection[Key]) -> tuple[tuple[str, int], ...]:
        """Return the requests that Serried adds to a pod with these claims, as (name, amount) pairs.

        By them, claims count like resources of the node. They are for ReadWriteOncePod claims that several pods mount,
        one of them bound, and for drivers with volume limits. ``shared`` are the keys of the claims that several pods
        mount.
        """
        once = (claim.key for claim in claims if claim.is_single_pod)
        amounts = [(f"{ONCE}{key.namespace}/{key.name}", SHARES) for key in once if self._is_contested(key)]
        limited = self.attachments.limited
        if limited:
            drivers = {claim.key: self.supply.find_driver(claim) for claim in claims}
            attached = Counter(driver for key, driver in drivers.items() if key not in shared)
            amounts += [(ATTACHED + driver, count) for driver, count in attached.items() if driver in limited]
            common = [(key, driver) for key, driver in drivers.items() if driver in limited and key in shared]
            amounts += [(f"{ATTACHED}{driver}{SHARED}{key}", 1) for key, driver in common]
        return tuple(amounts)

    def _find_choices(self, claims: list[VolumeClaim], shared: Collection[Key]) -> tuple[VolumeChoice, ...]:
        sharing = [str(claim.key) if claim.key in shared else "" for claim in claims]
        found = [self.supply.find_choice(claim, said) for claim, said in zip(claims, sharing, strict=True)]
        return tuple([choice for choice in found if choice is not None])

    def _is_shared(self, key: Key) -> bool:
        return len(self._users.get(key, ())) > 1

    def _list_known(self, pod: Pod) -> list[VolumeClaim]:
        return [claim for key in _keys(pod) if (claim := self.claims.get(key)) is not None]

    def _is_contested(self, key: Key) -> bool:
        users = self._users.get(key, ())
        return len(users) > 1 and any(self._pods[uid].bound for uid in users)

    # --- who mounts what ----------------------------------------------------------------------------------------

    def _note(self, uid: str, pod: Pod | None) -> None:
        old = self._pods.pop(uid, None)
        if pod is not None:
            self._pods[uid] = pod
        known = pod or old
        if known is None:
            return
        self._move_pod(old, pod)
        for key in _keys(known):
            before = len(self._users.get(key, ()))
            if pod is None:
                discard(self._users, key, uid)
            else:
                self._users.setdefault(key, {})[uid] = None
            if {before, len(self._users.get(key, ()))} == {1, 2}:
                others = [self._pods[other] for other in self._users[key] if other != uid]
                self._changed_pods.update(other.uid for other in others)
                self._note_nodes(others)
            if _node_state(old) != _node_state(pod) and key in self.claims and self.claims[key].is_single_pod:
                self._note_other_users(key, known)

    def _move_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Update which pods with claims are on each node, as a pod was bound or has ended.

        ``old`` is the pod before the change, None if it is new; ``new`` is the pod now, None if it has ended.
        """
        before, now = (pod.node if pod is not None and pod.bound else "" for pod in (old, new))
        known = new or old
        if before == now or known is None:
            return
        if before:
            discard(self._on, before, known.uid)
        if now:
            self._on.setdefault(now, {})[known.uid] = None
        if self.attachments.limited:
            self._changed_nodes.update(name for name in (before, now) if name)

    def _note_other_users(self, key: Key, pod: Pod) -> None:
        others = [self._pods[uid] for uid in self._users.get(key, ()) if uid != pod.uid]
        waiting = [other for other in others if not other.bound]
        if not pod.bound and waiting:
            others = [min(waiting, key=_precedence), *(other for other in others if other.bound)]
        self._changed_pods.update(other.uid for other in others)

    def _users_of(self, claims: Iterable[Key]) -> list[Pod]:
        uids = dict.fromkeys(uid for key in claims for uid in self._users.get(key, ()))
        return [self._pods[uid] for uid in uids]

    # --- objects of storage -------------------------------------------------------------------------------------

    def _list_kinds(self) -> tuple[RuleKind, ...]:
        supply, group = self.supply, "storage.k8s.io"
        claims = self.claims, self._put_claim, self._drop_claim
        volumes = supply.volumes, self._put_volume, self._drop_volume
        classes = supply.classes, self._put_class, self._drop_class
        capacities = supply.capacities, self._put_capacity, self._drop_capacity
        drivers = supply.drivers, self._put_driver, self._drop_driver
        nodes = self.attachments.nodes, self._put_csi_node, self._drop_csi_node
        return (
            self._make_kind(VolumeClaim, "", "persistentvolumeclaims", decode_volume_claim, claims, namespaced=True),
            self._make_kind(Volume, "", "persistentvolumes", decode_volume, volumes),
            self._make_kind(StorageClass, group, "storageclasses", decode_storage_class, classes),
            self._make_kind(
                StorageCapacity, group, "csistoragecapacities", decode_storage_capacity, capacities, namespaced=True
            ),
            self._make_kind(CSIDriver, group, "csidrivers", decode_csi_driver, drivers),
            self._make_kind(CSINode, group, "csinodes", decode_csi_node, nodes),
        )

    def _make_kind(
        self,
        kind: type[Storage],
        group: str,
        plural: str,
        decode: Callable[[object], Any],
        about: tuple[Mapping[Any, Any], _Put, _Drop],
        *,
        namespaced: bool = False,
    ) -> RuleKind:
        held, put, drop = about
        return RuleKind(
            *(kind, group, "v1", plural, decode, held),
            put=lambda item: self._note_pods(put(item)),
            drop=lambda key: self._note_pods(drop(key)),
            namespaced=namespaced,
            lazy=kind in _LAZY,
        )

    def _note_pods(self, pods: list[Pod]) -> None:
        """Queue pods whose possible nodes may have changed, and their nodes, whose shared volumes may have changed."""
        self._changed_pods.update(pod.uid for pod in pods)
        self._note_nodes(pods)

    def _note_nodes(self, pods: list[Pod]) -> None:
        if self.attachments.limited:
            self._changed_nodes.update(pod.node for pod in pods if pod.bound)

    # --- claims -------------------------------------------------------------------------------------------------

    def _put_claim(self, claim: VolumeClaim) -> list[Pod]:
        old = self.claims.get(claim.key)
        self.claims[claim.key] = claim
        if old is not None and replace(old, version=claim.version) == claim:
            return []
        self._index(old, claim)
        return self._users_of([claim.key])

    def _drop_claim(self, key: Key) -> list[Pod]:
        old = self.claims.pop(key, None)
        self._index(old, None)
        return self._users_of([key])

    def _index(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        if old is not None:
            discard(*self._find_place(old), old.key)
        if new is not None:
            index, place = self._find_place(new)
            index.setdefault(place, {})[new.key] = None
        if old is not None and not old.volume and old.wish.storage_class not in self._unbound:
            self.supply.update_class(old.wish.storage_class, ())  # the class has no unbound claims any more

    def _find_place(self, claim: VolumeClaim) -> tuple[dict[str, dict[Key, None]], str]:
        """Return where a claim is found again: the index that holds it, and the name under which it is there.

        A claim with a volume is in the index by volume, under the volume's name. Any other claim is in the index of
        unbound claims, under the name of its StorageClass.
        """
        return (self._claims_of, claim.volume) if claim.volume else (self._unbound, claim.wish.storage_class)

    # --- what there is for them ---------------------------------------------------------------------------------

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - its obstacles have phrases of their own
        """Handle a new state of the watch for a kind: only kinds of which all objects are known restrict pods.

        ``why`` is not used.
        """
        (self._listing.add if state is KindState.LISTING and kind in _LAZY else self._listing.discard)(kind)
        if self.reading is not bool(self._listing):
            self.reading = bool(self._listing)
            self._changed_pods.update(self._pods)
        if state in {KindState.IDLE, KindState.LISTING} or (state is KindState.KNOWN) is (kind in self.supply.seen):
            return
        (self.supply.seen.add if state is KindState.KNOWN else self.supply.seen.discard)(kind)
        self.attachments.are_known = CSINode in self.supply.seen
        if kind is CSINode and self.attachments.required:
            self._changed_nodes.update(self._nodes)
        for name in list(self._unbound):
            self._update_class(name)
        self._changed_pods.update(self._pods)

    def _update_class(self, name: str) -> set[ClaimRequirements]:
        return self.supply.update_class(name, {self.claims[key].wish for key in self._unbound.get(name, ())})

    def _put_volume(self, volume: Volume) -> list[Pod]:
        old = self.supply.put_volume(volume)
        if old is not None and replace(old, version=volume.version) == volume:
            return []
        return self._note_volume(old, volume)

    def _drop_volume(self, name: str) -> list[Pod]:
        return self._note_volume(self.supply.drop_volume(name), None)

    def _note_volume(self, old: Volume | None, new: Volume | None) -> list[Pod]:
        states = [each for each in (old, new) if each is not None]
        claims = {key: None for each in states for key in (*self._claims_of.get(each.name, ()), each.claim) if key}
        for name in {each.storage_class for each in states}:
            changed = self._update_class(name)
            came = new is not None and new.available and new.storage_class == name
            unbound = self._unbound.get(name, ())
            claims.update((key, None) for key in unbound if changed and self.claims[key].wish in changed)
            if came:
                self._may_fit.update(uid for key in unbound for uid in self._users.get(key, ()))
        return self._users_of(claims)

    def _put_class(self, found: StorageClass) -> list[Pod]:
        old = self.supply.classes.get(found.name)
        self.supply.classes[found.name] = found
        return self._note_class(found.name) if old is None or replace(old, version=found.version) != found else []

    def _drop_class(self, name: str) -> list[Pod]:
        self.supply.classes.pop(name, None)
        return self._note_class(name)

    def _note_class(self, name: str) -> list[Pod]:
        self._update_class(name)
        return self._users_of(self._unbound.get(name, ()))

    def _put_capacity(self, capacity: StorageCapacity) -> list[Pod]:
        self.supply.put_capacity(capacity)
        return self._note_classes([capacity.storage_class])

    def _drop_capacity(self, key: Key) -> list[Pod]:
        old = self.supply.capacities.get(key)
        self.supply.drop_capacity(key)
        return self._note_classes([old.storage_class] if old is not None else [])

    def _put_driver(self, driver: CSIDriver) -> list[Pod]:
        self.supply.drivers[driver.name] = driver
        return self._require(driver.name, required=driver.is_required) or self._note_driver(driver.name)

    def _drop_driver(self, name: str) -> list[Pod]:
        self.supply.drivers.pop(name, None)
        return self._require(name, required=False) or self._note_driver(name)

    def _require(self, driver: str, *, required: bool) -> list[Pod]:
        """Set whether pods with volumes of a driver need a node that has the driver (a CSINode lists it).

        Return the pods that have to be updated: all with claims if that has changed, else none.
        """
        if not self.attachments.require(driver, required=required):
            return []
        self._changed_nodes.update(self._nodes)
        self._note_driver(driver)
        return list(self._pods.values())

    def _put_csi_node(self, found: CSINode) -> list[Pod]:
        self._changed_nodes.add(found.name)
        return list(self._pods.values()) if self.attachments.put(found) else []

    def _drop_csi_node(self, name: str) -> list[Pod]:
        self._changed_nodes.add(name)
        return list(self._pods.values()) if self.attachments.drop(name) else []

    def _note_driver(self, name: str) -> list[Pod]:
        return self._note_classes([each.name for each in self.supply.classes.values() if each.provisioner == name])

    def _note_classes(self, names: Iterable[str]) -> list[Pod]:
        """Return the pods with an unbound claim of these StorageClasses that can get a volume on other nodes now."""
        changed = {name: self._update_class(name) for name in names}
        keys = (key for name, wishes in changed.items() if wishes for key in self._unbound.get(name, ()))
        return self._users_of(
            [key for key in keys if self.claims[key].wish in changed[self.claims[key].wish.storage_class]]
        )


def _keys(pod: Pod) -> list[Key]:
    return [Key(pod.namespace, name) for name in pod.claims]


def _node_state(pod: Pod | None) -> tuple[bool, str] | None:
    return (pod.bound, pod.node) if pod is not None else None


def _precedence(pod: Pod) -> tuple[int, str, str]:
    return pod.created or 0, pod.name, pod.uid


def _are_in_one_gang(one: Pod, other: Pod) -> bool:
    """Return whether two pods have the same owner or name the same group, so that they count as members of one gang."""
    same_owner = one.owner is not None and one.owner == other.owner
    return same_owner or (one.group is not None and one.group == other.group)


@lru_cache(maxsize=1024)
def _restrict(shape: Shape, terms: Terms) -> Shape:
    """Return the shape with its node affinity restricted to nodes that also match ``terms``."""
    found = intersect_terms(shape.node_terms, terms)
    return shape if found == shape.node_terms else replace(shape, node_terms=found)


@lru_cache(maxsize=1024)
def _add_requests(shape: Shape, amounts: tuple[tuple[str, int], ...]) -> Shape:
    return replace(shape, requests=tuple(sorted((*shape.requests, *amounts))))


@lru_cache(maxsize=1024)
def _add_choices(shape: Shape, choices: tuple[VolumeChoice, ...]) -> Shape:
    """Return the shape with the claims for which a plan has to choose a volume (``choices``).

    A request is added for each choice, which counts like a resource. By it other plans see that a volume will be used.
    """
    amounts = Counter(choice.amount for choice in choices)
    return replace(_add_requests(shape, tuple(amounts.items())), volumes=choices)


@lru_cache(maxsize=1024)
def _in_zones(zones: tuple[Requirement, ...]) -> Terms:
    """Return node selector terms for nodes in these zones, given by zone labels of volumes.

    Nodes without zone labels match, too, as upstream.
    """
    ways: list[tuple[Requirement, ...]] = [()]
    for zone in zones:
        if len(ways) > MAX_TERMS:
            break
        now = ZONE_LABELS[zone.key]
        same = [(*way, zone) for way in ways]
        absent = Requirement(zone.key, "DoesNotExist")
        renamed = [(*way, absent, replace(zone, key=now)) for way in ways] if now != zone.key else []
        ways = [*same, *renamed]
    nowhere = NodeSelectorTerm(tuple(Requirement(key, "DoesNotExist") for key in ZONE_LABELS))
    return (nowhere, *map(NodeSelectorTerm, ways))
