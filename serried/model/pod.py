"""A pod, as far as gangs and placement need it."""

from dataclasses import dataclass
from enum import StrEnum

from serried.model.group import GroupKey
from serried.model.parent import JOB, Place
from serried.model.selectors import NodeSelectorTerm, Toleration

HELD_GATE = "scheduling.serried.dev/held"
"""Our scheduling gate: set by the MutatingAdmissionPolicy, lifted by the extender."""

MARKERS = frozenset({"scheduling.serried.dev/member", "scheduling.serried.dev/member-bind"})
"""Extended resources that no node has: in an isolated installation the scheduler asks only about pods that name them.

One for filter and preempt, one for bind: kube-scheduler takes no name in two extender entries.
"""

HELD = "Serried holds this pod for its gang: see the PodGroup's condition and events"
"""What filter says of a node that a held pod does not get; kube-scheduler puts it into the pod's condition.

Constant on purpose: a text that changes makes the scheduler patch the pod and retry in a loop (facts A5).
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides where a pod fits. Members with equal shapes are one class to the planner.

    ``requests`` is sorted by name and always has ``pods``; host ports and anti-affinity by host name are in it as
    amounts of what every node has (``resources.SHARES``), claims of devices as amounts of what nodes need not show
    (``resources.PROVIDED``). ``node_terms`` is required node affinity: None when there is
    none, any one term suffices otherwise.
    """

    requests: tuple[tuple[str, int], ...]
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()


class Link(StrEnum):
    """How a pod names its group."""

    FIELD = "schedulingGroup"
    LABEL = "label"
    COMPATIBLE = "compatible label"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Owner:
    """The controlling owner reference."""

    kind: str
    name: str
    uid: str


class Phase(StrEnum):
    """PodPhase, reduced to what counts: pods that still need or use a node, and those that are done."""

    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. Identity is the ``uid``: Jobs and StatefulSets make pods anew under an old name.

    ``group`` is the PodGroup that the pod itself names (field, then labels), None if it names none.
    ``claims`` are the names of the PersistentVolumeClaims that it mounts. ``place`` is where it stands in a JobSet or
    LeaderWorkerSet. ``gates`` are all scheduling gates, ours included.
    ``index`` is its number among the pods of its Indexed Job (the completion index), or of its replica of a
    LeaderWorkerSet (the worker index; the leader has 0).
    ``unschedulable``: the scheduler has tried the pod in vain and will not try it again before an event tells it to.
    ``started`` is when the kubelet took it up, in seconds since 1970, ``lifetime`` after how many seconds it is ended
    (activeDeadlineSeconds). ``ends`` is when it succeeded, or by when it is to be gone if it is being deleted.
    ``refusal`` is the reason for which the kubelet has refused a bound pod (``OutOfcpu``), "" for any other end.
    ``marked``: names all MARKERS, so that an isolated scheduler asks about it.
    ``device_claims`` are what its claims of devices are made from, ``uncounted`` the extended resources that nodes need
    not show (`cluster.uncounted`): what there is of both, kube-scheduler alone knows. ``objection`` is why it found no
    node for the pod when it tried it last, "" if it did not say so; ``unclaimed`` the template of a claim that is still
    to be made, before which it does not try the pod at all.
    """

    namespace: str
    name: str
    uid: str
    shape: Shape
    scheduler: str = "default-scheduler"
    node: str = ""
    nominated: str = ""
    priority: int = 0
    phase: Phase = Phase.ACTIVE
    group: GroupKey | None = None
    link: Link | None = None
    owner: Owner | None = None
    place: Place | None = None
    claims: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    index: int | None = None
    deleting: bool = False
    unschedulable: bool = False
    started: int | None = None
    lifetime: int | None = None
    ends: int | None = None
    refusal: str = ""
    marked: bool = False
    device_claims: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    objection: str = ""
    unclaimed: str = ""
    version: str = ""

    @property
    def counted_elsewhere(self) -> bool:
        """Asks for what kube-scheduler alone can count."""
        return bool(self.uncounted or self.device_claims)

    @property
    def refused(self) -> bool:
        """Asks for what kube-scheduler alone can count, and as far as that knows there is no node for it."""
        return bool(self.unclaimed or self.objection) and self.counted_elsewhere

    @property
    def bound(self) -> bool:
        """Has a node and still uses it."""
        return bool(self.node) and self.phase is Phase.ACTIVE

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
