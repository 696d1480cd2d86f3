"""A gang that is whole, first in line, and lacks room asks an autoscaler for nodes; nobody else does.

Autoscalers read three things of a pod: the condition Unschedulable, the nominated node, the node selector. A member
with a scheduling gate is none of their business. So, where an autoscaler is found, members are held by gate, and
asking is: the gates of exactly as many members as the gang lacks are lifted, in one write each, which also writes the
chosen domain into their node selectors. kube-scheduler tries them, filter holds them, and they are Unschedulable.

    wanting ── first in line of its NodePools ──▶ asking ── nodes come, it is planned ──▶ (gone)
       ▲                                            │
       └── a gang that still waits is refused       └── --ask-for is over ──▶ over: the next one asks

Cluster Autoscaler is asked by a ProvisioningRequest where it serves them (`provisioning`); then the gates stay.

A gate cannot be put back. So a gang that has asked in vain stays visible, and may get its nodes later; but it keeps no
node from others any more. The annotation `serried.api.names.ASKED` on its members is the record of what was asked: the
next leader goes on from there. Nodes that come for a gang are kept from those behind it until it is placed.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import islice

from extender.autoscalers import Seen
from extender.core.feature import Decision, Feature, Refused
from extender.core.parts import Parts
from extender.core.scheduling.effects import InBackground
from extender.core.scheduling.group import GroupState
from extender.features.asking import provisioning
from extender.features.asking.ask import Ask, Candidate, Wanting
from extender.features.asking.provisioning import OURS, name_request
from extender.features.asking.sayings import find_saying
from extender.features.asking.showing import RequestRef, read_asked, show
from extender.features.asking.targets import (
    ANY_POOL,
    NoTarget,
    Supply,
    Target,
    allowed_domains,
    choose_target,
    list_needed,
)
from serried.api.group import PodGroup
from serried.api.names import GroupKey, write_time
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.reservation import Reservation
from serried.api.verdict import Mark, Reason, Stage, Verdict
from serried.kube.errors import ApiError, NotFound
from serried.ops.log import name_group
from serried.ops.steps import Work
from serried.plan.fit import slots
from serried.plan.quorum import GroupMembers
from serried.plan.request import Plan, PlanRequest, Turn, Waiting

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 1.0
"""The time without room before a gang asks: victims may be found for it, or running pods may just be ending."""

_CHOOSE_SECONDS = 1.0
"""The pause between two looks at who is first in line."""

_GANGS_PER_STEP = 500
"""Among how many gangs the first ones are looked for in one step."""

_MAX_FIRST = 128
"""For how many gangs, the first in line, a target is looked for at a time."""

_TARGETS_PER_STEP = 4
"""For how many gangs a target is looked for in one step."""

_MAX_CANDIDATE_SECONDS = 10.0
"""The longest time for which a gang is a candidate: then the first in line is chosen anew."""

_LISTEN_SECONDS = 30.0
"""The pause between two readings of what the autoscaler says of a gang."""

_LISTEN_LATER_SECONDS = 300.0
"""The pause between two readings of what the autoscaler says of a gang whose time to ask is over."""

_RETRY_SECONDS = 5.0
"""The pause after a write that was refused."""

_ARRIVALS_SECONDS = 0.5
"""The greatest age of the list of nodes that came for a gang."""

_CLOCK_SKEW_SECONDS = 2.0
"""Creation times of nodes are the API server's, and in whole seconds."""

_MAX_AHEAD_SECONDS = 60.0
"""The most by which the time in an annotation may be ahead of this clock: clocks differ."""

_UNREAD = GroupKey("", "")
"""Stands, among the gangs that are remembered, for the annotations of an earlier term that are not read yet."""

_HELD = frozenset({Stage.FORMING, Stage.WAITING})


class Asking(Feature):
    """Chooses who asks, and keeps what comes for it. ``clock`` gives loop seconds, ``wall`` seconds since 1970."""

    def __init__(self, parts: Parts) -> None:
        self._context = parts.context
        self._store = parts.context.store
        self._options = parts.context.options
        self._client = parts.client
        self._queue = parts.queue
        self._order = parts.queue.order
        self._planning_tasks = parts.planning_tasks
        self._autoscalers = parts.autoscalers
        self._autoscalers.listeners.append(self._note_autoscalers)

        self.asks: dict[GroupKey, Ask] = {}

        self._wanting: dict[GroupKey, Wanting] = {}

        self._candidates: dict[GroupKey, Candidate] = {}
        """The gangs that are to ask as soon as NodePools and room have been looked at once more."""

        self._left_over: dict[tuple[GroupKey, float], Ask] = {}
        """Asks whose ProvisioningRequest could not be deleted, by gang and time of the ask."""

        self._tried: dict[GroupKey, tuple[str, ...]] = {}
        """The domains in which a gang has asked by ProvisioningRequests in vain, the last one last."""

        self._behind: set[GroupKey] = set()
        """Gangs that would fit but for nodes that came for others."""

        self._knew = False
        """True if there was an autoscaler at the last look."""

        self._offers = 0
        """A number that changes when autoscalers or NodePools do."""

        self._known_offers: object = None
        """The autoscalers and NodePools at that number."""

        self._chosen_at = -math.inf
        """The time of the last choice of candidates, in loop seconds."""

        self._active: dict[GroupKey, None] = {_UNREAD: None}
        """The gangs of which anything above is remembered."""

        self.busy = self._active
        self.describes_all = parts.autoscalers.found

    @property
    def _seen(self) -> Seen:
        return self._autoscalers.seen

    def _note_autoscalers(self) -> None:
        """Have all waiting gangs planned again once the first autoscaler is found: their refusals were not noted."""
        if self._seen and not self._knew:
            for group in self._context.groups.states:
                self._rouse(group)
        self._knew = bool(self._seen)
        offers = replace(self._seen, pools=tuple(replace(pool, provided={}) for pool in self._seen.pools))
        if offers != self._known_offers:
            self._known_offers = offers
            self._offers += 1

    # --- terms -------------------------------------------------------------------------------------------------

    def recover(self, records: Sequence[Reservation]) -> None:
        """Read what an earlier term has asked at the first occasion: the members say it."""
        self._active[_UNREAD] = None

    def end_term(self) -> None:
        """Another instance may lead, or has led: the members say what was asked."""
        for memory in (self.asks, self._wanting, self._candidates, self._left_over, self._tried, self._active):
            memory.clear()
        self._behind.clear()
        self._active[_UNREAD] = None

    def _read_asks(self) -> None:
        """Take up what an earlier term has asked, if that was not done in this one."""
        if _UNREAD not in self._active:
            return
        del self._active[_UNREAD]
        for pod in self._store.pods.values():
            if pod.asked and pod.pending:
                self._take_up(pod)

    def _take_up(self, pod: Pod) -> None:
        """Take up the ask of a member if Serried has written it: its gate is gone, or it names our request."""
        key, asked = self._store.members.group_of(pod.uid), read_asked(pod.asked)
        group = self._store.groups.get(key) if key is not None else None
        if key is None or group is None or asked is None or asked.at > self._context.wall() + _MAX_AHEAD_SECONDS:
            return
        by_request = pod.consumes == name_request(key, asked.at)
        known = self.asks.get(key)
        if (pod.held_by_gate and not by_request) or (known is not None and known.at <= asked.at):
            return
        request = RequestRef(pod.consumes, self._options.provisioning_class) if by_request else None
        target = Target(asked.key, asked.domain)
        self.asks[key] = Ask(group.uid, asked.at, target, request, shapes=frozenset((pod.shape,)))
        self._active[key] = None

    # --- gangs that lack room ----------------------------------------------------------------------------------

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Note that a gang lacks room; return what is said of it."""
        key, request = refused.group.key, refused.request
        if not self._seen:
            return refusal
        self._read_asks()
        rejected = refused.gang.refusals.rejection is not None
        by_others = any(pod.consumes and not pod.consumes.startswith(OURS) for pod in request.members)
        if Mark.ROOM not in refusal.reason.marks or refused.opens_in < math.inf or rejected or by_others:
            self._forget_wanting(key)
            return refusal
        # Without a quorum each member runs for itself.
        needed = list_needed(request, _is_visible) if refused.group.policy.is_gang else list(request.members)
        self._note_wanting(key, refused.waiting, request, refusal, needed)
        return self._tell(key, refusal)

    def _note_wanting(
        self,
        key: GroupKey,
        waiting: Waiting,
        request: PlanRequest,
        refusal: Verdict,
        needed: Sequence[Pod],
        *,
        is_planned: bool = True,
    ) -> None:
        known, now = self._wanting.get(key), self._context.clock()
        since = known.since if known is not None else now
        wanting = Wanting(waiting, request, refusal, needed, since, now, is_planned)
        self._wanting[key] = wanting
        self._active[key] = None
        if known is not None:
            wanting.why_not = known.why_not
            wanting.barred = known.barred if known.request.is_equivalent(request) else None
        ask = self.asks.get(key)
        if ask is not None:
            self._renew(key, ask, wanting)

    def keep_gated(self, gang: GroupState, group: PodGroup, members: GroupMembers, shortage: Verdict) -> Verdict | None:
        """Keep the gates of members that no node can take, such as those that need the first GPU of the cluster.

        A gang that is whole asks for nodes for them like any other; one that is not buys nothing. Return what is said.
        """
        key = group.key
        if not self._seen:
            return None
        self._read_asks()
        coming = [*members.waiting, *members.refused]
        need = members.need(group.tree.need) if group.branch is None else 0
        lacks_resource = any(pod.missing for pod in members.refused)
        if not lacks_resource or not 0 < need <= len(coming) or shortage.reason is not Reason.NO_CAPACITY:
            self._forget_wanting(key)
            return shortage
        request = PlanRequest(coming, need, group.topology_key)
        waiting = self._queue.describe(key, gang)
        # The members with room are not known: nobody has planned the others.
        refusal = replace(shortage, have=0)
        self._note_wanting(key, waiting, request, refusal, list_needed(request, _is_visible), is_planned=False)
        return self._tell(key, shortage)

    def revisit(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Return what is said of a gang that still waits, with what it asks."""
        return None if said is None else self._tell(group.key, said)

    def describe(
        self, gang: GroupState, group: PodGroup, members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        """Return the verdict; of a gang whose members an autoscaler sees before their turn it says so."""
        if not self._seen or verdict is None or verdict.reason.stage not in _HELD:
            return verdict
        first = members.waiting[0] if members.waiting else None
        if first is None or first.held_by_gate or first.asked or Mark.PASSES in verdict.reason.marks:
            return verdict
        if group.key in self.asks:
            return verdict
        return _add(verdict, f"no gate holds its members, so {self._seen.names} may add nodes before it can start")

    def left(self, group: GroupKey, *, placed: bool) -> None:
        """Forget a gang that waits for room no more; what it asked is over once it has its room."""
        wanting = self._wanting.get(group)
        if placed or wanting is None or wanting.is_planned:  # else it was never in the queue, and `keep_gated` decides
            self._forget_wanting(group)
        if placed:
            self._tried.pop(group, None)
            self._drop_ask(group)

    def _forget_wanting(self, group: GroupKey) -> None:
        self._wanting.pop(group, None)
        self._candidates.pop(group, None)
        self._forget_idle(group)

    def _forget_idle(self, group: GroupKey) -> None:
        """Look no more after a gang of which nothing is remembered."""
        if group not in self.asks and group not in self._wanting and all(key != group for key, _ in self._left_over):
            self._active.pop(group, None)

    def _drop_ask(self, group: GroupKey) -> None:
        ask = self.asks.pop(group, None)
        if ask is not None:
            self._release(group, ask)
        self._forget_idle(group)

    def _release(self, group: GroupKey, ask: Ask) -> None:
        """Keep nothing for an ask any more: delete its ProvisioningRequest, and have others planned again."""
        if ask.request is not None and not ask.deleted:
            ask.requested, ask.deleted = False, True
            self._context.outbox.put(InBackground(partial(self._delete_request, group, ask)))
        ask.arrived = frozenset()
        for other in self._behind:
            self._rouse(other)
        self._behind.clear()

    def _renew(self, group: GroupKey, ask: Ask, wanting: Wanting) -> None:
        """Bring an ask up to date with the last refusal of its gang; end it if its domain is none for the gang now."""
        key = wanting.request.topology_key or ""
        fits = not key or allowed_domains(frozenset((ask.target.domain,)), key, wanting.request)
        if key != ask.target.key or not fits:
            self._drop_ask(group)
            return
        ask.waiting = wanting.waiting
        ask.shapes = frozenset(member.shape for member in wanting.request.members)
        room = {each.domain: each.slots for each in wanting.refusal.domains}
        ask.target = replace(ask.target, have=room.get(ask.target.domain, 0) if key else wanting.refusal.have)

    def _tell(self, key: GroupKey, said: Verdict) -> Verdict:
        ask, wanting = self.asks.get(key), self._wanting.get(key)
        if wanting is None:
            return said
        if ask is None:
            return _add(said, wanting.why_not or self._find_turn())
        parts = [f"asked at {write_time(ask.at)}", ask.trouble, f"{self._seen.names}: {ask.said}" if ask.said else ""]
        if ask.timed_out and ask.target.key and ask.request is None:
            parts.append(f"its members have the node selector {ask.target.domain} now: delete them to try elsewhere")
        reason = Reason.NO_NODES_CAME if ask.timed_out else Reason.ASKING_FOR_NODES
        detail = ", ".join(filter(None, parts))
        return Verdict(reason, ask.target.have, len(wanting.needed), str(ask.target), detail=detail)

    def _find_turn(self) -> str:
        """Return after whom a gang may ask while every NodePool has its asking gang; "" if one has none."""
        if not self._is_full():
            return ""
        asking = list(self._list_asking())
        return _describe_turn(str(asking[0]) if len(asking) == 1 else f"{len(asking)} other gangs")

    # --- nodes that came ---------------------------------------------------------------------------------------

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Return the plan if it takes no node that came for a gang before it; else another one, or why there is none.

        Raises Unfinished as long as that one is being made.
        """
        self._read_asks()
        self._behind.discard(waiting.group)
        first = self._find_first(waiting, plan.nodes.values())
        if first is None:
            return plan
        for ask in self.asks.values():
            ask.counted = -math.inf  # a node of the plan may have come since they were looked for last
        closed = self.closed_to(waiting, request)
        answer = self._queue.plan_beside(request.closing(closed))
        if isinstance(answer, Plan):
            return answer
        self._behind.add(waiting.group)
        self._queue.put_back(waiting.group, request.closing(closed), answer)
        return Verdict(Reason.BEHIND_HEAD, need=request.need or len(request.members), key=str(first))

    def _find_first(self, waiting: Waiting, names: Iterable[str]) -> GroupKey | None:
        """Return the gang before this one for which one of these nodes came; None if there is none."""
        before = list(self._list_before(waiting))
        nodes = [self._store.nodes[name] for name in set(names) if name in self._store.nodes] if before else []
        return next((group for group, ask in before if any(_has_arrived(node, ask) for node in nodes)), None)

    def closed_to(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that came for gangs before this one."""
        return frozenset[str]().union(*(self._find_arrived(ask) for _, ask in self._list_before(waiting)))

    def kept_from(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the same nodes: a member that joins a gang after its plan must not use them either."""
        return self.closed_to(waiting, request)

    def list_kept(self) -> Iterable[frozenset[str]]:
        """Return the nodes that came for each gang that asks. A pod of no gang may use them: its own is bought, too."""
        yield from (kept for ask in self.asks.values() if (kept := self._find_arrived(ask)))

    def _list_before(self, waiting: Waiting) -> Iterator[tuple[GroupKey, Ask]]:
        for group, ask in self.asks.items():
            if group == waiting.group or ask.timed_out or ask.waiting is None:
                continue
            if self._order.precedes(ask.waiting, waiting):
                yield group, ask

    def _find_arrived(self, ask: Ask) -> frozenset[str]:
        """Return the nodes that came since a gang asked and that hold a member of it; at most half a second old."""
        now = self._context.clock()
        if ask.timed_out:
            return frozenset()
        if now - ask.counted >= _ARRIVALS_SECONDS:
            ask.counted = now
            ask.arrived = frozenset(node.name for node in self._store.nodes.values() if _has_arrived(node, ask))
        return ask.arrived

    # --- twice a second ----------------------------------------------------------------------------------------

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Have the first in line ask. See to those that do: late members, what is said, the end of their time."""
        now = self._context.clock()
        self._read_asks()
        for (group, at), ask in list(self._left_over.items()):
            if now >= ask.retries_at:
                del self._left_over[group, at]
                self._context.outbox.put(InBackground(partial(self._delete_request, group, ask)))
                self._forget_idle(group)
        if not self._seen:
            # Before the first look of a term the asks of the one before it stay.
            for group in list(self._active) if self._autoscalers.known else ():
                self._drop(group)
            return ()
        for group, ask in list(self.asks.items()):
            self._see_to(group, ask, now)
        for group in [each for each in self._wanting if each not in self._store.groups]:
            self._drop(group)
        for group, candidate in list(self._candidates.items()):
            self._confirm(group, candidate, now)
        if now - self._chosen_at >= _CHOOSE_SECONDS and not self._is_full():
            self._chosen_at = now
            yield from self._choose(now)
        return ()

    def _drop(self, group: GroupKey) -> None:
        self._forget_wanting(group)
        self._tried.pop(group, None)
        self._drop_ask(group)

    def _see_to(self, group: GroupKey, ask: Ask, now: float) -> None:
        found, state = self._store.groups.get(group), self._context.groups.states.get(group)
        waits = any(pod.pending for pod in self._store.members.of_group(group))
        if found is None or found.uid != ask.uid or not waits:
            self._drop(group)
            return
        wanting, wall = self._wanting.get(group), self._context.wall()
        expired = wall >= ask.at + self._options.ask_seconds
        if state is None or state.cycle is not None:
            return
        if ask.timed_out and ask.request is not None and wall >= ask.at + 2 * self._options.ask_seconds:
            self._drop_ask(group)  # behind its gates it may ask once more, after the others
            return
        if expired and not ask.timed_out:
            self._time_out(group, ask)
        if wanting is None:
            return
        if now >= ask.retries_at and not ask.writing and not (ask.timed_out and ask.request is not None):
            members = self._list_hidden(ask, wanting)
            if members or (ask.request is not None and not ask.requested):
                ask.writing = True
                self._context.outbox.put(InBackground(partial(self._write, group, ask, members)))
        if now >= ask.listens_at:
            later = _LISTEN_LATER_SECONDS if ask.timed_out else _LISTEN_SECONDS
            ask.listens_at = now + (later if ask.request is None else _RETRY_SECONDS)
            self._context.outbox.put(InBackground(partial(self._listen, group, ask)))

    def _time_out(self, group: GroupKey, ask: Ask) -> None:
        """Let others ask: the time of this gang is over, or its ProvisioningRequest was refused."""
        ask.timed_out = True
        ask.listens_at = self._context.clock()
        if ask.target.key:
            earlier = tuple(domain for domain in self._tried.get(group, ()) if domain != ask.target.domain)
            self._tried[group] = (*earlier, ask.target.domain)
        text = "an autoscaler added no nodes for a gang in time, so the next gang may ask"
        log.info(text, extra={**name_group(group), "target": str(ask.target), "said": ask.said})
        self._release(group, ask)
        self._rouse(group)

    def _list_hidden(self, ask: Ask, wanting: Wanting) -> list[Pod]:
        """Return those of the members that the gang lacks whose gates are to be lifted, or that name no request yet."""
        found = (self._store.pods.get(each.uid) for each in wanting.needed)
        current = [pod for pod in found if pod is not None and pod.pending]
        if ask.request is None:
            return [pod for pod in current if pod.held_by_gate]
        return [pod for pod in current if pod.consumes != ask.request.name]

    def _list_asking(self) -> dict[GroupKey, Target]:
        return {group: ask.target for group, ask in self.asks.items() if not ask.timed_out}

    def _is_full(self) -> bool:
        """Return whether every NodePool has its asking gang."""
        if not self._wanting:
            return True
        asking = self._list_asking().values()
        pools = frozenset(pool.name for pool in self._seen.pools)
        if self._seen.cluster_autoscaler or not pools:
            return any(ANY_POOL in target.pools for target in asking)
        return bool(asking) and pools <= frozenset().union(*(target.pools for target in asking))

    def _choose(self, now: float) -> Work[None]:
        """Make the first gang in line of each NodePool without asking gang a candidate."""
        first: list[tuple[Turn, GroupKey]] = []
        rest = iter([group for group, wanting in self._wanting.items() if self._may_ask(group, wanting, now)])
        while keys := list(islice(rest, _GANGS_PER_STEP)):
            some = [(self._order.turn_of(self._wanting[key].waiting), key) for key in keys if key in self._wanting]
            first = nsmallest(_MAX_FIRST, [*first, *some])
            if len(keys) == _GANGS_PER_STEP:
                yield
        asking = self._list_asking() | {group: each.target for group, each in self._candidates.items()}
        supply = Supply(self._seen, self._store.nodes)
        for number, (_, group) in enumerate(first, start=1):
            if number % _TARGETS_PER_STEP == 0:
                yield
            wanting, state = self._wanting.get(group), self._context.groups.states.get(group)
            if wanting is None or state is None or state.cycle is not None or group in asking or group in self.asks:
                continue
            target = self._find_target(group, wanting, supply, asking)
            if target is None:
                continue
            asking.setdefault(group, target)  # a gang that has to wait keeps its NodePools from those behind it, too
            # While victims are searched for, they may be found, and no node is needed.
            if not wanting.why_not and not self._planning_tasks.works_for(group):
                self._candidates[group] = Candidate(target, now)
                self._context.outbox.put(InBackground(partial(self._read_pools, group)))

    def _may_ask(self, group: GroupKey, wanting: Wanting, now: float) -> bool:
        if group in self.asks or group in self._candidates or now - wanting.since < _SETTLE_SECONDS:
            return False
        return wanting.barred is None or wanting.barred[1] != self._offers

    def _find_target(
        self, group: GroupKey, wanting: Wanting, supply: Supply, asking: Mapping[GroupKey, Target]
    ) -> Target | None:
        """Return where a gang would ask, None if nodes cannot help it; have it say why it does not ask now."""
        keys, tried = self._options.autoscaler_keys, self._tried.get(group, ())
        target = choose_target(wanting.request, wanting.needed, wanting.refusal, supply, keys, tried)
        wanting.barred = (target, self._offers) if isinstance(target, NoTarget) and target.lasts else None
        if isinstance(target, NoTarget):
            self._say_why_not(group, wanting, f"no nodes are asked for: {target.why}")
            return None
        before = next((other for other, found in asking.items() if target.meets(found)), None)
        self._say_why_not(group, wanting, "" if before is None else _describe_turn(str(before)))
        return target

    def _say_why_not(self, group: GroupKey, wanting: Wanting, why_not: str) -> None:
        if why_not != wanting.why_not:
            wanting.why_not = why_not
            self._rouse(group)

    async def _read_pools(self, group: GroupKey) -> None:
        """Read the NodePools once more for a candidate, and have it planned again: what is known may be seconds old."""
        await self._autoscalers.look()
        candidate = self._candidates.get(group)
        if candidate is not None:
            candidate.read = self._context.clock()
            self._rouse(group)

    def _confirm(self, group: GroupKey, candidate: Candidate, now: float) -> None:
        """Have a candidate ask if it was refused again after the NodePools were read, and they may still hold it."""
        wanting, state = self._wanting.get(group), self._context.groups.states.get(group)
        gone = wanting is None or state is None or state.cycle is not None
        if gone or now - candidate.since >= _MAX_CANDIDATE_SECONDS:
            del self._candidates[group]
        elif wanting is not None and wanting.refused >= candidate.read and not self._planning_tasks.works_for(group):
            del self._candidates[group]
            supply = Supply(self._seen, self._store.nodes)
            target = self._find_target(group, wanting, supply, self._list_asking())
            if target is not None and not wanting.why_not:
                self._ask(group, wanting, target)

    def _ask(self, group: GroupKey, wanting: Wanting, target: Target) -> None:
        at, request = math.floor(self._context.wall()), None
        if self._seen.provisioning and ANY_POOL in target.pools and self._options.provisioning_class:
            request = RequestRef(name_request(group, at), self._options.provisioning_class)
        ask = Ask(
            self._store.groups[group].uid,
            at,
            target,
            request,
            nodes=frozenset(self._store.nodes),
            waiting=wanting.waiting,
            shapes=frozenset(member.shape for member in wanting.request.members),
            listens_at=self._context.clock() + _RETRY_SECONDS,
        )
        self.asks[group] = ask
        self._active[group] = None
        text = "asking an autoscaler for nodes for a gang"
        log.info(text, extra={**name_group(group), "target": str(target), "have": target.have})
        self._see_to(group, ask, self._context.clock())
        self._rouse(group)

    # --- in the background -------------------------------------------------------------------------------------

    async def _write(self, group: GroupKey, ask: Ask, members: Sequence[Pod]) -> None:
        """Write an ask into its members, then make its ProvisioningRequest, while nothing has come between.

        The members are written first: they are what the next leader reads.
        """
        before = ask.trouble
        try:
            may_go_on = partial(self._may_write, group, ask)
            ask.trouble = await show(self._client, members, ask.at, ask.target, ask.request, may_go_on)
            if not ask.trouble and ask.request is not None and not ask.requested:
                ask.trouble = await self._make_request(group, ask, ask.request)
        finally:
            ask.writing = False
        if ask.trouble:
            ask.retries_at = self._context.clock() + _RETRY_SECONDS
            text = "could not ask an autoscaler for nodes for a gang; trying again"
            log.warning(text, extra={**name_group(group), "err": ask.trouble})
        if ask.trouble != before:
            self._rouse(group)

    async def _make_request(self, group: GroupKey, ask: Ask, request: RequestRef) -> str:
        wanting = self._wanting.get(group)
        if wanting is None or not self._may_write(group, ask):
            return ""
        trouble = await provisioning.ask(self._client, group, wanting.needed, ask.at, ask.target, request.class_name)
        ask.requested = not trouble
        if ask.requested and ask.deleted:
            ask.requested = False
            await self._delete_request(group, ask)  # it was placed, is gone, or has no more time
        return trouble

    async def _delete_request(self, group: GroupKey, ask: Ask) -> None:
        try:
            await provisioning.end(self._client, group, ask.at)
        except ApiError as error:
            text = "could not delete the ProvisioningRequest of a gang; trying again"
            log.warning(text, extra={**name_group(group), "err": str(error)})
            ask.retries_at = self._context.clock() + _RETRY_SECONDS
            self._left_over[group, ask.at] = ask
            self._active[group] = None

    def _may_write(self, group: GroupKey, ask: Ask) -> bool:
        state = self._context.groups.states.get(group)
        waits = state is not None and state.cycle is None and group in self._wanting
        return self._context.term.leads() and self.asks.get(group) is ask and waits

    async def _listen(self, group: GroupKey, ask: Ask) -> None:
        """Read what the autoscaler says of the request, or of the members that it sees."""
        try:
            said = await (self._listen_to_pods(group) if ask.request is None else self._listen_to_request(group, ask))
        except ApiError as error:
            said = f"what it says cannot be read: {error}"
        if said and said != ask.said:
            ask.said = said
            self._rouse(group)

    async def _listen_to_pods(self, group: GroupKey) -> str:
        wanting = self._wanting.get(group)
        pods = (self._store.pods.get(each.uid) for each in wanting.request.members) if wanting is not None else ()
        visible = {pod.uid for pod in pods if pod is not None and not pod.held_by_gate}
        return await find_saying(self._client, group.namespace, visible) if visible else ""

    async def _listen_to_request(self, group: GroupKey, ask: Ask) -> str:
        if not ask.requested:
            return ""
        try:
            answer = await provisioning.read(self._client, group, ask.at)
        except NotFound:
            ask.requested = False  # it is made once more
            return ""
        if answer.refused and not ask.timed_out and self.asks.get(group) is ask:
            ask.said = answer.said
            self._time_out(group, ask)
        return answer.said

    def _rouse(self, group: GroupKey) -> None:
        wanting = self._wanting.get(group)
        if group in self._queue:
            self._queue.requeue(group)
            self._context.groups.wake()
        elif wanting is not None and not wanting.is_planned:
            self._context.groups.mark_dirty(group)


def _is_visible(member: Pod) -> bool:
    return not member.held_by_gate


def _has_arrived(node: Node, ask: Ask) -> bool:
    """Return whether a node came since a gang asked, in its domain, and holds a member of it.

    Of an ask of an earlier term only the creation times of nodes tell.
    """
    if ask.nodes is not None:
        is_new = node.name not in ask.nodes
    else:
        is_new = node.created is not None and node.created >= ask.at - _CLOCK_SKEW_SECONDS
    if not is_new or (ask.target.key and node.labels.get(ask.target.key) != ask.target.domain):
        return False
    return any(slots(shape, node, None) for shape in ask.shapes)


def _describe_turn(before: str) -> str:
    return f"nodes are asked for after {before}"


def _add(said: Verdict, phrase: str) -> Verdict:
    if not phrase or phrase in said.detail:
        return said
    return replace(said, detail=", ".join(filter(None, (said.detail, phrase))))
