"""What may be chosen of decisions, and of what carries them out."""

import math
from dataclasses import dataclass
from enum import StrEnum


class NominationPolicy(StrEnum):
    """Who is nominated: every member; those that are put aside, or that have no room to spare; nobody."""

    ALWAYS = "always"
    AUTO = "auto"
    NEVER = "never"


class BackfillMode(StrEnum):
    """Whether room is kept for the head."""

    FORECAST = "forecast"
    OFF = "off"


class PlainRule(StrEnum):
    """What the nodes that are kept for the head are to pods of no gang."""

    PASS = "pass"  # noqa: S105 - no password
    """Nodes like all others."""

    WAIT = "wait"
    """Kept from them as they are from gangs behind the head."""


class Broken(StrEnum):
    """What is done about a gang that stays broken: it is reported, or what is left of it is evicted, too."""

    REPORT = "report"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Rules:
    """For how many ``seconds`` a slot is kept (0: not at all), and what follows ``grace`` seconds of being broken."""

    seconds: float = 120.0
    grace: float = 300.0
    broken: Broken = Broken.REPORT


USUAL = Rules()


class Disrupted(StrEnum):
    """When a gang of mode ``all`` goes with one of its members."""

    KEEP = "keep"
    """Never: then kube-scheduler may not preempt one either."""

    PREEMPTED = "preempted"
    """When a kube-scheduler has preempted one."""

    ANY = "any"
    """When anybody has disrupted one: also by eviction, by a taint, or because its node shuts down."""


class PreemptionMode(StrEnum):
    """What is done for gangs that only fit once others are gone."""

    OFF = "off"

    ADVICE = "advice"
    """It is said who would have to go, and nobody goes."""

    ON = "on"


class Method(StrEnum):
    """How victims are ended."""

    EVICTION = "eviction"
    """By the API's Eviction, so that PodDisruptionBudgets may refuse."""

    DELETION = "deletion"
    """Budgets do not count, as with kube-scheduler's own preemption."""


class Autoscaling(StrEnum):
    """Whether gangs ask an autoscaler for nodes."""

    AUTO = "auto"
    """Where one is found."""

    NONE = "none"


ALL_PERCENT = 100
"""The share with which nothing is limited."""

PATIENCE_SECONDS = 600.0
PREEMPTION_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """What may be chosen of the core."""

    nomination: NominationPolicy = NominationPolicy.AUTO

    nomination_window: int = 512
    """How many nominated members may be without a filter call at a time."""

    backfill: BackfillMode = BackfillMode.FORECAST

    patience_seconds: float = PATIENCE_SECONDS
    """How long room is kept for the head of the queue beyond its forecast, or without one, at first."""

    share_percent: int = ALL_PERCENT
    """How many of all nodes, or of the domains of a key, are kept for the gangs of one namespace at most."""

    plain: PlainRule = PlainRule.PASS
    """Whether pods of no gang are kept off the nodes of the head of the queue."""

    ageing_seconds: float = math.inf
    """How long a gang waits before it counts as of the next higher priority."""

    rules: Rules = USUAL
    """What is done for broken gangs."""

    disrupted: Disrupted = Disrupted.PREEMPTED
    """When a gang goes with one of its members."""

    preemption: PreemptionMode = PreemptionMode.ON

    preempt_by: Method = Method.EVICTION

    preemption_timeout_seconds: float = PREEMPTION_TIMEOUT_SECONDS
    """How long victims may take to end after the longest of their grace periods."""

    preemption_spare_seconds: float = 0.0
    """How long what has just started is spared from a gang of the next higher priority."""

    autoscaler: Autoscaling = Autoscaling.AUTO

    ask_seconds: float = 600.0
    """How long a gang may ask for nodes before the next one does."""

    provisioning_class: str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """The class of the ProvisioningRequests by which Cluster Autoscaler is asked; "" to ask by members."""

    autoscaler_keys: frozenset[str] = frozenset()
    """Label keys that new nodes have by the user's word, beside the zone and what NodePools name."""

    job_unknown_seconds: float = 30.0
    """How long a pod is held whose Job is not known, before the API server is asked whether there is one."""

    bindings: int = 64
    """How many Bindings may be in flight at first."""

    barrier_seconds: float = 300.0
    """How long a member's bind call waits for its gang at most."""

    barrier_idle_seconds: float = 60.0
    """The same without any progress."""
