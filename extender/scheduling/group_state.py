"""What the group scheduler remembers of one group between looks at it."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from extender.scheduling.awaited_owner import AwaitedOwner
from extender.scheduling.cycle import BindingCycle
from serried.model.node import Node
from serried.model.pod import Pod, Shape
from serried.model.tree import Tree
from serried.model.verdict import Verdict
from serried.model.victim import NoVictims, Preemption

KUBELET_EXCLUSION_SECONDS = 300.0
"""Longer, because each further try costs a pod, and a Job has only so many of them to lose (backoffLimit)."""

PREEMPTION_EXCLUSION_SECONDS = 300.0
"""From the end of the pause after a preemption in vain on, so that the next searches take other nodes.

Longer, because others have ended for the try, and would for the next one.
"""

VAIN_SECONDS = 1800.0
"""For how long nobody is evicted again where others have ended in vain: about the longest rest between two times."""

_OFFER_SECONDS = 30.0
"""How long it counts which nodes the scheduler has offered."""


class Refuser(Enum):
    """Who has refused a node."""

    SCHEDULER = auto()

    SCHEDULER_BESIDE_MATES = auto()
    """When others of the gang had their nodes: alone, a member may be offered it all the same."""

    KUBELET = auto()
    """After the member was bound: the scheduler, which does not ask it, may offer it all the same."""


class Refusal(NamedTuple):
    """A node that is not tried again for a class of members."""

    until: float
    """In loop seconds; infinite as long as there is another node to be tried."""

    seen: Node | None
    """The node as it was; whatever changes of it may change the answer."""

    by: Refuser = Refuser.SCHEDULER


class Exclusions(NamedTuple):
    """What was refused, as a plan is asked to avoid it."""

    pairs: frozenset[tuple[str, str]]
    """The (member UID, node name) pairs that are out."""

    nodes: frozenset[str]
    """The nodes that are out for each of the members."""


class Rejection(NamedTuple):
    """The scheduler had no node at all for a member beside mates that had theirs."""

    until: float
    """In loop seconds: from then on room may be kept and others may be evicted for the gang again."""

    text: str
    """The scheduler's own words, as a phrase."""

    uid: str
    """The member's; without it nothing is known."""


@dataclass(slots=True)
class GroupState:
    """The memory of one group. Times are loop seconds.

    ``tried`` is what it was planned with last: while the queue's backlog has it, it is not planned again before that
    changes, or ``retry_at``. ``not_before`` is the end of a rest after failures. ``refusals`` are the nodes that the
    scheduler, or a kubelet, has truly refused, by class; one is void as soon as the node changes, its time is over, or
    the scheduler offers it, where that says anything (`Refuser`). ``offers`` are the nodes that the scheduler has
    offered last, by class.

    ``started`` is whether its quorum has ever stood, as far as can be told; ``stood`` its tree when we saw that.
    ``home`` is the domain in which its members run: it outlasts nodes that are gone. ``broken_since`` is when it fell
    below its quorum, ``reported`` whether that was told, ``evicting`` whether what is left of it is being evicted.
    """

    first_seen: float
    verdict: Verdict | None = None

    had_members: bool = False
    """Whether it had members when the verdict was said last."""

    awaited: AwaitedOwner | None = None
    """What is known of the owner while no watch has shown it."""

    reason_since: float = 0.0
    """Since when the verdict has its reason."""

    waiting_since: float = 0.0
    """Since when it is not Scheduled."""

    quorum_since: float | None = None
    """Since when its members are enough, as far as their creation times tell; None if they are not."""

    hindered: float = -math.inf
    """When it was seen last that more than members was missing: their creation times say nothing of that."""

    unattended: bool = False
    """Whether its last cycle has ended because the scheduler, away, came to none of its members."""

    cycle: BindingCycle | None = None
    tried: tuple[object, ...] = ()
    not_before: float = 0.0
    retry_at: float = float("inf")
    attempts: int = 0
    refusals: dict[tuple[Shape, str], Refusal] = field(default_factory=dict)
    offers: dict[Shape, tuple[float, frozenset[str]]] = field(default_factory=dict)

    rejection: Rejection | None = None
    """What keeps it from running, if it is not room; while that stands it keeps no room, and nobody goes for it."""

    started: bool = False
    stood: Tree | None = None
    home: str = ""
    broken_since: float | None = None
    reported: bool = False
    evicting: bool = False

    preemption: Preemption | NoVictims | None = None
    """What the last search for victims has found."""

    no_preemption_before: float = 0.0
    """The end of a pause in which no victims are looked for."""

    failed_preemptions: int = 0
    """How many preemptions in a row have led to nothing."""

    vain: dict[tuple[Shape, str], Refusal] = field(default_factory=dict)
    """As ``refusals``, of nodes refused after others had ended for it: nobody else is to end there for it."""

    taken: dict[str, tuple[frozenset[str], Node | None]] = field(default_factory=dict)
    """By node, the pods of other schedulers that have come where others had ended for it, as UIDs.

    As long as all of them run there, and the node is as it was, nobody else is to end there for it.
    """

    disrupted: set[str] = field(default_factory=set)
    """The UIDs of members that somebody disrupts, or that go with one: what was to follow has followed."""

    leaving: set[str] = field(default_factory=set)
    """The UIDs of those of them that are being ended together, until they are gone or it is given up."""

    def end_term(self) -> None:
        """Another instance may lead from now on; what that one does and says, nobody here sees."""
        self.verdict = None  # it may not be told yet
        self.awaited = None  # it may come, and go, unseen
        self.quorum_since = None  # it may break, and stand again
        self.tried = ()  # else a gang that waits would not be planned when our turn comes again, and nothing said of it
        # Who was to be ended may not be yet, and nobody goes on with it: it follows again.
        self.disrupted.clear()
        self.leaving.clear()

    def refuse(
        self,
        shape: Shape,
        node: str,
        nodes: Mapping[str, Node],
        mates: Collection[str] = (),
    ) -> None:
        """The scheduler has refused this node for this class. ``mates`` are the nodes that others of the gang had then.

        It counts until no other node is left to be tried (`end_round`).
        """
        by = Refuser.SCHEDULER_BESIDE_MATES if mates else Refuser.SCHEDULER
        self.refusals[shape, node] = Refusal(math.inf, nodes.get(node), by)

    def note_kubelet(self, pod: Pod, nodes: Mapping[str, Node], until: float) -> None:
        """The kubelet of its node would not run a bound member."""
        self.refusals[pod.shape, pod.node] = Refusal(until, nodes.get(pod.node), Refuser.KUBELET)

    def prolong_refusals(self, until: float) -> None:
        """What is refused stays so until then at least, also what was when the last try began and is not any more."""
        self.refusals = {
            key: found._replace(until=until if found.until == math.inf else max(found.until, until))
            for key, found in self.refusals.items()
        }

    def end_round(self, until: float) -> None:
        """No node is left that the scheduler has not refused: from then on all are tried again."""
        self.refusals = {
            key: found._replace(until=until) if found.until == math.inf else found
            for key, found in self.refusals.items()
        }

    def reject(self, pod: Pod, beside: Iterable[str], text: str, now: float, nodes: Mapping[str, Node]) -> None:
        """The scheduler has no node for a member while mates have these, whatever room there is: others are tried."""
        by = Refuser.SCHEDULER_BESIDE_MATES
        self.refusals |= {(pod.shape, node): Refusal(math.inf, nodes.get(node), by) for node in beside}
        self.rejection = Rejection(now + VAIN_SECONDS, text, pod.uid)

    def find_rejection(self, waiting: Iterable[Pod], now: float) -> str:
        """Why those that wait cannot run, whatever room there is, a phrase; "" if nothing (more) is known of that."""
        found = self.rejection
        if found is None:
            return ""
        if now >= found.until or all(pod.uid != found.uid for pod in waiting):
            self.forget_rejection()
            return ""
        return found.text

    def forget_rejection(self) -> None:
        """Nothing (more) is known of members that have no node beside their mates."""
        self.rejection = None
        mates = Refuser.SCHEDULER_BESIDE_MATES
        self.refusals = {key: each for key, each in self.refusals.items() if each.by is not mates}

    def find_exclusions(self, pods: Collection[Pod], now: float, nodes: Mapping[str, Node]) -> Exclusions:
        """What is out for these members for now; drops what is void."""
        self.refusals = _drop_void(self.refusals, now, nodes)
        if not self.refusals:
            return Exclusions(frozenset(), frozenset())
        refused: dict[Shape, set[str]] = {pod.shape: set() for pod in pods}
        for shape, node in self.refusals:
            if shape in refused:
                refused[shape].add(node)
        everybody = frozenset.intersection(*map(frozenset, refused.values())) if refused else frozenset[str]()
        left = {shape: found - everybody for shape, found in refused.items()}
        pairs = frozenset((pod.uid, node) for pod in pods for node in left[pod.shape])
        return Exclusions(pairs, everybody)

    def learn_offer(self, shape: Shape, names: Iterable[str], now: float) -> bool:
        """The scheduler takes these nodes, and no others, for a class; whether there is one that was not known."""
        known, offered = self.offers.get(shape), frozenset(names)
        for name in offered:
            self.vain.pop((shape, name), None)
            if (refused := self.refusals.get((shape, name))) is not None and refused.by is Refuser.SCHEDULER:
                del self.refusals[shape, name]
        self.offers[shape] = (now + _OFFER_SECONDS, offered)
        return known is not None and not offered <= known[1]

    def unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """The nodes that are out for all these members by what was offered to them; none while it is not known."""
        self.offers = {shape: offer for shape, offer in self.offers.items() if now < offer[0]}
        if not self.offers:
            return frozenset()
        offers = [self.offers.get(shape) for shape in {pod.shape for pod in pods}]
        known = [names for offer in offers if offer is not None for names in [offer[1]]]
        return frozenset(nodes.keys() - frozenset().union(*known)) if len(known) == len(offers) else frozenset()

    def note_vain(self, shape: Shape, node: str, now: float, nodes: Mapping[str, Node]) -> None:
        """Others have ended for it, and all the same the scheduler refuses this node for this class."""
        self.vain[shape, node] = Refusal(now + VAIN_SECONDS, nodes.get(node))

    def find_vain(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """The nodes on which nobody is to end for these members for now; drops what is void."""
        self.vain = _drop_void(self.vain, now, nodes)
        if not self.vain:
            return frozenset()
        shapes = {pod.shape for pod in pods}
        return frozenset(node for shape, node in self.vain if shape in shapes)

    def note_taken(self, node: str, uids: frozenset[str], nodes: Mapping[str, Node]) -> None:
        """Others have ended on this node for it, and these pods have got the room."""
        self.taken[node] = (uids, nodes.get(node))

    def find_taken(self, running: Mapping[str, Pod], nodes: Mapping[str, Node]) -> frozenset[str]:
        """The nodes on which the room is still taken; drops the others. ``running`` are all pods, by UID."""
        self.taken = {
            name: (uids, seen)
            for name, (uids, seen) in self.taken.items()
            if nodes.get(name) is seen and all(uid in running and running[uid].bound for uid in uids)
        }
        return frozenset(self.taken)


def _drop_void(
    found: dict[tuple[Shape, str], Refusal], now: float, nodes: Mapping[str, Node]
) -> dict[tuple[Shape, str], Refusal]:
    """What was learnt of nodes that have not changed since, as long as it holds."""
    return {key: each for key, each in found.items() if now < each.until and nodes.get(key[1]) is each.seen}


@dataclass(frozen=True, slots=True)
class Repair:
    """What of a gang is being repaired."""

    replacements: tuple[Pod, ...] = ()
    """The members that take their kept slots alone, without a quorum: with the gang that runs, they are its quorum.

    A replacement that finds no room in its own slot is a member like any other.
    """

    fitting: frozenset[str] = frozenset()
    """The UIDs of all members whose own kept slot takes them now, so that the queue need not wake them for room."""


NO_REPAIR = Repair()
"""Nothing is to be repaired."""
