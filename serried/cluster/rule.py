"""The Store's side of a rule: what pods ask for, and nodes have, because of objects beside them.

Each rule is a room of its own in `serried.rules`; the Store knows them by this interface only, and goes through their
list in its order:

    pod as the watch shows it ──▶ ask ──▶ ask ──▶ ... ──▶ pod with the shape that plans use
    node                      ──▶ offer ──▶ ...       ──▶ node with the amounts and labels that plans use
    another object            ──▶ put, drop of its `RuleKind`
                                        │
                                        ▼
                         take_nodes: nodes to offer again
                         take_news: pods to ask for again, members that may fit by now

A rule has no other way to tell of a change, so what changes an answer wakes the gangs that wait for it. A rule costs
what it touches, and nothing where no pod uses it.

One object may change thousands of answers. So a rule hands over a few nodes or pods at a time, the oldest change first,
and the Store comes back for more: nothing else waits for all of them. Until then answers are as if the watch were late.
Where they would be wrong instead, as nothing is counted yet for a pod, the rule says so of it (`Pod.awaits`).
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
"""How many nodes or pods a rule hands over at a time."""


class KindState(Enum):
    """How much is known of the objects of a kind."""

    IDLE = "idle"
    """The objects are not watched: no pod has needed them yet."""

    LISTING = "listing"
    """The objects are being listed: a pod needs them by now."""

    KNOWN = "known"

    DENIED = "denied"
    """The API server does not let us see them."""

    UNSERVED = "unserved"
    """The API server does not have the kind, so there are none."""


@dataclass(frozen=True, slots=True)
class RuleKind:
    """A kind of objects that a rule follows, and how the feed hands them over. Serried needs none of them to work."""

    type: type
    """The class of the decoded objects; each has a ``version``."""

    group: str
    version: str
    plural: str

    decode: Callable[[object], Any | Malformed]

    held: Mapping[Any, Any]
    """The rule's own map of these objects, by name, or by `Key` if they are namespaced. Live."""

    put: Callable[[Any], None]
    """An object came or changed."""

    drop: Callable[[Any], None]
    """The object with this name or key went."""

    namespaced: bool = field(default=True, kw_only=True)

    lazy: bool = field(default=False, kw_only=True)
    """Whether it is followed only from when the rule is ``wanted``: many clusters have thousands that nobody uses."""


@dataclass(slots=True)
class News:
    """What a rule has changed, or a part of that."""

    pods: Collection[str] = ()
    """UIDs of pods of which the shape may be another now: they are put again, as the watch showed them."""

    recounted: Sequence[Pod] = ()
    """Pods with a new shape already: nothing but amounts has changed, and no room."""

    reached: Collection[str] = ()
    """Amounts of which a node has changed the answer for pods on other nodes, too (`Rule.list_reached`)."""

    members: Collection[str] = ()
    """UIDs of pods that may fit on some node by now, though their shape has not changed."""


class Rule(ABC):
    """One rule for the whole cluster. It lives as long as the Store, which alone calls it."""

    kinds: Sequence[RuleKind] = ()

    reads: Collection[type] = ()
    """Kinds of other rules that matter to this one, too: `note_read` is called when an object of them has changed."""

    wanted: bool = False
    """Whether anybody has needed the lazy kinds."""

    concerns: Callable[[Pod], object]
    """Returns something true for a pod that asks for what the rule is about; a function outside of the rule's room.

    Most pods concern no rule, and are not taken through any.
    """

    remembered: Collection[str]
    """The UIDs of the pods that the rule remembers: they are told to it whatever they ask for by now."""

    watches_all: bool = False
    """Whether pods matter at the moment that do not concern the rule, such as those that a selector means."""

    @abstractmethod
    def ask(self, raw: Pod, pod: Pod) -> Pod:
        """Return a pod with the shape that the rule gives it, and remember what is needed to ask again.

        ``raw`` is the pod as the watch showed it, ``pod`` what the rules before have made of it.
        """

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:  # noqa: ARG002 - claims matter to few rules
        """Return a pod that does not exist with the shape that it would have; ``coming`` are claims that come with it.

        Nothing is remembered but until `forget_shown`.
        """
        return pod

    def list_caveats(self, pods: Collection[Pod]) -> Iterable[str]:  # noqa: ARG002 - most rules have none
        """Return what a plan for these pods cannot promise, because of objects that they use, a phrase each."""
        return ()

    def forget_shown(self) -> None:  # noqa: B027 - most rules remember nothing
        """Forget what was only shown."""

    def forget(self, pod: Pod) -> None:  # noqa: B027 - a rule may remember nothing
        """Forget a pod that went; ``pod`` is as the Store had it."""

    def offer(self, node: Node) -> Node:
        """Return the node with the amounts and labels that the rule knows of.

        ``node`` is as the watch showed it, with what the rules before have made of it.
        """
        return node

    def note_labels(self, name: str) -> None:  # noqa: B027 - most rules do not look at labels
        """Note that a node came, has other labels, or went. Called before it is offered."""

    def note_node(self, old: Node | None, new: Node | None) -> None:  # noqa: B027 - most rules do not look at nodes
        """Note that the room of a node is another; both as they are offered, None for one that is not there."""

    def note_keys(self, before: Collection[str], after: Collection[str]) -> None:  # noqa: B027 - most rules need not
        """Note the topology keys that a PodGroup asks for, before and after a change of it."""

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: B027 - not all rules follow kinds
        """Note how much is known of a kind; ``why`` is a phrase if it is less than all, "" else."""

    def note_read(self, kind: type) -> None:  # noqa: B027 - most rules read no other's
        """Note that an object of a kind in ``reads`` has changed."""

    def list_reached(self, shape: Shape) -> Iterable[str]:  # noqa: ARG002 - most rules are about the node alone
        """Return the amounts by which it matters on other nodes, too, that a pod of this shape comes or goes."""
        return ()

    def go_on(self) -> bool:
        """Do some milliseconds of what the rule has put off; return whether there was anything to do."""
        return False

    def take_nodes(self) -> Collection[str]:
        """Return the names of some nodes that may be offered otherwise than before; none if there are no more."""
        return ()

    @abstractmethod
    def take_news(self) -> News | None:
        """Return some of what has changed and was not handed over yet, None if there is no more."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The Store's own maps that rules read; all are live."""

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    """By UID, with the shapes that plans use."""

    held: dict[type, Mapping[Any, Any]] = field(default_factory=dict)
    """The objects that the rules before follow, by kind."""


@dataclass(frozen=True, slots=True)
class RuleType:
    """One rule, as the list in `serried.rules.all` has it."""

    make: Callable[[Ground], Rule]

    plan: PlanRuleType | None = None
    """How the planner comes to the rule; None for one of which all is told by amounts, labels and node terms."""


R = TypeVar("R", bound=Rule)


def make_rules(types: Iterable[RuleType], ground: Ground) -> tuple[Rule, ...]:
    """Make the rules in their order: each may read what those before it follow."""
    made: list[Rule] = []
    for each in types:
        rule = each.make(ground)
        ground.held.update((kind.type, kind.held) for kind in rule.kinds)
        made.append(rule)
    return tuple(made)
