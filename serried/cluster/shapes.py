"""Where pods may run because of what nodes do not show: volumes, and resources that only kube-scheduler can count.

A DeviceClass provides an extended resource on nodes that have none of it allocatable (DRAExtendedResource, on in 1.36
and locked in 1.37: NodeResourcesFit leaves it to DynamicResources there). What no node has and no class provides is
missing: nobody fits, unless the scheduler offers a node all the same, for it may be told to ignore it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from serried.api.names import Key
from serried.api.node import DeviceClass, Node, Volume, VolumeClaim
from serried.api.pod import Pod, Shape
from serried.api.resources import PROVIDED, is_extended
from serried.api.selectors import NodeSelectorTerm
from serried.cluster.index import discard


class Uncounted:
    """Renames in the shapes of pods what cannot be counted everywhere (``resources.PROVIDED``).

    These are the resources that a DeviceClass provides, and the ones that no node has: nodes with some are counted, the
    others are without limit. ``put_*``, ``drop_*``, ``note_*`` and ``meet_obstacle`` return the pods, as they came, of
    which this may be another now. Each costs the pods that ask for the resource, no others.
    """

    def __init__(self) -> None:
        self.classes: dict[str, DeviceClass] = {}
        self._obstacle = ""
        self._providers: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._pods: dict[str, Pod] = {}
        self._users: dict[str, dict[str, None]] = {}

    def relax(self, pod: Pod) -> Pod:
        """The pod with a shape of what can be counted; remembers it as it came if it asks for an extended resource."""
        self.forget(pod.uid)
        asked = _find_extended(pod.shape)
        if not asked:
            return pod
        # Bound ones, too: the same resource must count under the same name for all pods of a node.
        self._pods[pod.uid] = pod
        for name in asked:
            self._users.setdefault(name, {})[pod.uid] = None
        return self._show(pod, asked)

    def show(self, pod: Pod) -> Pod:
        """The same for a pod that does not exist: nothing is remembered."""
        return self._show(pod, _find_extended(pod.shape))

    def _show(self, pod: Pod, asked: tuple[str, ...]) -> Pod:
        uncounted = tuple([name for name in asked if name in self._providers or name not in self._nodes])
        if not uncounted:
            return pod
        missing = () if self._obstacle else tuple([name for name in uncounted if name not in self._providers])
        return replace(pod, shape=_relax(pod.shape, uncounted), uncounted=uncounted, missing=missing)

    def forget(self, uid: str) -> None:
        """A pod went."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            for name in _find_extended(pod.shape):
                discard(self._users, name, uid)

    def restore(self, pod: Pod) -> Pod:
        """A pod as it came."""
        return self._pods.get(pod.uid, pod)

    def is_provided(self, resource: str) -> bool:
        """Whether a DeviceClass provides a resource."""
        return resource in self._providers

    def put_class(self, found: DeviceClass) -> list[Pod]:
        """A DeviceClass came or changed."""
        old = self.classes.get(found.name)
        self.classes[found.name] = found
        return self._turn(self._providers, old.provides if old is not None else (), found.provides)

    def drop_class(self, name: str) -> list[Pod]:
        """A DeviceClass went."""
        old = self.classes.pop(name, None)
        return self._turn(self._providers, old.provides if old is not None else (), ())

    def meet_obstacle(self, what: str) -> list[Pod]:
        """What keeps us from seeing DeviceClasses, a phrase; "" for nothing (any more). Then nothing is missing."""
        turned = bool(self._obstacle) is not bool(what)
        self._obstacle = what
        return list(self._pods.values()) if turned else []

    def note_node(self, old: Node | None, new: Node | None) -> list[Pod]:
        """A node came, changed or went."""
        less = _list_extended(old)
        more = _list_extended(new)
        return self._turn(self._nodes, less, more) if less or more else []

    def _turn(self, counts: Counter[str], less: Iterable[str], more: Iterable[str]) -> list[Pod]:
        """The pods that ask for a resource that has its first source now, or has lost its last."""
        less = frozenset(less)
        more = frozenset(more)
        turned = [name for name in more - less if name not in counts]
        counts.update(more - less)
        for name in less - more:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
                turned.append(name)
        uids = dict.fromkeys(uid for name in turned for uid in self._users.get(name, ()))
        return [self._pods[uid] for uid in uids]


def _find_extended(shape: Shape) -> tuple[str, ...]:
    # Asked of every pod that changes: most names are done with before a call.
    return tuple([name for name, _ in shape.requests if "/" in name and is_extended(name)])


def _list_extended(node: Node | None) -> list[str]:
    """The extended resources of which a node has some."""
    if node is None:
        return []
    return [name for name, amount in node.allocatable.items() if "/" in name and amount > 0 and is_extended(name)]


@lru_cache(maxsize=1024)
def _relax(shape: Shape, uncounted: tuple[str, ...]) -> Shape:
    """The shape with these resources under the name of what is provided."""
    requests = [(PROVIDED + name if name in uncounted else name, amount) for name, amount in shape.requests]
    return replace(shape, requests=tuple(sorted(requests)))


Terms = tuple[NodeSelectorTerm, ...]

_MAX_TERMS = 64
"""Into how many alternatives volumes may divide a pod's nodes; what makes more is left to the scheduler."""


class Volumes:
    """Confines the shapes of pods to the nodes that reach the volumes of all their claims.

    A claim that is not known, or not bound, confines no pod. ``put_*`` and ``drop_*`` return the pods, as they came,
    whose shapes may be others now. Pods that wait for no node are not kept: each has the shape of when it last came.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, Volume] = {}
        self.claims: dict[Key, VolumeClaim] = {}
        self._pods: dict[str, Pod] = {}
        self._users: dict[Key, dict[str, None]] = {}
        self._claims_of: dict[str, dict[Key, None]] = {}

    def confine(self, pod: Pod) -> Pod:
        """The pod with the shape that its volumes leave it; remembers it as it came while it waits for a node."""
        self.forget(pod.uid)
        if not pod.claims:
            return pod
        if pod.pending:
            self._pods[pod.uid] = pod
            for key in _keys(pod):
                self._users.setdefault(key, {})[pod.uid] = None
        # A bound pod, too: the one that comes in its place must be of its class.
        return self.show(pod)

    def show(self, pod: Pod) -> Pod:
        """The same for a pod that does not exist: nothing is remembered."""
        found = (self.volumes.get(claim.volume) for key in _keys(pod) if (claim := self.claims.get(key)) is not None)
        shape = pod.shape
        for terms in dict.fromkeys(volume.terms for volume in found if volume is not None):
            if terms is not None:
                shape = _confine(shape, terms)
        return pod if shape is pod.shape else replace(pod, shape=shape)

    def forget(self, uid: str) -> None:
        """A pod went."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            for key in _keys(pod):
                discard(self._users, key, uid)

    def count_unbound(self, pods: Iterable[Pod]) -> int:
        """How many of these pods mount a claim that has no volume yet."""
        return sum(any(key in self.claims and not self.claims[key].volume for key in _keys(pod)) for pod in pods)

    def put_claim(self, claim: VolumeClaim) -> list[Pod]:
        """A claim came or changed."""
        old = self.claims.get(claim.key)
        self.claims[claim.key] = claim
        if old is not None and old.volume == claim.volume:
            return []
        self._index(old, claim)
        return self._users_of([claim.key])

    def drop_claim(self, key: Key) -> list[Pod]:
        """A claim went."""
        old = self.claims.pop(key, None)
        self._index(old, None)
        return self._users_of([key])

    def put_volume(self, volume: Volume) -> list[Pod]:
        """A PersistentVolume came or changed."""
        old = self.volumes.get(volume.name)
        self.volumes[volume.name] = volume
        same = old is not None and old.terms == volume.terms
        return [] if same else self._users_of(self._claims_of.get(volume.name, ()))

    def drop_volume(self, name: str) -> list[Pod]:
        """A PersistentVolume went."""
        self.volumes.pop(name, None)
        return self._users_of(self._claims_of.get(name, ()))

    def _index(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        if old is not None and old.volume:
            claims = self._claims_of[old.volume]
            del claims[old.key]
            if not claims:
                del self._claims_of[old.volume]
        if new is not None and new.volume:
            self._claims_of.setdefault(new.volume, {})[new.key] = None

    def _users_of(self, claims: Iterable[Key]) -> list[Pod]:
        uids = dict.fromkeys(uid for key in claims for uid in self._users.get(key, ()))
        return [self._pods[uid] for uid in uids]


def _keys(pod: Pod) -> list[Key]:
    return [Key(pod.namespace, name) for name in pod.claims]


@lru_cache(maxsize=1024)
def _confine(shape: Shape, terms: Terms) -> Shape:
    """The shape with node terms that hold where both its own and ``terms`` do."""
    if shape.node_terms is None:
        return replace(shape, node_terms=terms)
    # A term that says nothing matches nothing; together with another one it would say what that one does.
    left, right = (tuple(filter(_says_something, each)) for each in (shape.node_terms, terms))
    if len(left) * len(right) > _MAX_TERMS:
        return shape
    both = (NodeSelectorTerm(a.labels + b.labels, a.fields + b.fields) for a in left for b in right)
    return replace(shape, node_terms=tuple(both))


def _says_something(term: NodeSelectorTerm) -> bool:
    return bool(term.labels or term.fields)
