"""Requests nodes from an autoscaler for one whole gang at a time: the first in the queue order that lacks resources.

Autoscalers add nodes for pods that have the condition Unschedulable and no scheduling gate. So, where an autoscaler is
found, Serried holds waiting members by its scheduling gate, and autoscalers do not see them. To request nodes, it
removes the gates of as many members as the quorum lacks. The same write adds the chosen domain to the member's node
selector. kube-scheduler then tries these members, Serried's filter answer rejects them, they become Unschedulable, and
the autoscaler adds nodes for them.

    unplaced ── first in the queue for its NodePools ──▶ asking ── nodes are added, gang is planned ──▶ (deleted)
       ▲                                                   │
       └── the planner rejects a waiting gang              └── --ask-for has passed ──▶ timed out: the next gang asks

Where Cluster Autoscaler serves ProvisioningRequests, Serried creates one instead (`provisioning`) and keeps the gates.

The core calls the feature `Asking`: `Asking.post_filter` when the planner has rejected a gang, `Asking.list_requeues`
twice a second, and `Asking.filter` when a plan was found, which must not use the new nodes of other gangs.

The API server does not let a removed gate be added again. So a gang whose request has timed out stays visible to
autoscalers and may get nodes later; but new nodes are no longer kept for it. Each request is recorded in the annotation
`serried.api.names.ASKED` of the members, from which the next leader restores it (`Asking._restore_asks`). New nodes are
kept from gangs that come later in the queue until the gang that requested them is placed.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import islice

from extender.autoscalers import FoundAutoscalers
from extender.core.feature import Decision, Feature, Refused
from extender.core.parts import Parts
from extender.core.scheduling.effects import InBackground
from extender.core.scheduling.group import GroupState
from extender.features.asking import provisioning
from extender.features.asking.ask import Ask, Candidate, UnplacedGang
from extender.features.asking.autoscaler_events import find_last_event
from extender.features.asking.member_patches import RequestRef, read_asked, write_members
from extender.features.asking.provisioning import NAME_PREFIX, name_request
from extender.features.asking.targets import (
    ANY_POOL,
    NoTarget,
    Supply,
    Target,
    choose_target,
    list_allowed_domains,
    list_needed,
)
from serried.api.group import PodGroup
from serried.api.names import GroupKey, write_time
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.reservation import Reservation
from serried.api.verdict import Reason, Stage, Trait, Verdict
from serried.kube.errors import ApiError, NotFound
from serried.ops.log import name_group
from serried.ops.steps import Work
from serried.plan.fit import count_fitting
from serried.plan.quorum import GroupMembers
from serried.plan.request import Plan, PlanRequest, QueueKey, Waiting

log = logging.getLogger(__name__)

_MIN_WAIT_SECONDS = 1.0
"""The time for which a gang must have lacked resources before it may request nodes.

Until then, victims may be found for it, or running pods may be ending anyway.
"""

_CHOOSE_SECONDS = 1.0
"""The pause between two choices of the gangs that request nodes next (`Asking._choose_candidates`)."""

_GANGS_PER_STEP = 500
"""The number of unplaced gangs that are sorted by queue order in one step, before other work gets its turn."""

_MAX_GANGS_WITH_TARGET = 128
"""The most gangs for which one choice of candidates searches a target: the domain of new nodes, and their NodePools.

They are the first gangs in the queue order.
"""

_TARGETS_PER_STEP = 4
"""The number of gangs for which a domain and NodePools are searched in one step, before other work gets its turn."""

_MAX_CANDIDATE_SECONDS = 10.0
"""The longest time for which a gang stays a candidate. Afterwards the candidates are chosen anew."""

_READ_SECONDS = 30.0
"""The pause between two reads of the autoscaler's events about the members of a gang that requests nodes."""

_READ_LATER_SECONDS = 300.0
"""The pause between two reads of the autoscaler's events about the members of a gang whose request has timed out."""

_RETRY_SECONDS = 5.0
"""The pause before a write that the API server rejected is tried again.

ProvisioningRequests are also read this often.
"""

_NEW_NODES_SECONDS = 0.5
"""The age up to which ``Ask.new_nodes`` is used before it is computed again."""

_CLOCK_SKEW_SECONDS = 2.0
"""The tolerance when the creation time of a node is compared with ``Ask.at``.

The API server sets creation times by its own clock, and in whole seconds.
"""

_MAX_AHEAD_SECONDS = 60.0
"""The most by which the time in an annotation ASKED may be ahead of this process's clock. With more it is ignored."""

_UNREAD = GroupKey("", "")
"""A key in ``Asking._remembered`` that is no gang: the annotations ASKED of earlier terms are still to be read.

With it, ``_remembered`` is not empty, so the core calls the feature.
"""

_HELD = frozenset({Stage.FORMING, Stage.WAITING})


class Asking(Feature):
    """The feature that chooses which gangs request nodes, requests them, and keeps the new nodes for these gangs.

    The core calls its methods. The context's ``clock`` gives loop seconds, ``wall`` seconds since 1970.
    """

    def __init__(self, parts: Parts) -> None:
        self._context = parts.context
        self._store = parts.context.store
        self._options = parts.context.options
        self._client = parts.client
        self._queue = parts.queue
        self._order = parts.queue.order
        self._planning_tasks = parts.planning_tasks
        self._autoscalers = parts.autoscalers
        self._autoscalers.listeners.append(self._on_autoscalers_changed)

        self.asks: dict[GroupKey, Ask] = {}
        """The requests for nodes, by the gang that made them."""

        self._unplaced: dict[GroupKey, UnplacedGang] = {}

        self._candidates: dict[GroupKey, Candidate] = {}
        """The gangs that request nodes next, once NodePools were read and the planner has rejected them again."""

        self._undeleted_asks: dict[tuple[GroupKey, float], Ask] = {}
        """Requests whose ProvisioningRequest could not be deleted yet, by gang and ``Ask.at``."""

        self._tried: dict[GroupKey, tuple[str, ...]] = {}
        """The domains for which a gang's requests have timed out, the latest one last."""

        self._blocked: set[GroupKey] = set()
        """The gangs that would fit but for new nodes kept for other gangs."""

        self._had_autoscalers = False
        """True if an autoscaler was found at the last change."""

        self._offers_version = 0
        """A number that increases when the autoscalers or what NodePools may add changes."""

        self._last_offers: object = None
        """The autoscalers and NodePools, without their usage, that ``_offers_version`` stands for."""

        self._chosen_at = -math.inf
        """The time of the last choice of candidates, in loop seconds."""

        self._remembered: dict[GroupKey, None] = {_UNREAD: None}
        """The gangs of which any other field holds something."""

        self.busy = self._remembered
        self.describes_all = parts.autoscalers.found

    @property
    def _seen(self) -> FoundAutoscalers:
        return self._autoscalers.seen

    def _on_autoscalers_changed(self) -> None:
        """Handle a change of the autoscalers or NodePools that were found.

        When the first autoscaler appears, requeue all waiting gangs: `post_filter` ignored their rejections until now.
        If the autoscalers can add other nodes than before, the reasons found earlier why new nodes cannot help a gang
        are void.
        """
        if self._seen and not self._had_autoscalers:
            for group in self._context.groups.states:
                self._requeue(group)
        self._had_autoscalers = bool(self._seen)
        offers = replace(self._seen, pools=tuple(replace(pool, provided={}) for pool in self._seen.pools))
        if offers != self._last_offers:
            self._last_offers = offers
            self._offers_version += 1

    # --- terms -------------------------------------------------------------------------------------------------

    def recover(self, records: Sequence[Reservation]) -> None:
        """Note that the requests of earlier terms are to be restored when the feature is called next.

        Called in a new term. They are restored from the annotations of the members, so ``records`` are not used.
        """
        self._remembered[_UNREAD] = None

    def end_term(self) -> None:
        """Forget everything, as another instance may lead from now on. The members' annotations keep the requests."""
        for memory in (
            self.asks,
            self._unplaced,
            self._candidates,
            self._undeleted_asks,
            self._tried,
            self._remembered,
        ):
            memory.clear()
        self._blocked.clear()
        self._remembered[_UNREAD] = None

    def _restore_asks(self) -> None:
        """Restore the requests of earlier terms from the members' annotations, unless this term has done so already."""
        if _UNREAD not in self._remembered:
            return
        del self._remembered[_UNREAD]
        for pod in self._store.pods.values():
            if pod.asked and pod.pending:
                self._restore_ask(pod)

    def _restore_ask(self, pod: Pod) -> None:
        """Restore the request for nodes that a member's annotation ASKED records.

        The annotation only counts if the pod also shows the rest of the patch that wrote it: Serried's gate is gone, or
        its annotations name the ProvisioningRequest that was created for this request. If the members' annotations
        differ, the earliest time counts.
        """
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
        self._remembered[key] = None

    # --- gangs that lack room ----------------------------------------------------------------------------------

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Remember a gang that the planner rejected for lack of free resources, so that nodes may be requested for it.

        ``refused`` has the gang and its members, ``refusal`` the planner's verdict. Return the verdict to report: that
        nodes are requested (`Reason.ASKING_FOR_NODES`) or were not added in time (`Reason.NO_NODES_CAME`); or
        ``refusal`` with the reason why no nodes are requested yet.

        If new nodes would not help, the gang is forgotten instead, and ``refusal`` is returned. That is so if it does
        not lack resources, if it may use a wider topology level later, if kube-scheduler has rejected a member, or if a
        member uses a ProvisioningRequest that Serried has not created. Without an autoscaler nothing is remembered.
        """
        key, request = refused.group.key, refused.request
        if not self._seen:
            return refusal
        self._restore_asks()
        rejected = refused.gang.refusals.rejection is not None
        by_others = any(pod.consumes and not pod.consumes.startswith(NAME_PREFIX) for pod in request.members)
        if Trait.NEEDS_RESOURCES not in refusal.reason.traits or refused.opens_in < math.inf or rejected or by_others:
            self._forget_unplaced(key)
            return refusal
        # A group that is no gang has no quorum: each member may run alone.
        needed = list_needed(request, _is_visible) if refused.group.policy.is_gang else list(request.members)
        self._note_unplaced(key, refused.waiting, request, refusal, needed)
        return self._describe_ask(key, refusal)

    def _note_unplaced(
        self,
        key: GroupKey,
        waiting: Waiting,
        request: PlanRequest,
        refusal: Verdict,
        needed: Sequence[Pod],
        *,
        is_planned: bool = True,
    ) -> None:
        known, now = self._unplaced.get(key), self._context.clock()
        since = known.first_rejected if known is not None else now
        unplaced = UnplacedGang(waiting, request, refusal, needed, since, now, is_planned)
        self._unplaced[key] = unplaced
        self._remembered[key] = None
        if known is not None:
            unplaced.why_not_asked = known.why_not_asked
            unplaced.ruled_out = known.ruled_out if known.request.is_equivalent(request) else None
        ask = self.asks.get(key)
        if ask is not None:
            self._update_ask(key, ask, unplaced)

    def keep_gated(self, gang: GroupState, group: PodGroup, members: GroupMembers, shortage: Verdict) -> Verdict | None:
        """Decide about a gang with members whose resources no existing node has, such as the first GPU of a cluster.

        The verdict ``shortage`` says so. Such a gang is not planned, and keeps Serried's scheduling gates. A group
        without a tree is remembered, so that nodes may be requested for it, if its quorum exists and is not placed.
        Return the verdict to report: ``shortage`` or the state of the request. Without an autoscaler return None: the
        core then removes the gates.
        """
        key = group.key
        if not self._seen:
            return None
        self._restore_asks()
        coming = [*members.waiting, *members.refused]
        need = members.need(group.tree.need) if group.branch is None else 0
        lacks_resource = any(pod.missing for pod in members.refused)
        if not lacks_resource or not 0 < need <= len(coming) or shortage.reason is not Reason.NO_CAPACITY:
            self._forget_unplaced(key)
            return shortage
        request = PlanRequest(coming, need, group.topology_key)
        waiting = self._queue.describe(key, gang)
        # Without a plan it is not known how many members fit.
        refusal = replace(shortage, have=0)
        self._note_unplaced(key, waiting, request, refusal, list_needed(request, _is_visible), is_planned=False)
        return self._describe_ask(key, shortage)

    def revisit(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Return the verdict of a gang that still waits: ``said``, changed to show the state of its request for nodes.

        ``said`` is the last verdict; if it is None, so is the result. ``waiting`` (the gang's place in the queue) is
        not used. This feature never returns a Decision.
        """
        return None if said is None else self._describe_ask(group.key, said)

    def describe(
        self, gang: GroupState, group: PodGroup, members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        """Return the verdict, with an addition if an autoscaler acts on the members before nodes are requested.

        This is so for members without Serried's scheduling gate: an autoscaler may add nodes for them before the gang
        can start, and the verdict's detail tells users so.
        """
        if not self._seen or verdict is None or verdict.reason.stage not in _HELD:
            return verdict
        first = members.waiting[0] if members.waiting else None
        if first is None or first.held_by_gate or first.asked or Trait.TRANSIENT in verdict.reason.traits:
            return verdict
        if group.key in self.asks:
            return verdict
        return _add(
            verdict,
            f"its members have no scheduling gate, so {self._seen.names} may add nodes before the gang can start",
        )

    def left_queue(self, group: GroupKey, *, placed: bool) -> None:
        """Forget a gang that no longer waits for free resources.

        If it was ``placed``, end its request for nodes, too. If not, a gang that `keep_gated` has remembered stays.
        """
        unplaced = self._unplaced.get(group)
        # A gang that is not planned was never in the queue: `keep_gated` decides about it.
        if placed or unplaced is None or unplaced.is_planned:
            self._forget_unplaced(group)
        if placed:
            self._tried.pop(group, None)
            self._drop_ask(group)

    def _forget_unplaced(self, group: GroupKey) -> None:
        self._unplaced.pop(group, None)
        self._candidates.pop(group, None)
        self._forget_idle(group)

    def _forget_idle(self, group: GroupKey) -> None:
        """Remove a gang from ``_remembered``, the gangs that this feature knows, if nothing is left to do for it.

        That is so if it does not wait for free resources, has no request for nodes, and no ProvisioningRequest of an
        earlier request still has to be deleted.
        """
        if (
            group not in self.asks
            and group not in self._unplaced
            and all(key != group for key, _ in self._undeleted_asks)
        ):
            self._remembered.pop(group, None)

    def _drop_ask(self, group: GroupKey) -> None:
        ask = self.asks.pop(group, None)
        if ask is not None:
            self._release(group, ask)
        self._forget_idle(group)

    def _release(self, group: GroupKey, ask: Ask) -> None:
        """End a request: delete its ProvisioningRequest, and requeue all gangs from which new nodes were kept."""
        if ask.request is not None and not ask.request_deleted:
            ask.request_exists, ask.request_deleted = False, True
            self._context.outbox.put(InBackground(partial(self._delete_request, group, ask)))
        ask.new_nodes = frozenset()
        for other in self._blocked:
            self._requeue(other)
        self._blocked.clear()

    def _update_ask(self, group: GroupKey, ask: Ask, unplaced: UnplacedGang) -> None:
        """Update a request with what is known since the planner has rejected its gang again (``unplaced``).

        That is its place in the queue, the demands of the members, and the number of members that fit without new
        nodes. End the request if the gang has another topology key now, or may not use the domain any more.
        """
        key = unplaced.request.topology_key or ""
        fits = not key or list_allowed_domains(frozenset((ask.target.domain,)), key, unplaced.request)
        if key != ask.target.key or not fits:
            self._drop_ask(group)
            return
        ask.waiting = unplaced.waiting
        ask.shapes = frozenset(member.shape for member in unplaced.request.members)
        room = {each.domain: each.slots for each in unplaced.refusal.domains}
        ask.target = replace(ask.target, have=room.get(ask.target.domain, 0) if key else unplaced.refusal.have)

    def _describe_ask(self, key: GroupKey, said: Verdict) -> Verdict:
        ask, unplaced = self.asks.get(key), self._unplaced.get(key)
        if unplaced is None:
            return said
        if ask is None:
            return _add(said, unplaced.why_not_asked or self._describe_wait())
        parts = [f"asked at {write_time(ask.at)}", ask.error, f"{self._seen.names}: {ask.answer}" if ask.answer else ""]
        if ask.timed_out and ask.target.key and ask.request is None:
            parts.append(
                f"its members have the node selector {ask.target.domain} now: delete the members to try another domain"
            )
        reason = Reason.NO_NODES_CAME if ask.timed_out else Reason.ASKING_FOR_NODES
        detail = "; ".join(filter(None, parts))
        return Verdict(reason, ask.target.have, len(unplaced.needed), str(ask.target), detail=detail)

    def _describe_wait(self) -> str:
        """Return a phrase about the gangs because of which another gang cannot request nodes now; "" if it can.

        One gang is named, several are counted. Another gang cannot while each NodePool serves a request of one of these
        gangs.
        """
        if not self._all_pools_taken():
            return ""
        asking = list(self._list_asking())
        return _describe_predecessor(str(asking[0]) if len(asking) == 1 else f"{len(asking)} other gangs")

    # --- nodes that came ---------------------------------------------------------------------------------------

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Check the plan of a gang. Return it if it uses no new node that is kept for a gang ahead in the queue.

        Else return a plan without these nodes, or the verdict `Reason.BEHIND_HEAD` if there is none. Raises Unfinished
        while that plan is being computed; the gang is requeued when it is there.
        """
        self._restore_asks()
        self._blocked.discard(waiting.group)
        first = self._find_gang_ahead(waiting, plan.nodes.values())
        if first is None:
            return plan
        for ask in self.asks.values():
            ask.new_nodes_at = -math.inf  # the plan may use a node that is newer than the list
        closed = self.list_closed_nodes(waiting, request)
        answer = self._queue.plan_again(request.closing(closed))
        if isinstance(answer, Plan):
            return answer
        self._blocked.add(waiting.group)
        self._queue.put_back(waiting.group, request.closing(closed), answer)
        return Verdict(Reason.BEHIND_HEAD, need=request.need or len(request.members), key=str(first))

    def _find_gang_ahead(self, waiting: Waiting, names: Iterable[str]) -> GroupKey | None:
        """Return the gang ahead of ``waiting`` in the queue whose new nodes are among ``names``; None if none is."""
        before = list(self._list_asks_ahead(waiting))
        nodes = [self._store.nodes[name] for name in set(names) if name in self._store.nodes] if before else []
        return next((group for group, ask in before if any(_is_new_node(node, ask) for node in nodes)), None)

    def list_closed_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the new nodes that a gang's plan must not use, as they are kept for gangs ahead of it in the queue.

        ``waiting`` has the gang's place in the queue; ``request`` is not used.
        """
        return frozenset[str]().union(*(self._list_new_nodes(ask) for _, ask in self._list_asks_ahead(waiting)))

    def list_kept_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the new nodes that are kept from members which join a gang after its plan.

        These are the nodes of `list_closed_nodes`: those kept for gangs ahead of ``waiting`` in the queue.
        """
        return self.list_closed_nodes(waiting, request)

    def list_protected_nodes(self) -> Iterable[frozenset[str]]:
        """Yield for each request the new nodes that are kept for its gang, so that no autoscaler removes them.

        Pods of no gang may use them, however: an autoscaler adds nodes for these pods as well.
        """
        yield from (kept for ask in self.asks.values() if (kept := self._list_new_nodes(ask)))

    def _list_asks_ahead(self, waiting: Waiting) -> Iterator[tuple[GroupKey, Ask]]:
        for group, ask in self.asks.items():
            if group == waiting.group or ask.timed_out or ask.waiting is None:
                continue
            if self._order.precedes(ask.waiting, waiting):
                yield group, ask

    def _list_new_nodes(self, ask: Ask) -> frozenset[str]:
        """Return the nodes in the domain of ``ask`` that were added since, and could run a member if they were empty.

        The result may be 0.5 s old. It is empty once the request has timed out.
        """
        now = self._context.clock()
        if ask.timed_out:
            return frozenset()
        if now - ask.new_nodes_at >= _NEW_NODES_SECONDS:
            ask.new_nodes_at = now
            ask.new_nodes = frozenset(node.name for node in self._store.nodes.values() if _is_new_node(node, ask))
        return ask.new_nodes

    # --- twice a second ----------------------------------------------------------------------------------------

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Do the periodic work: choose the gangs that request nodes next, and continue the requests that were made.

        For each request: patch members that have joined the gang since, read the autoscaler's messages, and let the
        request time out after ``--ask-for``. The generator, which does this step by step, returns no gang, as this
        feature requeues gangs itself.
        """
        now = self._context.clock()
        self._restore_asks()
        for (group, at), ask in list(self._undeleted_asks.items()):
            if now >= ask.next_try:
                del self._undeleted_asks[group, at]
                self._context.outbox.put(InBackground(partial(self._delete_request, group, ask)))
                self._forget_idle(group)
        if not self._seen:
            # Until autoscalers have been looked for in this term, requests of the last term stay.
            for group in list(self._remembered) if self._autoscalers.known else ():
                self._drop(group)
            return ()
        for group, ask in list(self.asks.items()):
            self._continue_ask(group, ask, now)
        for group in [each for each in self._unplaced if each not in self._store.groups]:
            self._drop(group)
        for group, candidate in list(self._candidates.items()):
            self._confirm_candidate(group, candidate, now)
        if now - self._chosen_at >= _CHOOSE_SECONDS and not self._all_pools_taken():
            self._chosen_at = now
            yield from self._choose_candidates(now)
        return ()

    def _drop(self, group: GroupKey) -> None:
        self._forget_unplaced(group)
        self._tried.pop(group, None)
        self._drop_ask(group)

    def _continue_ask(self, group: GroupKey, ask: Ask, now: float) -> None:
        found, state = self._store.groups.get(group), self._context.groups.states.get(group)
        waits = any(pod.pending for pod in self._store.members.of_group(group))
        if found is None or found.uid != ask.uid or not waits:
            self._drop(group)
            return
        unplaced, wall = self._unplaced.get(group), self._context.wall()
        expired = wall >= ask.at + self._options.ask_seconds
        if state is None or state.cycle is not None:
            return
        if ask.timed_out and ask.request is not None and wall >= ask.at + 2 * self._options.ask_seconds:
            self._drop_ask(group)  # its gates are still there, so it may request nodes once more, after other gangs
            return
        if expired and not ask.timed_out:
            self._time_out(group, ask)
        if unplaced is None:
            return
        if now >= ask.next_try and not ask.writing and not (ask.timed_out and ask.request is not None):
            members = self._list_unwritten(ask, unplaced)
            if members or (ask.request is not None and not ask.request_exists):
                ask.writing = True
                self._context.outbox.put(InBackground(partial(self._write_ask, group, ask, members)))
        if now >= ask.next_read:
            later = _READ_LATER_SECONDS if ask.timed_out else _READ_SECONDS
            ask.next_read = now + (later if ask.request is None else _RETRY_SECONDS)
            self._context.outbox.put(InBackground(partial(self._read_answer, group, ask)))

    def _time_out(self, group: GroupKey, ask: Ask) -> None:
        """Mark a request as timed out, so that the next gang may request nodes.

        Called when ``--ask-for`` has passed, or Cluster Autoscaler has rejected the ProvisioningRequest. If the gang
        requests nodes once more, the domain of this request is tried last.
        """
        ask.timed_out = True
        ask.next_read = self._context.clock()
        if ask.target.key:
            earlier = tuple(domain for domain in self._tried.get(group, ()) if domain != ask.target.domain)
            self._tried[group] = (*earlier, ask.target.domain)
        text = "an autoscaler added no nodes for a gang in time, so the next gang may ask"
        log.info(text, extra={**name_group(group), "target": str(ask.target), "said": ask.answer})
        self._release(group, ask)
        self._requeue(group)

    def _list_unwritten(self, ask: Ask, unplaced: UnplacedGang) -> list[Pod]:
        """Return the members of the gang ``unplaced`` that still have to be patched for the request ``ask``.

        Only as many members are patched as the quorum lacks (``unplaced.needed``). Those not patched yet still have
        Serried's gate, or, with a ProvisioningRequest, no annotation that names it.
        """
        found = (self._store.pods.get(each.uid) for each in unplaced.needed)
        current = [pod for pod in found if pod is not None and pod.pending]
        if ask.request is None:
            return [pod for pod in current if pod.held_by_gate]
        return [pod for pod in current if pod.consumes != ask.request.name]

    def _list_asking(self) -> dict[GroupKey, Target]:
        return {group: ask.target for group, ask in self.asks.items() if not ask.timed_out}

    def _all_pools_taken(self) -> bool:
        """Return whether no further gang may request nodes: each NodePool serves a request, or no gang lacks resources.

        Node groups of Cluster Autoscaler are not known, so they count as one pool.
        """
        if not self._unplaced:
            return True
        asking = self._list_asking().values()
        pools = frozenset(pool.name for pool in self._seen.pools)
        if self._seen.cluster_autoscaler or not pools:
            return any(ANY_POOL in target.pools for target in asking)
        return bool(asking) and pools <= frozenset().union(*(target.pools for target in asking))

    def _choose_candidates(self, now: float) -> Work[None]:
        """Choose candidates, the gangs that request nodes next, in the queue order. ``now`` is in loop seconds.

        Each gets the domain and NodePools found for it. A gang is passed over if new nodes cannot help it, or if a gang
        ahead of it uses one of its NodePools.
        """
        first: list[tuple[QueueKey, GroupKey]] = []
        rest = iter([group for group, unplaced in self._unplaced.items() if self._may_ask(group, unplaced, now)])
        while keys := list(islice(rest, _GANGS_PER_STEP)):
            some = [(self._order.sort_key(self._unplaced[key].waiting), key) for key in keys if key in self._unplaced]
            first = nsmallest(_MAX_GANGS_WITH_TARGET, [*first, *some])
            if len(keys) == _GANGS_PER_STEP:
                yield
        asking = self._list_asking() | {group: each.target for group, each in self._candidates.items()}
        supply = Supply(self._seen, self._store.nodes)
        for number, (_, group) in enumerate(first, start=1):
            if number % _TARGETS_PER_STEP == 0:
                yield
            unplaced, state = self._unplaced.get(group), self._context.groups.states.get(group)
            if unplaced is None or state is None or state.cycle is not None or group in asking or group in self.asks:
                continue
            target = self._find_target(group, unplaced, supply, asking)
            if target is None:
                continue
            asking.setdefault(
                group, target
            )  # gangs later in the queue must not use its NodePools even if it has to wait
            # If victims are being searched for it, it may need no nodes.
            if not unplaced.why_not_asked and not self._planning_tasks.is_working_for(group):
                self._candidates[group] = Candidate(target, now)
                self._context.outbox.put(InBackground(partial(self._read_pools, group)))

    def _may_ask(self, group: GroupKey, unplaced: UnplacedGang, now: float) -> bool:
        if group in self.asks or group in self._candidates or now - unplaced.first_rejected < _MIN_WAIT_SECONDS:
            return False
        return unplaced.ruled_out is None or unplaced.ruled_out[1] != self._offers_version

    def _find_target(
        self, group: GroupKey, unplaced: UnplacedGang, supply: Supply, asking: Mapping[GroupKey, Target]
    ) -> Target | None:
        """Return the domain and NodePools for which a gang would request nodes; None if new nodes cannot help it.

        ``supply`` is what autoscalers can add, ``asking`` the targets of the gangs that come before this one. Also set
        ``unplaced.why_not_asked``: why new nodes cannot help, or which gang in ``asking`` uses one of the NodePools. In
        the latter case a target is returned, but the gang has to wait.
        """
        keys, tried = self._options.autoscaler_keys, self._tried.get(group, ())
        target = choose_target(unplaced.request, unplaced.needed, unplaced.refusal, supply, keys, tried)
        unplaced.ruled_out = (target, self._offers_version) if isinstance(target, NoTarget) and target.lasts else None
        if isinstance(target, NoTarget):
            self._set_why_not_asked(group, unplaced, f"Serried asks for no nodes: {target.why}")
            return None
        before = next((other for other, found in asking.items() if target.shares_pool_with(found)), None)
        self._set_why_not_asked(group, unplaced, "" if before is None else _describe_predecessor(str(before)))
        return target

    def _set_why_not_asked(self, group: GroupKey, unplaced: UnplacedGang, why_not: str) -> None:
        if why_not != unplaced.why_not_asked:
            unplaced.why_not_asked = why_not
            self._requeue(group)

    async def _read_pools(self, group: GroupKey) -> None:
        """Read the NodePools again for a gang that is about to request nodes, and requeue the gang.

        What was known of the NodePools may be ten seconds old.
        """
        await self._autoscalers.refresh()
        candidate = self._candidates.get(group)
        if candidate is not None:
            candidate.pools_read_at = self._context.clock()
            self._requeue(group)

    def _confirm_candidate(self, group: GroupKey, candidate: Candidate, now: float) -> None:
        """Request nodes for a candidate if the planner has rejected it again since the NodePools were read again.

        No nodes are requested if new nodes cannot help it any more, or if another gang has requested nodes of the same
        NodePools meanwhile. After 10 s it is no candidate any more. ``now`` is in loop seconds.
        """
        unplaced, state = self._unplaced.get(group), self._context.groups.states.get(group)
        gone = unplaced is None or state is None or state.cycle is not None
        if gone or now - candidate.chosen_at >= _MAX_CANDIDATE_SECONDS:
            del self._candidates[group]
        elif (
            unplaced is not None
            and unplaced.last_rejected >= candidate.pools_read_at
            and not self._planning_tasks.is_working_for(group)
        ):
            del self._candidates[group]
            supply = Supply(self._seen, self._store.nodes)
            target = self._find_target(group, unplaced, supply, self._list_asking())
            if target is not None and not unplaced.why_not_asked:
                self._ask(group, unplaced, target)

    def _ask(self, group: GroupKey, unplaced: UnplacedGang, target: Target) -> None:
        at, request = math.floor(self._context.wall()), None
        if self._seen.provisioning and ANY_POOL in target.pools and self._options.provisioning_class:
            request = RequestRef(name_request(group, at), self._options.provisioning_class)
        ask = Ask(
            self._store.groups[group].uid,
            at,
            target,
            request,
            nodes_before=frozenset(self._store.nodes),
            waiting=unplaced.waiting,
            shapes=frozenset(member.shape for member in unplaced.request.members),
            next_read=self._context.clock() + _RETRY_SECONDS,
        )
        self.asks[group] = ask
        self._remembered[group] = None
        text = "Serried asks an autoscaler for nodes for a gang"
        log.info(text, extra={**name_group(group), "target": str(target), "have": target.have})
        self._continue_ask(group, ask, self._context.clock())
        self._requeue(group)

    # --- in the background -------------------------------------------------------------------------------------

    async def _write_ask(self, group: GroupKey, ask: Ask, members: Sequence[Pod]) -> None:
        """Patch ``members`` so that an autoscaler adds nodes for them; then create the ProvisioningRequest, if any.

        The patch removes the gate, or names the ProvisioningRequest (`write_members`). It comes first, as the next
        leader restores the request from the members. Stop if the request has ended, the gang is placed or this instance
        no longer leads. An error is set as ``ask.error``.
        """
        before = ask.error
        try:
            may_continue = partial(self._may_write, group, ask)
            ask.error = await write_members(self._client, members, ask.at, ask.target, ask.request, may_continue)
            if not ask.error and ask.request is not None and not ask.request_exists:
                ask.error = await self._create_request(group, ask, ask.request)
        finally:
            ask.writing = False
        if ask.error:
            ask.next_try = self._context.clock() + _RETRY_SECONDS
            text = "could not ask an autoscaler for nodes for a gang; trying again"
            log.warning(text, extra={**name_group(group), "err": ask.error})
        if ask.error != before:
            self._requeue(group)

    async def _create_request(self, group: GroupKey, ask: Ask, request: RequestRef) -> str:
        unplaced = self._unplaced.get(group)
        if unplaced is None or not self._may_write(group, ask):
            return ""
        error = await provisioning.create_request(
            self._client, group, unplaced.needed, ask.at, ask.target, request.class_name
        )
        ask.request_exists = not error
        if ask.request_exists and ask.request_deleted:
            ask.request_exists = False
            await self._delete_request(group, ask)  # the gang was placed, deleted, or timed out
        return error

    async def _delete_request(self, group: GroupKey, ask: Ask) -> None:
        try:
            await provisioning.delete_request(self._client, group, ask.at)
        except ApiError as error:
            text = "could not delete the ProvisioningRequest of a gang; trying again"
            log.warning(text, extra={**name_group(group), "err": str(error)})
            ask.next_try = self._context.clock() + _RETRY_SECONDS
            self._undeleted_asks[group, ask.at] = ask
            self._remembered[group] = None

    def _may_write(self, group: GroupKey, ask: Ask) -> bool:
        state = self._context.groups.states.get(group)
        waits = state is not None and state.cycle is None and group in self._unplaced
        return self._context.term.leads() and self.asks.get(group) is ask and waits

    async def _read_answer(self, group: GroupKey, ask: Ask) -> None:
        """Read the autoscaler's last message about a request for nodes, and set it as ``ask.answer``.

        It is a condition of the ProvisioningRequest, or else an Event about a member without Serried's gate. If the
        message is a new one, the gang is requeued, so that its verdict shows it.
        """
        try:
            said = await (
                self._read_pod_events(group) if ask.request is None else self._read_request_conditions(group, ask)
            )
        except ApiError as error:
            said = f"Serried cannot read its answer: {error}"
        if said and said != ask.answer:
            ask.answer = said
            self._requeue(group)

    async def _read_pod_events(self, group: GroupKey) -> str:
        unplaced = self._unplaced.get(group)
        pods = (self._store.pods.get(each.uid) for each in unplaced.request.members) if unplaced is not None else ()
        visible = {pod.uid for pod in pods if pod is not None and not pod.held_by_gate}
        return await find_last_event(self._client, group.namespace, visible) if visible else ""

    async def _read_request_conditions(self, group: GroupKey, ask: Ask) -> str:
        if not ask.request_exists:
            return ""
        try:
            answer = await provisioning.read_request(self._client, group, ask.at)
        except NotFound:
            ask.request_exists = False  # so it is created again
            return ""
        if answer.rejected and not ask.timed_out and self.asks.get(group) is ask:
            ask.answer = answer.condition
            self._time_out(group, ask)
        return answer.condition

    def _requeue(self, group: GroupKey) -> None:
        unplaced = self._unplaced.get(group)
        if group in self._queue:
            self._queue.requeue(group)
            self._context.groups.wake()
        elif unplaced is not None and not unplaced.is_planned:
            self._context.groups.mark_dirty(group)


def _is_visible(member: Pod) -> bool:
    return not member.held_by_gate


def _is_new_node(node: Node, ask: Ask) -> bool:
    """Return whether a node was added since the request, is in its domain, and could run a member if it were empty.

    For a request of an earlier term, the node's creation time decides whether it was added since.
    """
    if ask.nodes_before is not None:
        is_new = node.name not in ask.nodes_before
    else:
        is_new = node.created is not None and node.created >= ask.at - _CLOCK_SKEW_SECONDS
    if not is_new or (ask.target.key and node.labels.get(ask.target.key) != ask.target.domain):
        return False
    return any(count_fitting(shape, node, None) for shape in ask.shapes)


def _describe_predecessor(before: str) -> str:
    return f"Serried asks for nodes for {before} first"


def _add(said: Verdict, phrase: str) -> Verdict:
    if not phrase or phrase in said.detail:
        return said
    return replace(said, detail="; ".join(filter(None, (said.detail, phrase))))
