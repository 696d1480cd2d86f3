"""Resources that nodes do not show, and only kube-scheduler can count.

A DeviceClass provides an extended resource on nodes that have none of it allocatable (DRAExtendedResource, on in 1.36
and locked in 1.37: NodeResourcesFit leaves it to DynamicResources there). What no node has and no class provides is
missing: nobody fits, unless the scheduler offers a node all the same, for it may be told to ignore it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from serried.api.device import DeviceClass
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import PROVIDED, is_extended
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
