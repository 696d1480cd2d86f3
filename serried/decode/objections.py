"""Why kube-scheduler found no node for a pod, read from the pod's condition.

Its text is that of a FitError (1.37, scheduler/framework/types.go): ``0/5 nodes are available: 2 Insufficient cpu,
3 cannot allocate all claims. preemption: ...``, each reason with the number of its nodes.
"""

import re
from functools import lru_cache

from serried.decode.fields import Raw, read_objects, read_text
from serried.model.pod import HELD

_NO_NODE = re.compile(r"0/\d+ nodes are available: (?P<reasons>.*?)(?:\. |\.?$)")

_CHECKED_BY_PLANS = re.compile(
    r"\d+ (?:Insufficient (?:cpu|memory|ephemeral-storage)|Too many pods|node\(s\) had untolerated taint.*"
    r"|node\(s\) were unschedulable|node\(s\) didn't match Pod's node affinity/selector)"
)
"""The reasons that every plan checks itself, with newer data."""


def read_objection(status: Raw) -> str:
    """kube-scheduler's reasons, with numbers of nodes, why no node would take the pod when it was last tried.

    "" if it did not say so, if a node was offered to us, and for reasons that every plan checks itself.
    """
    for condition in read_objects(status, "conditions"):
        if read_text(condition, "type") == "PodScheduled" and read_text(condition, "status") == "False":
            unschedulable = read_text(condition, "reason") == "Unschedulable"
            return _find_objection(read_text(condition, "message")) if unschedulable else ""
    return ""


def is_partly_checked(objection: str) -> bool:
    """Whether some nodes were refused for a reason that every plan checks itself, such as too little CPU."""
    return any(_CHECKED_BY_PLANS.fullmatch(reason) for reason in objection.split(", "))


@lru_cache(maxsize=1024)
def _find_objection(message: str) -> str:
    found = _NO_NODE.match(message)
    if found is None or HELD in message:
        return ""
    reasons = found["reasons"]
    return "" if all(_CHECKED_BY_PLANS.fullmatch(reason) for reason in reasons.split(", ")) else reasons
