"""Where pods may run because of their volumes: PersistentVolumes, claims, and the waiting pods that mount them."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from serried.cluster.indexes import discard
from serried.model.group import Key
from serried.model.pod import Pod, Shape
from serried.model.selectors import NodeSelectorTerm
from serried.model.volume import Volume, VolumeClaim

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
