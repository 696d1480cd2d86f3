"""Where a feature may have its say on a gang: the extension points, in the words of kube-scheduler's framework.

A gang is planned and bound without any feature. What is beside that (room that is kept, others that end, slots of dead
members) is a `Feature`: one value in the list in `extender.wiring`, which knows the core, and which the core does not
know. The core asks the features of a point one after the other, in the order of that list.

    group ────────── observe ── a member is on its way out
      │
    quorum ───────── pre_enqueue ── members that need none, constrain ── its topology does not count
      │
    request ──────── pre_filter ── domains that are others'          queue ── is_urgent, hints, left, list_kept
      │
    plan ─┬─ found ─ filter ── nodes that are kept for others        pod of no gang ── filter_pod, keep_from_pod,
      │   │                                                                            preempt_pod, unreserve_pod
      │   └─ none ── unschedulable, post_filter, go_on ── others
      │              may end for it: allow                           term ── recover, recovered, begin_term, end_term
      │
    cycle ────────── reserve, pre_bind ── others end ── permit ── the quorum may be missing ── ended

A feature that has nothing to say at a point is not called there: `Features` looks once which methods each class has of
its own. Nor is a feature that is not ``busy`` called at the points of the queue, or one that does not concern a group.

What a feature remembers of one group is a `Memory` of its own class in ``GroupState.memory``. It ends with the term,
or sooner (`Memory.for_wait`). A restart remembers nothing but what the records and the cluster say (`Feature.recover`).
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
from serried.plan.eviction import Unit
from serried.plan.quorum import GroupMembers
from serried.plan.request import Plan, PlanRequest, Waiting

if TYPE_CHECKING:
    from extender.core.scheduling.group import GroupState  # which has a place for what features remember


class Memory:
    """The state that one feature keeps of one group. GroupState makes it, without arguments, at the first request."""

    for_wait: ClassVar[bool] = False
    """Whether the core drops this memory as soon as the group does not wait for room any more."""

    captured: ClassVar[str] = ""
    """The name under which snapshots have it, "" for what decides nothing."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Members that are placed in the place of others, so that they need less than the others do."""

    replacements: tuple[Pod, ...] = ()
    """The members that take their kept slots alone, without a quorum: with the gang that runs, they are its quorum.

    A replacement that finds no room in its own slot is a member like any other.
    """

    fitting: frozenset[str] = frozenset()
    """The UIDs of all members whose own kept slot takes them now, so that the queue need not wake them for room."""

    def __or__(self, other: "Repair") -> "Repair":
        return Repair((*self.replacements, *other.replacements), self.fitting | other.fitting)


NO_REPAIR = Repair()
"""Nothing is to be repaired."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A gang that was refused just now."""

    gang: "GroupState"
    group: PodGroup
    waiting: Waiting
    request: PlanRequest

    opens_in: float
    """In how many seconds it may try a wider level; infinite if none is left."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A gang gets the room of others."""

    request: PlanRequest
    plan: Plan

    victims: Sequence[Unit]
    """The pods and gangs that lose their room: running pods are evicted, gangs without Bindings give way at once."""


class Feature:
    """One feature, with nothing to say. A subclass has methods only for the points at which it does something."""

    busy: Collection[object] = (True,)
    """A live collection that is empty while the feature keeps nothing from anybody, and nobody waits for it."""

    describes_all: Collection[object] = ()
    """A live collection; while it is not empty, `describe` is called also for groups without any memory."""

    memories: tuple[type[Memory], ...] = ()
    """The classes of what it remembers of a group."""

    member_labels: Collection[str] = ()
    """The labels of members that it reads, which snapshots have therefore."""

    concerns: Callable[[PodGroup], object] = bool
    """Returns something true for a PodGroup that the feature is about; a function outside of the feature's file."""

    # --- a group is looked at ----------------------------------------------------------------------------------

    def observe(self, key: GroupKey, gang: "GroupState", group: PodGroup | None) -> None:
        """Members of the group are, or were just now, on their way out, or its PodGroup is gone (None).

        It may have a binding cycle.
        """

    def constrain(self, group: PodGroup, members: GroupMembers) -> str:
        """Return why the topology key that a PodGroup names does not count, a phrase; "" if it counts.

        Of a group with its quorum and without binding cycle, if the feature ``concerns`` it. A tree is not asked about.
        """
        return ""

    def pre_enqueue(self, gang: "GroupState", group: PodGroup, members: GroupMembers) -> Repair:
        """Return the members that may be placed though the quorum is not there; of a group that has run."""
        return NO_REPAIR

    def describe(
        self,
        gang: "GroupState",
        group: PodGroup,
        members: GroupMembers,
        verdict: Verdict | None,
    ) -> Verdict | None:
        """Return how the group stands, in the place of ``verdict``.

        Called for a group of which anything is remembered, and for each while the feature ``describes_all``.
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
        """Return the request without the domains that are others'. If the feature ``concerns`` the group."""
        return request

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Return a plan that was found, another one that spares what is kept for others, or why there is none."""
        return plan

    def closed_to(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that a gang must not use: those kept for others that do not hold both. While ``busy``."""
        return frozenset()

    def kept_from(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return all nodes kept for others: members that join a gang after its plan may use none. While ``busy``."""
        return frozenset()

    def allow(self, group: PodGroup, plan: Plan, gone: AbstractSet[str]) -> bool:
        """Return whether a plan may still be held for which the pods ``gone`` (UIDs) end. If it ``concerns`` them."""
        return True

    # --- no plan -----------------------------------------------------------------------------------------------

    def unschedulable(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """A gang was put among the unschedulable ones. Return what is said of that."""
        return refusal

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Return whose room a gang gets that was refused, or what is said of it."""
        return refusal

    def go_on(
        self,
        gang: "GroupState",
        group: PodGroup,
        waiting: Waiting,
        said: Verdict | None,
    ) -> Decision | Verdict | None:
        """Nothing has changed for a gang that was refused. Return what was found since, else ``said``."""
        return said

    # --- the queue ---------------------------------------------------------------------------------------------

    def is_urgent(self, gang: "GroupState") -> bool:
        """Return whether a gang is before others of its priority; of gangs of which anything is remembered."""
        return False

    def left(self, group: GroupKey, *, placed: bool) -> None:
        """A gang waits for room no more; ``placed`` is whether it has got some. While ``busy``."""

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Return gangs that may fit by now though no room was freed, and see to what time changes; twice a second.

        In steps, so that filter does not wait.
        """
        yield
        return ()

    def expect_room(self, group: GroupKey) -> float | None:
        """Return when there will be room for a gang, in loop seconds; None if nothing reliable is known."""
        return None

    def list_promised(self, waiting: Waiting, key: str | None) -> frozenset[str]:
        """Return the domains of a topology key that another gang of the namespace gets first. While ``busy``."""
        return frozenset()

    def list_kept(self) -> Iterable[frozenset[str]]:
        """Return sets of nodes that are kept for gangs which have no plan yet; twice a second. While ``busy``.

        No autoscaler is to remove them (`extender.features.node_protection`).
        """
        return ()

    # --- its binding cycle -------------------------------------------------------------------------------------

    def reserve(self, cycle: BindingCycle) -> None:
        """A cycle begins for which others end."""

    async def pre_bind(self, cycle: BindingCycle) -> Verdict | None:
        """Have others end for a cycle. Return None when none is left, or the cycle is over, else why it is given up."""
        return None

    def permit(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a replacement may be bound to its slot though the quorum is missing."""
        return False

    def ended(self, gang: "GroupState", cycle: BindingCycle, refused: Collection[str], verdict: Verdict | None) -> None:
        """A cycle has ended for which others ended, or of a gang of which anything is remembered.

        ``verdict`` is why it was given up, None if it was not. ``refused`` are members that kube-scheduler has tried
        in vain (UIDs).
        """

    # --- pods of no gang ---------------------------------------------------------------------------------------

    def filter_pod(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return those of the offered nodes that a pod may use; None for all of them."""
        return None

    def keep_from_pod(self, pod: Pod | None) -> Iterable[frozenset[str]]:
        """Return sets of nodes that a pod must not use, or for None all that are kept from any; one object each."""
        return ()

    def preempt_pod(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that kube-scheduler may choose from, each with its victims. Nothing need follow."""
        return candidates

    def unreserve_pod(self, node: str) -> None:
        """A bind call for this node has failed: kube-scheduler gives its room away."""

    # --- terms -------------------------------------------------------------------------------------------------

    def recover(self, records: Sequence[Reservation]) -> None:
        """A term begins, and these are the records of earlier ones; none of their slots is held yet."""

    async def recovered(self, dropped: Sequence[Reservation]) -> None:
        """All records are held but those that were ``dropped``, and nobody is planned yet."""

    def begin_term(self, now: float) -> None:
        """This instance leads, and has read the records; ``now`` is in seconds since 1970."""

    def end_term(self) -> None:
        """What was seen so far says nothing any more: another instance leads, or the records were read only now.

        Called again from time to time while another instance leads.
        """


Point = Callable[..., object]
"""A method of `Feature`."""

_POINTS: tuple[Point, ...] = tuple(
    each for name, each in vars(Feature).items() if callable(each) and name != "concerns" and name[0] != "_"
)


class Features(dict[Point, Sequence[Feature]]):
    """By extension point, the features that have a method of their own for it, in the order of the list."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_POINTS, ()))
        self.all: Sequence[Feature] = ()

    def install(self, features: Sequence[Feature]) -> None:
        """Have these features asked from now on."""
        self.all = tuple(features)
        for point in _POINTS:
            self[point] = tuple(each for each in features if getattr(type(each), point.__name__) is not point)
