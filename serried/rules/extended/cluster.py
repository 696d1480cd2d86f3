"""Resources that nodes do not show, and only kube-scheduler can count.

A DeviceClass provides an extended resource on nodes that have none of it allocatable (DRAExtendedResource, on in 1.36
and locked in 1.37: NodeResourcesFit leaves it to DynamicResources there). What no node has and no class provides is
missing: nobody fits, unless the scheduler offers a node all the same, for it may be told to ignore it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from serried.api.device import NOTHING, Coming, DeviceClass, decode_device_class
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import PROVIDED, is_extended
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, News, Rule, RuleKind


class Uncounted(Rule):
    """Renames in the shapes of pods what cannot be counted everywhere (``resources.PROVIDED``).

    These are the resources that a DeviceClass provides, and the ones that no node has: nodes with some are counted, the
    others are without limit. A change costs the pods that ask for the resource, no others.
    """

    concerns = staticmethod(attrgetter("shape.extended"))

    def __init__(self, ground: Ground) -> None:  # noqa: ARG002 - nodes are told to it
        self.classes: dict[str, DeviceClass] = {}
        classes = RuleKind(
            *(DeviceClass, "resource.k8s.io", "v1", "deviceclasses", decode_device_class),
            *(self.classes, self._put_class, self._drop_class),
            namespaced=False,
        )
        self.kinds = (classes,)

        self._turned = Due[str]()
        """The pods (UIDs) of which the shape may be another now."""

        self._are_hidden = False
        self._providers: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._pods: dict[str, Pod] = {}
        self.remembered = self._pods.keys()
        self._users: dict[str, dict[str, None]] = {}

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - it is the first of the rules
        """Return a pod with a shape of what can be counted, and remember it if it asks for an extended resource."""
        self.forget(pod)
        asked = pod.shape.extended
        if not asked:
            return pod
        # Bound ones, too: the same resource must count under the same name for all pods of a node.
        self._pods[pod.uid] = pod
        for name in asked:
            self._users.setdefault(name, {})[pod.uid] = None
        return self._show(pod, asked)

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:  # noqa: ARG002 - claims are none of its business
        """As `ask`, for a pod that does not exist: nothing is remembered."""
        return self._show(pod, pod.shape.extended)

    def _show(self, pod: Pod, asked: tuple[str, ...]) -> Pod:
        uncounted = tuple([name for name in asked if name in self._providers or name not in self._nodes])
        if not uncounted:
            return pod
        missing = () if self._are_hidden else tuple([name for name in uncounted if name not in self._providers])
        provided = tuple([name for name in uncounted if name in self._providers])
        shape = _relax(pod.shape, uncounted)
        return replace(pod, shape=shape, uncounted=uncounted, missing=missing, provided=provided)

    def forget(self, pod: Pod) -> None:
        """Forget a pod that went."""
        known = self._pods.pop(pod.uid, None)
        if known is not None:
            for name in known.shape.extended:
                discard(self._users, name, pod.uid)

    def _put_class(self, found: DeviceClass) -> None:
        old = self.classes.get(found.name)
        self.classes[found.name] = found
        self._turn(self._providers, old.provides if old is not None else (), found.provides)

    def _drop_class(self, name: str) -> None:
        old = self.classes.pop(name, None)
        self._turn(self._providers, old.provides if old is not None else (), ())

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - there is one kind
        """Note whether DeviceClasses can be seen: while they cannot, nothing is missing.

        Where their API is not served there are none, and kube-scheduler has none either.
        """
        hidden = state is KindState.DENIED
        if hidden is not self._are_hidden:
            self._are_hidden = hidden
            self._turned.update(self._pods)

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Note what extended resources a node has."""
        less = _list_extended(old)
        more = _list_extended(new)
        if less or more:
            self._turn(self._nodes, less, more)

    def take_news(self) -> News | None:
        """Return the pods that ask for a resource that is counted otherwise now."""
        if not self._turned:
            return None
        return News(self._turned.take(AT_ONCE))

    def _turn(self, counts: Counter[str], less: Iterable[str], more: Iterable[str]) -> None:
        """Turn the pods that ask for a resource that has its first source now, or has lost its last."""
        less = frozenset(less)
        more = frozenset(more)
        turned = [name for name in more - less if name not in counts]
        counts.update(more - less)
        for name in less - more:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
                turned.append(name)
        self._turned.update(uid for name in turned for uid in self._users.get(name, ()))


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
