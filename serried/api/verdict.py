"""Why a gang waits: reasons as data, and the one place that renders them to a sentence.

The value of a Reason is at once the metric label, the event's reason, the first word of the PodGroup condition's
message and what ``/debug`` shows: one word, one meaning, everywhere.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

from serried.api.priority import PriorityMismatch


class Stage(Enum):
    """How far a gang is that has a reason."""

    FORMING = "forming"
    """Nothing says that its quorum exists."""

    WAITING = "waiting"
    """For room, for its turn, or for its plan."""

    PREEMPTING = "preempting"
    PLANNED = "planned"
    BINDING = "binding"
    BOUND = "bound"
    GIVEN_UP = "givenUp"
    """A plan led to nothing, and the next one is to come."""

    BROKEN = "broken"
    """The gang ran, and has lost its quorum."""


class Mark(Enum):
    """What else a reason means, for the parts of the extender that go by it."""

    ROOM = "room"
    """Room would help: victims are looked for, and a forecast says when there will be some."""

    SHAPE = "shape"
    """Every gang with members of these shapes waits for the same room: the queue remembers that for all of them."""

    IN_VAIN = "inVain"
    """No victims would help."""

    LASTS = "lasts"
    """The reason holds until the next plan is there, and says more than that a plan is being made."""

    BACKS_OFF = "backsOff"
    """After it the gang waits the longer, the more often it was tried."""

    RETRIED = "retried"
    """The gang is planned again though nothing has changed."""

    OURS = "ours"
    """Serried is to blame, not the cluster: SchedulerError in the condition of a PodGroup."""

    PASSES = "passes"
    """It is usually over in a moment, and told only if it is not."""

    GOOD = "good"
    """It is good news, if it is news at all."""


_FREE_ROOM = "free room, or add nodes"


class Reason(StrEnum):
    """Everything that a gang, or a pod, can wait for: one row says all that there is to know of a reason.

    After its word come its stage, the sentence with the numbers of the verdict, and what helps: the headings of
    ``docs/troubleshooting.md`` in short, "" where nobody waits.
    """

    stage: Stage
    sentence: str
    advice: str
    marks: frozenset[Mark]

    def __new__(cls, word: str, stage: Stage, sentence: str, advice: str, *marks: Mark) -> Self:
        """Make a member with its word as its value."""
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
    """How far one domain is from holding the quorum."""

    domain: str

    slots: int
    """How many members the domain has room for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reason with its numbers: ``have`` of ``need`` members, or of the groups of a tree."""

    reason: Reason
    have: int = 0
    need: int = 0

    key: str = ""
    """The topology key or level, the PriorityClass, the scheduling gates, or the group ahead in the queue."""

    domains: tuple[DomainShortage, ...] = ()
    """The best of the domains that were too small, the best first."""

    domain_count: int = 0
    """How many domains were too small in all."""

    detail: str = ""
    """What else there is to say, a phrase without a full stop."""


NO_LABEL = "no node carries that label"
"""What a verdict adds if its topology key is on no node: room would not help."""

NO_USE_TO_WAIT = "so waiting does not help"
"""The same if the nodes would not hold the gang empty."""

_MAX_DOMAINS_SHOWN = 5


def render(verdict: Verdict) -> str:
    """The sentence for people: ``Reason: text (per domain numbers); detail``."""
    text = verdict.reason.sentence.format(have=verdict.have, need=verdict.need, key=verdict.key)
    if verdict.domains:
        shown = ", ".join(f"{d.domain}: {d.slots}" for d in verdict.domains[:_MAX_DOMAINS_SHOWN])
        more = verdict.domain_count - len(verdict.domains[:_MAX_DOMAINS_SHOWN])
        text += f" ({shown}{f', {more} more' if more > 0 else ''})"
    if verdict.detail:
        text += f"; {verdict.detail}"
    return f"{verdict.reason}: {text}"


def render_disruption(pod: str, why: str, others: int) -> str:
    """What is said when the members of a gang go with one of them; ``why`` is the reason of its DisruptionTarget."""
    return f"{pod} is disrupted ({why}); {others} more members are to go with it, as the disruption mode is all"


def describe_invalid_tree(why: str) -> str:
    """Return the sentence of a tree that kube-scheduler 1.38 takes for invalid; ``why`` is a phrase."""
    return f"kube-scheduler 1.38 schedules no pod of this tree where its own gang scheduling is on: {why}"


def describe_mismatch(found: PriorityMismatch) -> str:
    """The sentence of a group that says two priorities: which one counts, and who says another."""
    others = []
    if found.written is not None:
        named = f"PriorityClass {found.priority_class} does not give" if found.priority_class else ""
        others.append(f"its spec.priority says {found.written}, which {named or 'no PriorityClass gives'} it")
    if found.strays:
        stray = f"{found.stray} with {found.stray_priority}"
        others.append(f"{found.strays} of {found.members} members have another, such as {stray}")
    return f"the group counts with priority {found.counts}, and all its members do; {'; '.join(others)}"
