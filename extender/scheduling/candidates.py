"""Where kube-scheduler may preempt for a pod of no gang. It asks before it does, and nothing need follow the answer.

What goes with a victim that it has ended is seen to afterwards (`extender.scheduling.disruption`), whether it had asked
or not (docs/decisions/0025-a-gang-goes-whole.md).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.answers import Candidate
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.disruption import Disrupted
from extender.scheduling.groups import Groups
from extender.scheduling.refused_preemptors import RefusedPreemptors
from serried.cluster.companies import Companies, Company
from serried.cluster.members import Members
from serried.cluster.occupancy import Occupancy
from serried.cluster.priorities import GroupPriorities
from serried.model.group import GroupKey
from serried.model.pod import Pod


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost with a candidate."""

    candidate: Candidate

    priority: int
    """The highest of all pods that go, and of their gangs."""

    gangs: int = 0
    """How many gangs of mode ``all`` go with it."""

    others: int = 0
    """How many pods go with it that kube-scheduler does not evict itself."""


def choose(losses: Sequence[Loss]) -> tuple[Candidate, ...]:
    """The candidates among which kube-scheduler may choose: all that break no gang, unless a gang is the least loss.

    First count violations of budgets, then the highest priority, as in kube-scheduler's own choice
    (pkg/scheduler/framework/preemption/preemption.go: pickOneNodeForPreemption); then gangs, then pods. So no gang
    goes where as little of the same priority does without it, and none stays at the cost of pods of higher priority.
    """
    best = min(losses, key=_order, default=None)
    if best is not None and best.gangs:
        return (best.candidate,)  # the rest of its gang is unknown to kube-scheduler, which would choose another one
    return tuple(loss.candidate for loss in losses if not loss.gangs)


def _order(loss: Loss) -> tuple[int, int, int, int, str]:
    return loss.candidate.violations, loss.priority, loss.gangs, loss.others, loss.candidate.node


@dataclass(frozen=True, slots=True)
class _Cost:
    uids: frozenset[str]
    priority: int


class Candidates:
    """Weighs kube-scheduler's candidates. Synchronous; nothing follows but that a refused pod may be woken later."""

    def __init__(
        self,
        pods: Mapping[str, Pod],
        members: Members,
        companies: Companies,
        occupancy: Occupancy,
        *,
        priorities: GroupPriorities,
        groups: Groups,
        refused: RefusedPreemptors,
        rule: Disrupted,
    ) -> None:
        self._pods = pods
        self._members = members
        self._refused = refused
        self._priorities = priorities
        self._companies = companies
        self._occupancy = occupancy
        self._groups = groups
        self._rule = rule

    def weigh(self, preemptor: Pod, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """The candidates that may stay. The victims of each are those on its node.

        kube-scheduler refuses an answer that names a victim on another node (pkg/scheduler/extender.go:
        convertPodUIDToPod), although its own candidates do where it knows of gangs itself.
        """
        here = [
            replace(each, victims=tuple(uid for uid in each.victims if self._node_of(uid) in ("", each.node)))
            for each in candidates
        ]
        costs: dict[Company, _Cost] = {}
        losses = [self._count_loss(preemptor, each, costs) for each in here if each.victims]
        chosen = choose([loss for loss in losses if loss is not None])
        self._note(preemptor, () if chosen else here)
        return chosen

    def _note(self, preemptor: Pod, refused: Iterable[Candidate]) -> None:
        """Have a pod woken once a cycle has ended that kept it from the last candidates."""
        found = ((each.node, self._find_way(uid)) for each in refused for uid in each.victims)
        ways = [(node, way) for node, way in found if way is not None]
        if ways:
            self._refused.note(preemptor, ways[0][0], dict(way for _, way in ways))
        else:
            self._refused.forget(preemptor.uid)

    def _node_of(self, uid: str) -> str:
        return self._occupancy.node_of(uid) or ""

    def _count_loss(self, preemptor: Pod, candidate: Candidate, costs: dict[Company, _Cost]) -> Loss | None:
        """None for a candidate that must not be; ``costs`` are those that were looked up for earlier ones."""
        if any(self._find_way(uid) is not None or self._is_turned_away(uid) for uid in candidate.victims):
            return None
        companies = {company for uid in candidate.victims if (company := self._companies.of_pod(uid)) is not None}
        for company in companies - costs.keys():
            costs[company] = self._find_cost(company)
        going = [costs[company] for company in companies]
        others = sum(len(each.uids) - len(each.uids.intersection(candidate.victims)) for each in going)
        if others and self._rule is Disrupted.KEEP:
            return None
        victims = [pod for uid in candidate.victims if (pod := self._pods.get(uid)) is not None]
        known = [self._find_priority(pod) for pod in victims]
        highest = max([*known, *(each.priority for each in going)], default=preemptor.priority - 1)
        return None if highest >= preemptor.priority else Loss(candidate, highest, len(going), others)

    def _find_cost(self, company: Company) -> _Cost:
        running = self._companies.list_running(company)
        highest = max(map(self._find_priority, running), default=self._priorities.of_group(company.group))
        return _Cost(frozenset(pod.uid for pod in running), highest)

    def _find_priority(self, pod: Pod) -> int:
        """Whoever ends a pod must be above it, and above its group.

        A member that says less than its group would be taken by whom its gang then evicts, again and again.
        """
        return max(pod.priority, self._priorities.of_pod(pod))

    def _is_turned_away(self, uid: str) -> bool:
        """Whether kube-scheduler has still to learn that a member's bind call has failed: it would end it in vain.

        Once it knows, it gives the room away, and tries all again that lack room (pkg/scheduler/schedule_one.go:
        handleBindingCycleError).
        """
        known = uid in self._pods and self._members.group_of(uid) is not None
        return known and self._occupancy.node_of(uid) is None

    def _find_way(self, uid: str) -> tuple[GroupKey, BindingCycle] | None:
        """The cycle of a pod that waits at its bind call for the others of its gang, or is being bound with them."""
        key = self._members.group_of(uid)
        gang = self._groups.states.get(key) if key is not None else None
        if key is None or gang is None or gang.cycle is None:
            return None
        on_its_way = uid in gang.cycle.at_bind or bool(gang.cycle.reservation.committed)
        return (key, gang.cycle) if on_its_way else None
