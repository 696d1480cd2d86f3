"""What `Asking` remembers of a gang: that it wants nodes, that it is the next to ask, and what it has asked for."""

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
    """When it was refused first, in loop seconds."""

    refused: float
    """When it was refused last, in loop seconds."""

    why_not: str = ""
    """Why no nodes are asked for it now, a phrase; "" if they may be."""

    barred: tuple[NoTarget, int] | None = None
    """Why nodes cannot help it, and by which offers of the autoscalers (a number); None if they may."""


@dataclass(slots=True)
class Candidate:
    """A gang that is the first in line, until it asks or is found to be that no more."""

    target: Target

    since: float
    """When it was chosen, in loop seconds."""

    read: float = math.inf
    """When the NodePools had been read since, in loop seconds."""


@dataclass(slots=True)
class Ask:
    """What one gang has asked for. It lives until the gang is placed or gone."""

    uid: str
    """The UID of the PodGroup: one that is made anew under the same name has asked for nothing."""

    at: float
    """When it was asked, in seconds since 1970."""

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
    """Whether this term knows that the ProvisioningRequest exists."""

    deleted: bool = False
    """Whether the ProvisioningRequest was deleted. One of an earlier term may exist before that is known."""

    timed_out: bool = False
    """Whether its time is over, or it was refused: others may ask, and nothing is kept for it."""

    said: str = ""
    """What the autoscaler said last."""

    trouble: str = ""
    """Why it could not be written, a phrase; "" if it was."""

    writing: bool = False
    """Whether it is being written."""

    listens_at: float = 0.0
    """When the autoscaler is listened to again, in loop seconds."""

    retries_at: float = 0.0
    """When it is written again after a failure, in loop seconds."""

    arrived: frozenset[str] = field(default_factory=frozenset)
    """The nodes that came for it, as of ``counted``."""

    counted: float = -math.inf
    """When these were looked for, in loop seconds."""
