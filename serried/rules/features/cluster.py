"""Restricts pods to nodes that declare the features they need (kube-scheduler's NodeDeclaredFeatures, KEP-5328).

The Store calls `DeclaredFeatures` for each node and for each pod that needs features. In the Store's copies (nothing is
written to the API) a declared feature becomes a node label that cannot occur otherwise, because of its colon. A pod
that needs the feature gets a term for this label in its required node affinity.

The kubelet lists its features in ``status.declaredFeatures``; during an upgrade only some nodes declare a feature. The
plugin is on by default since 1.36, and each kubelet that supports it declares some feature. So while no node declares
any, kube-scheduler does not check, and this rule does nothing.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.selectors import NodeSelectorTerm, Requirement, intersect_terms
from serried.cluster.due import Due
from serried.cluster.rule import AT_ONCE, Ground, Rule, RuleChanges

_FEATURE = "feature:"


class DeclaredFeatures(Rule):
    """The rule about kubelet features that pods need: it lets plans use only nodes that declare them.

    In the Store's copies, not in the API, a node gets a label for each feature that it declares, and a pod gets a
    required node affinity to the labels of the features that it needs.
    """

    concerns = staticmethod(attrgetter("features"))

    def __init__(self, ground: Ground) -> None:  # noqa: ARG002 - nodes are reported to it
        self._declaring = 0
        """The number of nodes that declare at least one feature."""

        self._pods: dict[str, None] = {}
        """The UIDs of the pods that need features."""

        self.remembered = self._pods.keys()
        self._changed_pods = Due[str]()

    def shape_pod(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - what it remembers are UIDs
        """Return ``pod`` with node affinity to nodes that declare the features it needs.

        Its UID is remembered, so that `take_changes` can report the pod. ``raw`` is the same pod as the watch delivered
        it, before other rules changed it; this rule ignores it.
        """
        self._pods[pod.uid] = None
        return self._add_terms(pod)

    def shape_hypothetical(self, pod: Pod, coming: object = None) -> Pod:  # noqa: ARG002 - claims do not matter to it
        """Return a pod of a what-if question with node affinity to nodes that declare the features it needs.

        Unlike by `shape_pod`, its UID is not remembered. ``coming`` (claims that would be created with the pod) does
        not matter for this rule.
        """
        return self._add_terms(pod)

    def _add_terms(self, pod: Pod) -> Pod:
        if not self._declaring or not pod.features:
            return pod
        return replace(pod, shape=_require(pod.shape, pod.features))

    def forget_pod(self, pod: Pod) -> None:
        """Forget a deleted pod that `shape_pod` has remembered."""
        self._pods.pop(pod.uid, None)

    def extend_node(self, node: Node) -> Node:
        """Return the node with a label for each feature that it declares. The label is only in memory."""
        if not node.features:
            return node
        return replace(node, labels={**node.labels, **{f"{_FEATURE}{name}": "" for name in sorted(node.features)}})

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Update the number of nodes that declare features.

        ``old`` is None for a new node, ``new`` is None for a deleted one. If the first such node has appeared, or the
        last is gone, `take_changes` returns all pods that need features.
        """
        before = bool(self._declaring)
        self._declaring += bool(new is not None and new.features) - bool(old is not None and old.features)
        if before is not bool(self._declaring):
            self._changed_pods.update(self._pods)

    def take_changes(self) -> RuleChanges | None:
        """Return up to AT_ONCE pods for which the Store must call `shape_pod` again; None if there are no more.

        When a first node declares features, or the last such node is gone, all pods that need features are returned, in
        several calls.
        """
        return RuleChanges(self._changed_pods.take(AT_ONCE)) if self._changed_pods else None


@lru_cache(maxsize=1024)
def _require(shape: Shape, features: Iterable[str]) -> Shape:
    needed = NodeSelectorTerm(tuple(Requirement(f"{_FEATURE}{name}", "Exists") for name in features))
    return replace(shape, node_terms=intersect_terms(shape.node_terms, (needed,)))
