"""Extension points at which a feature takes part in scheduling, most of them named as in kube-scheduler's framework.

The core plans and binds gangs without any feature. Keeping nodes for other gangs, preemption, and repair (replacing
members of a running gang) are features. `extender.wiring` lists them, and at each point the core calls them in that
order. A feature imports the core, never the other way round.

    group ────────── observe ── a member is about to end
      │
    quorum ───────── pre_enqueue ── members that need no quorum
      │              describe_ignored_key ── its topology key does not count
      │
    request ──────── pre_filter ── domains of other gangs         queue ── is_urgent, list_requeues, left_queue,
      │                                                                   list_closed_nodes, list_kept_nodes
    plan ─┬─ found ─ filter ── nodes kept for other gangs
      │   │                                                       pod of no gang ── filter_pod, preempt_pod,
      │   └─ none ── unschedulable, post_filter, revisit ──                         list_kept_from_pod, unreserve_pod
      │              victims are chosen: allows_plan
      │                                                           term ── recover, recovered, begin_term, end_term
    cycle ────────── reserve, pre_bind ── victims end ── permit ── the quorum may be missing ── ended

A feature is called only at the points whose methods its class overrides; `Features.install` finds these once. Some
points are also left out while the feature has nothing to do (``Feature.busy`` is empty), or for groups to which it does
not apply (``Feature.concerns``); the docstrings of these methods say so.

The state that a feature keeps of one group is a `Memory` of its own class in ``GroupState.memory``. It is dropped at
the end of the term, or earlier (`Memory.for_wait`). After a restart a feature has only the records (`Feature.recover`)
and the cluster.
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
    """Base class of the state that one feature keeps of one group.

    `GroupState` creates it, without arguments, when the feature first requests it.
    """

    for_wait: ClassVar[bool] = False
    """True if the core drops this state as soon as the group no longer waits for free resources."""

    captured: ClassVar[str] = ""
    """The key under which snapshots for replays and simulations contain this state.

    "" if no decision depends on it, so that snapshots leave it out.
    """


@dataclass(frozen=True, slots=True)
class Repair:
    """The replacements of a gang's deleted members, and which of them fit in the slots kept for them.

    They need no quorum of their own, because the running members count for it.
    """

    replacements: tuple[Pod, ...] = ()
    """The waiting members that may take the slots kept for them although the quorum is missing.

    A replacement that does not fit in its kept slot is planned like any other member.
    """

    fitting: frozenset[str] = frozenset()
    """The UIDs of all waiting members that fit in the slots kept for them, so that no freed resources are needed."""

    def __or__(self, other: "Repair") -> "Repair":
        return Repair((*self.replacements, *other.replacements), self.fitting | other.fitting)


NO_REPAIR = Repair()
"""The `Repair` of a gang without replacements of deleted members for which slots are kept."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A gang that the planner has just rejected: its state, its place in the queue and the rejected request.

    Features get it to search for victims for the gang (`Feature.post_filter`).
    """

    gang: "GroupState"
    group: PodGroup
    waiting: Waiting
    request: PlanRequest

    opens_in: float
    """The seconds until the gang may use a wider preferred topology level; infinite if there is none."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a feature to start a gang with the resources that victims free: the plan, and the victims."""

    request: PlanRequest
    plan: Plan

    victims: Sequence[EvictionUnit]
    """The pods that have to make way, by unit: the pods that are evicted together.

    Running pods are evicted. A gang that is planned, but not bound, only loses its plan.
    """


class Feature:
    """Base class of features. A subclass overrides the methods of the extension points at which it does something."""

    busy: Collection[object] = (True,)
    """A live collection. While it is empty, the core does not call those methods whose docstrings name it.

    A feature empties it while it keeps no nodes for any gang, and no gang waits because of the feature.
    """

    describes_all: Collection[object] = ()
    """A live collection. While it is not empty, `describe` is called for all groups, not only those with a `Memory`."""

    memories: tuple[type[Memory], ...] = ()
    """The `Memory` classes of which the feature keeps one object per group."""

    member_labels: Collection[str] = ()
    """The label keys of members that the feature reads. Snapshots for replays keep these labels."""

    concerns: Callable[[PodGroup], object] = bool
    """Returns something true for the PodGroups to which the feature applies.

    It is a function from outside of the feature's module. So for other groups no code of that module runs.
    """

    # --- a group is looked at ----------------------------------------------------------------------------------

    def observe(self, key: GroupKey, gang: "GroupState", group: PodGroup | None) -> None:
        """Handle a group of which a member is about to end, or has just ended.

        ``group`` is None if the PodGroup is deleted. The group may have a binding cycle.
        """

    def describe_ignored_key(self, group: PodGroup, members: GroupMembers) -> str:
        """Return why the PodGroup's topology key is to be ignored, as a phrase; "" if it counts.

        Called for groups to which the feature applies (``concerns``), while they have a quorum and no binding cycle;
        not for trees.
        """
        return ""

    def pre_enqueue(self, gang: "GroupState", group: PodGroup, members: GroupMembers) -> Repair:
        """Return the members that replace deleted ones, and so may be placed although the quorum is missing.

        Called for gangs that have run before. ``NO_REPAIR`` if there are none.
        """
        return NO_REPAIR

    def keep_gated(
        self, gang: "GroupState", group: PodGroup, members: GroupMembers, shortage: Verdict
    ) -> Verdict | None:
        """Return the verdict to report if members that no node can take are to keep Serried's scheduling gate.

        Return None to lift the gate: kube-scheduler then tries these members, as it may know nodes that the
        planner does not. ``shortage`` is the verdict so far, which is returned or replaced. Called only while the
        feature has something to say about any group (its ``describes_all`` is not empty).
        """
        return None

    def describe(
        self,
        gang: "GroupState",
        group: PodGroup,
        members: GroupMembers,
        verdict: Verdict | None,
    ) -> Verdict | None:
        """Return the verdict to report for a group instead of ``verdict``, which is None if there is nothing to report.

        Called for groups with a `Memory` of any feature. Called for all groups while the feature may have something
        to say about any of them (its ``describes_all`` is not empty).
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
        """Return the request that the planner gets for a gang, after the feature has excluded domains from it.

        Excluded are e.g. domains that another gang has exclusively. ``request`` is the one that the core has built.
        ``waiting`` has what decides the gang's place in the queue. Called for groups to which the feature applies
        (``concerns``).
        """
        return request

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        """Check a plan for a gang: return it, another plan without the nodes kept for other gangs, or a verdict.

        ``waiting`` has what decides the gang's place in the queue. Not called while the feature has nothing to do (its
        ``busy`` is empty).
        """
        return plan

    def list_closed_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that the plan for the gang ``waiting`` must not use, because they are kept for other gangs.

        Kept nodes on which both this gang and the others fit are not among them. Not called while the feature has
        nothing to do (its ``busy`` is empty).
        """
        return frozenset()

    def list_kept_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return all nodes that are kept for other gangs than ``waiting``.

        Members that join the gang's binding cycle after its plan was made must not use them. Not called while the
        feature has nothing to do (its ``busy`` is empty).
        """
        return frozenset()

    def allows_plan(self, group: PodGroup, plan: Plan, gone: AbstractSet[str]) -> bool:
        """Return whether a plan with victims is still valid, assuming that the victims ``gone`` (UIDs) have ended.

        The cluster may have changed while victims were searched for. Called before the cycle begins, for groups to
        which the feature applies (``concerns``).
        """
        return True

    # --- no plan -----------------------------------------------------------------------------------------------

    def unschedulable(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Return the verdict to report for a gang that the planner has just rejected with the verdict ``refusal``.

        A feature may also begin to keep nodes for the gang.
        """
        return refusal

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Search for victims for a gang that the planner has rejected with the verdict ``refusal``.

        Return the decision to start the gang with the resources of victims, or the verdict to report.
        """
        return refusal

    def revisit(
        self,
        gang: "GroupState",
        group: PodGroup,
        waiting: Waiting,
        said: Verdict | None,
    ) -> Decision | Verdict | None:
        """Handle a gang that the planner has rejected, and that is considered again but not planned again.

        Either nothing on which its plan depends has changed since, such as members or free resources; or it backs off.
        Return a decision with victims that were found meanwhile, or the verdict to report. ``said`` is what the
        features before this one have returned, to be returned if there is nothing to add.
        """
        return said

    # --- the queue ---------------------------------------------------------------------------------------------

    def is_urgent(self, gang: "GroupState") -> bool:
        """Return whether a gang goes before others of its priority. Called for gangs with a `Memory` of any feature."""
        return False

    def left_queue(self, group: GroupKey, *, placed: bool) -> None:
        """Handle a gang that no longer waits for free resources.

        ``placed`` is True if it has got its resources, False if it was deleted or has lost its quorum. Not called while
        the feature has nothing to do (its ``busy`` is empty).
        """

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Return the gangs to plan again although no resources were freed, and do periodic work.

        The method is a generator whose result are these gangs: filter calls are answered at each ``yield``. Called
        twice a second, but not while the feature has nothing to do (its ``busy`` is empty).
        """
        yield
        return ()

    def find_forecast_time(self, group: GroupKey) -> float | None:
        """Return the loop time at which a gang is forecast to fit; None without a reliable forecast."""
        return None

    def list_kept_domains(self, waiting: Waiting, key: str | None) -> frozenset[str]:
        """Return the domains in which another gang of the same namespace is to be planned before the gang ``waiting``.

        ``key`` is the topology key of the domains, None for the whole cluster. Not called while the feature has nothing
        to do (its ``busy`` is empty).
        """
        return frozenset()

    def list_protected_nodes(self) -> Iterable[frozenset[str]]:
        """Return sets of nodes that are kept for gangs without a plan, so that no autoscaler may remove them.

        `extender.features.node_protection` calls this twice a second, but not while the feature has nothing to do (its
        ``busy`` is empty).
        """
        return ()

    # --- its binding cycle -------------------------------------------------------------------------------------

    def reserve(self, cycle: BindingCycle) -> None:
        """Handle the start of a binding cycle that has victims."""

    async def pre_bind(self, cycle: BindingCycle) -> Verdict | None:
        """Evict the victims of a binding cycle, and wait until they have ended.

        Return None when they have, or when the cycle was ended meanwhile. Return a verdict if the cycle must be
        aborted.
        """
        return None

    def permit(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether member ``uid``, which replaces a deleted one, may be bound although the quorum is missing."""
        return False

    def ended(self, gang: "GroupState", cycle: BindingCycle, refused: Collection[str], verdict: Verdict | None) -> None:
        """Handle the end of a binding cycle that had victims, or whose gang has a `Memory` of any feature.

        ``verdict`` says why the cycle was aborted; None if it was not. ``refused`` are the UIDs of members for
        which kube-scheduler found no node.
        """

    # --- pods of no gang ---------------------------------------------------------------------------------------

    def filter_pod(self, pod: Pod, names: Sequence[str]) -> Sequence[str] | None:
        """Return those of the offered nodes ``names`` that a pod of no gang may use; None for all of them."""
        return None

    def list_kept_from_pod(self, pod: Pod | None) -> Iterable[frozenset[str]]:
        """Return sets of nodes that a pod of no gang must not use; for None, all sets that are kept from any pod.

        A set that has not changed is the same object in each call, so that callers may cache by identity.
        """
        return ()

    def preempt_pod(self, pod: Pod, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates, with their victims, from which kube-scheduler may choose for a pod of no gang.

        A candidate is a node with its victims. kube-scheduler may call this as a mere simulation, and evict no pod
        afterwards.
        """
        return candidates

    def unreserve_pod(self, node: str) -> None:
        """Handle a failed bind call for a pod on ``node``: kube-scheduler no longer counts its resources there."""

    # --- terms -------------------------------------------------------------------------------------------------

    def recover(self, records: Sequence[Reservation]) -> None:
        """Read the records of earlier terms at the start of a term, before their slots are in the ledger."""

    async def recovered(self, dropped: Sequence[Reservation]) -> None:
        """Handle the end of the recovery, before any gang is planned in this term.

        All records of earlier terms are in the ledger now, except the ``dropped`` ones.
        """

    def begin_term(self, now: float) -> None:
        """Handle the start of planning in a new term, at ``now`` in seconds since 1970."""

    def end_term(self) -> None:
        """Drop all state, because another instance leads, or because the records are about to be read anew.

        Called repeatedly while another instance leads.
        """


Point = Callable[..., object]
"""An extension point, as the function that `Feature` defines for it, such as ``Feature.filter``."""

_POINTS: tuple[Point, ...] = tuple(
    each for name, each in vars(Feature).items() if callable(each) and name != "concerns" and name[0] != "_"
)


class Features(dict[Point, Sequence[Feature]]):
    """The installed features by extension point, e.g. ``features[Feature.filter]`` for all that have a ``filter``.

    Those are the features whose classes override the method, in the order of `install`.
    """

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_POINTS, ()))
        self.all: Sequence[Feature] = ()

    def install(self, features: Sequence[Feature]) -> None:
        """Replace the installed features. Called once at the start, and by tests."""
        self.all = tuple(features)
        for point in _POINTS:
            self[point] = tuple(each for each in features if getattr(type(each), point.__name__) is not point)
