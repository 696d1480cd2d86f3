"""Reasons why a gang waits (`Reason`), verdicts (a reason with numbers), and the sentences that users read (`render`).

The value of a Reason is used everywhere: as metric label, as the event's reason, as first word of the message in the
PodGroup's condition, and in ``/debug``.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

from serried.api.priority import PriorityMismatch


class Stage(Enum):
    """The progress of a gang while it has a reason."""

    FORMING = "forming"
    """The quorum of pods does not exist yet, or it is not known whether it does."""

    WAITING = "waiting"
    """The gang waits for free resources, for its turn in the queue, or for its plan."""

    PREEMPTING = "preempting"
    PLANNED = "planned"
    BINDING = "binding"
    BOUND = "bound"
    GIVEN_UP = "givenUp"
    """A plan failed, and the gang will be planned again."""

    BROKEN = "broken"
    """The gang was running and has lost its quorum."""


class Mark(Enum):
    """A property of a reason that decides how the extender treats a gang with it."""

    ROOM = "room"
    """Free resources would help: preemption is tried, and a forecast is made of when resources become free."""

    SHAPE = "shape"
    """The numbers in the refusal hold for every gang with members of the same shape: one hint wakes all of them."""

    IN_VAIN = "inVain"
    """Preemption would not help."""

    LASTS = "lasts"
    """The reason is kept while the next plan is being made, because it says more than Planning does."""

    BACKS_OFF = "backsOff"
    """The gang waits with exponential backoff before it is tried again."""

    RETRIED = "retried"
    """The gang is planned again even if nothing in the cluster has changed."""

    OURS = "ours"
    """Serried failed, not the cluster: the reason in the condition of a PodGroup is SchedulerError."""

    PASSES = "passes"
    """The state usually ends within a moment. It is reported only if it lasts."""

    GOOD = "good"
    """The gang makes progress: an event with this reason has type Normal."""


_FREE_ROOM = "free room, or add nodes"


class Reason(StrEnum):
    """A reason why a gang or a pod waits. Each member is one row with all that is known about the reason.

    The row has the word (the value), the stage, the sentence for users with placeholders for the numbers of the
    verdict, the advice (short for the headings of ``docs/troubleshooting.md``; "" if nothing waits), and marks.
    """

    stage: Stage
    sentence: str
    advice: str
    marks: frozenset[Mark]

    def __new__(cls, word: str, stage: Stage, sentence: str, advice: str, *marks: Mark) -> Self:
        """Create a member whose value is ``word``."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.stage, made.sentence, made.advice, made.marks = stage, sentence, advice, frozenset(marks)
        return made

    JOB_UNKNOWN = (
        "JobUnknown",
        Stage.FORMING,
        "waiting to see the pod's Job",
        "wait; if it lasts, look whether the pods' owner exists, and at what the sentence adds",
    )
    POD_GROUP_MISSING = (
        "PodGroupMissing",
        Stage.FORMING,
        "waiting for the PodGroup to be created",
        "create the PodGroup; if a Job should have one, look whether the controller runs",
    )
    LEVEL_UNKNOWN = (
        "LevelUnknown",
        Stage.FORMING,
        "no node label stands for level {key}",
        "name a label in place of the level, or set one for it: serried check shows what each means",
    )
    NOT_ITS_POD_GROUP = (
        "NotItsPodGroup",
        Stage.FORMING,
        "the PodGroup belongs to Job {key}, and this pod does not",
        "take the group off the pod, or name one that no Job controls",
    )
    API_MISSING = (
        "WorkloadAPIMissing",
        Stage.FORMING,
        "waiting for the API of Workloads and PodGroups",
        "install the CRDs or turn the gate on, and apply the roles: serried check says which",
    )
    PRIORITY_UNKNOWN = (
        "PriorityUnknown",
        Stage.FORMING,
        "waiting for the value of PriorityClass {key}",
        "create the PriorityClass, or make the PodGroup anew with another",
    )
    QUORUM_MISSING = (
        "QuorumMissing",
        Stage.FORMING,
        "{have} of {need} members exist",
        "create the missing members: look at their owner, and at what makes their claims",
        Mark.IN_VAIN,
    )
    MEMBER_GATED = (
        "MemberGated",
        Stage.FORMING,
        "{have} members carry a scheduling gate of another owner: {key}",
        "the owner of the gate lifts it",
    )
    NO_DOMAIN_FITS = (
        "NoDomainFits",
        Stage.WAITING,
        "no domain of {key} has room for {need} members",
        f"{_FREE_ROOM}, in one domain: serried top shows how full each is",
        Mark.ROOM,
        Mark.SHAPE,
        Mark.LASTS,
    )
    NO_CAPACITY = (
        "NoCapacity",
        Stage.WAITING,
        "the cluster has room for {have} of {need} members",
        f"{_FREE_ROOM}: serried top shows how full the cluster is",
        Mark.ROOM,
        Mark.SHAPE,
        Mark.LASTS,
        Mark.BACKS_OFF,
    )
    GROUPS_UNPLACED = (
        "GroupsUnplaced",
        Stage.WAITING,
        "only {have} of {need} groups find room together",
        f"{_FREE_ROOM}, so that all groups of the tree fit together",
        Mark.ROOM,
        Mark.LASTS,
    )
    PLANNING = (
        "Planning",
        Stage.WAITING,
        "the plan for {need} members is being made",
        "wait: it is being planned",
        Mark.PASSES,
        Mark.GOOD,
    )
    PLAN_UNFINISHED = (
        "PlanUnfinished",
        Stage.WAITING,
        (
            "no plan for {need} members was found in {have} s of work, the next try gets more time; "
            "members of fewer different shapes are planned faster"
        ),
        "give the members fewer different shapes: requests, selectors, tolerations, volumes",
        Mark.LASTS,
    )
    DOMAIN_FULL = (
        "DomainFull",
        Stage.WAITING,
        "the gang's domain of {key} has room for {have} of {need} waiting members",
        "free room in the domain in which the gang runs",
        Mark.ROOM,
        Mark.SHAPE,
        Mark.LASTS,
    )
    DOMAIN_CONFLICT = (
        "DomainConflict",
        Stage.WAITING,
        "members already run in more than one domain of {key}",
        "delete the members on one side: nobody is moved",
        Mark.IN_VAIN,
    )
    BEHIND_HEAD = (
        "BehindHead",
        Stage.WAITING,
        "the room for {need} members is kept for {key}, which is before it in the queue",
        (
            "give it an activeDeadlineSeconds that ends before the forecast, or a higher priority: "
            "serried queue -A shows both"
        ),
        Mark.LASTS,
    )
    ASKING_FOR_NODES = (
        "AskingForNodes",
        Stage.WAITING,
        "an autoscaler is asked for nodes in {key} for {need} members, of which {have} have room",
        "wait for the nodes: serried gang shows what the autoscaler says; NoNodesCame follows if none come",
        Mark.LASTS,
    )
    NO_NODES_CAME = (
        "NoNodesCame",
        Stage.WAITING,
        "an autoscaler was asked for nodes in {key} for {need} members, and {have} have room",
        "look at what the autoscaler says of the members: limits, quotas, or no capacity in that domain",
        Mark.LASTS,
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        Stage.GIVEN_UP,
        "only {have} of {need} members reached their bind call in time",
        "look at the scheduler's log; the gang is tried again when room is freed",
        Mark.LASTS,
        Mark.BACKS_OFF,
        Mark.RETRIED,
        Mark.OURS,
    )
    PLAN_OUTDATED = (
        "PlanOutdated",
        Stage.GIVEN_UP,
        "the cluster changed before the gang could be bound",
        "nothing: the gang is planned again at once",
        Mark.LASTS,
        Mark.OURS,
    )
    RECORD_FAILED = (
        "RecordFailed",
        Stage.GIVEN_UP,
        "the Reservation could not be written",
        "look at what the API server answers",
        Mark.LASTS,
        Mark.BACKS_OFF,
        Mark.RETRIED,
        Mark.OURS,
    )
    RECORDS_UNREADABLE = (
        "RecordsUnreadable",
        Stage.FORMING,
        "waiting to read the Reservations; nothing is planned before",
        "install the CRDs and apply the roles: serried check says which",
        Mark.OURS,
    )
    BROKEN = (
        "Broken",
        Stage.BROKEN,
        "{have} of {need} members of a gang that ran are left",
        "look at what creates its pods, or at what the message says that they wait for",
        Mark.LASTS,
    )
    PREEMPTING = (
        "Preempting",
        Stage.PREEMPTING,
        "waiting for {need} pods of lower priority to end, of which {have} have ended",
        "nothing: what takes long is the victims' terminationGracePeriodSeconds",
    )
    EVICTION_REFUSED = (
        "EvictionRefused",
        Stage.GIVEN_UP,
        "a pod of lower priority may not be evicted, so none was",
        "look at the pod's PodDisruptionBudget, or at the role if the answer is 403",
    )
    VICTIMS_REMAIN = (
        "VictimsRemain",
        Stage.GIVEN_UP,
        "only {have} of {need} evicted pods of lower priority have ended in time",
        "look at the finalizers and nodes of the pods that do not end",
        Mark.RETRIED,
    )
    PLANNED = (
        "Planned",
        Stage.PLANNED,
        "placed, waiting for {need} members to pass the scheduler",
        "nothing; if it lasts, look whether the scheduler works",
        Mark.PASSES,
        Mark.GOOD,
    )
    BINDING = (
        "Binding",
        Stage.BINDING,
        "quorum is at bind, {have} of {need} members are bound",
        "nothing, or what the sentence says",
        Mark.PASSES,
        Mark.GOOD,
    )
    SCHEDULED = (
        "Scheduled",
        Stage.BOUND,
        "{have} members are bound",
        "",
        Mark.GOOD,
    )


_BY_WORD: dict[str, Reason] = {reason.value: reason for reason in Reason}


def find_reason(word: str) -> Reason | None:
    """Return the reason with this word; None for a word that this version does not know."""
    return _BY_WORD.get(word)


@dataclass(frozen=True, slots=True)
class DomainShortage:
    """A domain that is too small for the quorum."""

    domain: str

    slots: int
    """The number of members that fit into the domain."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reason with its numbers: ``have`` of ``need`` members, or groups of a tree. The result of a failed plan."""

    reason: Reason
    have: int = 0
    need: int = 0

    key: str = ""
    """The name in the sentence: a topology key or level, a PriorityClass, scheduling gates, or a group."""

    domains: tuple[DomainShortage, ...] = ()
    """The largest of the domains that were too small, the largest first."""

    domain_count: int = 0
    """The number of domains that were too small."""

    detail: str = ""
    """An additional phrase without a full stop; "" for none."""


NO_LABEL = "no node carries that label"
"""The `Verdict.detail` if no node carries the topology key: free resources would not help."""

NO_USE_TO_WAIT = "so waiting does not help"
"""The `Verdict.detail` if the gang would not even fit onto the nodes if they were empty."""

_MAX_DOMAINS_SHOWN = 5


def render(verdict: Verdict) -> str:
    """Return the sentence that users read: ``Reason: text (numbers by domain); detail``."""
    text = verdict.reason.sentence.format(have=verdict.have, need=verdict.need, key=verdict.key)
    if verdict.domains:
        shown = ", ".join(f"{d.domain}: {d.slots}" for d in verdict.domains[:_MAX_DOMAINS_SHOWN])
        more = verdict.domain_count - len(verdict.domains[:_MAX_DOMAINS_SHOWN])
        text += f" ({shown}{f', {more} more' if more > 0 else ''})"
    if verdict.detail:
        text += f"; {verdict.detail}"
    return f"{verdict.reason}: {text}"


def render_disruption(pod: str, why: str, others: int) -> str:
    """Return the sentence for a gang of disruption mode ``all`` whose members are evicted together with one of them.

    ``pod`` is that member, ``why`` the reason in its condition DisruptionTarget, ``others`` the number of the others.
    """
    return f"{pod} is disrupted ({why}); {others} more members are to go with it, as the disruption mode is all"


def describe_ignored(key: str, why: str) -> str:
    """Return the sentence for a group whose required topology does not count; ``why`` is a phrase."""
    return f"the members are not kept in one domain of {key}: {why}"


def describe_invalid_tree(why: str) -> str:
    """Return the sentence for a tree that kube-scheduler 1.38 rejects as invalid; ``why`` is a phrase."""
    return f"kube-scheduler 1.38 schedules no pod of this tree where its own gang scheduling is on: {why}"


def describe_mismatch(found: PriorityMismatch) -> str:
    """Return the sentence for a group with conflicting priorities: the one that counts, and who has another."""
    others = []
    if found.written is not None:
        named = f"PriorityClass {found.priority_class} does not give" if found.priority_class else ""
        others.append(f"its spec.priority says {found.written}, which {named or 'no PriorityClass gives'} it")
    if found.strays:
        stray = f"{found.stray} with {found.stray_priority}"
        others.append(f"{found.strays} of {found.members} members have another, such as {stray}")
    return f"the group counts with priority {found.counts}, and all its members do; {'; '.join(others)}"
