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


_FREE_ROOM = "free resources, or add nodes"


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
        Mark.IN_VAIN,
    )
    MEMBER_GATED = (
        "MemberGated",
        Stage.FORMING,
        "{have} members have a scheduling gate that another controller has to remove: {key}",
        "check why the owner of the gate does not remove the gate",
    )
    NO_DOMAIN_FITS = (
        "NoDomainFits",
        Stage.WAITING,
        "{need} members do not fit into any domain of {key}",
        f"{_FREE_ROOM}, in one domain: serried top shows how full each domain is",
        Mark.ROOM,
        Mark.SHAPE,
        Mark.LASTS,
    )
    NO_CAPACITY = (
        "NoCapacity",
        Stage.WAITING,
        "only {have} of {need} members fit into the cluster",
        f"{_FREE_ROOM}: serried top shows how full the cluster is",
        Mark.ROOM,
        Mark.SHAPE,
        Mark.LASTS,
        Mark.BACKS_OFF,
    )
    GROUPS_UNPLACED = (
        "GroupsUnplaced",
        Stage.WAITING,
        "only {have} of {need} groups of the tree fit together",
        f"{_FREE_ROOM}, so that all groups of the tree fit together",
        Mark.ROOM,
        Mark.LASTS,
    )
    PLANNING = (
        "Planning",
        Stage.WAITING,
        "Serried is planning nodes for {need} members",
        "wait: planning takes a moment",
        Mark.PASSES,
        Mark.GOOD,
    )
    PLAN_UNFINISHED = (
        "PlanUnfinished",
        Stage.WAITING,
        (
            "Serried found no plan for {need} members in {have} s, and tries again with more time: "
            "more similar members are planned faster"
        ),
        "make members more alike: the same requests, selectors, tolerations and volumes are planned faster",
        Mark.LASTS,
    )
    DOMAIN_FULL = (
        "DomainFull",
        Stage.WAITING,
        "only {have} of {need} waiting members fit into the gang's domain of {key}",
        "free resources in the domain in which the gang runs",
        Mark.ROOM,
        Mark.SHAPE,
        Mark.LASTS,
    )
    DOMAIN_CONFLICT = (
        "DomainConflict",
        Stage.WAITING,
        "members already run in more than one domain of {key}",
        "delete the members of all domains but one: Serried moves no pod",
        Mark.IN_VAIN,
    )
    BEHIND_HEAD = (
        "BehindHead",
        Stage.WAITING,
        (
            "{need} members would fit, but Serried keeps the free resources for {key}, which is before this gang in "
            "the queue"
        ),
        (
            "set an activeDeadlineSeconds that ends before the forecast, or a higher priority: "
            "serried queue -A shows forecast and priorities"
        ),
        Mark.LASTS,
    )
    ASKING_FOR_NODES = (
        "AskingForNodes",
        Stage.WAITING,
        "Serried asks an autoscaler for nodes in {key}: only {have} of {need} members fit",
        "wait for the nodes: serried explain shows what the autoscaler says",
        Mark.LASTS,
    )
    NO_NODES_CAME = (
        "NoNodesCame",
        Stage.WAITING,
        "an autoscaler added too few nodes in {key}: only {have} of {need} members fit",
        "read why the autoscaler adds no nodes: limits, quotas, or no capacity in that domain",
        Mark.LASTS,
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        Stage.GIVEN_UP,
        "kube-scheduler called bind for only {have} of {need} members in time",
        "read kube-scheduler's log: Serried tries the gang again when resources become free",
        Mark.LASTS,
        Mark.BACKS_OFF,
        Mark.RETRIED,
        Mark.OURS,
    )
    PLAN_OUTDATED = (
        "PlanOutdated",
        Stage.GIVEN_UP,
        "the cluster changed before Serried could bind the gang",
        "nothing: Serried plans the gang again at once",
        Mark.LASTS,
        Mark.OURS,
    )
    RECORD_FAILED = (
        "RecordFailed",
        Stage.GIVEN_UP,
        "Serried could not write the Reservation",
        "read the API server's answer in the message",
        Mark.LASTS,
        Mark.BACKS_OFF,
        Mark.RETRIED,
        Mark.OURS,
    )
    RECORDS_UNREADABLE = (
        "RecordsUnreadable",
        Stage.FORMING,
        "Serried plans no gang before it has read all Reservations",
        "install the CRDs and apply the roles: serried check says which",
        Mark.OURS,
    )
    BROKEN = (
        "Broken",
        Stage.BROKEN,
        "only {have} of {need} members are left of this gang, which was running",
        "check why the missing members are not created, or why they do not start",
        Mark.LASTS,
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
        Mark.RETRIED,
    )
    PLANNED = (
        "Planned",
        Stage.PLANNED,
        "kube-scheduler still has to schedule {need} planned members",
        "nothing, or check kube-scheduler if the state lasts",
        Mark.PASSES,
        Mark.GOOD,
    )
    BINDING = (
        "Binding",
        Stage.BINDING,
        "Serried is binding the gang: {have} of {need} members are bound",
        "nothing, or what the message says",
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


NO_LABEL = "no node has this label"
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
    return f"{pod} is disrupted ({why}), and {others} more members with it, because the disruption mode is all"


def describe_ignored(key: str, why: str) -> str:
    """Return the sentence for a group whose required topology does not count; ``why`` is a phrase."""
    return f"Serried does not place the members in one domain of {key}: {why}"


def describe_invalid_tree(why: str) -> str:
    """Return the sentence for a tree that kube-scheduler 1.38 rejects as invalid; ``why`` is a phrase."""
    return f"kube-scheduler 1.38 with its own gang scheduling rejects every pod of this tree: {why}"


def describe_mismatch(found: PriorityMismatch) -> str:
    """Return the sentence for a group with conflicting priorities: the one that counts, and who has another."""
    others = []
    if found.written is not None:
        source = f"not that of PriorityClass {found.priority_class}" if found.priority_class else "set without a class"
        others.append(f"its spec.priority {found.written} is {source}")
    if found.strays:
        stray = f"{found.stray} with {found.stray_priority}"
        others.append(f"{found.strays} of {found.members} members have another priority, such as {stray}")
    return f"Serried uses priority {found.counts} for all members of the group, although {' and '.join(others)}"
