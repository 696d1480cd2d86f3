"""Why kube-scheduler found no node for a pod, read from the pod's condition.

Its text is that of a FitError (1.37, scheduler/framework/types.go): ``0/5 nodes are available: 2 Insufficient cpu,
3 cannot allocate all claims. preemption: ...``, each reason with the number of its nodes.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from serried.decode.conflicts import APART
from serried.decode.fields import Raw, read_objects, read_text
from serried.model.pod import HELD, Shape

_NO_NODE = re.compile(r"0/(?P<nodes>\d+) nodes are available: (?P<reasons>.*?)(?:\. |\.?$)")
_COUNT = re.compile(r"\d+(?= )")

_CHECKED_BY_PLANS = re.compile(
    r"\d+ (?:Insufficient (?:cpu|memory|ephemeral-storage)|Too many pods|node\(s\) had untolerated taint.*"
    r"|node\(s\) were unschedulable|node\(s\) didn't match Pod's node affinity/selector)"
)
"""The reasons that every plan checks itself, with newer data."""

_FOR_ROOM = re.compile(
    rf"{_CHECKED_BY_PLANS.pattern}|\d+ (?:Insufficient .*|node\(s\) didn't have free ports for the requested pod ports)"
)
"""Those, and what is counted of a pod that asks for nothing that the scheduler alone can count."""

_BESIDE = re.compile(r"\d+ node\(s\) didn't match pod affinity rules")
"""What may be otherwise once mates of the pod have their nodes."""

_APART = re.compile(r"\d+ node\(s\) didn't (?:match pod anti-affinity|satisfy existing pods anti-affinity) rules")
"""What is counted of a pod whose anti-affinity by host name is an amount (`decode.conflicts`)."""


def list_refusals(status: Raw) -> Iterator[Raw]:
    """The conditions that say that the pod has no node yet: PodScheduled is False. There is at most one."""
    for condition in read_objects(status, "conditions"):
        if read_text(condition, "type") == "PodScheduled" and read_text(condition, "status") == "False":
            yield condition


def read_objection(status: Raw) -> str:
    """kube-scheduler's reasons, with numbers of nodes, why no node would take the pod when it was last tried.

    "" if it did not say so, if a node was offered to us, and for reasons that every plan checks itself.
    """
    for condition in list_refusals(status):
        unschedulable = read_text(condition, "reason") == "Unschedulable"
        return _find_objection(read_text(condition, "message")) if unschedulable else ""
    return ""


def is_for_room(objection: str, shape: Shape) -> bool:
    """Whether room on some nodes, or mates beside it, could be all that a pod lacks, by the scheduler's reasons.

    ``shape`` is the pod's. What it asks for that the scheduler alone can count is taken for counted.
    """
    apart = any(name.startswith(APART) for name, _ in shape.requests)
    reasons = objection.split(", ") if objection else ()
    mended = (_FOR_ROOM, _BESIDE, _APART) if apart else (_FOR_ROOM, _BESIDE)
    return any(pattern.fullmatch(reason) for reason in reasons for pattern in mended)


def lacks_neighbours(objection: str) -> bool:
    """Whether some nodes were refused because nobody is there beside whom the pod must be."""
    return any(_BESIDE.fullmatch(reason) for reason in objection.split(", "))


def is_by_node(objection: str) -> bool:
    """Whether the reasons are about nodes; else they are about the pod, wherever it would be."""
    return _COUNT.match(objection) is not None


def was_offered(status: Raw) -> bool:
    """Whether kube-scheduler had a node for the pod when it tried it last, which we did not let it have."""
    return any(HELD in read_text(condition, "message") for condition in list_refusals(status))


def is_partly_checked(objection: str) -> bool:
    """Whether some nodes were refused for a reason that every plan checks itself, such as too little CPU."""
    return any(_CHECKED_BY_PLANS.fullmatch(reason) for reason in objection.split(", "))


@lru_cache(maxsize=1024)
def _find_objection(message: str) -> str:
    found = _NO_NODE.match(message)
    if found is None or HELD in message:
        return ""
    reasons = found["reasons"].split(", ")
    if all(_CHECKED_BY_PLANS.fullmatch(reason) for reason in reasons):
        return ""
    # Each node has at least one reason; what a PreFilter plugin says of the pod has no numbers.
    counts = [int(count[0]) for reason in reasons if (count := _COUNT.match(reason))]
    return "" if counts and sum(counts) < int(found["nodes"]) else found["reasons"]
