"""Where the volumes of its claims leave a pod, by the rules of kube-scheduler's plugins (1.37).

- VolumeBinding: a bound claim's volume says which nodes reach it. A claim that waits for its first consumer may get any
  volume that fits (FindMatchingVolume), or one that is provisioned where its StorageClass, and the storage that its
  driver reports, allow. Any other claim must be bound first.
- VolumeZone: a volume's zone labels are those of its node, if that has any.
- NodeVolumeLimits: what a node takes of a driver's volumes is an amount (`serried.rules.volumes.supply`).
- VolumeRestrictions: a claim that is ReadWriteOncePod is one pod's. One of lower priority may be preempted for another.

What cannot be seen, for want of a right or of the API, says nothing: then kube-scheduler's refusals are learnt.
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

from serried.api.device import NOTHING, Coming
from serried.api.names import Key
from serried.api.node import Node
from serried.api.pod import Pod, Shape, is_for_room
from serried.api.priority import PreemptionPolicy
from serried.api.resources import ATTACHED, ONCE, SHARES
from serried.api.selectors import MAX_TERMS, NodeSelectorTerm, Requirement, Terms, both
from serried.api.volume import (
    READ_WRITE_ONCE_POD,
    SHARED,
    ZONE_LABELS,
    Choice,
    CSIDriver,
    CSINode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeClaim,
    Wish,
    decode_csi_driver,
    decode_csi_node,
    decode_storage_capacity,
    decode_storage_class,
    decode_volume,
    decode_volume_claim,
)
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, News, Rule, RuleKind
from serried.rules.volumes.supply import Attachments, Reach, Supply, at_node, unite

Storage: TypeAlias = VolumeClaim | Volume | StorageClass | StorageCapacity | CSIDriver | CSINode
"""What says where volumes are, or can be."""

_LAZY = (StorageClass, StorageCapacity, CSIDriver, CSINode)
"""Kinds that are followed from the first pod on that may be a gang's member, waits and mounts a claim."""

_Put = Callable[[Any], list[Pod]]
_Drop = Callable[[Any], list[Pod]]


class Volumes(Rule):
    """Confines the shapes of pods to the nodes that their claims leave them.

    A pod with claims is remembered while it waits for a node or uses one; others cost nothing.
    """

    concerns = staticmethod(attrgetter("claims"))

    def __init__(self, ground: Ground) -> None:
        self._nodes = ground.nodes
        self.supply = Supply()
        self.attachments = Attachments()
        self.claims: dict[Key, VolumeClaim] = {}
        self.reading = False
        """Whether the kinds that say what there is for claims are being listed for the first time."""

        self._listing: set[type] = set()
        self.kinds = self._list_kinds()
        self._pods: dict[str, Pod] = {}
        self.remembered = self._pods.keys()
        self._users: dict[Key, dict[str, None]] = {}
        self._claims_of: dict[str, dict[Key, None]] = {}
        self._unbound: dict[str, dict[Key, None]] = {}
        self._turned = Due[str]()
        self._on: dict[str, dict[str, None]] = {}
        self._turned_nodes = Due[str]()
        self._touched = Due[str]()

    # --- pods ---------------------------------------------------------------------------------------------------

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - what it remembers is what the rules before have left
        """Return a pod with the shape that its volumes leave it, and remember it."""
        if not pod.claims:
            return pod
        self.wanted = self.wanted or (pod.pending and pod.linked)
        self._note(pod.uid, pod if pod.pending or pod.bound else None)
        shared = {key for key in _keys(pod) if self._is_shared(key)}
        return self._confine(pod, self._list_known(pod), shared, self._find_missing(pod, _keys(pod)))

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:
        """As `ask`, for a pod that does not exist: nothing is remembered, and claims may come with it."""
        if not pod.claims:
            return pod
        self.wanted = True
        there = ChainMap(self.claims, dict(coming.volumes))
        known = [there[key] for key in _keys(pod) if key in there]
        left = next((why for claim in known if (why := self._find_unknown(claim, coming))), "")
        missing = next((key.name for key in _keys(pod) if key not in there), "")
        if missing:
            left = f"volume claim {missing} does not exist, and where its volume will be is not known; send it, too"
        shared = {key for key in _keys(pod) if key in coming.shared or self._is_shared(key)}
        counted = [claim for claim in known if claim.volume or not self._find_unknown(claim, coming)]
        return replace(self._confine(pod, counted, shared, ""), uncountable=left)

    def _find_unknown(self, claim: VolumeClaim, coming: Coming) -> str:
        """Why it is not known where a claim without a volume can be, a phrase; "" if it is known."""
        if claim.volume:
            return ""
        name = claim.key.name
        if StorageClass not in self.supply.seen:
            return f"where volume claim {name} can be is not known before StorageClasses are listed; ask again"
        found = self.supply.classes.get(claim.wish.storage_class)
        if found is not None and not found.waits and claim.key in coming.volumes:
            return f"where volume claim {name} will be is not known, as StorageClass {found.name} waits for no pod"
        return ""

    def forget(self, pod: Pod) -> None:
        """Forget a pod that went."""
        if pod.uid in self._pods:
            self._note(pod.uid, None)

    def take_news(self) -> News | None:
        """Return the pods that are others now, and who may find a volume by now, though the pod is as it was."""
        if not (self._turned or self._touched):
            return None
        return News(self._turned.take(AT_ONCE), members=self._touched.take(AT_ONCE))

    def take_nodes(self) -> Collection[str]:
        """Return the nodes that take another number of volumes now."""
        return self._turned_nodes.take(AT_ONCE)

    def offer(self, node: Node) -> Node:
        """The node with the volumes that it takes of each driver, as an amount of what it has."""
        pods = (self._pods[uid] for uid in self._on.get(node.name, ()))
        claims = {claim.key: claim for pod in pods for claim in self._list_known(pod) if self._is_shared(claim.key)}
        return self.attachments.equip(node, Counter(self.supply.find_driver(claim) for claim in claims.values()))

    def list_caveats(self, pods: Collection[Pod]) -> Iterable[str]:
        """Return how many of these pods mount a claim that has no volume yet, a phrase, if any do."""
        unbound = sum(any(key in self.claims and not self.claims[key].volume for key in _keys(pod)) for pod in pods)
        if unbound:
            yield f"{unbound} members mount volume claims that are not bound yet"

    def _confine(self, pod: Pod, known: list[VolumeClaim], shared: Collection[Key], missing: str) -> Pod:
        """The pod that mounts these claims, of which some are ``shared``; ``missing`` is why it can run nowhere."""
        reaches = [self.supply.find_reach(claim, shared=claim.key in shared) for claim in known]
        users = [self._share_once(pod, claim) for claim in known if claim.once]
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
            shape = _choose(shape, choices)
        if amounts:
            shape = _ask(shape, amounts)
        obstacle = next(filter(None, obstacles), "")
        if shape is pod.shape and not obstacle:
            return pod
        wants_room = pod.wants_room or bool(
            (amounts or choices) and pod.objection and is_for_room(pod.objection, shape)
        )
        outranked = any(each.by_mate for each in users)
        return replace(pod, shape=shape, obstacle=obstacle, outranked=outranked, wants_room=wants_room)

    def _find_missing(self, pod: Pod, keys: list[Key]) -> str:
        if VolumeClaim not in self.supply.seen:
            return ""
        if self.reading:
            return "the storage of the cluster is being read"
        for key in keys:
            claim, own = self.claims.get(key), key.name in pod.own_claims
            if claim is None:
                return f"volume claim {key.name} {'is still to be made' if own else 'does not exist'}"
            if own and claim.owner != pod.uid:
                return f"volume claim {key.name} was not made for this pod"
        return ""

    def _find_zones(self, pod: Pod, claims: list[VolumeClaim]) -> Terms | None:
        """VolumeZone's rule for the bound claims that the pod names."""
        named = (claim for claim in claims if claim.volume and claim.key.name not in pod.own_claims)
        volumes = (self.supply.volumes.get(claim.volume) for claim in named)
        zones = dict.fromkeys(zone for volume in volumes if volume is not None for zone in volume.zones)
        return _in_zones(tuple(zones)) if zones else None

    # --- claims that one pod may use ----------------------------------------------------------------------------

    def _share_once(self, pod: Pod, claim: VolumeClaim) -> Reach:
        """Where a claim that is one pod's leaves another one that waits: where a user is that it may preempt."""
        others = [self._pods[uid] for uid in self._users.get(claim.key, ()) if uid != pod.uid]
        if not others or not pod.pending:
            return Reach()
        said = f"volume claim {claim.key.name} is {READ_WRITE_ONCE_POD}, and"
        users = [other for other in others if other.bound]
        stays = pod.preemption is PreemptionPolicy.NEVER
        lasting = next((user for user in users if stays or user.priority >= pod.priority), None)
        if lasting is not None:
            return Reach(obstacle=f"{said} {lasting.name} uses it")
        if users:
            return Reach(unite(at_node(user.node) for user in users))
        later = any(_are_mates(mate, pod) and _order(mate) < _order(pod) for mate in others)
        return Reach(obstacle=f"{said} another member of its gang mounts it, too" if later else "", by_mate=later)

    def _find_amounts(self, claims: list[VolumeClaim], shared: Collection[Key]) -> tuple[tuple[str, int], ...]:
        """What keeps the pod from the one that uses its claim; nothing while there is no other."""
        once = (claim.key for claim in claims if claim.once)
        amounts = [(f"{ONCE}{key.namespace}/{key.name}", SHARES) for key in once if self._is_contested(key)]
        limited = self.attachments.limited
        if limited:
            drivers = {claim.key: self.supply.find_driver(claim) for claim in claims}
            attached = Counter(driver for key, driver in drivers.items() if key not in shared)
            amounts += [(ATTACHED + driver, count) for driver, count in attached.items() if driver in limited]
            common = [(key, driver) for key, driver in drivers.items() if driver in limited and key in shared]
            amounts += [(f"{ATTACHED}{driver}{SHARED}{key}", 1) for key, driver in common]
        return tuple(amounts)

    def _find_choices(self, claims: list[VolumeClaim], shared: Collection[Key]) -> tuple[Choice, ...]:
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
        self._move(old, pod)
        for key in _keys(known):
            before = len(self._users.get(key, ()))
            if pod is None:
                discard(self._users, key, uid)
            else:
                self._users.setdefault(key, {})[uid] = None
            if {before, len(self._users.get(key, ()))} == {1, 2}:
                others = [self._pods[other] for other in self._users[key] if other != uid]
                self._turned.update(other.uid for other in others)
                self._note_nodes(others)
            if _stands(old) != _stands(pod) and key in self.claims and self.claims[key].once:
                self._turn_others(key, known)

    def _move(self, old: Pod | None, new: Pod | None) -> None:
        """A pod has, or leaves, its node."""
        before, now = (pod.node if pod is not None and pod.bound else "" for pod in (old, new))
        known = new or old
        if before == now or known is None:
            return
        if before:
            discard(self._on, before, known.uid)
        if now:
            self._on.setdefault(now, {})[known.uid] = None
        if self.attachments.limited:
            self._turned_nodes.update(name for name in (before, now) if name)

    def _turn_others(self, key: Key, pod: Pod) -> None:
        others = [self._pods[uid] for uid in self._users.get(key, ()) if uid != pod.uid]
        waiting = [other for other in others if not other.bound]
        if not pod.bound and waiting:
            others = [min(waiting, key=_order), *(other for other in others if other.bound)]
        self._turned.update(other.uid for other in others)

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
            put=lambda item: self._turn_pods(put(item)),
            drop=lambda key: self._turn_pods(drop(key)),
            namespaced=namespaced,
            lazy=kind in _LAZY,
        )

    def _turn_pods(self, pods: list[Pod]) -> None:
        """Note pods that may be others now, and their nodes, which may have another number of volumes left."""
        self._turned.update(pod.uid for pod in pods)
        self._note_nodes(pods)

    def _note_nodes(self, pods: list[Pod]) -> None:
        if self.attachments.limited:
            self._turned_nodes.update(pod.node for pod in pods if pod.bound)

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
            self.supply.turn_class(old.wish.storage_class, ())  # nobody wants any of it

    def _find_place(self, claim: VolumeClaim) -> tuple[dict[str, dict[Key, None]], str]:
        """The index in which a claim is, and its place there."""
        return (self._claims_of, claim.volume) if claim.volume else (self._unbound, claim.wish.storage_class)

    # --- what there is for them ---------------------------------------------------------------------------------

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - it says it in its own words
        """Note whether all objects of a kind are known; else what they say counts as not known."""
        (self._listing.add if state is KindState.LISTING and kind in _LAZY else self._listing.discard)(kind)
        if self.reading is not bool(self._listing):
            self.reading = bool(self._listing)
            self._turned.update(self._pods)
        if state in {KindState.IDLE, KindState.LISTING} or (state is KindState.KNOWN) is (kind in self.supply.seen):
            return
        (self.supply.seen.add if state is KindState.KNOWN else self.supply.seen.discard)(kind)
        self.attachments.are_known = CSINode in self.supply.seen
        if kind is CSINode and self.attachments.required:
            self._turned_nodes.update(self._nodes)
        for name in list(self._unbound):
            self._turn(name)
        self._turned.update(self._pods)

    def _turn(self, name: str) -> set[Wish]:
        return self.supply.turn_class(name, {self.claims[key].wish for key in self._unbound.get(name, ())})

    def _put_volume(self, volume: Volume) -> list[Pod]:
        old = self.supply.put_volume(volume)
        if old is not None and replace(old, version=volume.version) == volume:
            return []
        return self._turn_volume(old, volume)

    def _drop_volume(self, name: str) -> list[Pod]:
        return self._turn_volume(self.supply.drop_volume(name), None)

    def _turn_volume(self, old: Volume | None, new: Volume | None) -> list[Pod]:
        states = [each for each in (old, new) if each is not None]
        claims = {key: None for each in states for key in (*self._claims_of.get(each.name, ()), each.claim) if key}
        for name in {each.storage_class for each in states}:
            turned = self._turn(name)
            came = new is not None and new.available and new.storage_class == name
            unbound = self._unbound.get(name, ())
            claims.update((key, None) for key in unbound if turned and self.claims[key].wish in turned)
            if came:
                self._touched.update(uid for key in unbound for uid in self._users.get(key, ()))
        return self._users_of(claims)

    def _put_class(self, found: StorageClass) -> list[Pod]:
        old = self.supply.classes.get(found.name)
        self.supply.classes[found.name] = found
        return self._turn_class(found.name) if old is None or replace(old, version=found.version) != found else []

    def _drop_class(self, name: str) -> list[Pod]:
        self.supply.classes.pop(name, None)
        return self._turn_class(name)

    def _turn_class(self, name: str) -> list[Pod]:
        self._turn(name)
        return self._users_of(self._unbound.get(name, ()))

    def _put_capacity(self, capacity: StorageCapacity) -> list[Pod]:
        self.supply.put_capacity(capacity)
        return self._turn_offers([capacity.storage_class])

    def _drop_capacity(self, key: Key) -> list[Pod]:
        old = self.supply.capacities.get(key)
        self.supply.drop_capacity(key)
        return self._turn_offers([old.storage_class] if old is not None else [])

    def _put_driver(self, driver: CSIDriver) -> list[Pod]:
        self.supply.drivers[driver.name] = driver
        return self._require(driver.name, required=driver.is_required) or self._turn_driver(driver.name)

    def _drop_driver(self, name: str) -> list[Pod]:
        self.supply.drivers.pop(name, None)
        return self._require(name, required=False) or self._turn_driver(name)

    def _require(self, driver: str, *, required: bool) -> list[Pod]:
        """All pods with claims if it is new that a driver has to be where its volumes go, or that it has not."""
        if not self.attachments.require(driver, required=required):
            return []
        self._turned_nodes.update(self._nodes)
        self._turn_driver(driver)
        return list(self._pods.values())

    def _put_csi_node(self, found: CSINode) -> list[Pod]:
        self._turned_nodes.add(found.name)
        return list(self._pods.values()) if self.attachments.put(found) else []

    def _drop_csi_node(self, name: str) -> list[Pod]:
        self._turned_nodes.add(name)
        return list(self._pods.values()) if self.attachments.drop(name) else []

    def _turn_driver(self, name: str) -> list[Pod]:
        return self._turn_offers([each.name for each in self.supply.classes.values() if each.provisioner == name])

    def _turn_offers(self, names: Iterable[str]) -> list[Pod]:
        """The users of the claims of these classes that are met elsewhere now."""
        turned = {name: self._turn(name) for name in names}
        keys = (key for name, wishes in turned.items() if wishes for key in self._unbound.get(name, ()))
        return self._users_of(
            [key for key in keys if self.claims[key].wish in turned[self.claims[key].wish.storage_class]]
        )


def _keys(pod: Pod) -> list[Key]:
    return [Key(pod.namespace, name) for name in pod.claims]


def _stands(pod: Pod | None) -> tuple[bool, str] | None:
    return (pod.bound, pod.node) if pod is not None else None


def _order(pod: Pod) -> tuple[int, str, str]:
    return pod.created or 0, pod.name, pod.uid


def _are_mates(one: Pod, other: Pod) -> bool:
    """Whether two pods are of one gang, as far as they say so themselves."""
    same_owner = one.owner is not None and one.owner == other.owner
    return same_owner or (one.group is not None and one.group == other.group)


@lru_cache(maxsize=1024)
def _restrict(shape: Shape, terms: Terms) -> Shape:
    """The shape with node terms that hold where both its own and ``terms`` do."""
    found = both(shape.node_terms, terms)
    return shape if found == shape.node_terms else replace(shape, node_terms=found)


@lru_cache(maxsize=1024)
def _ask(shape: Shape, amounts: tuple[tuple[str, int], ...]) -> Shape:
    return replace(shape, requests=tuple(sorted((*shape.requests, *amounts))))


@lru_cache(maxsize=1024)
def _choose(shape: Shape, choices: tuple[Choice, ...]) -> Shape:
    """The shape of one for which volumes are to be chosen."""
    amounts = Counter(choice.amount for choice in choices)
    return replace(_ask(shape, tuple(amounts.items())), volumes=choices)


@lru_cache(maxsize=1024)
def _in_zones(zones: tuple[Requirement, ...]) -> Terms:
    """The nodes in these zones, and those that say nothing of any."""
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
