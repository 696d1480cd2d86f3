"""The state that `Asking` keeps of a gang: it wants nodes, is the next to ask, or has asked for some."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from extender.features.asking.showing import RequestRef
from extender.features.asking.targets import NoTarget, Target
from serried.api.pod import Pod, Shape
from serried.api.verdict import Verdict
from serried.plan.request import PlanRequest, Waiting


@dataclass(slots=True)
class Wanting:
    """A gang that was refused for want of room. It lives until the gang waits for no room any more."""

    waiting: Waiting
    """The gang as the queue sees it."""

    request: PlanRequest
    refusal: Verdict

    needed: Sequence[Pod]
    """The members that the gang lacks, those first that an autoscaler sees already."""

    since: float
    """The time of its first refusal, in loop seconds."""

    refused: float
    """The time of its last refusal, in loop seconds."""

    is_planned: bool = True
    """False for a gang that is not planned, as no node that exists can take one of its members."""

    why_not: str = ""
    """The reason why no nodes are asked for it now, a phrase; "" if it may ask."""

    barred: tuple[NoTarget, int] | None = None
    """The reason why new nodes cannot help it, with the number of the autoscalers' offers then; None if they may."""


@dataclass(slots=True)
class Candidate:
    """A gang that is the first in line, until it asks or is found to be that no more."""

    target: Target

    since: float
    """The time at which it was chosen, in loop seconds."""

    read: float = math.inf
    """The time at which the NodePools had been read again, in loop seconds; infinite before that."""


@dataclass(slots=True)
class Ask:
    """One request of a gang for nodes. It lives until the gang is placed or gone."""

    uid: str
    """The UID of the PodGroup: one that is made anew under the same name has asked for nothing."""

    at: float
    """The time of the request, in seconds since 1970."""

    target: Target

    request: RequestRef | None = None
    """The ProvisioningRequest by which it asks; None if its members ask by being visible."""

    nodes: frozenset[str] | None = None
    """The nodes that there were when it was asked; None for an ask of an earlier term."""

    waiting: Waiting | None = None
    """The gang as the queue sees it; None for an ask of an earlier term until the gang is refused again."""

    shapes: frozenset[Shape] = frozenset()
    """The shapes of its members when it was refused last."""

    requested: bool = False
    """True once this term knows that the ProvisioningRequest exists."""

    deleted: bool = False
    """True once the ProvisioningRequest was deleted. One of an earlier term may exist before this term knows it."""

    timed_out: bool = False
    """True once its time is over, or it was refused: other gangs may ask, and no node is kept for this one."""

    said: str = ""
    """The last statement of the autoscaler; "" for none."""

    trouble: str = ""
    """The reason why it could not be written, a phrase; "" if it was."""

    writing: bool = False
    """True while it is being written."""

    listens_at: float = 0.0
    """The time at which the autoscaler's statements are read again, in loop seconds."""

    retries_at: float = 0.0
    """The time at which it is written again after a failure, in loop seconds."""

    arrived: frozenset[str] = field(default_factory=frozenset)
    """The nodes that came for it, as of ``counted``."""

    counted: float = -math.inf
    """The time at which ``arrived`` was computed, in loop seconds."""
