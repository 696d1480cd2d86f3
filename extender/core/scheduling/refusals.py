"""The facts that one gang has learnt from refusals by kube-scheduler or a kubelet, and what ends each. No I/O.

Each fact is a `Fact`, and all of them end by one rule, `Fact.holds`: a fact that was learnt from a condition ends when
that condition says that only room is missing, a fact about a node ends when the node changes, and the clock is the last
resort.

    learnt from                          means                   ends with                          at the latest after
    -----------------------------------  ----------------------  ---------------------------------  ----------------
    SCHEDULER: kube-scheduler rejects a  members of the class    node changes; kube-scheduler       the round, when
    node for a class                     are not planned there   offers the node to the class       no node is left
    BESIDE_MATES: the same while mates   the same                node changes; a new node is        the round
    have their nodes                                             offered; the rejection ends
    AFTER_FILTER: a later plugin or      the same, and no pod    node changes; the member's         the round; for
    extender rejects the node            is evicted there        condition lacks only room          evictions 2 min
    KUBELET: the kubelet fails a bound   members of the class    node changes                       5 min
    member                               are not planned there
    evictions after which the node is    no pod is evicted       node changes; kube-scheduler       pause and 5 min
    rejected all the same                there for the class     offers the node to the class
    pods of other schedulers that take   no pod is evicted       node changes; one of these pods    -
    the room of victims                  there                   is gone
    rejection: no node for a member      no room is kept for     the member is gone; the gang is    2 min; after
    while mates have theirs              the gang, no pod is     bound; the member's condition has  evictions pause
                                         evicted                 lacks only room                    and 5 min
    pause: a preemption, or a search     no victims are          after a search: freed room         30 s, doubled to
    for victims, in vain                 searched for                                               32 min; 5 s
    offer: a complete list of nodes for  members that only       the next list                      30 s
    a class                              kube-scheduler counts
                                         go nowhere else

A condition that says that filter has held the pod ends nothing: alone, a member may be offered a node that
kube-scheduler rejects beside its mates. Nor do other reasons: they may be about another node. Nor does any condition
end what was learnt by evictions: pods that take the room again hide the reason, and others would be evicted in vain.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple, Protocol

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.explain import count_things

_CONDITION_SECONDS = 120.0
"""The seconds for which a fact from a condition holds, if the condition stays as it is."""

_KUBELET_SECONDS = 300.0
"""The seconds for which no member is bound to a node whose kubelet has failed one.

Each try costs a Job one of its backoffLimit.
"""

_EVICTED_SECONDS = 300.0
"""The seconds beyond the eviction pause for which a fact with evictions holds: the next search takes other victims."""

_OFFER_SECONDS = 30.0
"""The seconds for which the nodes of kube-scheduler's last complete filter call are believed."""

_EVICTION_PAUSE_SECONDS = 30.0
"""The pause after the first preemption in vain; twice as long after each further one."""

_MAX_DOUBLINGS = 6


class Cluster(Protocol):
    """The nodes and pods as they are now. The Store implements it."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name."""
        ...

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods by UID."""
        ...


class Refuser(Enum):
    """The component that has refused a node, and in which situation; see the table above."""

    SCHEDULER = auto()
    BESIDE_MATES = auto()
    AFTER_FILTER = auto()
    KUBELET = auto()


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact that a gang has learnt, and what ends it."""

    until: float
    """The loop time at which the fact ends; infinite while only the end of the round or a change ends it."""

    node: Node | None = None
    """The node as it was when the fact was learnt; None if it was not known, or the fact is about no node."""

    by: Refuser = Refuser.SCHEDULER

    text: str = ""
    """kube-scheduler's message, for people; "" if the fact does not come from a condition."""

    member: str = ""
    """The UID of the member with that condition; "" if the fact does not come from a condition."""

    evicted: bool = False
    """True if pods were evicted for the try. No condition ends the fact then, because full nodes hide the reason."""

    occupants: frozenset[str] = frozenset()
    """The UIDs of the pods that have to run for the fact to hold."""

    def holds(self, now: float, node: Node | None, pods: Mapping[str, Pod]) -> bool:
        """Return whether the fact is still true at ``now``; ``node`` is its node as it is now, ``pods`` are by UID."""
        if now >= self.until or node is not self.node:
            return False
        if any(uid not in pods or not pods[uid].bound for uid in self.occupants):
            return False
        member = pods.get(self.member)
        return self.evicted or member is None or not (member.pending and member.lacks_only_room)


class Exclusions(NamedTuple):
    """The nodes that a plan has to avoid."""

    pairs: frozenset[tuple[str, str]]
    """The (member UID, node name) pairs to avoid."""

    nodes: frozenset[str]
    """The nodes to avoid for all of the members."""


NO_EXCLUSIONS = Exclusions(frozenset(), frozenset())

_Facts = dict[tuple[Shape, str], Fact]


@dataclass(slots=True)
class Refusals:
    """All facts of one gang; it lives as long as the gang's state. ``now`` is always in loop seconds."""

    closed: _Facts = field(default_factory=dict)
    """The facts by class and node: members of the class are not planned on the node."""

    spared: _Facts = field(default_factory=dict)
    """The facts by class and node: no pod is evicted on the node for members of the class."""

    occupied: dict[str, Fact] = field(default_factory=dict)
    """The facts by node: no pod is evicted there, as pods of other schedulers took the room of the last victims."""

    rejection: Fact | None = None
    """The fact that kube-scheduler had no node for a member while mates had theirs; None without one.

    More room would not start the gang then.
    """

    offers: dict[Shape, tuple[float, frozenset[str]]] = field(default_factory=dict)
    """The time until which the last complete list of a class is believed, and its nodes, by class."""

    no_search_before: float = 0.0
    """The end of the eviction pause, in loop seconds: before it no victims are searched for."""

    failed_preemptions: int = 0
    """The number of preemptions in vain in a row."""

    _offered: frozenset[str] | None = None
    """The nodes offered while no member had one; None before the first list. Kept from rejection to rejection."""

    # --- learning ----------------------------------------------------------------------------------------------

    def refuse(self, shape: Shape, node: str, cluster: Cluster, *, beside_mates: bool = False) -> None:
        """Close a node that kube-scheduler has rejected for a class, alone or while mates had their nodes."""
        by = Refuser.BESIDE_MATES if beside_mates else Refuser.SCHEDULER
        self.closed[shape, node] = Fact(math.inf, cluster.nodes.get(node), by)

    def refuse_after_filter(self, pod: Pod, node: str, now: float, cluster: Cluster, *, evicted: bool) -> None:
        """Close a node that filter has answered and a later plugin has rejected: evictions there would not help.

        ``evicted`` is whether pods were evicted for this try.
        """
        said = Fact(math.inf, cluster.nodes.get(node), Refuser.AFTER_FILTER, pod.said, pod.uid)
        self.closed[pod.shape, node] = said
        until = now + (_EVICTED_SECONDS if evicted else _CONDITION_SECONDS)
        self.spared[pod.shape, node] = replace(said, until=until, evicted=evicted)

    def refuse_by_kubelet(self, pod: Pod, now: float, cluster: Cluster) -> None:
        """Close the node of a bound member that the node's kubelet has failed."""
        until = now + _KUBELET_SECONDS
        self.closed[pod.shape, pod.node] = Fact(until, cluster.nodes.get(pod.node), Refuser.KUBELET)

    def spare(self, shape: Shape, node: str, now: float, cluster: Cluster) -> None:
        """Exempt a node from evictions that was refused for a class after pods were evicted for it."""
        self.spared[shape, node] = Fact(now + _EVICTED_SECONDS, cluster.nodes.get(node), evicted=True)

    def note_occupied(self, node: str, uids: frozenset[str], cluster: Cluster) -> None:
        """Exempt a node from evictions where these pods of other schedulers have taken the room of victims."""
        self.occupied[node] = Fact(math.inf, cluster.nodes.get(node), occupants=uids)

    def reject(
        self,
        pod: Pod,
        beside: Iterable[str],
        mates: Iterable[str],
        text: str,
        now: float,
        cluster: Cluster,
        *,
        evicted: bool,
    ) -> None:
        """Note that kube-scheduler has no node for a member while mates have the nodes ``mates``.

        Close the nodes ``beside`` these to its class. ``evicted`` is whether pods were evicted for this try.
        """
        for node in beside:
            self.refuse(pod.shape, node, cluster, beside_mates=True)
        if pod.counted_elsewhere:
            self._offered = (self._offered or frozenset()).union(mates)
        until = now + (_EVICTED_SECONDS if evicted else _CONDITION_SECONDS)
        self.rejection = Fact(until, by=Refuser.BESIDE_MATES, text=text, member=pod.uid, evicted=evicted)

    def pause_evictions(self, now: float) -> None:
        """Begin the pause after a preemption in vain. Refusals hold until the next searches for victims are over."""
        pause = _EVICTION_PAUSE_SECONDS * 2.0 ** min(self.failed_preemptions, _MAX_DOUBLINGS)
        self.failed_preemptions += 1
        self.no_search_before = now + pause
        until = self.no_search_before + _EVICTED_SECONDS
        self.closed = {key: _prolong(fact, until) for key, fact in self.closed.items()}
        self.spared = {key: _prolong(fact, until) for key, fact in self.spared.items()}
        if self.rejection is not None and self.rejection.evicted:
            self.rejection = _prolong(self.rejection, until)

    def learn_offer(self, shape: Shape, names: frozenset[str], now: float) -> bool:
        """Note the complete list of nodes that kube-scheduler has for a class. Return whether one is new."""
        known = self.offers.get(shape)
        for facts in (self.closed, self.spared):
            for name in names:
                if (found := facts.get((shape, name))) is not None and found.by is Refuser.SCHEDULER:
                    del facts[shape, name]
        self.offers[shape] = (now + _OFFER_SECONDS, names)
        return known is not None and not names <= known[1]

    def try_new_nodes(self, names: frozenset[str]) -> bool:
        """Note the nodes that are offered while a rejected gang rests. Return whether one is new.

        Nodes that were refused beside mates are open again then: some of the mates may go to the new node.
        """
        if self.rejection is None:
            return False
        known, self._offered = self._offered, names | (self._offered or frozenset())
        if known is None or names <= known:
            return False
        self._open_beside_mates()
        return True

    # --- ending facts ------------------------------------------------------------------------------------------

    def end_round(self, until: float) -> None:
        """Open all nodes again at ``until``, because kube-scheduler has refused every node with room."""
        self.closed = {
            key: replace(fact, until=until) if fact.until == math.inf else fact for key, fact in self.closed.items()
        }

    def forget_evictions(self) -> None:
        """Drop the preemptions in vain, because the gang is bound."""
        self.failed_preemptions = 0
        self.occupied.clear()

    def forget_rejection(self) -> None:
        """Drop the rejection, and the nodes that were refused beside mates."""
        self.rejection = self._offered = None
        self._open_beside_mates()

    def _open_beside_mates(self) -> None:
        self.closed = {key: fact for key, fact in self.closed.items() if fact.by is not Refuser.BESIDE_MATES}

    # --- readings ----------------------------------------------------------------------------------------------

    def find_rejection(self, waiting: Iterable[Pod], now: float, cluster: Cluster) -> str:
        """Return why the gang could not start even with free room, a phrase; "" if nothing says so.

        ``waiting`` are the members that have no node. A rejection that has ended is dropped.
        """
        found = self.rejection
        if found is None:
            return ""
        if found.holds(now, None, cluster.pods) and any(pod.uid == found.member for pod in waiting):
            return found.text
        self.forget_rejection()
        return ""

    def find_exclusions(self, pods: Collection[Pod], now: float, cluster: Cluster) -> Exclusions:
        """Return the nodes that a plan for these members must avoid, as kube-scheduler has refused them there.

        Refusals whose cause has ended are dropped first.
        """
        self.closed = _drop_ended(self.closed, now, cluster)
        if not self.closed:
            return NO_EXCLUSIONS
        refused: dict[Shape, set[str]] = {pod.shape: set() for pod in pods}
        for shape, node in self.closed:
            if shape in refused:
                refused[shape].add(node)
        for_all = frozenset.intersection(*map(frozenset, refused.values())) if refused else frozenset[str]()
        left = {shape: found - for_all for shape, found in refused.items()}
        pairs = frozenset((pod.uid, node) for pod in pods for node in left[pod.shape])
        return Exclusions(pairs, for_all)

    def find_spared(self, pods: Iterable[Pod], now: float, cluster: Cluster) -> frozenset[str]:
        """Return the nodes on which no pod is evicted for these members. Drop facts that have ended."""
        self.spared = _drop_ended(self.spared, now, cluster)
        shapes = {pod.shape for pod in pods} if self.spared else ()
        return frozenset(node for shape, node in self.spared if shape in shapes)

    def find_occupied(self, now: float, cluster: Cluster) -> frozenset[str]:
        """Return the nodes on which pods of other schedulers still have the room of the last victims."""
        nodes, pods = cluster.nodes, cluster.pods
        self.occupied = {name: fact for name, fact in self.occupied.items() if fact.holds(now, nodes.get(name), pods)}
        return frozenset(self.occupied)

    def unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Return the nodes that kube-scheduler has offered to none of these members; none while that is not known."""
        self.offers = {shape: offer for shape, offer in self.offers.items() if now < offer[0]}
        if not self.offers:
            return frozenset()
        offers = [self.offers.get(shape) for shape in {pod.shape for pod in pods}]
        known = [names for offer in offers if offer is not None for names in [offer[1]]]
        return frozenset(nodes.keys() - frozenset().union(*known)) if len(known) == len(offers) else frozenset()

    def describe_after_filter(self, pods: Iterable[Pod]) -> str:
        """Return how many nodes were refused to these members after filter, and why, a phrase; "" for none."""
        shapes = {pod.shape for pod in pods}
        texts = {
            node: fact.text
            for (shape, node), fact in self.closed.items()
            if fact.by is Refuser.AFTER_FILTER and shape in shapes
        }
        if not texts:
            return ""
        words = list(dict.fromkeys(texts.values()))[-1]
        return f"the scheduler refuses {count_things(len(texts), 'node')} after filter: {words}"


def _drop_ended(facts: _Facts, now: float, cluster: Cluster) -> _Facts:
    nodes, pods = cluster.nodes, cluster.pods
    return {key: fact for key, fact in facts.items() if fact.holds(now, nodes.get(key[1]), pods)}


def _prolong(fact: Fact, until: float) -> Fact:
    """Return the fact with an end of at least ``until``; with exactly ``until`` if the round was to end it."""
    return replace(fact, until=until if fact.until == math.inf else max(fact.until, until))
