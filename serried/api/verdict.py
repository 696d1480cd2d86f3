"""Reasons why a gang waits (`Reason`), verdicts (a reason with numbers), and the sentences that users read (`render`).

Users see the value of a Reason everywhere: as a metric's label, as the reason of an event, as the first word of the
message in the PodGroup's condition, and in ``/debug``.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

from serried.api.names import count_things
from serried.api.priority import PriorityMismatch


class Stage(Enum):
    """The stage of a gang on its way to being bound. Each `Reason` belongs to one stage.

    FORMING (pods are missing), WAITING (for resources, its turn or its plan), PREEMPTING (victims have to end),
    PLANNED, BINDING and BOUND follow each other. GIVEN_UP: a plan failed, and the gang will be planned again. BROKEN:
    it was bound, and now has fewer members than minCount.
    """

    FORMING = "forming"
    """Fewer than minCount pods exist so far, or Serried does not know yet whether enough do."""

    WAITING = "waiting"
    """The gang waits for free resources, for its turn in the queue, or for its plan."""

    PREEMPTING = "preempting"
    PLANNED = "planned"
    BINDING = "binding"
    BOUND = "bound"
    GIVEN_UP = "givenUp"
    """A plan failed, and the gang will be planned again."""

    BROKEN = "broken"
    """The gang was bound, and now has fewer members than minCount."""


class Trait(Enum):
    """A property of a `Reason` that decides how the extender treats a gang which waits for this reason.

    For instance Serried searches for victims if the reason has NEEDS_RESOURCES, and not if it has PREEMPTION_USELESS.
    """

    NEEDS_RESOURCES = "room"
    """The gang lacks free resources. So Serried tries preemption, and forecasts when resources become free."""

    SAME_FOR_SHAPE = "shape"
    """The number of members that fit is the same for every gang whose members have equal requests and rules.

    So if a change in the cluster lets one of these gangs fit, Serried plans all of them again.
    """

    PREEMPTION_USELESS = "inVain"
    """Evicting pods would not help, so Serried does not search for victims."""

    OUTLASTS_PLANNING = "lasts"
    """Users still see this reason while Serried computes the gang's next plan, instead of the reason Planning."""

    BACKS_OFF = "backsOff"
    """Serried waits before it tries the gang again, twice as long after each failure (exponential backoff)."""

    RETRIED = "retried"
    """Serried plans the gang again even if nothing in the cluster has changed."""

    SERRIED_FAILED = "ours"
    """Serried has failed, not the cluster: the reason in the PodGroup's condition is SchedulerError."""

    TRANSIENT = "passes"
    """A gang usually has this reason for a moment only. Serried reports it to users only if it lasts."""

    PROGRESS = "good"
    """The gang makes progress: an event with this reason has type Normal, otherwise Warning."""


_FREE_ROOM = "free resources, or add nodes"


class Reason(StrEnum):
    """A reason why a gang or a pod waits.

    The value is the word that users see. ``sentence`` is the text for users, with placeholders for ``have``, ``need``
    and ``key`` of the verdict, such as ``{have}`` or ``{need:member,do}`` (see `_Count`). ``advice`` is what a user can
    do, as in ``docs/troubleshooting.md``; "" if the gang does not wait for anything, for instance because it is bound.
    """

    stage: Stage
    sentence: str
    advice: str
    traits: frozenset[Trait]

    def __new__(cls, word: str, stage: Stage, sentence: str, advice: str, *traits: Trait) -> Self:
        """Create an enum member whose value is ``word``, with the other arguments as attributes."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.stage, made.sentence, made.advice, made.traits = stage, sentence, advice, frozenset(traits)
        return made

    JOB_UNKNOWN = (
        "JobUnknown",
        Stage.FORMING,
        "Serried has not seen the pod's Job yet",
        "wait, and if the state lasts, check whether the owner of the pods exists",
    )
    POD_GROUP_MISSING = (
        "PodGroupMissing",
        Stage.FORMING,
        "the PodGroup does not exist yet",
        "create the PodGroup, or for a Job check whether the controller runs",
    )
    LEVEL_UNKNOWN = (
        "LevelUnknown",
        Stage.FORMING,
        "this cluster has no node label for level {key}",
        (
            "name a label instead of the level, or set its label in TopologyLevels: serried check shows the label of "
            "each level"
        ),
    )
    NOT_ITS_POD_GROUP = (
        "NotItsPodGroup",
        Stage.FORMING,
        "the pod names the PodGroup of Job {key}, but is not a pod of this Job",
        "remove the group from the pod, or name a PodGroup that no Job controls",
    )
    API_MISSING = (
        "WorkloadAPIMissing",
        Stage.FORMING,
        "Serried cannot read Workloads and PodGroups",
        "install the CRDs or turn on the feature gate, and apply the roles: serried check says which",
    )
    PRIORITY_UNKNOWN = (
        "PriorityUnknown",
        Stage.FORMING,
        "Serried does not know the value of PriorityClass {key}",
        "create the PriorityClass, or recreate the PodGroup with another class",
    )
    QUORUM_MISSING = (
        "QuorumMissing",
        Stage.FORMING,
        "{have} of {need} members exist",
        "check why the owner of the pods does not create more, or why ResourceClaims are missing",
        Trait.PREEMPTION_USELESS,
    )
    MEMBER_GATED = (
        "MemberGated",
        Stage.FORMING,
        "{have:member,have} a scheduling gate that another controller has to remove: {key}",
        "check why the owner of the gate does not remove the gate",
    )
    NO_DOMAIN_FITS = (
        "NoDomainFits",
        Stage.WAITING,
        "{need:member,do} not fit into any domain of {key}",
        f"{_FREE_ROOM}, in one domain: serried top shows how full each domain is",
        Trait.NEEDS_RESOURCES,
        Trait.SAME_FOR_SHAPE,
        Trait.OUTLASTS_PLANNING,
    )
    NO_CAPACITY = (
        "NoCapacity",
        Stage.WAITING,
        "only {have} of {need} members fit into the cluster",
        f"{_FREE_ROOM}: serried top shows how full the cluster is",
        Trait.NEEDS_RESOURCES,
        Trait.SAME_FOR_SHAPE,
        Trait.OUTLASTS_PLANNING,
        Trait.BACKS_OFF,
    )
    GROUPS_UNPLACED = (
        "GroupsUnplaced",
        Stage.WAITING,
        "only {have} of {need} groups of the tree fit together",
        f"{_FREE_ROOM}, so that all groups of the tree fit together",
        Trait.NEEDS_RESOURCES,
        Trait.OUTLASTS_PLANNING,
    )
    PLANNING = (
        "Planning",
        Stage.WAITING,
        "Serried is planning nodes for {need:member}",
        "wait: planning takes a moment",
        Trait.TRANSIENT,
        Trait.PROGRESS,
    )
    PLAN_UNFINISHED = (
        "PlanUnfinished",
        Stage.WAITING,
        (
            "Serried found no plan for {need:member} in {have} s, and tries again with more time: "
            "more similar members are planned faster"
        ),
        "make members more alike: the same requests, selectors, tolerations and volumes are planned faster",
        Trait.OUTLASTS_PLANNING,
    )
    DOMAIN_FULL = (
        "DomainFull",
        Stage.WAITING,
        "only {have} of {need} waiting members fit into the gang's domain of {key}",
        "free resources in the domain in which the gang runs",
        Trait.NEEDS_RESOURCES,
        Trait.SAME_FOR_SHAPE,
        Trait.OUTLASTS_PLANNING,
    )
    DOMAIN_CONFLICT = (
        "DomainConflict",
        Stage.WAITING,
        "members already run in more than one domain of {key}",
        "delete the members of all domains but one: Serried moves no pod",
        Trait.PREEMPTION_USELESS,
    )
    BEHIND_HEAD = (
        "BehindHead",
        Stage.WAITING,
        (
            "{need:member} would fit, but Serried keeps the free resources for {key}, which is before this gang in "
            "the queue"
        ),
        (
            "set an activeDeadlineSeconds that ends before the forecast, or a higher priority: "
            "serried queue -A shows forecast and priorities"
        ),
        Trait.OUTLASTS_PLANNING,
    )
    ASKING_FOR_NODES = (
        "AskingForNodes",
        Stage.WAITING,
        "Serried asks an autoscaler for nodes in {key}: only {have} of {need} members fit",
        "wait for the nodes: serried explain shows what the autoscaler says",
        Trait.OUTLASTS_PLANNING,
    )
    NO_NODES_CAME = (
        "NoNodesCame",
        Stage.WAITING,
        "an autoscaler added too few nodes in {key}: only {have} of {need} members fit",
        "read why the autoscaler adds no nodes: limits, quotas, or no capacity in that domain",
        Trait.OUTLASTS_PLANNING,
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        Stage.GIVEN_UP,
        "kube-scheduler called bind for only {have} of {need} members in time",
        "read kube-scheduler's log: Serried tries the gang again when resources become free",
        Trait.OUTLASTS_PLANNING,
        Trait.BACKS_OFF,
        Trait.RETRIED,
        Trait.SERRIED_FAILED,
    )
    PLAN_OUTDATED = (
        "PlanOutdated",
        Stage.GIVEN_UP,
        "the cluster changed before Serried could bind the gang",
        "nothing: Serried plans the gang again at once",
        Trait.OUTLASTS_PLANNING,
        Trait.SERRIED_FAILED,
    )
    RECORD_FAILED = (
        "RecordFailed",
        Stage.GIVEN_UP,
        "Serried could not write the Reservation",
        "read the API server's answer in the message",
        Trait.OUTLASTS_PLANNING,
        Trait.BACKS_OFF,
        Trait.RETRIED,
        Trait.SERRIED_FAILED,
    )
    RECORDS_UNREADABLE = (
        "RecordsUnreadable",
        Stage.FORMING,
        "Serried plans no gang before it has read all Reservations",
        "install the CRDs and apply the roles: serried check says which",
        Trait.SERRIED_FAILED,
    )
    BROKEN = (
        "Broken",
        Stage.BROKEN,
        "only {have} of {need} members are left of this gang, which was running",
        "check why the missing members are not created, or why they do not start",
        Trait.OUTLASTS_PLANNING,
    )
    PREEMPTING = (
        "Preempting",
        Stage.PREEMPTING,
        "{have} of {need} evicted pods of lower priority have ended",
        "nothing: the terminationGracePeriodSeconds of the evicted pods decides how long this takes",
    )
    EVICTION_REFUSED = (
        "EvictionRefused",
        Stage.GIVEN_UP,
        "Serried may not evict a pod of lower priority, so it evicted none",
        "check the pod's PodDisruptionBudget, or Serried's role if the API server answers 403",
    )
    VICTIMS_REMAIN = (
        "VictimsRemain",
        Stage.GIVEN_UP,
        "only {have} of {need} evicted pods of lower priority have ended in time",
        "check the finalizers and nodes of the pods that do not end",
        Trait.RETRIED,
    )
    PLANNED = (
        "Planned",
        Stage.PLANNED,
        "kube-scheduler still has to schedule {need:planned member}",
        "nothing, or check kube-scheduler if the state lasts",
        Trait.TRANSIENT,
        Trait.PROGRESS,
    )
    BINDING = (
        "Binding",
        Stage.BINDING,
        "Serried is binding the gang: {have} of {need} members are bound",
        "nothing, or what the message says",
        Trait.TRANSIENT,
        Trait.PROGRESS,
    )
    SCHEDULED = (
        "Scheduled",
        Stage.BOUND,
        "{have:member,are} bound",
        "",
        Trait.PROGRESS,
    )


_BY_WORD: dict[str, Reason] = {reason.value: reason for reason in Reason}


def find_reason(word: str) -> Reason | None:
    """Return the reason whose value is ``word``; None if this version has no such reason."""
    return _BY_WORD.get(word)


@dataclass(frozen=True, slots=True)
class DomainShortage:
    """A domain in which fewer members fit than the quorum needs."""

    domain: str

    slots: int
    """The number of members that fit in the domain."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reason why a gang or pod waits, with numbers: ``have`` of the ``need`` members fit, exist or are bound.

    What the numbers count depends on the reason; for a tree they may be PodGroups. It is also the result of a plan that
    has failed.
    """

    reason: Reason
    have: int = 0
    need: int = 0

    key: str = ""
    """The name for the placeholder ``key`` in the reason's sentence, such as a topology key; "" if it has none."""

    domains: tuple[DomainShortage, ...] = ()
    """Some of the domains in which the gang does not fit, those with most slots first; empty without a topology key."""

    domain_count: int = 0
    """The number of all domains in which the gang does not fit, also of those that ``domains`` leaves out."""

    detail: str = ""
    """A phrase that is appended to the sentence, without a full stop; "" for none."""


NO_LABEL = "no node has this label"
"""The `Verdict.detail` if no node has the gang's topology key as a label, so that free resources would not help."""

NO_USE_TO_WAIT = "so waiting does not help"
"""The end of the `Verdict.detail` for a gang that would not fit even if no other pods were in the cluster."""

_MAX_DOMAINS_SHOWN = 5


class _Count(int):
    """A number in the sentence of a reason: ``{have:member,do}`` becomes ``1 member does`` or ``2 members do``."""

    def __format__(self, words: str) -> str:
        word, _, verb = words.partition(",")
        return count_things(int(self), word, verb) if word else str(int(self))


def render(verdict: Verdict) -> str:
    """Return the text for users: reason, sentence, slots by domain, detail.

    For instance ``NoDomainFits: 8 members do not fit into any domain of rack (r1: 3, r2: 2); DETAIL``.
    """
    have, need = _Count(verdict.have), _Count(verdict.need)
    text = verdict.reason.sentence.format(have=have, need=need, key=verdict.key)
    if verdict.domains:
        shown = ", ".join(f"{d.domain}: {d.slots}" for d in verdict.domains[:_MAX_DOMAINS_SHOWN])
        more = verdict.domain_count - len(verdict.domains[:_MAX_DOMAINS_SHOWN])
        text += f" ({shown}{f', {more} more' if more > 0 else ''})"
    if verdict.detail:
        text += f"; {verdict.detail}"
    return f"{verdict.reason}: {text}"


def render_disruption(pod: str, why: str, others: int) -> str:
    """Return the sentence for a gang of disruption mode ``all`` of which one member is being evicted, so all are.

    ``pod`` is this member's name, ``why`` the reason in its condition DisruptionTarget, ``others`` the number of the
    other members.
    """
    more = count_things(others, "more member")
    return f"{pod} is disrupted ({why}), and {more} with it, because the disruption mode is all"


def describe_ignored(key: str, why: str) -> str:
    """Return the sentence for a group whose required topology key Serried ignores. ``why`` is the reason, a phrase."""
    return f"Serried does not place the members in one domain of {key}: {why}"


def describe_invalid_tree(why: str) -> str:
    """Return the sentence for a tree that kube-scheduler 1.38 rejects as invalid. ``why`` is the reason, a phrase."""
    return f"kube-scheduler 1.38 with its own gang scheduling rejects every pod of this tree: {why}"


def describe_mismatch(found: PriorityMismatch) -> str:
    """Return the sentence for a group with conflicting priorities.

    It names the priority with which Serried schedules the group, and the spec or members that have another one.
    """
    others = []
    if found.written is not None:
        source = f"not that of PriorityClass {found.priority_class}" if found.priority_class else "set without a class"
        others.append(f"its spec.priority {found.written} is {source}")
    if found.strays:
        stray = f"{found.stray} with {found.stray_priority}"
        others.append(f"{found.strays} of {found.members} members have another priority, such as {stray}")
    return f"Serried uses priority {found.counts} for all members of the group, although {' and '.join(others)}"
