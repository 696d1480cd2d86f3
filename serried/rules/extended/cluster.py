"""Handles extended resources that some nodes do not list, and that only kube-scheduler can count.

A DeviceClass can provide an extended resource on nodes that have none of it allocatable (DRAExtendedResource, on in
1.36 and locked in 1.37: NodeResourcesFit leaves it to DynamicResources there). A resource that no node lists and no
class provides is missing: the pod fits nowhere, unless kube-scheduler lists a node in filter all the same, because it
may be configured to ignore the resource.
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


class ExtendedResources(Rule):
    """Renames requests for resources that cannot be counted on all nodes (``resources.PROVIDED``).

    These are the resources that a DeviceClass provides, and those that no node lists. Nodes that list some are counted,
    other nodes are unlimited. A change only affects pods that request the resource.
    """

    concerns = staticmethod(attrgetter("shape.extended"))

    def __init__(self, ground: Ground) -> None:  # noqa: ARG002 - nodes are reported to it
        self.classes: dict[str, DeviceClass] = {}
        classes = RuleKind(
            *(DeviceClass, "resource.k8s.io", "v1", "deviceclasses", decode_device_class),
            *(self.classes, self._put_class, self._drop_class),
            namespaced=False,
        )
        self.kinds = (classes,)

        self._changed_pods = Due[str]()
        """The UIDs of pods whose shape may have changed."""

        self._are_hidden = False
        self._providers: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._pods: dict[str, Pod] = {}
        self.remembered = self._pods.keys()
        self._users: dict[str, dict[str, None]] = {}

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - it is the first of the rules
        """Return the pod with renamed requests, and remember it if it requests an extended resource."""
        self.forget(pod)
        asked = pod.shape.extended
        if not asked:
            return pod
        # Also for bound pods: the resource must have the same name for all pods of a node.
        self._pods[pod.uid] = pod
        for name in asked:
            self._users.setdefault(name, {})[pod.uid] = None
        return self._convert(pod, asked)

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:  # noqa: ARG002 - claims do not matter to it
        """Return a hypothetical pod with renamed requests. It is not remembered."""
        return self._convert(pod, pod.shape.extended)

    def _convert(self, pod: Pod, asked: tuple[str, ...]) -> Pod:
        uncounted = tuple([name for name in asked if name in self._providers or name not in self._nodes])
        if not uncounted:
            return pod
        missing = () if self._are_hidden else tuple([name for name in uncounted if name not in self._providers])
        provided = tuple([name for name in uncounted if name in self._providers])
        shape = _rename_requests(pod.shape, uncounted)
        return replace(pod, shape=shape, uncounted=uncounted, missing=missing, provided=provided)

    def forget(self, pod: Pod) -> None:
        """Forget a deleted pod."""
        known = self._pods.pop(pod.uid, None)
        if known is not None:
            for name in known.shape.extended:
                discard(self._users, name, pod.uid)

    def _put_class(self, found: DeviceClass) -> None:
        old = self.classes.get(found.name)
        self.classes[found.name] = found
        self._update_sources(self._providers, old.provides if old is not None else (), found.provides)

    def _drop_class(self, name: str) -> None:
        old = self.classes.pop(name, None)
        self._update_sources(self._providers, old.provides if old is not None else (), ())

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - there is one kind
        """Note whether DeviceClasses can be read. While they cannot, no resource counts as missing.

        If the API server does not serve them there are none, for kube-scheduler as well.
        """
        hidden = state is KindState.DENIED
        if hidden is not self._are_hidden:
            self._are_hidden = hidden
            self._changed_pods.update(self._pods)

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Note the extended resources of a node."""
        less = _list_extended(old)
        more = _list_extended(new)
        if less or more:
            self._update_sources(self._nodes, less, more)

    def take_news(self) -> News | None:
        """Return some pods that request a resource that is counted differently now."""
        if not self._changed_pods:
            return None
        return News(self._changed_pods.take(AT_ONCE))

    def _update_sources(self, counts: Counter[str], less: Iterable[str], more: Iterable[str]) -> None:
        """Update the counts of sources.

        Pods are changed that request a resource with its first source, or without its last.
        """
        less = frozenset(less)
        more = frozenset(more)
        changed = [name for name in more - less if name not in counts]
        counts.update(more - less)
        for name in less - more:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
                changed.append(name)
        self._changed_pods.update(uid for name in changed for uid in self._users.get(name, ()))


def _list_extended(node: Node | None) -> list[str]:
    """Return the extended resources that a node lists."""
    if node is None:
        return []
    return [name for name, amount in node.allocatable.items() if "/" in name and amount > 0 and is_extended(name)]


@lru_cache(maxsize=1024)
def _rename_requests(shape: Shape, uncounted: tuple[str, ...]) -> Shape:
    """Return the shape with these resources renamed as provided."""
    requests = [(PROVIDED + name if name in uncounted else name, amount) for name, amount in shape.requests]
    return replace(shape, requests=tuple(sorted(requests)))
