"""A pod, as far as gangs and placement need it."""

from dataclasses import dataclass, field
from enum import StrEnum

from serried.model.group import GroupKey
from serried.model.parent import JOB, Place
from serried.model.priority import PreemptionPolicy
from serried.model.selectors import Labels, NodeSelectorTerm, Requirement, Toleration

HELD_GATE = "scheduling.serried.dev/held"
"""Our scheduling gate: set by the MutatingAdmissionPolicy, lifted by the extender."""

MARKERS = frozenset({"scheduling.serried.dev/member", "scheduling.serried.dev/member-bind"})
"""Extended resources that no node has: in an isolated installation the scheduler asks only about pods that name them.

One for filter and preempt, one for bind: kube-scheduler takes no name in two extender entries.
"""

HELD = "Serried holds this pod for its gang: see the PodGroup's condition and events"

KEPT = "Serried keeps these nodes for the first gang in its queue: see /debug/queue"
"""What filter says of a node that a held pod does not get; kube-scheduler puts it into the pod's condition.

Constant on purpose: a text that changes is an update of the pod, after which the scheduler tries it again, in a loop
(upstream's pkg/scheduler/backend/queue/scheduling_queue.go).
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides where a pod fits. Members with equal shapes are one class to the planner."""

    requests: tuple[tuple[str, int], ...]
    """Amounts sorted by name; ``pods`` is always among them.

    Host ports and anti-affinity by host name are amounts of what every node has (``resources.SHARES``), claims of
    devices are amounts of what nodes need not show (``resources.PROVIDED``).
    """

    node_selector: tuple[tuple[str, str], ...] = ()

    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    """Required node affinity: any one term suffices; None without."""

    tolerations: tuple[Toleration, ...] = ()


DISRUPTION_TARGET = "DisruptionTarget"
"""The condition of what somebody other than its owner ends: a pod, or a group."""

PREEMPTED = "PreemptionByScheduler"
"""The reason of DisruptionTarget when a kube-scheduler preempts the pod (k8s.io/api/core/v1/types.go)."""

OURS = "serried: "
"""How the message of DisruptionTarget begins where Serried has written it."""

FOR_A_GANG = f"{OURS}preempted by "
"""How it begins on a victim of a gang; elsewhere it is on a pod that goes with one that was preempted."""


class Link(StrEnum):
    """How a pod names its group."""

    FIELD = "schedulingGroup"
    LABEL = "label"
    COMPATIBLE = "compatible label"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class ControllerRef:
    """The controlling owner reference."""

    kind: str
    name: str
    uid: str


class Phase(StrEnum):
    """PodPhase, reduced to what counts: a pod still needs or uses a node, or it is done."""

    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    namespace: str
    name: str
    uid: str
    """The pod's identity: Jobs and StatefulSets make pods anew under an old name."""

    shape: Shape
    scheduler: str = "default-scheduler"

    node: str = ""
    """``spec.nodeName``."""

    nominated: str = ""
    """``status.nominatedNodeName``."""

    priority: int = 0
    preemption: PreemptionPolicy | None = None
    phase: Phase = Phase.ACTIVE

    group: GroupKey | None = None
    """The name of the PodGroup that the pod itself names (field, then labels); None if it names none."""

    link: Link | None = None
    owner: ControllerRef | None = None

    place: Place | None = None
    """Where the pod stands in a JobSet or LeaderWorkerSet."""

    claims: tuple[str, ...] = ()
    """The names of the PersistentVolumeClaims that the pod mounts."""

    labels: Labels = field(default_factory=dict, hash=False)

    gates: tuple[str, ...] = ()
    """All scheduling gates, ours included."""

    index: int | None = None
    """The completion index in an Indexed Job, or the worker index in a LeaderWorkerSet's replica (the leader has 0)."""

    deleting: bool = False

    unschedulable: bool = False
    """The scheduler has tried the pod in vain, and tries it again only after an event."""

    created: int | None = None
    """When the pod was created, in seconds since 1970."""

    started: int | None = None
    """When the kubelet took the pod up, in seconds since 1970."""

    unstarted: bool = False
    """Whether the API server has it in the phase Pending: without a node, or its containers do not run yet."""

    ready: bool = False
    """Whether the bound pod is Ready, as its condition says."""

    lifetime: int | None = None
    """After how many seconds the pod is ended (activeDeadlineSeconds)."""

    grace: int = 30
    """How many seconds the pod may take to end once somebody ends it (terminationGracePeriodSeconds)."""

    ends: int | None = None
    """When the pod ended, or by when it is to be gone if it is being deleted, in seconds since 1970."""

    disruption: str = ""
    """Why somebody other than its owner ends the pod: the reason of its condition DisruptionTarget; "" for nobody."""

    disrupted: int | None = None
    """Since when that condition is there, in seconds since 1970."""

    disruption_message: str = ""
    """What that condition says for people."""

    refusal: str = ""
    """Why the kubelet has refused the bound pod (``OutOfcpu``); "" for any other end."""

    domain: str = ""
    """What its Binding has told it of the domain of its gang."""

    told: bool = False
    """Whether its Binding has named its gang: then a quorum of that was there."""

    stranded: bool = False
    """Whether it was bound as a member of a gang whose objects cannot be read, as its API is not served any more."""

    marked: bool = False
    """Whether the pod names all MARKERS, so that an isolated scheduler asks about it."""

    device_claims: tuple[str, ...] = ()
    """What the pod's claims of devices are made from: kube-scheduler alone knows what there is of it."""

    uncounted: tuple[str, ...] = ()
    """The extended resources that nodes need not show (`cluster.uncounted`): as ``device_claims``."""

    missing: tuple[str, ...] = ()
    """Those of ``uncounted`` that nothing brings, as far as can be seen: no node has them, no DeviceClass either."""

    offered: bool = False
    """Whether kube-scheduler had a node for the pod when it tried it last, and it was held: so it misses nothing."""

    objection: str = ""
    """Why kube-scheduler found no node for the pod when it tried it last; "" if it did not say so."""

    wants_room: bool = False
    """Whether, as far as that says, some nodes may lack nothing but room, which others may leave, or mates."""

    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """The labels of those beside whom the pod must be: the selectors of its required affinity to pods."""

    unclaimed: str = ""
    """The template of a claim that is still to be made; kube-scheduler does not try the pod before that."""

    version: str = ""

    @property
    def counted_elsewhere(self) -> bool:
        """Asks for what kube-scheduler alone can count."""
        return bool(self.uncounted or self.device_claims)

    @property
    def refused(self) -> bool:
        """As far as anybody knows there is no node for it, and no room that a plan could find would help.

        That is the case while a claim of it does not exist, say, or what it must be beside does not run. What nothing
        brings is refused before kube-scheduler says so. One that ignores such a resource, or knows more, offers a node
        all the same.
        """
        if self.counted_elsewhere:
            return bool(self.unclaimed or self.objection or (self.missing and not self.offered))
        return bool(self.objection) and not self.wants_room

    @property
    def bound(self) -> bool:
        """Has a node and still uses it."""
        return bool(self.node) and self.phase is Phase.ACTIVE

    @property
    def says_victim(self) -> bool:
        """Whether Serried has written on it that it ends for a gang; it may not have been ended (yet)."""
        return self.disruption == PREEMPTED and self.disruption_message.startswith(FOR_A_GANG)

    @property
    def says_follower(self) -> bool:
        """Whether Serried has written on it that it goes with another member, which was preempted."""
        return self.disruption == PREEMPTED and self.disruption_message.startswith(OURS) and not self.says_victim

    @property
    def pending(self) -> bool:
        """Has no node yet and may still get one."""
        return not self.node and self.phase is Phase.ACTIVE and not self.deleting

    @property
    def linked(self) -> bool:
        """Whether it could be a member of a group: it names one, stands in a parent or belongs to a Job.

        No other pod ever is one. The policy that marks pods (``manifests/kustomize/marker``) has to know all of this.
        """
        return self.group is not None or self.place is not None or (self.owner is not None and self.owner.kind == JOB)

    @property
    def held_by_gate(self) -> bool:
        """Carries our gate."""
        return HELD_GATE in self.gates

    @property
    def gated_by_others(self) -> bool:
        """Carries a scheduling gate that is not ours (reason MemberGated)."""
        return any(gate != HELD_GATE for gate in self.gates)
