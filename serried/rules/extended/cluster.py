"""The rule about extended resources that some nodes do not list, so that only kube-scheduler can count them there.

The Store calls `ExtendedResources` for each pod that requests an extended resource, and for each changed node.

A DeviceClass can provide an extended resource on nodes that have none of it allocatable (DRAExtendedResource, on in
1.36 and locked in 1.37: NodeResourcesFit leaves it to DynamicResources on these nodes). A resource that no node lists
and no class provides is missing: the pod fits nowhere, unless kube-scheduler lists a node in filter all the same,
because it may be configured to ignore the resource.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from serried.api.device import NOTHING, DeviceClass, HypotheticalClaims, decode_device_class
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import PROVIDED, is_extended
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, Rule, RuleChanges, RuleKind


class ExtendedResources(Rule):
    """The rule about extended resources that not all nodes list as allocatable.

    In the requests of pods it renames each resource that a DeviceClass provides, and each that no node lists (the new
    name begins with ``resources.PROVIDED``). By the new name Serried counts the resource only on nodes that list it;
    other nodes count as unlimited, because only kube-scheduler knows whether a pod fits there.
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
        """The UIDs of the pods that need `shape_pod` again. `take_changes` returns them."""

        self._are_hidden = False
        self._providers: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._pods: dict[str, Pod] = {}
        self.remembered = self._pods.keys()
        self._users: dict[str, dict[str, None]] = {}

    def shape_pod(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - it is the first of the rules
        """Return the pod with another name for each requested resource that a DeviceClass provides or no node lists.

        With the other name (`resources.PROVIDED` before the resource) nodes that do not list the resource count as
        unlimited. The pod is remembered if it requests an extended resource.

        ``pod`` is the pod as other rules may have changed it. ``raw``, the same pod from the watch, is not used.
        """
        self.forget_pod(pod)
        asked = pod.shape.extended
        if not asked:
            return pod
        # Also for bound pods: the resource must have the same name for all pods of a node.
        self._pods[pod.uid] = pod
        for name in asked:
            self._users.setdefault(name, {})[pod.uid] = None
        return self._convert(pod, asked)

    def shape_hypothetical(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Pod:  # noqa: ARG002 - claims do not matter to it
        """Return a pod of a what-if question in which extended resources that no node lists have another name.

        The names are those of `shape_pod`; nodes count as having no limit of them.
        It is not remembered. ``coming`` (claims that would be created with it) does not matter for this rule.
        """
        return self._convert(pod, pod.shape.extended)

    def _convert(self, pod: Pod, asked: tuple[str, ...]) -> Pod:
        uncounted = tuple([name for name in asked if name in self._providers or name not in self._nodes])
        if not uncounted:
            return pod
        missing = () if self._are_hidden else tuple([name for name in uncounted if name not in self._providers])
        provided = tuple([name for name in uncounted if name in self._providers])
        shape = _rename_requests(pod.shape, uncounted)
        return replace(pod, shape=shape, uncounted=uncounted, missing=missing, provided=provided)

    def forget_pod(self, pod: Pod) -> None:
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
        """Handle a new state of the watch for DeviceClasses.

        While the API server forbids to read them, no resource counts as missing (`Pod.missing`), because a class may
        provide it. If the API server does not serve them, there are none, so a resource may be missing. ``why`` is not
        used.
        """
        hidden = state is KindState.DENIED
        if hidden is not self._are_hidden:
            self._are_hidden = hidden
            self._changed_pods.update(self._pods)

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Count the extended resources that a changed node lists.

        ``old`` is None for a new node, ``new`` is None for a deleted one.
        """
        less = _list_extended(old)
        more = _list_extended(new)
        if less or more:
            self._update_sources(self._nodes, less, more)

    def take_changes(self) -> RuleChanges | None:
        """Return up to AT_ONCE pods that need `shape_pod` again; None if there are no more.

        They request a resource that some node lists now while none did before, or the other way round; or one that some
        DeviceClass provides now while none did, or the other way round.
        """
        if not self._changed_pods:
            return None
        return RuleChanges(self._changed_pods.take(AT_ONCE))

    def _update_sources(self, counts: Counter[str], less: Iterable[str], more: Iterable[str]) -> None:
        """Update how many sources each resource has: nodes that list it, or DeviceClasses that provide it.

        ``counts`` is this number by resource. ``less`` are the resources that one source had before, ``more`` those
        that it has now. Pods that request a resource have changed if it got its first source, or lost its last one.
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
    """Return the extended resources that a node lists as allocatable, more than 0; none if there is no node."""
    if node is None:
        return []
    return [name for name, amount in node.allocatable.items() if "/" in name and amount > 0 and is_extended(name)]


@lru_cache(maxsize=1024)
def _rename_requests(shape: Shape, uncounted: tuple[str, ...]) -> Shape:
    """Return a pod's shape in which the names of the ``uncounted`` resources begin with ``PROVIDED``."""
    requests = [(PROVIDED + name if name in uncounted else name, amount) for name, amount in shape.requests]
    return replace(shape, requests=tuple(sorted(requests)))
