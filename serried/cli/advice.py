"""What helps where a group waits for a reason: the short form of the table in `docs/operations.md`."""

from serried.model.verdict import Reason

_FREE_ROOM = "free room, or add nodes"

ADVICE = {
    Reason.JOB_UNKNOWN: "it passes by itself; else look whether the pods' owner exists, and at what the sentence adds",
    Reason.POD_GROUP_MISSING: "create the PodGroup; if a Job should have one, look whether the controller runs",
    Reason.NOT_ITS_POD_GROUP: "take the group off the pod, or name one that no Job controls",
    Reason.API_MISSING: "install the CRDs or turn the gate on, and apply the roles: serried check says which",
    Reason.PRIORITY_UNKNOWN: "create the PriorityClass, or make the PodGroup anew with another",
    Reason.QUORUM_MISSING: "create the missing members: look at their owner, and at what makes their claims",
    Reason.MEMBER_GATED: "the owner of the gate lifts it",
    Reason.NO_DOMAIN_FITS: f"{_FREE_ROOM}, in one domain: serried top shows how full each is",
    Reason.NO_CAPACITY: f"{_FREE_ROOM}: serried top shows how full the cluster is",
    Reason.GROUPS_UNPLACED: f"{_FREE_ROOM}, so that all groups of the tree fit together",
    Reason.PLANNING: "nothing: it passes by itself",
    Reason.PLAN_UNFINISHED: "give the members fewer different shapes: requests, selectors, tolerations, volumes",
    Reason.DOMAIN_FULL: "free room in the domain in which the gang runs",
    Reason.DOMAIN_CONFLICT: "delete the members on one side: nobody is moved",
    Reason.BEHIND_HEAD: "give it an activeDeadlineSeconds that ends before the forecast, or a higher priority: "
    "serried queue shows both",
    Reason.DEADLINE_EXCEEDED: "look at the scheduler's log; it goes again when room is freed",
    Reason.PLAN_OUTDATED: "nothing: it goes again at once",
    Reason.RECORD_FAILED: "look at what the API server answers",
    Reason.RECORDS_UNREADABLE: "install the CRDs and apply the roles: serried check says which",
    Reason.BROKEN: "bring the missing members back: the rest of the sentence says what they wait for",
    Reason.PREEMPTING: "nothing: what takes long is the victims' terminationGracePeriodSeconds",
    Reason.EVICTION_REFUSED: "look at the pod's PodDisruptionBudget, or at the role if the answer is 403",
    Reason.VICTIMS_REMAIN: "look at the finalizers and nodes of the pods that do not end",
    Reason.PLANNED: "nothing; if it lasts, look whether the scheduler works",
    Reason.BINDING: "nothing, or what the sentence says",
    Reason.SCHEDULED: "",
}
"""One for each reason; "" where nobody waits."""


def advise(reason: str) -> str:
    """What helps; "" for a reason that this version does not know."""
    return ADVICE[Reason(reason)] if reason in set(Reason) else ""
