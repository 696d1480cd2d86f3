"""Consequences of refusals of nodes for one gang: where members are not planned, where no pods are evicted. No I/O.

The planner may find a node feasible that kube-scheduler or the kubelet then refuses for a member. `Refusals` has what
is concluded from that for one gang, as a `Fact` each. A fact usually is about a node and all members with one shape,
i.e. with equal requests and constraints. Facts end by one rule, `Fact.holds`: a fact that comes from a pod's condition
ends when the condition says that only resources are missing, a fact about a node ends when the node changes, and a time
limit is the last resort. In the table a round is the time in which nodes are refused one after another. It ends when no
node that fits is left: then all of them may be tried again.

Components that see a refusal call the methods ``exclude_...`` and ``note_...``. Before the next plan `GroupState` calls
`Refusals.find_exclusions`, the search for victims calls `Refusals.find_exempt`.

    comes from                           means                   ends with                          at the latest after
    -----------------------------------  ----------------------  ---------------------------------  ----------------
    SCHEDULER: kube-scheduler rejects a  members of the shape    node changes; kube-scheduler       the round
    node for a shape                     are not planned there   offers the node to the shape
    BESIDE_MATES: so, while other        members of the shape    node changes; a new node is        the round
    members have their nodes             are not planned there   offered; the rejection ends
    AFTER_FILTER: a later plugin or      members are not planned node changes; the member's         the round; for
    extender rejects the node            there, and no pod is    condition lacks only resources     evictions 2 min
                                         evicted there
    KUBELET: the kubelet fails a bound   members of the shape    node changes                       5 min
    member                               are not planned there
    evictions after which the node is    no pod is evicted       node changes; kube-scheduler       pause and 5 min
    rejected all the same                there for the shape     offers the node to the shape
    pods of other schedulers that take   no pod is evicted       node changes; one of these pods    -
    what victims have freed              there                   is gone
    rejection: no node for a member      no nodes are kept for   the member is gone; the gang is    2 min; after
    while other members have theirs      the gang, no pod is     bound; the member's condition      evictions pause
                                         evicted                 lacks only resources               and 5 min
    pause: a preemption after which the  no victims are          -                                  30 s, doubled to
    gang is not bound                    searched for                                               32 min
    pause: a search for victims without  no victims are          freed resources                    5 s or more
    success                              searched for
    offer: a complete list of nodes for  members whose devices   the next list                      30 s
    a shape                              only kube-scheduler can
                                         count are planned on
                                         these nodes alone

Other conditions end nothing. If the condition says that Serried's filter has held the pod, kube-scheduler may still
reject the node once the other members have theirs. Other reasons may be about another node. No condition ends a fact
that comes from evictions: pods that have taken the resources hide the reason, and evictions would be repeated.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple, Protocol

from serried.api.names import count_things
from serried.api.node import Node
from serried.api.pod import Pod, Shape

_CONDITION_SECONDS = 120.0
"""The seconds for which a node is avoided because of what a pod's condition says, if the condition does not change."""

_KUBELET_SECONDS = 300.0
"""The seconds for which no member is planned on a node whose kubelet has failed an equal member.

Each try costs a Job one of its backoffLimit.
"""

_EVICTED_SECONDS = 300.0
"""The seconds for which a node is avoided that kube-scheduler has rejected in spite of evictions.

They count from the rejection, or else from the end of the eviction pause that follows it (`Refusals.pause_evictions`),
so that the next search for victims finds other pods.
"""

_OFFER_SECONDS = 30.0
"""The seconds for which the nodes of kube-scheduler's last complete filter call count as its only feasible ones."""

_EVICTION_PAUSE_SECONDS = 30.0
"""The seconds without a search for victims after the first failed preemption; doubled after each further one."""

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
    """The component that has refused a node for a member, and in which situation (see the table of this module)."""

    SCHEDULER = auto()
    """kube-scheduler, while no other member of the gang had its node."""
    BESIDE_MATES = auto()
    """kube-scheduler, while other members of the gang had their nodes."""
    AFTER_FILTER = auto()
    """A plugin or another extender that kube-scheduler calls after Serried's filter."""
    KUBELET = auto()
    """The kubelet, which has failed a bound member on its node."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A conclusion from one refusal, and when it ends: for instance, some members are not planned on a node.

    `Refusals` keeps it in a mapping or field that says what the conclusion is.
    """

    until: float
    """The loop time at which the conclusion from a refusal ends at the latest: e.g. a node may be planned again.

    Infinite if it only ends by a change, or once all nodes that fit are refused.
    """

    node: Node | None = None
    """The node as it was at the refusal; None if it did not exist, or if the refusal was about no single node.

    The conclusion ends when the node has changed since then.
    """

    by: Refuser = Refuser.SCHEDULER
    """The component that has refused the node, and in which situation."""

    text: str = ""
    """kube-scheduler's message about the refusal, for the verdict; "" if it was not read from a pod's condition."""

    member: str = ""
    """The UID of the member whose condition PodScheduled has told of the refusal; "" if no condition has.

    The conclusion ends when the condition says that only resources are missing.
    """

    evicted: bool = False
    """True if victims were evicted for the member before the refusal.

    Then the member's condition does not end the conclusion: other pods may fill the node again and hide the reason.
    """

    occupants: frozenset[str] = frozenset()
    """The UIDs of pods of other schedulers that use what victims have freed.

    The conclusion, that no pod is to be evicted there, ends when one of them is no longer bound. Empty for conclusions
    that depend on no pods.
    """

    def holds(self, now: float, node: Node | None, pods: Mapping[str, Pod]) -> bool:
        """Return whether the conclusion still holds at ``now`` (loop time): nothing has happened that ends it.

        ``node`` is the refused node as it is now, None if it does not exist; ``pods`` are all pods by UID.
        """
        if now >= self.until or node is not self.node:
            return False
        if any(uid not in pods or not pods[uid].bound for uid in self.occupants):
            return False
        member = pods.get(self.member)
        return self.evicted or member is None or not (member.pending and member.lacks_only_room)


class Exclusions(NamedTuple):
    """The nodes that a plan must not use: some for all members, some only for certain members.

    A `PlanRequest` takes them in this form.
    """

    pairs: frozenset[tuple[str, str]]
    """Pairs (member UID, node name): the node must not be used for this member."""

    nodes: frozenset[str]
    """The names of nodes that must not be used for any member."""


NO_EXCLUSIONS = Exclusions(frozenset(), frozenset())

_Facts = dict[tuple[Shape, str], Fact]


@dataclass(slots=True)
class Refusals:
    """The consequences of refusals of nodes by kube-scheduler and kubelets for one gang, as a `Fact` each.

    It lives as long as the gang's `GroupState`. ``now`` is always in loop seconds, ``cluster`` is the cluster as it is
    now, and a ``shape`` is the requests and constraints of a member: a refusal counts for all members with them.
    """

    excluded: _Facts = field(default_factory=dict)
    """The nodes on which members are not planned, because the node was refused for one of them.

    Keys are the members' shape (requests and constraints) and the node name. Values say why, and when it ends.
    """

    exempt: _Facts = field(default_factory=dict)
    """The nodes on which no pods are evicted for members, because evictions there would not help or did not.

    Keys are the members' shape (requests and constraints) and the node name. Values say why, and when it ends.
    """

    taken_by_others: dict[str, Fact] = field(default_factory=dict)
    """By node name, the pods of other schedulers that took there what victims had freed (`Fact.occupants`).

    No pod is evicted on the node while they run.
    """

    rejection: Fact | None = None
    """Set after kube-scheduler had no node for a member while other members had theirs; None otherwise.

    It says why, and when this no longer counts. Until then more free resources would not start the gang.
    """

    offers: dict[Shape, tuple[float, frozenset[str]]] = field(default_factory=dict)
    """The nodes in kube-scheduler's last complete filter call for a member, by its shape (requests and constraints).

    Each value is the loop time until which they count as the only feasible nodes, and their names.
    """

    no_search_before: float = 0.0
    """The end of the eviction pause, in loop seconds: before it no victims are searched for."""

    failed_preemptions: int = 0
    """The number of preemptions in a row after which the gang was not bound."""

    _offered: frozenset[str] | None = None
    """The nodes that kube-scheduler has offered or used for the gang's members, up to a ``rejection`` and since then.

    Any other node that it offers is new. None if no node is known yet.
    """

    # --- learning ----------------------------------------------------------------------------------------------

    def exclude_node(self, shape: Shape, node: str, cluster: Cluster, *, beside_mates: bool = False) -> None:
        """Note that members with this shape (requests and constraints) are not to be planned on a node any more.

        kube-scheduler has rejected the node for one of them. ``beside_mates`` is True if other members of the gang
        had their nodes at that time.
        """
        by = Refuser.BESIDE_MATES if beside_mates else Refuser.SCHEDULER
        self.excluded[shape, node] = Fact(math.inf, cluster.nodes.get(node), by)

    def exclude_after_filter(self, pod: Pod, node: str, now: float, cluster: Cluster, *, evicted: bool) -> None:
        """Note that members with the requests and constraints of ``pod`` are not to be planned on a node any more.

        Filter has answered the node for the pod, and then a later plugin or extender has rejected it. No pods are
        evicted there either: that would not help. ``evicted`` is True if victims were evicted before the rejection;
        then evictions are forbidden for longer.
        """
        said = Fact(math.inf, cluster.nodes.get(node), Refuser.AFTER_FILTER, pod.said, pod.uid)
        self.excluded[pod.shape, node] = said
        until = now + (_EVICTED_SECONDS if evicted else _CONDITION_SECONDS)
        self.exempt[pod.shape, node] = replace(said, until=until, evicted=evicted)

    def exclude_after_kubelet(self, pod: Pod, now: float, cluster: Cluster) -> None:
        """Note that members with the pod's requests and constraints are not to be planned on its node for a while.

        The kubelet of that node has failed the bound pod.
        """
        until = now + _KUBELET_SECONDS
        self.excluded[pod.shape, pod.node] = Fact(until, cluster.nodes.get(pod.node), Refuser.KUBELET)

    def exempt_from_evictions(self, shape: Shape, node: str, now: float, cluster: Cluster) -> None:
        """Evict no pods on a node for members with this shape (requests and constraints) for a while.

        kube-scheduler has rejected the node for one of them in spite of evictions there.
        """
        self.exempt[shape, node] = Fact(now + _EVICTED_SECONDS, cluster.nodes.get(node), evicted=True)

    def note_taken_by_others(self, node: str, uids: frozenset[str], cluster: Cluster) -> None:
        """Note that no pods are to be evicted on a node for the gang while the pods ``uids`` run there.

        These pods of other schedulers have taken what victims of the gang had freed.
        """
        self.taken_by_others[node] = Fact(math.inf, cluster.nodes.get(node), occupants=uids)

    def note_rejection(
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
        """Note that kube-scheduler has no node for a member, while other members of the gang have the nodes ``mates``.

        The next plans avoid the nodes ``beside`` for members with the requests and constraints of ``pod``: usually the
        whole domain, or ``mates`` and the node planned for ``pod``. ``beside`` is empty if only kube-scheduler can
        count what the pod requests. ``text`` is a phrase about the rejection, for the verdict. ``evicted`` is True if
        victims were evicted for this try; then the rejection counts for longer, and no condition of the pod ends it.
        """
        for node in beside:
            self.exclude_node(pod.shape, node, cluster, beside_mates=True)
        if pod.only_scheduler_counts:
            self._offered = (self._offered or frozenset()).union(mates)
        until = now + (_EVICTED_SECONDS if evicted else _CONDITION_SECONDS)
        self.rejection = Fact(until, by=Refuser.BESIDE_MATES, text=text, member=pod.uid, evicted=evicted)

    def pause_evictions(self, now: float) -> None:
        """Search for no victims for a while, because the gang was not bound after a preemption.

        Present conclusions, such as nodes where no pods are evicted, last beyond this pause, so that the next searches
        for victims still respect them. Those without a time limit get one.
        """
        pause = _EVICTION_PAUSE_SECONDS * 2.0 ** min(self.failed_preemptions, _MAX_DOUBLINGS)
        self.failed_preemptions += 1
        self.no_search_before = now + pause
        until = self.no_search_before + _EVICTED_SECONDS
        self.excluded = {key: _prolong(fact, until) for key, fact in self.excluded.items()}
        self.exempt = {key: _prolong(fact, until) for key, fact in self.exempt.items()}
        if self.rejection is not None and self.rejection.evicted:
            self.rejection = _prolong(self.rejection, until)

    def note_offer(self, shape: Shape, names: frozenset[str], now: float) -> bool:
        """Note the nodes that kube-scheduler offers to members with this shape (requests and constraints).

        They are all feasible nodes, or maybe a sample if kube-scheduler has just rejected the node of a member's slot.
        Plans may use these nodes again if they were avoided because kube-scheduler had rejected them. Return whether
        one of them was not in the last list for the shape; False if there was no such list.
        """
        known = self.offers.get(shape)
        for facts in (self.excluded, self.exempt):
            for name in names:
                if (found := facts.get((shape, name))) is not None and found.by is Refuser.SCHEDULER:
                    del facts[shape, name]
        self.offers[shape] = (now + _OFFER_SECONDS, names)
        return known is not None and not names <= known[1]

    def note_offer_while_rejected(self, names: frozenset[str]) -> bool:
        """Note nodes that kube-scheduler offers to a member. Return whether one is new since the last rejection.

        If so, nodes that were only rejected while other members had theirs may be planned again: with some of
        these members on the new node, the others may fit. False if no member was rejected in that situation.
        """
        if self.rejection is None:
            return False
        known, self._offered = self._offered, names | (self._offered or frozenset())
        if known is None or names <= known:
            return False
        self._drop_beside_mates()
        return True

    # --- ending facts ------------------------------------------------------------------------------------------

    def end_exclusions_at(self, until: float) -> None:
        """Set an end for refusals of nodes that have no time limit yet: the loop time ``until``.

        From then on plans may use these nodes again. Called when the gang fits on no other node, so that it is not
        stuck for ever.
        """
        self.excluded = {
            key: replace(fact, until=until) if fact.until == math.inf else fact for key, fact in self.excluded.items()
        }

    def reset_preemptions(self) -> None:
        """Forget failed preemptions, and which pods of other schedulers took freed resources, as the gang is bound."""
        self.failed_preemptions = 0
        self.taken_by_others.clear()

    def drop_rejection(self) -> None:
        """Forget that a member was rejected while others had nodes, and which nodes were rejected in that situation."""
        self.rejection = self._offered = None
        self._drop_beside_mates()

    def _drop_beside_mates(self) -> None:
        self.excluded = {key: fact for key, fact in self.excluded.items() if fact.by is not Refuser.BESIDE_MATES}

    # --- readings ----------------------------------------------------------------------------------------------

    def find_rejection(self, waiting: Iterable[Pod], now: float, cluster: Cluster) -> str:
        """Return a text for the verdict if kube-scheduler had no node for a member while other members had theirs.

        Return "" if that has not happened, or does not count any more: for instance if that member is no longer
        among the members without a node, which are in ``waiting``. Once it does not count any more, it is forgotten.
        """
        found = self.rejection
        if found is None:
            return ""
        if found.holds(now, None, cluster.pods) and any(pod.uid == found.member for pod in waiting):
            return found.text
        self.drop_rejection()
        return ""

    def find_exclusions(self, pods: Collection[Pod], now: float, cluster: Cluster) -> Exclusions:
        """Return the nodes on which these members must not be planned, because of refusals that have not ended."""
        self.excluded = _drop_ended(self.excluded, now, cluster)
        if not self.excluded:
            return NO_EXCLUSIONS
        refused: dict[Shape, set[str]] = {pod.shape: set() for pod in pods}
        for shape, node in self.excluded:
            if shape in refused:
                refused[shape].add(node)
        for_all = frozenset.intersection(*map(frozenset, refused.values())) if refused else frozenset[str]()
        left = {shape: found - for_all for shape, found in refused.items()}
        pairs = frozenset((pod.uid, node) for pod in pods for node in left[pod.shape])
        return Exclusions(pairs, for_all)

    def find_exempt(self, pods: Iterable[Pod], now: float, cluster: Cluster) -> frozenset[str]:
        """Return the nodes that are exempt from evictions for at least one of these members.

        On such a node no pod may be evicted for that member.

        An exemption ends by time, or once the Node or a pod that it depends on has changed. Ended ones are dropped.
        """
        self.exempt = _drop_ended(self.exempt, now, cluster)
        shapes = {pod.shape for pod in pods} if self.exempt else ()
        return frozenset(node for shape, node in self.exempt if shape in shapes)

    def find_taken_by_others(self, now: float, cluster: Cluster) -> frozenset[str]:
        """Return the nodes on which pods of other schedulers still use what the last victims have freed."""
        nodes, pods = cluster.nodes, cluster.pods
        self.taken_by_others = {
            name: fact for name, fact in self.taken_by_others.items() if fact.holds(now, nodes.get(name), pods)
        }
        return frozenset(self.taken_by_others)

    def find_unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Return the nodes that kube-scheduler offers to none of these members.

        The result is the empty set if, for the shape (requests and constraints) of some member, no list of offered
        nodes from the last `_OFFER_SECONDS` is known.
        """
        self.offers = {shape: offer for shape, offer in self.offers.items() if now < offer[0]}
        if not self.offers:
            return frozenset()
        offers = [self.offers.get(shape) for shape in {pod.shape for pod in pods}]
        known = [names for offer in offers if offer is not None for names in [offer[1]]]
        return frozenset(nodes.keys() - frozenset().union(*known)) if len(known) == len(offers) else frozenset()

    def describe_after_filter(self, pods: Iterable[Pod]) -> str:
        """Return how many nodes kube-scheduler has rejected for these members after filter, and why; "" for none."""
        shapes = {pod.shape for pod in pods}
        texts = {
            node: fact.text
            for (shape, node), fact in self.excluded.items()
            if fact.by is Refuser.AFTER_FILTER and shape in shapes
        }
        if not texts:
            return ""
        words = list(dict.fromkeys(texts.values()))[-1]
        return f"kube-scheduler rejects {count_things(len(texts), 'node')} after the filter call: {words}"


def _drop_ended(facts: _Facts, now: float, cluster: Cluster) -> _Facts:
    nodes, pods = cluster.nodes, cluster.pods
    return {key: fact for key, fact in facts.items() if fact.holds(now, nodes.get(key[1]), pods)}


def _prolong(fact: Fact, until: float) -> Fact:
    """Return the conclusion with an end at ``until`` or later. One without a time limit ends at ``until``, too."""
    return replace(fact, until=until if fact.until == math.inf else max(fact.until, until))
