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
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from itertools import islice

from extender.autoscalers import Seen
from extender.core.feature import Decision, Feature, Refused
from extender.core.parts import Parts
from extender.core.scheduling.effects import InBackground
from extender.core.scheduling.group import GroupState
from extender.features.asking import provisioning
from extender.features.asking.provisioning import OURS, name_request
from extender.features.asking.sayings import find_saying
from extender.features.asking.showing import Booking, read_asked, show
from extender.features.asking.targets import Supply, Target, choose_target
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
"""How long a gang is without room before it asks: victims may be found for it, or others may just be ending."""

_CHOOSE_SECONDS = 1.0
"""The pause between two looks at who is first in line."""

_GANGS_PER_STEP = 500
"""Among how many gangs the first ones are looked for in one step."""

_MAX_CANDIDATES = 32
"""For how many gangs at a time, the first in line, a target is looked for."""

_MAX_CANDIDATE_SECONDS = 10.0
"""How long a gang is a candidate at most: then the first in line is chosen anew."""

_LISTEN_SECONDS = 30.0
"""The pause between two readings of what the autoscaler says of a member."""

_RETRY_SECONDS = 5.0
"""The pause after a write that was refused."""

_CLOCK_SKEW_SECONDS = 2.0
"""Creation times of nodes are the API server's, and in whole seconds."""


@dataclass(slots=True)
class _Wanting:
    """A gang that was refused for want of room, with what it was refused."""

    waiting: Waiting
    request: PlanRequest
    refusal: Verdict

    since: float
    """When it was refused first, in loop seconds."""

    refused: float
    """When it was refused last, in loop seconds."""

    why_not: str = ""
    """Why no nodes are asked for it, a phrase; "" if they may be."""


@dataclass(slots=True)
class _Candidate:
    """A gang that is the first in line, until it asks or is found to be it no more."""

    target: Target

    since: float
    """When it was chosen, in loop seconds."""

    read: float = math.inf
    """When the NodePools had been read since, in loop seconds."""


@dataclass(slots=True)
class Ask:
    """What one gang has asked for. It lives from the first write until the gang is placed, or gone."""

    at: float
    """When it was asked, in seconds since 1970."""

    target: Target

    waiting: Waiting | None = None
    """The gang as the queue sees it; None for an ask of an earlier term until the gang is refused again."""

    booking: Booking | None = None
    """The ProvisioningRequest by which it asks; None if its members ask by being visible."""

    booked: bool = False
    """Whether this term knows that the ProvisioningRequest exists."""

    ended: bool = False
    """Whether the ProvisioningRequest was deleted. One of an earlier term may exist before that is known."""

    over: bool = False
    """Whether its time is over: others may ask."""

    said: str = ""
    """What the autoscaler said of a member last."""

    trouble: str = ""
    """Why a gate could not be lifted, a phrase; "" if all were."""

    writing: bool = False
    """Whether members are being shown."""

    quiet_until: float = 0.0
    """When the autoscaler is listened to again, in loop seconds."""

    rests_until: float = 0.0
    """When members are shown again after a failure, in loop seconds."""


@dataclass(slots=True)
class _Arrivals:
    """The nodes that came for one ask, as of one time."""

    at: float = -math.inf
    nodes: frozenset[str] = field(default_factory=frozenset)


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

        self._knew = False
        """Whether there was an autoscaler at the last look."""

        self._wanting: dict[GroupKey, _Wanting] = {}

        self._candidates: dict[GroupKey, _Candidate] = {}
        """The gangs that are to ask as soon as NodePools and room have been looked at once more."""

        self._left_over: dict[tuple[GroupKey, float], Ask] = {}
        """Asks whose ProvisioningRequest could not be deleted, by gang and time of the ask."""

        self._behind: set[GroupKey] = set()
        """Gangs that would fit but for nodes that came for others."""

        self._arrivals: dict[GroupKey, _Arrivals] = {}

        self._chosen_at = -math.inf
        """When it was last looked who is first in line, in loop seconds."""

        self._active: dict[GroupKey, None] = {}
        """The gangs of which anything above is remembered."""

        self.busy = self._active
        self.speaks_of_all = parts.autoscalers.found

    @property
    def _seen(self) -> Seen:
        return self._autoscalers.seen

    def _note_autoscalers(self) -> None:
        """Once the first autoscaler is found, plan all gangs again that wait: their refusals were not noted."""
        if self._seen and not self._knew:
            for group in self._context.groups.states:
                if group in self._queue:
                    self._queue.rouse(group)
        self._knew = bool(self._seen)

    # --- terms -------------------------------------------------------------------------------------------------

    def recover(self, records: Sequence[Reservation]) -> None:
        """Take up what an earlier term has asked, by the annotations of its members."""
        for pod in self._store.pods.values():
            if pod.asked and pod.pending:
                self._take_up(pod)

    def _take_up(self, pod: Pod) -> None:
        group, asked = self._store.members.group_of(pod.uid), read_asked(pod.asked)
        if group is not None and asked is not None:
            known = self.asks.get(group)
            if known is None or asked.at < known.at:
                booking = Booking(pod.consumes, self._options.provisioning_class) if pod.consumes else None
                self.asks[group] = Ask(asked.at, Target(asked.key, asked.domain), booking=booking)
            self._active[group] = None

    def end_term(self) -> None:
        """Another instance may lead: the members say what was asked."""
        for memory in (self.asks, self._left_over, self._wanting, self._candidates, self._arrivals, self._active):
            memory.clear()
        self._behind.clear()

    # --- gangs that lack room ----------------------------------------------------------------------------------

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Note that a gang lacks room; return what is said of it."""
        key = refused.group.key
        if not self._seen:
            return refusal
        rejected = refused.gang.refusals.rejection is not None
        by_others = any(pod.consumes and not pod.consumes.startswith(OURS) for pod in refused.request.members)
        if Mark.ROOM not in refusal.reason.marks or refused.opens_in < math.inf or rejected or by_others:
            self._forget_wanting(key)
            return refusal
        known = self._wanting.get(key)
        now = self._context.clock()
        self._wanting[key] = wanting = _Wanting(
            refused.waiting, refused.request, refusal, known.since if known is not None else now, now
        )
        self._active[key] = None
        ask = self.asks.get(key)
        if ask is not None:
            self._renew(ask, wanting)
        elif known is not None:
            wanting.why_not = known.why_not
        return self._tell(key, refusal)

    def go_on(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Return what is said of a gang that still waits, with what it asks."""
        return None if said is None else self._tell(group.key, said)

    def describe(
        self, gang: GroupState, group: PodGroup, members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        """Return the verdict; of a gang whose members an autoscaler sees before their turn it says so."""
        if (
            not self._seen
            or verdict is None
            or verdict.reason.stage not in _HELD
            or Mark.PASSES in verdict.reason.marks
        ):
            return verdict
        waiting = members.waiting
        if not waiting or waiting[0].held_by_gate or waiting[0].asked or group.key in self.asks:
            return verdict
        return _add(verdict, f"no gate holds its members, so {self._seen.names} may add nodes before it can start")

    def left(self, group: GroupKey, *, placed: bool) -> None:
        """A gang got its room, or waits for none: what it asked is over once it has it."""
        self._forget_wanting(group)
        ask = self.asks.pop(group, None) if placed else None
        if ask is not None:
            self._end(group, ask)

    def _end(self, group: GroupKey, ask: Ask) -> None:
        """An ask is over, or its gang has its room: nothing is booked or kept for it."""
        if ask.booking is not None and not ask.ended:
            ask.booked, ask.ended = False, True
            self._context.outbox.put(InBackground(partial(self._unbook, group, ask)))
        self._let_pass(group)

    def _rest(self, group: GroupKey) -> None:
        """Look no more after a gang of which nothing is remembered."""
        if group not in self.asks and group not in self._wanting and all(key != group for key, _ in self._left_over):
            self._active.pop(group, None)

    def _forget_wanting(self, group: GroupKey) -> None:
        self._wanting.pop(group, None)
        self._rest(group)

    def _let_pass(self, group: GroupKey) -> None:
        """Nothing is kept for a gang any more: plan those again that were kept from its nodes."""
        self._arrivals.pop(group, None)
        self._rest(group)
        for other in self._behind:
            if other in self._queue:
                self._queue.rouse(other)
        self._behind.clear()

    def _renew(self, ask: Ask, wanting: _Wanting) -> None:
        """Bring an ask up to date with the last refusal of its gang; its domain is written, and stays."""
        ask.waiting = wanting.waiting
        supply = Supply(self._seen, self._store.nodes)
        found = choose_target(wanting.request, wanting.refusal, supply, self._options.autoscaler_keys)
        room = {each.domain: each.slots for each in wanting.refusal.domains}
        have = room.get(ask.target.domain, 0) if ask.target.key else wanting.refusal.have
        pools = found.pools if isinstance(found, Target) else ask.target.pools
        ask.target = replace(ask.target, pools=pools, have=have)

    def _tell(self, key: GroupKey, said: Verdict) -> Verdict:
        ask, wanting = self.asks.get(key), self._wanting.get(key)
        if wanting is None:
            return said
        if ask is None:
            return _add(said, wanting.why_not or self._find_turn())
        need = wanting.request.need or len(wanting.request.members)
        parts = [f"asked at {write_time(ask.at)}", ask.trouble, f"{self._seen.names}: {ask.said}" if ask.said else ""]
        reason = Reason.NO_NODES_CAME if ask.over else Reason.ASKING_FOR_NODES
        return Verdict(reason, ask.target.have, need, str(ask.target), detail=", ".join(filter(None, parts)))

    def _find_turn(self) -> str:
        """Return after whom a gang may ask that came when every NodePool had its asking gang; "" if one has none."""
        asking = [group for group, ask in self.asks.items() if not ask.over]
        if not self._is_full():
            return ""
        return f"nodes are asked for after {asking[0] if len(asking) == 1 else f'{len(asking)} other gangs'}"

    # --- nodes that came ---------------------------------------------------------------------------------------

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Return the plan if it takes no node that came for a gang before it; else another one, or why there is none.

        Raises Unfinished as long as that one is being made.
        """
        self._behind.discard(waiting.group)
        first = self._find_first(waiting, plan.nodes.values())
        if first is None:
            return plan
        closed = self.closed_to(waiting, request)
        answer = self._queue.plan_beside(request.closing(closed))
        if isinstance(answer, Plan):
            return answer
        self._behind.add(waiting.group)
        self._queue.put_back(waiting.group, request.closing(closed), answer)
        return Verdict(Reason.BEHIND_HEAD, need=request.need or len(request.members), key=str(first))

    def _find_first(self, waiting: Waiting, names: Iterable[str]) -> GroupKey | None:
        """Return the gang before this one for which one of these nodes came; None if there is none."""
        used = set(names)
        for group, _ in self._list_before(waiting):
            self._arrivals.pop(group, None)  # the plan is of now: a node may have come since it was looked last
            if not used.isdisjoint(self._find_arrivals(group)):
                return group
        return None

    def closed_to(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that came for gangs before this one."""
        return frozenset[str]().union(*(self._find_arrivals(group) for group, _ in self._list_before(waiting)))

    def kept_from(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that came for gangs before this one."""
        return self.closed_to(waiting, request)

    def list_kept(self) -> Iterable[frozenset[str]]:
        """Return the nodes that came for each gang that asks. A pod of no gang may use them: its own is bought, too."""
        yield from (kept for group in self.asks if (kept := self._find_arrivals(group)))

    def _list_before(self, waiting: Waiting) -> Iterator[tuple[GroupKey, Ask]]:
        for group, ask in self.asks.items():
            if group == waiting.group or ask.over or ask.waiting is None:
                continue
            if self._order.precedes(ask.waiting, waiting):
                yield group, ask

    def _find_arrivals(self, group: GroupKey) -> frozenset[str]:
        """Return the nodes that came since a gang asked and that hold a member of it; at most half a second old."""
        ask, wanting = self.asks[group], self._wanting.get(group)
        known = self._arrivals.setdefault(group, _Arrivals())
        now = self._context.clock()
        if wanting is not None and not ask.over and now - known.at >= 0.5:
            known.at = now
            since = ask.at - _CLOCK_SKEW_SECONDS
            shapes = {member.shape for member in wanting.request.members}
            known.nodes = frozenset(
                node.name
                for node in self._store.nodes.values()
                if node.created is not None
                and node.created >= since
                and _is_in(node, ask.target)
                and any(slots(shape, node, None) for shape in shapes)
            )
        return frozenset() if ask.over else known.nodes

    # --- twice a second ----------------------------------------------------------------------------------------

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Have the first in line ask. See to those that do: late members, what is said, the end of their time."""
        now = self._context.clock()
        for (group, at), ask in list(self._left_over.items()):
            if now >= ask.rests_until:
                del self._left_over[group, at]
                self._context.outbox.put(InBackground(partial(self._unbook, group, ask)))
                self._rest(group)
        if not self._seen:
            # Before the first look of a term the asks of the one before it stay.
            for group in list(self._active) if self._autoscalers.known else ():
                self._drop(group)
            return ()
        for group, ask in list(self.asks.items()):
            self._see_to(group, ask, now)
        for group, candidate in list(self._candidates.items()):
            self._confirm(group, candidate, now)
        if now - self._chosen_at >= _CHOOSE_SECONDS and not self._is_full():
            self._chosen_at = now
            yield from self._choose(now)
        return ()

    def _drop(self, group: GroupKey) -> None:
        self._wanting.pop(group, None)
        self._candidates.pop(group, None)
        ask = self.asks.pop(group, None)
        if ask is not None:
            self._end(group, ask)
        self._rest(group)

    def _see_to(self, group: GroupKey, ask: Ask, now: float) -> None:
        state, wanting = self._context.groups.states.get(group), self._wanting.get(group)
        expired = self._context.wall() >= ask.at + self._options.ask_seconds
        if state is None or group not in self._store.groups or (expired and wanting is None and state.cycle is None):
            self._drop(group)
            return
        if wanting is None or state.cycle is not None:
            return
        if ask.over and ask.booking is not None and self._context.wall() >= ask.at + 2 * self._options.ask_seconds:
            del self.asks[group]  # behind its gates it may ask once more, after the others
            return
        if expired and not ask.over:
            self._give_up(group, ask)
        if now >= ask.rests_until and not ask.writing and not (ask.over and ask.booking is not None):
            members = self._list_hidden(ask, wanting)
            if members or (ask.booking is not None and not ask.booked):
                ask.writing = True
                self._context.outbox.put(InBackground(partial(self._show, group, ask, members)))
        if now >= ask.quiet_until:
            ask.quiet_until = now + (_LISTEN_SECONDS if ask.booking is None else _RETRY_SECONDS)
            self._context.outbox.put(InBackground(partial(self._listen, group, ask)))

    def _give_up(self, group: GroupKey, ask: Ask) -> None:
        ask.over = True
        ask.quiet_until = self._context.clock()
        log.info("no nodes came", extra={**name_group(group), "target": str(ask.target), "said": ask.said})
        self._end(group, ask)
        self._active[group] = None
        self._queue.rouse(group)

    def _list_hidden(self, ask: Ask, wanting: _Wanting) -> list[Pod]:
        """Return the members that are still to be shown: as many as the gang lacks, beside those that are."""
        request = wanting.request
        found = (self._store.pods.get(each.uid) for each in request.members)
        current = [pod for pod in found if pod is not None and pod.pending]
        if ask.booking is None:
            hidden = [pod for pod in current if pod.held_by_gate]
        else:
            hidden = [pod for pod in current if pod.consumes != ask.booking.name]
        shown = len(current) - len(hidden)
        whole = request.parts or not request.need
        return hidden if whole else hidden[: max(0, request.need - shown)]

    def _is_full(self) -> bool:
        """Whether every NodePool has its asking gang."""
        if not self._wanting:
            return True
        asking = [ask.target for ask in self.asks.values() if not ask.over]
        pools = frozenset(pool.name for pool in self._seen.pools)
        return bool(asking) and (not pools or pools <= frozenset().union(*(target.pools for target in asking)))

    def _choose(self, now: float) -> Work[None]:
        """Have the gang ask that is the first in line of its NodePools, for each that has no asking gang."""
        first: list[tuple[Turn, GroupKey]] = []
        rest = iter([group for group, wanting in self._wanting.items() if now - wanting.since >= _SETTLE_SECONDS])
        while keys := list(islice(rest, _GANGS_PER_STEP)):
            some = [(self._order.turn_of(self._wanting[key].waiting), key) for key in keys if key in self._wanting]
            first = nsmallest(_MAX_CANDIDATES, [*first, *some])
            if len(keys) == _GANGS_PER_STEP:
                yield
        asking = self._list_asking() | {group: each.target for group, each in self._candidates.items()}
        supply = Supply(self._seen, self._store.nodes)
        for _, group in first:
            wanting, state = self._wanting.get(group), self._context.groups.states.get(group)
            if wanting is None or state is None or state.cycle is not None or group in asking or group in self.asks:
                continue
            if self._planning_tasks.works_for(group):
                break  # its victims may be found yet, and nobody behind it asks before that
            target = self._find_target(group, wanting, supply, asking)
            if target is not None:
                asking.setdefault(group, target)  # it is before those that come next, whether it asks now or not
                if not wanting.why_not:
                    self._candidates[group] = _Candidate(target, now)
                    self._context.outbox.put(InBackground(partial(self._read_pools, group)))

    def _list_asking(self) -> dict[GroupKey, Target]:
        return {group: ask.target for group, ask in self.asks.items() if not ask.over}

    def _find_target(
        self, group: GroupKey, wanting: _Wanting, supply: Supply, asking: Mapping[GroupKey, Target]
    ) -> Target | None:
        """Return where a gang would ask, None if nodes cannot help it; have it say why it does not ask now."""
        target = choose_target(wanting.request, wanting.refusal, supply, self._options.autoscaler_keys)
        before = None if isinstance(target, str) else _find_asking(target, asking)
        why_not = target if isinstance(target, str) else f"nodes are asked for after {before}" if before else ""
        if why_not != wanting.why_not:
            wanting.why_not = why_not
            self._rouse(group)
        return target if isinstance(target, Target) else None

    async def _read_pools(self, group: GroupKey) -> None:
        """Read the NodePools once more for a candidate, and have it planned again: what is known may be seconds old."""
        await self._autoscalers.look()
        candidate = self._candidates.get(group)
        if candidate is not None:
            candidate.read = self._context.clock()
            self._rouse(group)

    def _confirm(self, group: GroupKey, candidate: _Candidate, now: float) -> None:
        """Have a candidate ask if it was refused again after the NodePools were read, and they may still hold it."""
        wanting, state = self._wanting.get(group), self._context.groups.states.get(group)
        gone = wanting is None or state is None or state.cycle is not None
        if gone or now - candidate.since >= _MAX_CANDIDATE_SECONDS:
            del self._candidates[group]
        elif wanting is not None and wanting.refused >= candidate.read and not self._planning_tasks.works_for(group):
            del self._candidates[group]
            target = self._find_target(group, wanting, Supply(self._seen, self._store.nodes), self._list_asking())
            if target is not None and not wanting.why_not:
                self._ask(group, wanting, target)

    def _ask(self, group: GroupKey, wanting: _Wanting, target: Target) -> None:
        ask = Ask(math.floor(self._context.wall()), target, wanting.waiting)
        if self._seen.provisioning and not self._seen.karpenter and self._options.provisioning_class:
            ask.booking = Booking(name_request(group, ask.at), self._options.provisioning_class)
        ask.quiet_until = self._context.clock() + _RETRY_SECONDS
        self.asks[group] = ask
        log.info("asking for nodes", extra={**name_group(group), "target": str(target), "have": target.have})
        self._see_to(group, ask, self._context.clock())
        self._rouse(group)

    # --- in the background -------------------------------------------------------------------------------------

    async def _show(self, group: GroupKey, ask: Ask, members: Sequence[Pod]) -> None:
        """Make the ProvisioningRequest, or lift the gates of members; while nothing has come between."""
        try:
            may_go_on = partial(self._may_show, group, ask)
            before = ask.trouble
            ask.trouble = await self._book(group, ask) if ask.booking is not None and not ask.booked else ""
            ask.trouble = ask.trouble or await show(self._client, members, ask.at, ask.target, ask.booking, may_go_on)
        finally:
            ask.writing = False
        if ask.trouble:
            ask.rests_until = self._context.clock() + _RETRY_SECONDS
            log.warning("cannot ask for nodes", extra={**name_group(group), "err": ask.trouble})
        if ask.trouble != before:
            self._rouse(group)

    async def _book(self, group: GroupKey, ask: Ask) -> str:
        wanting = self._wanting.get(group)
        if wanting is None or ask.booking is None:
            return ""
        members = wanting.request.members[: wanting.request.need or None]
        trouble = await provisioning.ask(self._client, group, members, ask.at, ask.target, ask.booking.class_name)
        ask.booked = not trouble
        if ask.booked and ask.ended:
            ask.booked = False
            await self._unbook(group, ask)  # it was placed, is gone, or has no more time
        return trouble

    async def _unbook(self, group: GroupKey, ask: Ask) -> None:
        try:
            await provisioning.end(self._client, group, ask.at)
        except ApiError as error:
            log.warning("a ProvisioningRequest stays", extra={**name_group(group), "err": str(error)})
            ask.rests_until = self._context.clock() + _RETRY_SECONDS
            self._left_over[group, ask.at] = ask
            self._active[group] = None

    def _may_show(self, group: GroupKey, ask: Ask) -> bool:
        state = self._context.groups.states.get(group)
        waits = state is not None and state.cycle is None and group in self._wanting
        return self._context.term.leads() and self.asks.get(group) is ask and waits

    async def _listen(self, group: GroupKey, ask: Ask) -> None:
        """Read what the autoscaler says of the request, or of the members that it sees."""
        try:
            said = await (self._listen_to_pods(group) if ask.booking is None else self._listen_to_request(group, ask))
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
        if not ask.booked:
            return ""
        try:
            answer = await provisioning.read(self._client, group, ask.at)
        except NotFound:
            ask.booked = False  # it is made once more
            return ""
        if answer.refused and not ask.over and self.asks.get(group) is ask:
            ask.said = answer.said
            self._give_up(group, ask)
        return answer.said

    def _rouse(self, group: GroupKey) -> None:
        if group in self._queue:
            self._queue.rouse(group)
            self._context.groups.wake()


_HELD = frozenset({Stage.FORMING, Stage.WAITING})


def _is_in(node: Node, target: Target) -> bool:
    return not target.key or node.labels.get(target.key) == target.domain


def _find_asking(target: Target, asking: Mapping[GroupKey, Target]) -> GroupKey | None:
    """Return a gang that asks, or is to ask before, for nodes of the same NodePool; None if there is none."""
    return next((group for group, other in asking.items() if target.meets(other)), None)


def _add(said: Verdict, phrase: str) -> Verdict:
    if not phrase or phrase in said.detail:
        return said
    return replace(said, detail=", ".join(filter(None, (said.detail, phrase))))
