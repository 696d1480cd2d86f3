"""The options of the extender's core: those settings of `serried.settings` that decide how it plans and binds.

`extender.process` makes one `Options` from the settings; tests and simulations make their own.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class NominationPolicy(StrEnum):
    """The choice of the planned members whose status.nominatedNodeName Serried sets to the node of their slot.

    These are all (ALWAYS), those for which a nomination is useful (AUTO), or none (NEVER).
    """

    ALWAYS = "always"
    """Every member of a planned gang."""

    AUTO = "auto"
    """Members that kube-scheduler has rejected before, and all members of a gang whose domain is nearly full.

    A domain is not nearly full if twice the gang's members would fit in it. Then each member may take any of the
    domain's nodes, so that no nomination is needed; but trees and gangs with preferred levels are always nominated.
    """

    NEVER = "never"


class BackfillMode(StrEnum):
    """The way in which free resources are kept for the gang at the head of the queue.

    They are kept on the nodes on which the gang is forecast to fit first (FORECAST), or not at all (OFF).
    """

    FORECAST = "forecast"
    """Keep free resources on the nodes on which the gang will fit first, when running pods end as expected.

    This forecast is also reported as the time at which the gang will fit.
    """

    OFF = "off"


class PlainPodRule(StrEnum):
    """The rule for pods of no gang on nodes whose free resources are kept for the head of the queue.

    Such pods may use these nodes (PASS), or not (WAIT).
    """

    PASS = "pass"  # noqa: S105 - no password
    """Pods of no gang may use the nodes that are kept for the head of the queue."""

    WAIT = "wait"
    """Pods of no gang must not use the nodes that are kept for the head of the queue, like the gangs behind it."""


class BrokenAction(StrEnum):
    """The action on a broken gang: only report it (REPORT), or also evict its members that are left (EVICT).

    A gang is broken if it has run, and has had fewer than minCount members for longer than `RepairRules.grace`.
    """

    REPORT = "report"

    EVICT = "evict"
    """Report the broken gang by a condition and an event, and evict the members that are left."""


@dataclass(frozen=True, slots=True)
class RepairRules:
    """The rules for running gangs that have lost members. Times are in seconds."""

    seconds: float = 120.0
    """The time for which the slot of a member that ended without success is kept for its replacement; may be 0."""

    grace: float = 300.0
    """The time for which a gang that has run may have fewer than minCount members, before ``broken`` applies."""

    broken: BrokenAction = BrokenAction.REPORT


DEFAULT_REPAIR_RULES = RepairRules()


class DisruptionTrigger(StrEnum):
    """The disruptions of one member after which Serried evicts the other members of its gang.

    None (KEEP), preemption by a kube-scheduler (PREEMPTED), or also evictions by others (ANY). It applies to gangs
    whose PodGroup has the disruption mode ``all``.
    """

    KEEP = "keep"
    """Serried never evicts the other members.

    Instead, its answers to preempt calls leave out the nodes on which only some members of such a gang would be
    preempted.
    """

    PREEMPTED = "preempted"
    """Serried evicts the other members after a kube-scheduler has preempted one."""

    ANY = "any"
    """Serried evicts the other members after any disruption of one.

    Besides preemption that is an eviction by another client, by a taint, or by a shutdown of the node.
    """


class PreemptionMode(StrEnum):
    """The mode of preemption for gangs that do not fit: evicting pods of lower priority (victims) for them.

    Victims are not searched for (OFF), only reported to the user (ADVICE), or evicted (ON).
    """

    OFF = "off"

    ADVICE = "advice"
    """Victims are searched and reported to the user, but not evicted."""

    ON = "on"


class EvictionMethod(StrEnum):
    """The API request that ends a victim.

    An eviction, which a PodDisruptionBudget may refuse, for victims that have one (EVICTION); or always a deletion
    (DELETION).
    """

    EVICTION = "eviction"
    """The eviction subresource for victims with a PodDisruptionBudget, which may refuse; a deletion for the others."""

    DELETION = "deletion"
    """A deletion for all victims, so that no PodDisruptionBudget refuses, as in kube-scheduler's own preemption."""


class Autoscaling(StrEnum):
    """The mode of requesting nodes from an autoscaler for gangs that do not fit.

    Nodes are requested if the cluster has Karpenter or Cluster Autoscaler (AUTO), or never (NONE).
    """

    AUTO = "auto"
    """Nodes are requested if the cluster has Karpenter or Cluster Autoscaler."""

    NONE = "none"


ALL_PERCENT = 100
"""The value of `Options.share_percent` with which one namespace may have all nodes, i.e. no limit."""

PATIENCE_SECONDS = 600.0
PREEMPTION_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one core. All times are in seconds. `serried.settings` describes the flag for each."""

    nomination: NominationPolicy = NominationPolicy.AUTO

    nomination_window: int = 512
    """The largest number of a plan's members that are nominated and that kube-scheduler has not tried yet.

    When kube-scheduler has tried some, the next members are nominated.
    """

    backfill: BackfillMode = BackfillMode.FORECAST

    patience_seconds: float = PATIENCE_SECONDS
    """The time for which free resources are kept for the head of the queue after its forecast has passed.

    Without a forecast the time counts from the moment at which the resources are first kept.
    """

    share_percent: int = ALL_PERCENT
    """The limit of what is kept for the waiting gangs of one namespace, in percent.

    With 25, at most a quarter of all nodes, and at most a quarter of the domains of a topology key. The resources that
    running gangs use are not limited.
    """

    plain: PlainPodRule = PlainPodRule.PASS

    ageing_seconds: float = math.inf
    """The waiting time after which a gang's priority in the queue rises by 1, again and again; infinity for never."""

    rules: RepairRules = DEFAULT_REPAIR_RULES

    disrupted: DisruptionTrigger = DisruptionTrigger.PREEMPTED

    preemption: PreemptionMode = PreemptionMode.ON

    preempt_by: EvictionMethod = EvictionMethod.EVICTION

    preemption_timeout_seconds: float = PREEMPTION_TIMEOUT_SECONDS
    """The time that victims may take to end in addition to the longest of their grace periods.

    After that the plan is given up.
    """

    preemption_spare_seconds: float = 0.0
    """The time after its start for which a pod is not evicted for gangs of the next higher priority; may be 0."""

    autoscaler: Autoscaling = Autoscaling.AUTO

    ask_seconds: float = 600.0
    """The time after which the request of one gang for nodes is given up, so that the next gang can request nodes."""

    provisioning_class: str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """The class of the ProvisioningRequests that are created for Cluster Autoscaler.

    With "" none are created: nodes are requested by letting the members become Unschedulable, as for Karpenter.
    """

    autoscaler_keys: frozenset[str] = frozenset()
    """The topology keys that users say new nodes will have, besides zone, region and the labels of NodePools."""

    job_unknown_seconds: float = 30.0
    """The time for which filter rejects all nodes for a pod whose Job is not in the cache.

    After that the API server is asked for the Job.
    """

    bindings: int = 64
    """The largest number of Bindings that are sent at a time when the process starts.

    Later the number adapts to the API server's responses (`extender.core.binding.binder.BindWindow`).
    """

    barrier_seconds: float = 300.0
    """The longest time for which bind calls wait for the quorum, counted from kube-scheduler's first call for the gang.

    After that the plan is given up, and kube-scheduler retries the members.
    """

    barrier_idle_seconds: float = 60.0
    """The longest time for which bind calls wait for the quorum while no bind call of a further member arrives.

    It counts while kube-scheduler is idle or rejects members. After that the plan is given up.
    """
