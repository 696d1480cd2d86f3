"""The extension points at which a feature takes part in scheduling, named after kube-scheduler's framework.

The core plans and binds gangs without any feature. Keeping nodes for other gangs, preemption and the repair of broken
gangs are features. `extender.wiring` lists them. A feature imports the core, never the other way round. At an extension
point the core calls the features in the order of that list.

    group ────────── observe ── a member is about to end
      │
    quorum ───────── pre_enqueue ── members that need no quorum, constrain ── its topology key does not count
      │
    request ──────── pre_filter ── domains of other gangs            queue ── is_urgent, hints, left_queue,
      │                                                                       list_protected_nodes
    plan ─┬─ found ─ filter ── nodes kept for other gangs            pod of no gang ── filter_pod, list_kept_from_pod,
      │   │                                                                            preempt_pod, unreserve_pod
      │   └─ none ── unschedulable, post_filter, revisit ─
      │              victims are chosen: allow                       term ── recover, recovered, begin_term, end_term
      │
    cycle ────────── reserve, pre_bind ── victims end ── permit ── the quorum may be missing ── ended

A feature is called only at the points whose methods its class overrides; `Features.install` finds these once. At points
marked "While ``busy``" a feature whose ``busy`` is empty is not called, and at points marked "If it ``concerns`` the
group" only for groups for which ``concerns`` returns something true.

The state that a feature keeps of one group is a `Memory` of its own class in ``GroupState.memory``. It is dropped at
the end of the term, or earlier (`Memory.for_wait`). After a restart a feature has only the records
(`Feature.recover`) and the cluster.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from extender.core.protocol import Candidate
from extender.core.scheduling.binding_cycle import BindingCycle
from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.api.reservation import Reservation
from serried.api.verdict import Verdict
from serried.ops.steps import Work
from serried.plan.eviction import EvictionUnit
from serried.plan.quorum import GroupMembers
from serried.plan.request import Plan, PlanRequest, Waiting

if TYPE_CHECKING:
    from extender.core.scheduling.group import GroupState  # it imports Memory from here


class Memory:
    """The state that one feature keeps of one group.

    `GroupState` makes it, without arguments, when it is first requested.
    """

    for_wait: ClassVar[bool] = False
    """True if the core drops this memory as soon as the group no longer waits for room."""

    captured: ClassVar[str] = ""
    """The key of this memory in snapshots; "" if no decision depends on it, so that snapshots leave it out."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The waiting members that replace deleted ones, and so need less than a new gang does."""

    replacements: tuple[Pod, ...] = ()
    """The members that take the slots kept for them without a quorum: the members that still run count for it.

    A replacement that does not fit in its kept slot is planned like any other member.
    """

    fitting: frozenset[str] = frozenset()
    """The UIDs of all members that fit in their kept slots now. Freed room elsewhere need not requeue them."""

    def __or__(self, other: "Repair") -> "Repair":
        return Repair((*self.replacements, *other.replacements), self.fitting | other.fitting)


NO_REPAIR = Repair()
"""The repair of a gang in which no slot is kept for a replacement."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A gang for which the planner has just found no room."""

    gang: "GroupState"
    group: PodGroup
    waiting: Waiting
    request: PlanRequest

    opens_in: float
    """The seconds until the gang may use a wider level of the topology; infinite if there is none left."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a feature that a gang gets the room of victims."""

    request: PlanRequest
    plan: Plan

    victims: Sequence[EvictionUnit]
    """The victims. Running pods are evicted. A planned gang without Bindings loses its plan at once."""


class Feature:
    """Base class of a feature. A subclass overrides the methods of the extension points at which it does something."""

    busy: Collection[object] = (True,)
    """A live collection, empty while the feature keeps no node for any gang and no gang waits for the feature."""

    describes_all: Collection[object] = ()
    """A live collection. While it is not empty, `describe` is also called for groups without any `Memory`."""

    memories: tuple[type[Memory], ...] = ()
    """The classes of the state that the feature keeps per group."""

    member_labels: Collection[str] = ()
    """The labels of members that the feature reads, so that snapshots keep them."""

    concerns: Callable[[PodGroup], object] = bool
    """Returns something true if the feature applies to a PodGroup. A function from outside of the feature's file."""

    # --- a group is looked at ----------------------------------------------------------------------------------

    def observe(self, key: GroupKey, gang: "GroupState", group: PodGroup | None) -> None:
        """Handle a group of which members are, or just were, about to end.

        ``group`` is None if the PodGroup is deleted. The group may have a binding cycle.
        """

    def constrain(self, group: PodGroup, members: GroupMembers) -> str:
        """Return why the topology key of a PodGroup is ignored, a phrase; "" if it counts.

        If it ``concerns`` the group. Called for groups with their quorum and without a binding cycle, but not for
        trees.
        """
        return ""

    def pre_enqueue(self, gang: "GroupState", group: PodGroup, members: GroupMembers) -> Repair:
        """Return the members that may be placed without a quorum. Called only for groups that have run."""
        return NO_REPAIR

    def keep_gated(
        self, gang: "GroupState", group: PodGroup, members: GroupMembers, shortage: Verdict
    ) -> Verdict | None:
        """Return what is said of a group with members that no node can take, if their gates are to stay.

        None lets kube-scheduler try them. Called while ``describes_all`` is not empty.
        """
        return None

    def describe(
        self,
        gang: "GroupState",
        group: PodGroup,
        members: GroupMembers,
        verdict: Verdict | None,
    ) -> Verdict | None:
        """Return the verdict to report for the group instead of ``verdict``.

        Called for groups with any `Memory`, and for all groups while ``describes_all`` is not empty.
        """
        return verdict

    # --- its plan ----------------------------------------------------------------------------------------------

    def pre_filter(
        self,
        gang: "GroupState",
        group: PodGroup,
        waiting: Waiting,
        request: PlanRequest,
    ) -> PlanRequest:
        """Return the request without the domains that other gangs get first. If it ``concerns`` the group."""
        return request

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Check a plan that was found. Return it, another plan without the nodes kept for other gangs, or a refusal."""
        return plan

    def list_closed_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that the plan of a gang must not use, as they are kept for other gangs. While ``busy``.

        Kept nodes on which the gang fits besides the other gang are not among them.
        """
        return frozenset()

    def list_kept_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return all nodes kept for gangs ahead of a gang in the queue. While ``busy``.

        Members that join the gang after its plan may use none of them: the plan did not count these members.
        """
        return frozenset()

    def allow(self, group: PodGroup, plan: Plan, gone: AbstractSet[str]) -> bool:
        """Return whether a plan is still valid for which the pods ``gone`` (UIDs) end. If it ``concerns`` the group."""
        return True

    # --- no plan -----------------------------------------------------------------------------------------------

    def unschedulable(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Handle a gang that was put among the unschedulable ones. Return the verdict to report."""
        return refusal

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Look for victims for a gang without room. Return the decision to preempt them, or the verdict to report."""
        return refusal

    def revisit(
        self,
        gang: "GroupState",
        group: PodGroup,
        waiting: Waiting,
        said: Verdict | None,
    ) -> Decision | Verdict | None:
        """Handle a gang without room for which nothing has changed since the last try.

        Return a decision that was found meanwhile, or the verdict to report; ``said`` if there is neither.
        """
        return said

    # --- the queue ---------------------------------------------------------------------------------------------

    def is_urgent(self, gang: "GroupState") -> bool:
        """Return whether a gang goes before other gangs of its priority. Called only for gangs with any `Memory`."""
        return False

    def left_queue(self, group: GroupKey, *, placed: bool) -> None:
        """Handle a gang that no longer waits for free resources. While ``busy``.

        ``placed`` is True if it has got them, False if it was deleted, for instance.
        """

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Return gangs to try again although no room was freed, and do periodic work. Called twice a second.

        Runs in steps, so that filter calls are answered in between.
        """
        yield
        return ()

    def find_forecast_time(self, group: GroupKey) -> float | None:
        """Return the loop time from which a gang is expected to fit; None if no reliable forecast is known."""
        return None

    def list_kept_domains(self, waiting: Waiting, key: str | None) -> frozenset[str]:
        """Return the domains of topology key ``key`` that are kept for exclusive use by a gang ahead. While ``busy``.

        Only those count that are kept for gangs of the same namespace ahead of ``waiting`` in the queue.
        """
        return frozenset()

    def list_protected_nodes(self) -> Iterable[frozenset[str]]:
        """Return sets of nodes kept for gangs without a plan, which no autoscaler may remove. While ``busy``.

        Called twice a second (`extender.features.node_protection`).
        """
        return ()

    # --- its binding cycle -------------------------------------------------------------------------------------

    def reserve(self, cycle: BindingCycle) -> None:
        """Handle the begin of a cycle that has victims."""

    async def pre_bind(self, cycle: BindingCycle) -> Verdict | None:
        """Evict the victims of a cycle.

        Return None when all have ended or the cycle is over, else why it is given up.
        """
        return None

    def permit(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a replacement may be bound to its slot although the quorum is missing."""
        return False

    def ended(self, gang: "GroupState", cycle: BindingCycle, refused: Collection[str], verdict: Verdict | None) -> None:
        """Handle the end of a cycle that had victims, or of a gang with any `Memory`.

        ``verdict`` is the reason for which the plan was given up; None if it was not. ``refused`` are the members
        (UIDs) for which kube-scheduler found no node.
        """

    # --- pods of no gang ---------------------------------------------------------------------------------------

    def filter_pod(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return the offered nodes that a pod may use; None for all of them."""
        return None

    def list_kept_from_pod(self, pod: Pod | None) -> Iterable[frozenset[str]]:
        """Return sets of nodes that a pod must not use; for None all sets that are kept from any pod.

        The same set is the same object in each call.
        """
        return ()

    def preempt_pod(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that kube-scheduler may choose from, with their victims.

        The call may be a simulation.
        """
        return candidates

    def unreserve_pod(self, node: str) -> None:
        """Handle a failed bind call for a node: kube-scheduler releases the pod's room there."""

    # --- terms -------------------------------------------------------------------------------------------------

    def recover(self, records: Sequence[Reservation]) -> None:
        """Read the records of earlier terms when a term begins. None of their slots is in the ledger yet."""

    async def recovered(self, dropped: Sequence[Reservation]) -> None:
        """Handle the end of the recovery: all records but the ``dropped`` ones are in the ledger.

        No group is planned yet.
        """

    def begin_term(self, now: float) -> None:
        """Handle the begin of planning in a new term; ``now`` is in seconds since 1970."""

    def end_term(self) -> None:
        """Drop all state: another instance leads, or the records were read only now.

        Called repeatedly while another instance leads.
        """


Point = Callable[..., object]
"""A method of `Feature`."""

_POINTS: tuple[Point, ...] = tuple(
    each for name, each in vars(Feature).items() if callable(each) and name != "concerns" and name[0] != "_"
)


class Features(dict[Point, Sequence[Feature]]):
    """Maps each extension point to the features whose classes override it, in the order of the list."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_POINTS, ()))
        self.all: Sequence[Feature] = ()

    def install(self, features: Sequence[Feature]) -> None:
        """Replace the installed features."""
        self.all = tuple(features)
        for point in _POINTS:
            self[point] = tuple(each for each in features if getattr(type(each), point.__name__) is not point)
