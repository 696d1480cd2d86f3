"""The options of the core: the settings of `serried.settings` as values, without flags and addresses.

`extender.process` makes one `Options` from the settings; tests and simulations make their own.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class NominationPolicy(StrEnum):
    """The choice of members that get status.nominatedNodeName."""

    ALWAYS = "always"
    """Every member of a planned gang."""

    AUTO = "auto"
    """Members that kube-scheduler has rejected before, and all members of a gang that would not fit a second time.

    If it would fit, members may take any node of the domain, so no nomination is needed.
    """

    NEVER = "never"


class BackfillMode(StrEnum):
    """The way in which room is kept for the gang at the head of the queue."""

    FORECAST = "forecast"
    """By a forecast of when running pods end."""

    OFF = "off"


class PlainRule(StrEnum):
    """The rule for pods of no gang on nodes that are kept for the head of the queue."""

    PASS = "pass"  # noqa: S105 - no password
    """Pods of no gang may use these nodes."""

    WAIT = "wait"
    """Pods of no gang wait, as the gangs behind the head do."""


class Broken(StrEnum):
    """The action on a gang that has fewer than minCount members for longer than the grace period."""

    REPORT = "report"

    EVICT = "evict"
    """Report it, and evict the members that are left."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for gangs that have lost members."""

    seconds: float = 120.0
    """The time for which the slot of a dead member is kept for its replacement, in seconds; 0: not at all."""

    grace: float = 300.0
    """The time for which a gang may have fewer than minCount members until ``broken`` applies, in seconds."""

    broken: Broken = Broken.REPORT


USUAL = Rules()


class Disrupted(StrEnum):
    """The disruptions of one member that end its whole gang, for gangs of disruption mode ``all``."""

    KEEP = "keep"
    """None. In turn, kube-scheduler may not preempt a single member either."""

    PREEMPTED = "preempted"
    """Preemption by a kube-scheduler."""

    ANY = "any"
    """Any disruption: also an eviction, a taint, or a shutdown of the node."""


class PreemptionMode(StrEnum):
    """The mode of preemption for gangs."""

    OFF = "off"

    ADVICE = "advice"
    """Victims are searched and reported, but not evicted."""

    ON = "on"


class Method(StrEnum):
    """The API request that ends a victim."""

    EVICTION = "eviction"
    """The eviction subresource, so that PodDisruptionBudgets may refuse."""

    DELETION = "deletion"
    """A deletion: budgets do not count, as with kube-scheduler's own preemption."""


class Autoscaling(StrEnum):
    """The mode of asking an autoscaler for nodes."""

    AUTO = "auto"
    """Gangs ask where an autoscaler is found."""

    NONE = "none"


ALL_PERCENT = 100
"""The share that limits nothing."""

PATIENCE_SECONDS = 600.0
PREEMPTION_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one core. All times are in seconds. The flags of the same purpose are in `serried.settings`."""

    nomination: NominationPolicy = NominationPolicy.AUTO

    nomination_window: int = 512
    """The number of nominated members that kube-scheduler has not yet tried, at most."""

    backfill: BackfillMode = BackfillMode.FORECAST

    patience_seconds: float = PATIENCE_SECONDS
    """The time for which room is kept for the head of the queue after its forecast, or without a forecast."""

    share_percent: int = ALL_PERCENT
    """The largest share of all nodes, and of the domains of a key, that is kept for gangs of one namespace."""

    plain: PlainRule = PlainRule.PASS

    ageing_seconds: float = math.inf
    """The waiting time after which a gang counts as one priority higher."""

    rules: Rules = USUAL

    disrupted: Disrupted = Disrupted.PREEMPTED

    preemption: PreemptionMode = PreemptionMode.ON

    preempt_by: Method = Method.EVICTION

    preemption_timeout_seconds: float = PREEMPTION_TIMEOUT_SECONDS
    """The time that victims may take to end beyond the longest of their grace periods."""

    preemption_spare_seconds: float = 0.0
    """The time for which a pod that has just started is no victim of gangs of the next higher priority."""

    autoscaler: Autoscaling = Autoscaling.AUTO

    ask_seconds: float = 600.0
    """The time for which one gang may ask for nodes before the next one does."""

    provisioning_class: str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """The class of the ProvisioningRequests for Cluster Autoscaler; "": gangs ask by showing unschedulable members."""

    autoscaler_keys: frozenset[str] = frozenset()
    """Topology keys that new nodes have according to the user, beside zone, region and the labels of NodePools."""

    job_unknown_seconds: float = 30.0
    """The time for which a pod of an unknown Job is held before the API server is asked for the Job."""

    bindings: int = 64
    """The limit of Bindings in flight at the start."""

    barrier_seconds: float = 300.0
    """The longest time that a member's bind call waits for its gang."""

    barrier_idle_seconds: float = 60.0
    """The longest time that it waits without a new member at bind."""
