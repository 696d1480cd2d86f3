"""The interface between the Store and the rules of `serried.rules` (`Rule`).

A rule changes what a pod requests, or what a node has, because of other objects. Only the Store's values of pods and
nodes are changed, not the objects in the API server. For instance a rule adds a node affinity term to a pod whose
volume exists in one zone only. The Store only knows rules by this interface, and applies them in the order of their
list:

    pod from the watch   ──▶ shape_pod ──▶ shape_pod ──▶ ... ──▶ pod with the shape that plans use
    node from the watch  ──▶ extend_node ──▶ ...             ──▶ node with the amounts and labels that plans use
    another object       ──▶ put, drop of its `RuleKind`
                                        │
                                        ▼
                         take_changed_nodes: nodes for which extend_node has to be called again
                         take_changes: pods for which shape_pod has to be called again, members that may fit by now

The shape of a pod (`Pod.shape`) is what decides on which nodes it fits: requests, node affinity, tolerations and the
like. An amount is a quantity by name that nodes have and pods request. It is a resource, or a pseudo resource: a name
that a rule adds to the requests of pods or to the allocatable of nodes, so that plans count it like a resource. For
instance each pod that an affinity term of another pod selects requests 1 of a pseudo resource named after the term.

A rule reports changes only by `take_changed_nodes` and `take_changes`, so that each change wakes the gangs that may fit
by it. A rule costs nothing for pods that do not use it.

One object may change the shapes of thousands of pods. So a rule returns a few nodes or pods at a time, the oldest
change first, and the Store calls it again; other work runs in between. Until then shapes are outdated, as if the watch
were late. If an outdated shape would be wrong, because a pod is not counted yet, the rule sets `Pod.awaits`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from serried.api.device import NOTHING, HypotheticalClaims
from serried.api.names import Malformed
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.rule import PlanRuleType

AT_ONCE = 8
"""The number of nodes or pods that a rule returns from one call."""


class KindState(Enum):
    """The states of the watch for one kind of objects, such as ResourceSlice, on which the fit of pods depends.

    IDLE: no pod has needed the kind yet. LISTING: it is being listed. KNOWN: all objects are known. DENIED, UNSERVED:
    the API server forbids to read the kind, or does not serve it.
    """

    IDLE = "idle"
    """The kind is not watched, because no pod has needed it yet."""

    LISTING = "listing"
    """The kind is being listed, because a pod needs it."""

    KNOWN = "known"
    """All objects of the kind were listed, and changes are watched."""

    DENIED = "denied"
    """The API server forbids list or watch (403)."""

    UNSERVED = "unserved"
    """The API server does not serve the kind, so there are no objects."""


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A kind of objects that a rule watches, and how `serried.feed` puts them into the rule.

    Serried also works if the API server does not serve the kind.
    """

    type: type
    """The class of the decoded objects; each has a ``version``."""

    group: str
    version: str
    plural: str

    decode: Callable[[object], Any | Malformed]

    held: Mapping[Any, Any]
    """The objects that the rule has now, by name, or by `Key` if they are namespaced. The rule updates the map."""

    put: Callable[[Any], None]
    """Function that adds or replaces an object in the rule."""

    drop: Callable[[Any], None]
    """Function that removes the object with this name, or `Key` if it is namespaced, from the rule."""

    namespaced: bool = field(default=True, kw_only=True)

    lazy: bool = field(default=False, kw_only=True)
    """True if the kind is watched only from the time when a pod needs it (`Rule.wanted`).

    For kinds of which a cluster may have thousands of objects that no pod uses.
    """


@dataclass(slots=True)
class RuleChanges:
    """A portion of the changes that a rule reports to the Store: pods to update, and what may have become feasible."""

    pods: Collection[str] = ()
    """The UIDs of pods whose shape may have changed. The Store calls `Rule.shape_pod` for them again."""

    recounted: Sequence[Pod] = ()
    """Pods with their new requests and constraints, in which only requests that rules have added have changed.

    No real resources are freed by that. The Store stores these pods as they are.
    """

    reached: Collection[str] = ()
    """The names of pseudo resources: requests added to the pods that e.g. the affinity of another pod selects.

    Waiting pods with such an affinity may fit on other nodes now (`Rule.list_reached`).
    """

    members: Collection[str] = ()
    """The UIDs of waiting pods that may fit on some node now, although their own shape has not changed."""


class Rule(ABC):
    """One rule for the whole cluster, for instance about volumes: it changes pods and nodes because of other objects.

    Only the Store's values of pods and nodes are changed, not the objects in the API server. The Store owns the rule,
    and is its only caller.
    """

    kinds: Sequence[RuleKind] = ()

    reads: Collection[type] = ()
    """The kinds that another rule watches and this rule reads as well. Changes of them are reported to `note_read`."""

    wanted: bool = False
    """True once a pod has needed the ``lazy`` kinds of the rule. From then on they have to be watched."""

    concerns: Callable[[Pod], object]
    """Function that returns a true value for a pod that uses what the rule is about, such as volume claims.

    For other pods the Store does not call the rule. It must be a function of another module, so that the code of the
    rule does not run for them.
    """

    remembered: Collection[str]
    """The UIDs of the pods that the rule remembers. The Store calls the rule for them whatever ``concerns`` returns."""

    watches_all: bool = False
    """True while the Store has to call the rule for all pods, for example because any pod may match a selector."""

    @abstractmethod
    def shape_pod(self, raw: Pod, pod: Pod) -> Pod:
        """Return the pod as changed by this rule, for instance with node affinity to the nodes that its volumes reach.

        The rule remembers the pod, to report when it has to be changed again. ``raw`` is the pod from the watch,
        ``pod`` is the same pod as changed by the rules before this one.
        """

    def shape_hypothetical(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Pod:  # noqa: ARG002 - claims matter to few rules
        """Return a hypothetical pod, of a what-if question, as `shape_pod` would change it.

        ``coming`` are the claims that would be created with it. The rule may remember the pod until
        `forget_hypothetical` is called.
        """
        return pod

    def list_caveats(self, pods: Collection[Pod]) -> Iterable[str]:  # noqa: ARG002 - most rules have none
        """Return phrases that say why a plan for these pods may fail in kube-scheduler.

        The reasons are in objects that the pods use, such as volume claims.
        """
        return ()

    def forget_hypothetical(self) -> None:  # noqa: B027 - most rules remember nothing
        """Forget the pods for which `shape_hypothetical` was called."""

    def forget_pod(self, pod: Pod) -> None:  # noqa: B027 - a rule may remember nothing
        """Forget a deleted pod, given in its last state."""

    def extend_node(self, node: Node) -> Node:
        """Return the node with the pseudo resources and labels that the rule adds to it.

        A pseudo resource is a name that Kubernetes does not know and that plans count like a resource, for instance for
        the devices of a node. ``node`` is the node from the watch, as changed by the rules before this one.
        """
        return node

    def note_labels(self, name: str) -> None:  # noqa: B027 - most rules do not look at labels
        """Handle that a node was added or deleted, or that its labels have changed. Called before `extend_node`."""

    def note_node(self, old: Node | None, new: Node | None) -> None:  # noqa: B027 - most rules do not look at nodes
        """Handle a changed node, as it was (``old``) and is now, with what all rules add to it by `extend_node`.

        ``old`` is None for a new node, ``new`` is None for a deleted one.
        """

    def note_keys(self, before: Collection[str], after: Collection[str]) -> None:  # noqa: B027 - most rules need not
        """Handle that a PodGroup had the topology keys ``before`` and has the keys ``after``."""

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: B027 - not all rules follow kinds
        """Handle a new state of the watch for a kind that the rule uses, e.g. that all its objects are known now.

        ``why`` says why its objects cannot be read; "" if they can.
        """

    def note_read(self, kind: type) -> None:  # noqa: B027 - most rules read no other's
        """Handle a change of an object of this kind, which another rule watches and this rule reads (``reads``)."""

    def list_reached(self, shape: Shape) -> Iterable[str]:  # noqa: ARG002 - most rules are about the node alone
        """Return the names of pseudo resources by which a pod of this shape affects other pods on other nodes.

        A pseudo resource is a request that a rule adds to pods, so that plans count it like a resource. For instance
        each pod that an affinity term of another pod selects requests 1 of a pseudo resource named after the term. If
        a pod that requests it is bound or ends, waiting pods with the term may fit on any node of its domain.
        """
        return ()

    def run_deferred(self) -> bool:
        """Do one piece of the work that changes have left to the rule, a few milliseconds long.

        Return whether there was any.
        """
        return False

    def take_changed_nodes(self) -> Collection[str]:
        """Return and forget the names of some nodes for which `extend_node` has to be called again; empty for none."""
        return ()

    @abstractmethod
    def take_changes(self) -> RuleChanges | None:
        """Return and forget some of the changes since the last call: pods to shape again, and pods that may fit now.

        None if there are no more.
        """


@dataclass(frozen=True, slots=True)
class Ground:
    """The Store's maps of nodes, pods and other objects, for rules to read. The Store updates them in place."""

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    """The pods by UID, with the shapes after all rules."""

    held: dict[type, Mapping[Any, Any]] = field(default_factory=dict)
    """The objects that rules watch, by kind: when a rule is created, those of the rules before it in the list."""


@dataclass(frozen=True, slots=True)
class RuleType:
    """An entry in the list of rules (`serried.rules.all`): how to create the rule for the Store and for the planner."""

    make: Callable[[Ground], Rule]

    plan: PlanRuleType | None = None
    """The factory of the rule's part in the planner; None if the shapes of pods and the nodes express the whole rule.
    """


R = TypeVar("R", bound=Rule)


def make_rules(types: Iterable[RuleType], ground: Ground) -> tuple[Rule, ...]:
    """Create the rules in order, and add the objects that each watches to ``ground.held`` for the rules after it."""
    made: list[Rule] = []
    for each in types:
        rule = each.make(ground)
        ground.held.update((kind.type, kind.held) for kind in rule.kinds)
        made.append(rule)
    return tuple(made)
