"""Nodes that do not declare a feature which a pod needs (kube-scheduler's plugin NodeDeclaredFeatures, KEP-5328).

The kubelet lists in ``status.declaredFeatures`` what it can do; while nodes are upgraded, only some can. The plugin is
on by default since 1.36, and kubelets that know of it declare something. So while no node declares anything, no
scheduler asks, and nor does this rule.

A feature is a label here that no node can have otherwise, because of the colon, and a pod that needs it has one more
term in its required node affinity.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.selectors import NodeSelectorTerm, Requirement, both
from serried.cluster.due import Due
from serried.cluster.rule import AT_ONCE, Ground, News, Rule

_FEATURE = "feature:"


class DeclaredFeatures(Rule):
    """Confines pods to the nodes that declare what they need."""

    concerns = staticmethod(attrgetter("features"))

    def __init__(self, ground: Ground) -> None:  # noqa: ARG002 - nodes are told to it
        self._declaring = 0
        """How many nodes declare any feature."""

        self._pods: dict[str, None] = {}
        """The pods (UIDs) that need features."""

        self.remembered = self._pods.keys()
        self._turned = Due[str]()

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - what it remembers are UIDs
        """Return a pod that may only go where its features are declared."""
        self._pods[pod.uid] = None
        return self._confine(pod)

    def show(self, pod: Pod, coming: object = None) -> Pod:  # noqa: ARG002 - claims are none of its business
        """As `ask`, for a pod that does not exist."""
        return self._confine(pod)

    def _confine(self, pod: Pod) -> Pod:
        if not self._declaring or not pod.features:
            return pod
        return replace(pod, shape=_require(pod.shape, pod.features))

    def forget(self, pod: Pod) -> None:
        """Forget a pod that went."""
        self._pods.pop(pod.uid, None)

    def offer(self, node: Node) -> Node:
        """Return the node with a label for each feature that it declares."""
        if not node.features:
            return node
        return replace(node, labels={**node.labels, **{f"{_FEATURE}{name}": "" for name in sorted(node.features)}})

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Count the nodes that declare something."""
        before = bool(self._declaring)
        self._declaring += bool(new is not None and new.features) - bool(old is not None and old.features)
        if before is not bool(self._declaring):
            self._turned.update(self._pods)

    def take_news(self) -> News | None:
        """Return pods that need features, if nodes declare any by now, or none any more."""
        return News(self._turned.take(AT_ONCE)) if self._turned else None


@lru_cache(maxsize=1024)
def _require(shape: Shape, features: Iterable[str]) -> Shape:
    needed = NodeSelectorTerm(tuple(Requirement(f"{_FEATURE}{name}", "Exists") for name in features))
    return replace(shape, node_terms=both(shape.node_terms, (needed,)))
