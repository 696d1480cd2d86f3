"""Restricts pods to nodes that declare the features they need (kube-scheduler's NodeDeclaredFeatures, KEP-5328).

The kubelet lists its features in ``status.declaredFeatures``; during an upgrade only some nodes declare a feature. The
plugin is on by default since 1.36, and each kubelet that supports it declares some feature. So while no node declares
any, kube-scheduler does not check, and this rule does nothing.

A declared feature becomes a label that cannot occur otherwise, because of the colon. A pod that needs the feature gets
a term in its required node affinity.
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
    """Adds a label to nodes per declared feature, and a node affinity term to pods per needed feature."""

    concerns = staticmethod(attrgetter("features"))

    def __init__(self, ground: Ground) -> None:  # noqa: ARG002 - nodes are reported to it
        self._declaring = 0
        """The number of nodes that declare any feature."""

        self._pods: dict[str, None] = {}
        """The UIDs of the pods that need features."""

        self.remembered = self._pods.keys()
        self._changed_pods = Due[str]()

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - what it remembers are UIDs
        """Return the pod with terms for its features, and remember it."""
        self._pods[pod.uid] = None
        return self._add_terms(pod)

    def show(self, pod: Pod, coming: object = None) -> Pod:  # noqa: ARG002 - claims do not matter to it
        """Return a hypothetical pod with terms for its features."""
        return self._add_terms(pod)

    def _add_terms(self, pod: Pod) -> Pod:
        if not self._declaring or not pod.features:
            return pod
        return replace(pod, shape=_require(pod.shape, pod.features))

    def forget(self, pod: Pod) -> None:
        """Forget a deleted pod."""
        self._pods.pop(pod.uid, None)

    def offer(self, node: Node) -> Node:
        """Return the node with a label for each feature that it declares."""
        if not node.features:
            return node
        return replace(node, labels={**node.labels, **{f"{_FEATURE}{name}": "" for name in sorted(node.features)}})

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Count the nodes that declare features. If the first appeared or the last is gone, all pods have changed."""
        before = bool(self._declaring)
        self._declaring += bool(new is not None and new.features) - bool(old is not None and old.features)
        if before is not bool(self._declaring):
            self._changed_pods.update(self._pods)

    def take_news(self) -> News | None:
        """Return some pods that need features, if the first node now declares some, or none does any more."""
        return News(self._changed_pods.take(AT_ONCE)) if self._changed_pods else None


@lru_cache(maxsize=1024)
def _require(shape: Shape, features: Iterable[str]) -> Shape:
    needed = NodeSelectorTerm(tuple(Requirement(f"{_FEATURE}{name}", "Exists") for name in features))
    return replace(shape, node_terms=both(shape.node_terms, (needed,)))
