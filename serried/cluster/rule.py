"""The interface between the Store and the rules of `serried.rules` (`Rule`).

A rule changes what a pod requests, or what a node offers, because of other objects, such as volume claims. The Store
only knows rules by this interface, and applies them in the order of their list:

    pod as the watch shows it ──▶ ask ──▶ ask ──▶ ... ──▶ pod with the shape that plans use
    node                      ──▶ offer ──▶ ...       ──▶ node with the amounts and labels that plans use
    another object            ──▶ put, drop of its `RuleKind`
                                        │
                                        ▼
                         take_nodes: nodes to offer again
                         take_news: pods to ask for again, members that may fit by now

A rule reports changes only by `take_nodes` and `take_news`, so every change of an answer wakes the gangs that wait for
it. A rule costs nothing for pods that do not use it.

One object may change the answers for thousands of pods. So a rule returns a few nodes or pods at a time, the oldest
change first, and the Store calls again; other work runs in between. Until then the answers are outdated, as if the
watch were late. If an outdated answer would be wrong, because a pod is not counted yet, the rule sets `Pod.awaits`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from serried.api.device import NOTHING, Coming
from serried.api.names import Malformed
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.rule import PlanRuleType

AT_ONCE = 8
"""The number of nodes or pods that a rule returns at a time."""


class KindState(Enum):
    """The state of the watch for the objects of a kind."""

    IDLE = "idle"
    """The kind is not watched, because no pod has needed it yet."""

    LISTING = "listing"
    """The kind is being listed, because a pod needs it."""

    KNOWN = "known"

    DENIED = "denied"
    """The API server forbids list or watch (403)."""

    UNSERVED = "unserved"
    """The API server does not serve the kind, so there are no objects."""


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A kind of objects that a rule watches, and its functions for the feed. Serried also works without the kind."""

    type: type
    """The class of the decoded objects; each has a ``version``."""

    group: str
    version: str
    plural: str

    decode: Callable[[object], Any | Malformed]

    held: Mapping[Any, Any]
    """The rule's live map of the objects, by name, or by `Key` if they are namespaced."""

    put: Callable[[Any], None]
    """Adds or replaces an object."""

    drop: Callable[[Any], None]
    """Removes the object with this name or key."""

    namespaced: bool = field(default=True, kw_only=True)

    lazy: bool = field(default=False, kw_only=True)
    """True if the watch starts only when the rule is ``wanted``: a cluster may have thousands of unused objects."""


@dataclass(slots=True)
class News:
    """A portion of the changes that a rule reports to the Store."""

    pods: Collection[str] = ()
    """The UIDs of pods whose shape may have changed. The Store calls `Rule.ask` for them again."""

    recounted: Sequence[Pod] = ()
    """Pods with their new shape, in which only pseudo resources have changed. Nothing was freed."""

    reached: Collection[str] = ()
    """The names of amounts on a node that now decide differently about pods on other nodes (`Rule.list_reached`)."""

    members: Collection[str] = ()
    """The UIDs of pods that may fit on some node now, although their shape has not changed."""


class Rule(ABC):
    """One rule for the whole cluster. The Store owns it, and is its only caller."""

    kinds: Sequence[RuleKind] = ()

    reads: Collection[type] = ()
    """The kinds of other rules that this rule also reads. `note_read` is called when such an object has changed."""

    wanted: bool = False
    """True if a pod has needed the lazy kinds, so that they have to be watched."""

    concerns: Callable[[Pod], object]
    """Returns a true value for a pod that uses what the rule is about. Most pods concern no rule and skip all of them.

    It must be a function of another module, so that plain pods do not enter the rule's package.
    """

    remembered: Collection[str]
    """The UIDs of the pods that the rule remembers. It is called for them even if they do not concern it any more."""

    watches_all: bool = False
    """True while the rule has to be called for all pods, for example because a selector may match them."""

    @abstractmethod
    def ask(self, raw: Pod, pod: Pod) -> Pod:
        """Return the pod with the shape that the rule gives it, and remember what is needed to report changes of it.

        ``raw`` is the pod from the watch, ``pod`` is the result of the rules before this one.
        """

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:  # noqa: ARG002 - claims matter to few rules
        """Return a hypothetical pod with the shape that it would have; ``coming`` are hypothetical claims for it.

        The rule may remember it until `forget_shown`.
        """
        return pod

    def list_caveats(self, pods: Collection[Pod]) -> Iterable[str]:  # noqa: ARG002 - most rules have none
        """Return phrases about what a plan for these pods cannot guarantee, because of objects that they use."""
        return ()

    def forget_shown(self) -> None:  # noqa: B027 - most rules remember nothing
        """Forget the hypothetical pods of `show`."""

    def forget(self, pod: Pod) -> None:  # noqa: B027 - a rule may remember nothing
        """Forget a deleted pod; ``pod`` is its last state in the Store."""

    def offer(self, node: Node) -> Node:
        """Return the node with the amounts and labels that the rule adds or changes.

        ``node`` is the node from the watch, as changed by the rules before this one.
        """
        return node

    def note_labels(self, name: str) -> None:  # noqa: B027 - most rules do not look at labels
        """Note that a node was added or deleted, or has other labels. Called before `offer`."""

    def note_node(self, old: Node | None, new: Node | None) -> None:  # noqa: B027 - most rules do not look at nodes
        """Note that a node has changed, as results of `offer`; None if it did not, or does not, exist."""

    def note_keys(self, before: Collection[str], after: Collection[str]) -> None:  # noqa: B027 - most rules need not
        """Note the topology keys of a PodGroup before and after a change of it."""

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: B027 - not all rules follow kinds
        """Note the state of the watch for a kind; ``why`` is a phrase if its objects cannot be read, else ""."""

    def note_read(self, kind: type) -> None:  # noqa: B027 - most rules read no other's
        """Note that an object of a kind in ``reads`` has changed."""

    def list_reached(self, shape: Shape) -> Iterable[str]:  # noqa: ARG002 - most rules are about the node alone
        """Return names of amounts by which a pod of this shape, when it comes or goes, affects other nodes, too."""
        return ()

    def run_deferred(self) -> bool:
        """Do a few milliseconds of the rule's deferred work. Return whether there was any."""
        return False

    def take_nodes(self) -> Collection[str]:
        """Return the names of some nodes for which `offer` has to be called again; empty if there are no more."""
        return ()

    @abstractmethod
    def take_news(self) -> News | None:
        """Return some changes that were not returned yet; None if there are no more."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The nodes, pods and other objects of the Store, for rules to read. The Store updates these maps in place."""

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    """The pods by UID, with their final shapes."""

    held: dict[type, Mapping[Any, Any]] = field(default_factory=dict)
    """The objects that other rules watch, by kind: those of the rules before this one."""


@dataclass(frozen=True, slots=True)
class RuleType:
    """An entry in the list of rules (`serried.rules.all`): the factories of one rule."""

    make: Callable[[Ground], Rule]

    plan: PlanRuleType | None = None
    """The factory of the rule's part in the planner; None if amounts, labels and node terms express the whole rule."""


R = TypeVar("R", bound=Rule)


def make_rules(types: Iterable[RuleType], ground: Ground) -> tuple[Rule, ...]:
    """Create the rules in order: each may read the objects of the rules before it."""
    made: list[Rule] = []
    for each in types:
        rule = each.make(ground)
        ground.held.update((kind.type, kind.held) for kind in rule.kinds)
        made.append(rule)
    return tuple(made)
