"""The state that `extender.features.asking.asking.Asking` keeps of each gang for which it may request nodes.

Nodes are requested from an autoscaler: by removing Serried's scheduling gate from members, or by a ProvisioningRequest.

A gang without enough free resources is first an `UnplacedGang`. If it is the first one in the queue order that a
NodePool could help, it becomes a `Candidate` as well, and then has an `Ask`: nodes are requested for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from extender.features.asking.member_patches import RequestRef
from extender.features.asking.targets import NoTarget, Target
from serried.api.pod import Pod, Shape
from serried.api.verdict import Verdict
from serried.plan.request import PlanRequest, Waiting


@dataclass(slots=True)
class UnplacedGang:
    """A gang that the planner rejected for lack of free resources. Deleted when the gang no longer waits for them."""

    waiting: Waiting
    """The gang's place in the queue: its priority and the time since which it waits, for instance."""

    request: PlanRequest
    refusal: Verdict

    needed: Sequence[Pod]
    """The waiting members for which nodes would be requested, as many as the quorum lacks.

    Members without a scheduling gate come first, as autoscalers act on them already.
    """

    first_rejected: float
    """The time at which the planner first rejected the gang, in loop seconds."""

    last_rejected: float
    """The time at which the planner last rejected the gang, in loop seconds."""

    is_planned: bool = True
    """False if no existing node has all resources of a member (say, the first GPU), so that no plan was tried."""

    why_not_asked: str = ""
    """The reason why no nodes are requested for the gang now, a phrase; "" if they may be."""

    ruled_out: tuple[NoTarget, int] | None = None
    """The reason why new nodes cannot help the gang, and a version; None if they may help.

    The version is the value of ``Asking._offers_version`` at that time. Once the autoscalers or NodePools have changed,
    that value is another one, and the reason is void.
    """


@dataclass(slots=True)
class Candidate:
    """A gang that is about to request nodes from an autoscaler.

    No gang ahead of it in the queue would use the same NodePools. It waits until the NodePools have been read again and
    the planner has rejected it again.
    """

    target: Target

    chosen_at: float
    """The time at which the gang became a candidate, in loop seconds."""

    pools_read_at: float = math.inf
    """The time at which the NodePools had been read again, in loop seconds; infinite before that."""


@dataclass(slots=True)
class Ask:
    """The request to an autoscaler to add nodes for one gang. Kept until the gang is placed or deleted."""

    uid: str
    """The UID of the PodGroup. A PodGroup created again under the same name has requested nothing."""

    at: float
    """The time at which the nodes were requested, in seconds since 1970."""

    target: Target

    request: RequestRef | None = None
    """The ProvisioningRequest for the nodes. None if the gates of the members were removed instead."""

    nodes_before: frozenset[str] | None = None
    """The names of all nodes when the request was made. None if an earlier term made it."""

    waiting: Waiting | None = None
    """The gang's place in the queue: its priority and the time since which it waits, for instance.

    None if an earlier term made the request and the planner has not rejected the gang in this term yet.
    """

    shapes: frozenset[Shape] = frozenset()
    """The demands of the members on a node (resources, selectors and so on), as of the gang's last rejection."""

    request_exists: bool = False
    """True once this instance knows that the ProvisioningRequest exists in the cluster."""

    request_deleted: bool = False
    """True once the ProvisioningRequest is to be deleted. If it is being created just now, it is deleted afterwards."""

    timed_out: bool = False
    """True once the request is older than ``--ask-for``, or Cluster Autoscaler has rejected the ProvisioningRequest.

    Other gangs may request nodes then, and new nodes are no longer kept for this gang.
    """

    answer: str = ""
    """The autoscaler's last message about the request; "" for none. Users read it in the gang's verdict."""

    error: str = ""
    """The error of the last write to members or ProvisioningRequest, a phrase; "" if it succeeded."""

    writing: bool = False
    """True while members or ProvisioningRequest are being written."""

    next_read: float = 0.0
    """The time at which the autoscaler's messages are read again, in loop seconds."""

    next_try: float = 0.0
    """The time at which a failed write is tried again, in loop seconds."""

    new_nodes: frozenset[str] = field(default_factory=frozenset)
    """The names of the nodes that were added since the request and that could run a member if they were empty."""

    new_nodes_at: float = -math.inf
    """The time at which ``new_nodes`` was computed, in loop seconds."""
