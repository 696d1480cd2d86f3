"""Why a gang waits: reasons as data, and the one place that renders them to a sentence.

The value of a Reason is at once the metric label, the event's reason, the first word of the PodGroup condition's
message and what ``/debug`` shows: one word, one meaning, everywhere.
"""

from dataclasses import dataclass
from enum import StrEnum

from serried.api.priority import PriorityMismatch


class Reason(StrEnum):
    """Everything that a gang, or a pod, can wait for."""

    JOB_UNKNOWN = "JobUnknown"
    POD_GROUP_MISSING = "PodGroupMissing"
    LEVEL_UNKNOWN = "LevelUnknown"
    NOT_ITS_POD_GROUP = "NotItsPodGroup"
    API_MISSING = "WorkloadAPIMissing"
    PRIORITY_UNKNOWN = "PriorityUnknown"
    QUORUM_MISSING = "QuorumMissing"
    MEMBER_GATED = "MemberGated"
    NO_DOMAIN_FITS = "NoDomainFits"
    NO_CAPACITY = "NoCapacity"
    GROUPS_UNPLACED = "GroupsUnplaced"
    PLANNING = "Planning"
    PLAN_UNFINISHED = "PlanUnfinished"
    DOMAIN_FULL = "DomainFull"
    DOMAIN_CONFLICT = "DomainConflict"
    BEHIND_HEAD = "BehindHead"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PLAN_OUTDATED = "PlanOutdated"
    RECORD_FAILED = "RecordFailed"
    RECORDS_UNREADABLE = "RecordsUnreadable"
    BROKEN = "Broken"
    PREEMPTING = "Preempting"
    EVICTION_REFUSED = "EvictionRefused"
    VICTIMS_REMAIN = "VictimsRemain"
    PLANNED = "Planned"
    BINDING = "Binding"
    SCHEDULED = "Scheduled"


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


_SENTENCES: dict[Reason, str] = {
    Reason.JOB_UNKNOWN: "waiting to see the pod's Job",
    Reason.POD_GROUP_MISSING: "waiting for the PodGroup to be created",
    Reason.LEVEL_UNKNOWN: "no node label stands for level {key}",
    Reason.NOT_ITS_POD_GROUP: "the PodGroup belongs to Job {key}, and this pod does not",
    Reason.API_MISSING: "waiting for the API of Workloads and PodGroups",
    Reason.PRIORITY_UNKNOWN: "waiting for the value of PriorityClass {key}",
    Reason.QUORUM_MISSING: "{have} of {need} members exist",
    Reason.MEMBER_GATED: "{have} members carry a scheduling gate of another owner: {key}",
    Reason.NO_DOMAIN_FITS: "no domain of {key} has room for {need} members",
    Reason.NO_CAPACITY: "the cluster has room for {have} of {need} members",
    Reason.GROUPS_UNPLACED: "only {have} of {need} groups find room together",
    Reason.PLANNING: "the plan for {need} members is being made",
    Reason.PLAN_UNFINISHED: (
        "no plan for {need} members was found in {have} s of work, the next try gets more time; "
        "members of fewer different shapes are planned faster"
    ),
    Reason.DOMAIN_FULL: "the gang's domain of {key} has room for {have} of {need} waiting members",
    Reason.DOMAIN_CONFLICT: "members already run in more than one domain of {key}",
    Reason.BEHIND_HEAD: "the room for {need} members is kept for {key}, which is before it in the queue",
    Reason.DEADLINE_EXCEEDED: "only {have} of {need} members reached their bind call in time",
    Reason.PLAN_OUTDATED: "the cluster changed before the gang could be bound",
    Reason.RECORD_FAILED: "the Reservation could not be written",
    Reason.RECORDS_UNREADABLE: "waiting to read the Reservations; nothing is planned before",
    Reason.BROKEN: "{have} of {need} members of a gang that ran are left",
    Reason.PREEMPTING: "waiting for {need} pods of lower priority to end, of which {have} have ended",
    Reason.EVICTION_REFUSED: "a pod of lower priority may not be evicted, so none was",
    Reason.VICTIMS_REMAIN: "only {have} of {need} evicted pods of lower priority have ended in time",
    Reason.PLANNED: "placed, waiting for {need} members to pass the scheduler",
    Reason.BINDING: "quorum is at bind, {have} of {need} members are bound",
    Reason.SCHEDULED: "{have} members are bound",
}

NO_LABEL = "no node carries that label"
"""What a verdict adds if its topology key is on no node: room would not help."""

NO_USE_TO_WAIT = "so waiting does not help"
"""The same if the nodes would not hold the gang empty."""

_MAX_DOMAINS_SHOWN = 5


def render(verdict: Verdict) -> str:
    """The sentence for people: ``Reason: text (per domain numbers); detail``."""
    text = _SENTENCES[verdict.reason].format(have=verdict.have, need=verdict.need, key=verdict.key)
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
