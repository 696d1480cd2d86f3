"""Pods (`decode_pod`), and their shapes (`Shape`): the part of a pod that decides on which nodes it fits.

Pods with equal shapes share one `Shape` object, to save memory. For the same reason the JSON of a pod is not stored.
The spec of pods from one template is decoded once and cached (`_read_spec_cached`).

To a pod with a host port Serried adds a request for a pseudo resource: one that Kubernetes does not know, and of which
every node has the same capacity (``resources.SHARES``). The amounts follow the rules of NodePorts
(HostPortInfo.CheckConflict). Rules about other pods, such as anti-affinity, become pseudo resources, too, where that is
possible (``serried.api.interpod``). So code that only adds up requests also prevents conflicts between pods.

The reasons why kube-scheduler found no node are parsed from the message of the pod's condition PodScheduled, which is
the text of a FitError (1.37, scheduler/framework/types.go): ``0/5 nodes are available: 2 Insufficient cpu, 3 cannot
allocate all claims. preemption: ...``.
"""

import marshal
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from serried.api.device import ClaimRef, find_uncreated_claim, read_claim_refs
from serried.api.interpod import APART, SHARED_CLAIM, InterPodRules, read_interpod_rules
from serried.api.kinds import PARENTS
from serried.api.level import ResizeRule
from serried.api.names import (
    ASKED,
    CONSUMES,
    DISRUPTION_TARGET,
    DOMAIN,
    GANG,
    JOB,
    PREEMPTED,
    GroupKey,
    Malformed,
    Raw,
    decode_or_malformed,
    is_deleting,
    read_compatible_label,
    read_controller,
    read_device_claims,
    read_end,
    read_group_field,
    read_group_label,
    read_index,
    read_int,
    read_key,
    read_kueue_group,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_text,
    read_time,
    read_uid,
    read_version,
)
from serried.api.parent import Place, read_place
from serried.api.priority import PreemptionPolicy, read_preemption
from serried.api.resources import (
    ATTACHED,
    CHOSEN,
    DEVICES,
    ONCE,
    PROVIDED,
    SHARES,
    has_markers,
    is_extended,
    is_resized,
    pod_requests,
)
from serried.api.selectors import (
    Labels,
    NodeSelectorTerm,
    Requirement,
    Terms,
    Toleration,
    read_label_selector,
    read_terms,
)
from serried.api.volume import NO_CLAIMS, VolumeChoice, read_claims, read_own_claims

_ANY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104  # read, not bound
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def read_conflicts(pod: Raw, interpod: InterPodRules | None = None) -> dict[str, int]:
    """Return the requests that Serried adds to a raw pod for its host ports and anti-affinity terms, by name.

    They are pseudo resources, which Kubernetes does not know: pods that exclude each other on a node together request
    more than its capacity. Empty for most pods. ``interpod`` are the pod's rules about other pods; None if it has none.
    """
    asked = _read_ports(read_map(pod, "spec"))
    if interpod is not None:
        asked.update(each.amount for each in interpod.apart)
    return asked


def read_affinity(spec: Raw) -> tuple[tuple[Requirement, ...], ...]:
    """Return the label selectors of a pod's required pod affinity: one tuple of requirements for each term.

    Terms without a label selector are left out. Empty for most pods.
    """
    affinity = read_map(spec, "affinity")
    terms = read_objects(read_map(affinity, "podAffinity"), _TERMS) if affinity else ()
    found = (read_label_selector(term, "labelSelector") for term in terms)
    return tuple([each for each in found if each is not None])


def _read_ports(spec: Raw) -> dict[str, int]:
    """Return the requests that Serried adds to a pod for its host ports, by name; SHARES is the capacity of each node.

    For a port on every address the pod requests all SHARES of the port. For a port on one address it requests all
    SHARES of the port at this address, and 1 of the port. So a pod with the port on every address excludes all pods
    with the port, but pods with the port on different addresses fit together.
    """
    asked: dict[str, int] = {}
    sidecars = [init for init in read_objects(spec, "initContainers") if init.get("restartPolicy") == "Always"]
    for container in (*read_objects(spec, "containers"), *sidecars):
        for port in read_objects(container, "ports") if container.get("ports") else ():
            number = read_int(port, "hostPort")
            address = read_text(port, "hostIP")
            if number <= 0:
                continue
            name = f"hostPort:{read_text(port, 'protocol', 'TCP')}/{number}"
            name_at_address = f"{name}/{address}"
            if address in _ANY_ADDRESS:
                asked[name] = SHARES
            elif name_at_address not in asked:
                asked[name_at_address] = SHARES
                asked[name] = min(SHARES, asked.get(name, 0) + 1)
    return asked


HELD_GATE = "scheduling.serried.dev/held"
"""Serried's scheduling gate. Its MutatingAdmissionPolicy adds it to new pods of gangs, and the extender removes it."""

HELD = "Serried holds this pod for its gang"
"""The first words of the extender's answer to a filter call for a member whose gang has to wait.

kube-scheduler writes the answer into the pod's condition and an event. The rest of it names the gang and the reason.
It must seldom change: each change updates the pod, and kube-scheduler retries a pod that was updated (upstream's
pkg/scheduler/backend/queue/scheduling_queue.go).
"""

KEPT = "Serried keeps these nodes for the first gang in its queue: see /debug/queue"
"""The extender's answer to a filter call for a plain pod if Serried keeps all feasible nodes free for a gang.

It is constant, because kube-scheduler retries a pod as soon as the message in its condition changes.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a pod that decides on which nodes it fits. The planner treats members with equal shapes as equal."""

    requests: tuple[tuple[str, int], ...]
    """The requested resources as (name, amount), sorted by name. ``pods`` is always one of them, with amount 1.

    Some are pseudo resources, i.e. names that Serried adds and that Kubernetes does not know: for host ports
    (``resources.SHARES``), for rules about other pods (``serried.api.interpod``) and for device claims
    (``resources.PROVIDED``).
    """

    node_selector: tuple[tuple[str, str], ...] = ()

    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    """The terms of the required node affinity, of which one must match; None without node affinity."""

    tolerations: tuple[Toleration, ...] = ()

    neighbours: InterPodRules | None = None
    """The pod's rules about other pods; None for most pods. (It has kept an old name, as it is in snapshot files.)"""

    volumes: tuple[VolumeChoice, ...] = ()
    """The pod's PersistentVolumeClaims that are bound when it is scheduled (WaitForFirstConsumer).

    The pod can only run on nodes where a volume for each of them is available or can be provisioned. The decoder leaves
    it empty; the cache sets it (`serried.rules.volumes`).
    """

    @property
    def extended(self) -> tuple[str, ...]:
        """The names of the extended resources that the pod requests."""
        # Read for every changed pod: the test for "/" saves most calls of is_extended.
        return tuple([name for name, _ in self.requests if "/" in name and is_extended(name)])


DISRUPTION_PREFIX = "serried: "
"""The first characters of the message of every DisruptionTarget condition that Serried writes to a pod."""

PREEMPTION_PREFIX = f"{DISRUPTION_PREFIX}preempted by "
"""The first characters of the message of a DisruptionTarget condition on a pod that Serried preempts for a gang.

The pods that are evicted only because their gang loses such a pod have another message.
"""


class Link(StrEnum):
    """The means by which Serried knows the group of a pod: a field of its spec, a label, or the Job that owns it.

    FIELD is the field (``schedulingGroup``, or in 1.35 ``workloadRef``), JOB the owner. The labels are those of Serried
    (LABEL), scheduler-plugins (COMPATIBLE) and Kueue (COUNTED).
    """

    FIELD = "schedulingGroup"
    LABEL = "label"
    COMPATIBLE = "compatible label"
    COUNTED = "label of Kueue"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class ControllerRef:
    """The owner reference of a pod that has ``controller: true``."""

    kind: str
    name: str
    uid: str


class Phase(StrEnum):
    """The phase of a pod. ACTIVE stands for Pending, Running and Unknown; the other two are those of ended pods."""

    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as the cache holds it.

    `decode_pod` sets most fields. The others say what rules have found out from other objects, such as claims; the
    rules in `serried.rules` set them when the pod is put into the cache.
    """

    namespace: str
    name: str
    uid: str
    """The identity of the pod: a Job or StatefulSet may recreate a pod under the same name."""

    shape: Shape
    scheduler: str = "default-scheduler"

    node: str = ""
    """The name of the node to which the pod is bound (``spec.nodeName``); "" if it is not bound."""

    nominated: str = ""
    """The name of the node in ``status.nominatedNodeName``; "" if there is none."""

    priority: int = 0
    preemption: PreemptionPolicy | None = None
    phase: Phase = Phase.ACTIVE

    group: GroupKey | None = None
    """The group that the pod names by a field of its spec, or else by a label; None if it names none."""

    link: Link | None = None
    owner: ControllerRef | None = None

    place: Place | None = None
    """The pod's position in its parent (a JobSet or LeaderWorkerSet); None without a parent."""

    claims: tuple[str, ...] = ()
    """The names of the PersistentVolumeClaims that the pod mounts."""

    own_claims: frozenset[str] = NO_CLAIMS
    """The names among ``claims`` of the claims that exist only for this pod: those of its ephemeral volumes."""

    labels: Labels = field(default_factory=dict, hash=False)

    features: tuple[str, ...] = ()
    """The kubelet features that its node has to declare (`Node.features`)."""

    gates: tuple[str, ...] = ()
    """The names of all its scheduling gates, including Serried's."""

    index: int | None = None
    """The completion index in an Indexed Job, or the pod's number in its LeaderWorkerSet replica (the leader has 0).

    None for other pods.
    """

    deleting: bool = False

    unschedulable: bool = False
    """True if kube-scheduler's last attempt to schedule the pod has failed (condition PodScheduled is False)."""

    created: int | None = None
    """The time of creation, in seconds since 1970."""

    started: int | None = None
    """The time at which the kubelet accepted the pod (``status.startTime``), in seconds since 1970."""

    unstarted: bool = False
    """True while the phase is Pending: the pod has no node, or its containers do not run yet."""

    ready: bool = False
    """True while the pod is bound, and its condition Ready is True."""

    lifetime: int | None = None
    """The activeDeadlineSeconds; None if it has none."""

    grace: int = 30
    """The terminationGracePeriodSeconds."""

    ends: int | None = None
    """The time at which the pod ended, in seconds since 1970. If it is being deleted: the time by which it must end.

    None for other pods.
    """

    disruption: str = ""
    """The reason of its condition DisruptionTarget if that is True; else ""."""

    disrupted: int | None = None
    """The lastTransitionTime of its condition DisruptionTarget, in seconds since 1970; None if that is not True."""

    disruption_message: str = ""
    """The message of its condition DisruptionTarget; "" if that is not True."""

    refusal: str = ""
    """The reason with which the kubelet rejected the bound pod, such as ``OutOfcpu``; "" if it did not."""

    domain: str = ""
    """The domain of its gang, from the annotation `names.DOMAIN` that Serried adds with the Binding; "" without it."""

    told: bool = False
    """True if the pod has the annotation `names.GANG`, which Serried adds with the Binding.

    It shows that the pod was bound as a member of a gang, so that the gang had its quorum.
    """

    asked: str = ""
    """The value of the annotation `names.ASKED`: when, and for which domain, Serried asked an autoscaler for nodes.

    "" if it has not asked for this pod.
    """

    consumes: str = ""
    """The name of the ProvisioningRequest by which Cluster Autoscaler has added its node; "" for none."""

    stranded: bool = False
    """True if the pod was bound as a member of a gang whose PodGroup Serried cannot read any more.

    That is so if the API server has stopped to serve the apiVersion of the PodGroup.
    """

    marked: bool = False
    """True if the pod requests all `resources.MARKERS`, extended resources that mark the members of gangs.

    In an isolated installation, kube-scheduler is configured to call the extender for marked pods only.
    """

    device_claims: tuple[str, ...] = ()
    """A text for each device claim of the pod: ``template NAME`` if it is made from a template, else ``claim``.

    It has no names of claims, so that members which differ only in these compare as equal.
    """

    claim_refs: tuple[ClaimRef, ...] = ()
    """The device claims of the pod, each with the names of its template and of the claim."""

    counted: bool = False
    """True if Serried can count all devices that the pod requests, by claim or by an extended resource.

    If False, only kube-scheduler knows which nodes have enough of them. Also False for a pod that requests no devices.
    `rules.devices.cluster` sets it.
    """

    uncountable: str = ""
    """A phrase that says why Serried cannot count the devices that the pod requests; "" if it can, or for none."""

    uncounted: tuple[str, ...] = ()
    """The requested extended resources that a DeviceClass provides or that no node lists as allocatable.

    So adding up requests does not tell which nodes have enough of them. `rules.extended.cluster` sets it.
    """

    missing: tuple[str, ...] = ()
    """The requested extended resources that neither a node nor a DeviceClass provides; all are in ``uncounted``."""

    provided: tuple[str, ...] = ()
    """The requested extended resources that a DeviceClass provides; all are in ``uncounted``."""

    offered: bool = False
    """True if in kube-scheduler's last attempt the extender rejected all nodes, because the pod's gang has to wait.

    So kube-scheduler itself had found feasible nodes for the pod.
    """

    said: str = ""
    """kube-scheduler's reasons in its last attempt, such as ``2 Insufficient example.com/gpu, 3 node(s) had ...``.

    "" if the attempt did not fail, if the extender rejected nodes, or if every plan checks all these reasons itself.
    The numbers count nodes; if they are fewer than the cluster has, the other nodes were feasible.
    """

    objection: str = ""
    """kube-scheduler's reasons in its last attempt (``said``) if they are about all nodes; "" if some were feasible."""

    wants_room: bool = False
    """True if, by ``objection``, some nodes may become feasible when resources become free or other members are bound.

    False without an objection.
    """

    lacks_only_room: bool = False
    """True if kube-scheduler's last attempt failed, but for no other reasons than those that every plan checks itself.

    For instance too little cpu is free. ``said`` is "" then.
    """

    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """The label selectors of its required pod affinity, one tuple for each term; empty for most pods."""

    obstacle: str = ""
    """A phrase that says why no node can take the pod, even if it were empty; "" if no such reason is known.

    For instance a volume claim does not exist. The rules in `serried.rules` set it.
    """

    awaits: str = ""
    """A phrase that says what Serried still has to count before it knows which nodes can take the pod; "" for nothing.

    For instance the pods that its anti-affinity selects. The pod is not planned until then. The rules in
    `serried.rules` set it.
    """

    outranked: bool = False
    """True if ``obstacle`` is that another member has to be scheduled before this one.

    kube-scheduler does not know that, and finds feasible nodes for the pod nevertheless.
    """

    unclaimed: str = ""
    """The template of a device claim that kube-controller-manager has not created yet; "" if all claims exist.

    kube-scheduler does not schedule the pod before the claim exists.
    """

    version: str = ""

    @property
    def claims_devices(self) -> bool:
        """Return whether the pod requests devices, by a claim or by an extended resource of a DeviceClass."""
        return bool(self.claim_refs) or len(self.uncounted) > len(self.missing)

    @property
    def only_scheduler_counts(self) -> bool:
        """Return whether the pod requests devices or extended resources that only kube-scheduler can count.

        Serried then has to rely on kube-scheduler's answers about nodes.
        """
        return bool(self.uncounted or self.device_claims) and not self.counted

    @property
    def refused(self) -> bool:
        """Return whether no node can take the pod at present, so that it would be useless to plan it.

        There are three cases:

        - One of Serried's rules excludes all nodes (``obstacle``). Or it does not know yet which nodes it excludes,
          because it still has to count, say, the pods that the anti-affinity selects (``awaits``).
        - kube-scheduler has rejected all nodes for reasons that free resources would not remove (``objection``).
        - The pod requests devices or resources that only kube-scheduler can count (`only_scheduler_counts`), and one
          of these is true: a device claim is not created yet; kube-scheduler has rejected all nodes for any reason that
          plans do not check; or nothing provides a resource. The last does not count if kube-scheduler has found nodes:
          it may be configured to ignore the resource.
        """
        if self.awaits or (self.obstacle and (self.outranked or not self.offered)):
            return True
        if self.only_scheduler_counts:
            return bool(self.unclaimed or self.objection or (self.missing and not self.offered))
        return bool(self.objection) and not self.wants_room

    @property
    def bound(self) -> bool:
        """Return whether the pod has a node and still uses it."""
        return bool(self.node) and self.phase is Phase.ACTIVE

    @property
    def is_marked_victim(self) -> bool:
        """Return whether Serried has written a condition to the pod that says that it is preempted for a gang.

        The eviction follows later, or never if the plan changes meanwhile.
        """
        return self.disruption == PREEMPTED and self.disruption_message.startswith(PREEMPTION_PREFIX)

    @property
    def is_marked_follower(self) -> bool:
        """Return whether Serried has written a condition to the pod that says that it is evicted because of its gang.

        That is, another member of its gang was disrupted, and the gang has disruption mode ``all``.
        """
        return (
            self.disruption == PREEMPTED
            and self.disruption_message.startswith(DISRUPTION_PREFIX)
            and not self.is_marked_victim
        )

    @property
    def pending(self) -> bool:
        """Return whether the pod waits for a node: it has none, has not ended, and is not being deleted."""
        return not self.node and self.phase is Phase.ACTIVE and not self.deleting

    @property
    def may_be_member(self) -> bool:
        """Return whether the pod may be a member of a group: it names a group, or a Job or, say, a JobSet owns it.

        Other pods never are members. In an isolated installation an admission policy (``manifests/kustomize/marker``)
        decides in the same way. It adds the extended resources `resources.MARKERS` to such pods, and kube-scheduler
        calls the extender only for pods that request them.
        """
        return self.group is not None or self.place is not None or (self.owner is not None and self.owner.kind == JOB)

    @property
    def held_by_gate(self) -> bool:
        """Return whether the pod has Serried's scheduling gate."""
        return HELD_GATE in self.gates

    @property
    def gated_by_others(self) -> bool:
        """Return whether the pod has a scheduling gate other than Serried's; its gang waits with reason MemberGated."""
        return any(gate != HELD_GATE for gate in self.gates)

    @property
    def foreign_gates(self) -> tuple[str, ...]:
        """The names of its scheduling gates other than Serried's."""
        return tuple(gate for gate in self.gates if gate != HELD_GATE)


_FIT_ERROR = re.compile(r"0/(?P<nodes>\d+) nodes are available: (?P<reasons>.*?)(?:\. |\.?$)")
_COUNT = re.compile(r"\d+(?= )")

_CHECKED_BY_PLANS = re.compile(
    r"\d+ (?:Insufficient (?:cpu|memory|ephemeral-storage)|Too many pods|node\(s\) had untolerated taint.*"
    r"|node\(s\) were unschedulable|node\(s\) didn't match Pod's node affinity/selector)"
)
"""Matches kube-scheduler's reasons that Serried need not believe: every plan checks the same, with newer data."""

_FIXED_BY_RESOURCES = re.compile(
    rf"{_CHECKED_BY_PLANS.pattern}|\d+ (?:Insufficient .*|node\(s\) didn't have free ports for the requested pod ports)"
)
"""Matches a reason of kube-scheduler against a node that may no longer hold when resources become free on the node."""

_LACKS_AFFINITY = re.compile(r"\d+ node\(s\) didn't match pod affinity rules")
"""Matches kube-scheduler's reason that no pod matches the affinity. It may no longer hold when members are bound."""

_ANTI_AFFINITY = re.compile(
    r"\d+ node\(s\) didn't (?:match pod anti-affinity|satisfy existing pods anti-affinity) rules"
)
"""Matches kube-scheduler's reasons about anti-affinity, which Serried can check by amounts (APART)."""

_CLAIM_IN_USE = re.compile(
    r"\d+ node\(s\) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode .*"
)

_MANY_VOLUMES = re.compile(r"\d+ node\(s\) exceed max volume count")
_IN_FLIGHT = re.compile(r"resource claim \S+ is in the process of being allocated")

_NO_DEVICES = re.compile(r"\d+ cannot allocate all claims")

_NO_VOLUME = re.compile(r"\d+ node\(s\) didn't find available persistent volumes to bind")

_REASON_BY_AMOUNT = {
    APART: _ANTI_AFFINITY,
    ONCE: _CLAIM_IN_USE,
    ATTACHED: _MANY_VOLUMES,
    CHOSEN: _NO_VOLUME,
    DEVICES: _NO_DEVICES,
    SHARED_CLAIM: _NO_DEVICES,
}
"""Reasons of kube-scheduler that Serried can check itself if it has added a request with this prefix to the pod.

For instance: a pod whose `Shape.requests` have a name with the prefix ATTACHED was rejected with "exceed max volume
count". Serried counts the attached volumes of each node, so it knows when the reason no longer holds.
"""


def _read_scheduling_result(conditions: "_Conditions", shape: Shape) -> dict[str, Any]:
    """Return the fields of Pod about kube-scheduler's last attempt, from the condition PodScheduled with status False.

    Empty without the condition. A gated pod has the condition, too, but kube-scheduler never tried it.
    """
    condition = conditions.get(("PodScheduled", "False"))
    if condition is None:
        return {}
    reason = read_text(condition, "reason")
    message = read_text(condition, "message")
    said, objection, only_room = _find_objection(message) if reason == "Unschedulable" else ("", "", False)
    return {
        "unschedulable": reason != "SchedulingGated",
        "offered": HELD in message,
        "said": said,
        "objection": objection,
        "wants_room": bool(objection) and may_fit_later(objection, shape),
        "lacks_only_room": only_room,
    }


def may_fit_later(objection: str, shape: Shape) -> bool:
    """Return whether some node may become feasible when resources become free, or when other members are bound.

    ``objection`` are kube-scheduler's reasons for rejecting all nodes (`Pod.objection`). Reasons about volumes, devices
    and anti-affinity only count if Serried can check them itself, by a request that it has added to ``shape``
    (`_REASON_BY_AMOUNT`). False for no objection.
    """
    reasons = objection.split(", ") if objection else ()
    counted = [
        reason
        for prefix, reason in _REASON_BY_AMOUNT.items()
        if any(name.startswith(prefix) for name, _ in shape.requests)
    ]
    removable = (_FIXED_BY_RESOURCES, _LACKS_AFFINITY, *counted)
    return any(pattern.fullmatch(reason) for reason in reasons for pattern in removable)


def lacks_matching_pods(objection: str) -> bool:
    """Return whether kube-scheduler rejected some nodes because no pod there matches the required affinity."""
    return any(_LACKS_AFFINITY.fullmatch(reason) for reason in objection.split(", "))


def is_by_node(objection: str) -> bool:
    """Return whether kube-scheduler's reasons count nodes, as in ``2 Insufficient cpu``.

    If not, a PreFilter plugin has rejected the pod itself, whatever the node.
    """
    return _COUNT.match(objection) is not None


def is_about_one_node(objection: str) -> bool:
    """Return whether kube-scheduler's reasons are one reason for one node.

    If the cluster has more nodes, a Reserve, Permit or PreBind plugin has rejected the node that the extender had
    returned from filter (a FitError with NumAllNodes 1 in upstream's pkg/scheduler/schedule_one.go).
    """
    return objection.startswith("1 ") and ", " not in objection


def is_partly_checked(objection: str) -> bool:
    """Return whether any reason in ``objection`` is about something that every plan of Serried checks, too.

    ``objection`` has the reasons of kube-scheduler's last rejection, separated by commas: "Insufficient cpu" is checked
    by every plan, the reason of a plugin of the users is not.
    """
    return any(_CHECKED_BY_PLANS.fullmatch(reason) for reason in objection.split(", "))


@lru_cache(maxsize=1024)
def _find_objection(message: str) -> tuple[str, str, bool]:
    """Return three fields of a `Pod`, parsed from the message of kube-scheduler's FitError.

    - ``said``: the reasons for rejecting nodes; "" if every plan of Serried checks all of them itself.
    - ``objection``: the same reasons if kube-scheduler found no feasible node at all; else "".
    - ``lacks_only_room``: True if every plan checks all the reasons itself, such as ``2 Insufficient cpu``.

    Return ("", "", False) if the message is no FitError, if the extender rejected nodes in this attempt, or if a reason
    is temporary: a member with the same device claim is being bound.
    """
    found = _FIT_ERROR.match(message)
    if found is None or HELD in message:
        return "", "", False
    said = found["reasons"]
    reasons = said.split(", ")
    if any(_IN_FLIGHT.fullmatch(reason) for reason in reasons):
        return "", "", False  # temporary: a member with the same claim is being bound, then this pod is retried
    if all(_CHECKED_BY_PLANS.fullmatch(reason) for reason in reasons):
        return "", "", True
    # Each rejected node has at least one reason. The reason of a PreFilter plugin is about the pod and has no number.
    counts = [int(count[0]) for reason in reasons if (count := _COUNT.match(reason))]
    return said, "" if counts and sum(counts) < int(found["nodes"]) else said, False


def decode_shape(pod: Raw, rule: ResizeRule = ResizeRule.LARGEST) -> Shape:
    """Return the shape of a raw pod. Pods with equal shapes usually share one object (an LRU cache).

    ``rule`` says how the requests of a pod are counted that is being resized in place (`ApiLevel.resize_rule`).
    """
    spec = read_map(pod, "spec")
    requests = pod_requests(pod, rule)
    interpod = read_interpod_rules(pod)
    others = read_conflicts(pod, interpod)
    if claims := read_device_claims(spec):
        others = {**others, **{PROVIDED + claim: count for claim, count in Counter(claims).items()}}
    terms = _read_affinity(spec)
    # A large shape is not cached: few pods share one.
    share = _shared_shape if _is_small(terms) and len(others) <= _MAX_CACHED_ENTRIES else Shape
    return share(
        tuple(sorted((*requests, *others.items()))) if others else requests,
        tuple(sorted(read_labels(spec, "nodeSelector").items())),
        terms,
        tuple([_read_toleration(raw) for raw in read_objects(spec, "tolerations")]),
        interpod,
    )


@dataclass(frozen=True, slots=True)
class _Spec:
    """The decoded part of a pod's spec that is equal for all pods of one template."""

    shape: Shape | None
    """The shape of the pods that are not being resized; None if the shape also depends on the pod's labels."""

    rest: Mapping[str, Any]
    """Further fields of `Pod`, as keyword arguments."""


_SPEC_FIELDS = frozenset(
    {"activeDeadlineSeconds", "affinity", "containers", "initContainers", "nodeSelector", "overhead", "priority"}
    | {"preemptionPolicy", "resourceClaims", "resources", "schedulerName", "schedulingGates", "tolerations"}
    | {"terminationGracePeriodSeconds", "topologySpreadConstraints"}
)
"""The fields of a pod's spec that `_read_spec` reads. They have the same values in all pods of one template."""

_CONTAINER_FIELDS = frozenset({"name", "ports", "resources", "restartPolicy"})

_MAX_CACHED_BYTES = 4096
"""The maximum size, in bytes, of a serialized pod spec whose decoded form is cached."""


def _read_spec_cached(spec: Raw) -> _Spec:
    """Return `_read_spec(spec)`, from a cache if an equal spec was decoded before."""
    said = {name: value for name, value in spec.items() if name in _SPEC_FIELDS}
    for name in ("containers", "initContainers"):
        if containers := read_objects(said, name):
            said[name] = [{key: each[key] for key in each if key in _CONTAINER_FIELDS} for each in containers]
    try:
        written = marshal.dumps(said, 2)  # in later versions the bytes depend on more than the values
    except ValueError:
        return _read_spec(spec)  # only in tests and files: specs from the API server can always be serialized
    return _read_serialized(written) if len(written) <= _MAX_CACHED_BYTES else _read_spec(spec)


@lru_cache(maxsize=4096)
def _read_serialized(written: bytes) -> _Spec:
    return _read_spec(marshal.loads(written))  # noqa: S302 - serialized by _read_spec_cached just before


def _read_spec(spec: Raw) -> _Spec:
    alone: Raw = {"spec": spec}
    rest = {
        "scheduler": read_name(spec, "schedulerName", "default-scheduler"),
        "priority": read_int(spec, "priority"),
        "preemption": read_preemption(spec),
        "gates": tuple([read_name(gate, "name") for gate in read_objects(spec, "schedulingGates")]),
        "lifetime": read_int(spec, "activeDeadlineSeconds") or None,
        "grace": max(0, read_int(spec, "terminationGracePeriodSeconds", 30)),
        "marked": has_markers(spec),
        "device_claims": read_device_claims(spec),
        "affinity": read_affinity(spec),
    }
    return _Spec(None if read_interpod_rules(alone) else decode_shape(alone), rest)


_MAX_CACHED_ENTRIES = 64
"""The maximum size of a cached shape: the number of its pseudo resources, or of its affinity terms and values."""


def _is_small(terms: Terms | None) -> bool:
    wanted = sum(1 + len(each.values) for term in terms or () for each in (*term.labels, *term.fields))
    return wanted + len(terms or ()) <= _MAX_CACHED_ENTRIES


@lru_cache(maxsize=8192)
def _shared_shape(
    requests: tuple[tuple[str, int], ...],
    node_selector: tuple[tuple[str, str], ...],
    node_terms: Terms | None,
    tolerations: tuple[Toleration, ...],
    interpod: InterPodRules | None,
) -> Shape:
    return Shape(requests, node_selector, node_terms, tolerations, interpod)


@lru_cache(maxsize=4096)
def _shared_toleration(key: str, operator: str, value: str, effect: str) -> Toleration:
    return Toleration(key, operator, value, effect)


def _read_toleration(raw: Raw) -> Toleration:
    return _shared_toleration(
        read_name(raw, "key"), read_name(raw, "operator", "Equal"), read_name(raw, "value"), read_name(raw, "effect")
    )


def _read_affinity(spec: Raw) -> Terms | None:
    affinity = read_map(spec, "affinity")
    if not affinity:
        return None
    return read_terms(read_map(affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")


_RESTARTS_ALL = "RestartAllContainersOnContainerExits"
_MAPS_USERS = "UserNamespacesHostNetworkSupport"
_BINDS_WITH_OPTIONS = "VolumeBindMountOptions"
_OCI_PROFILES = "SecurityProfileOCI"
_MLDSA_CERTIFICATES = "PodCertificateMLDSA"
_MLDSA_KEY_TYPES = frozenset({"MLDSA44", "MLDSA65", "MLDSA87"})


def _read_features(spec: Raw) -> tuple[str, ...]:
    """Return the names of the kubelet features that a pod with this spec needs, sorted.

    Source: component-helpers nodedeclaredfeatures, InferForScheduling (1.38). API servers before 1.38 reject pods that
    need SecurityProfileOCI or PodCertificateMLDSA.
    """
    found: set[str] = set()
    if _has_oci_profile(spec):
        found.add(_OCI_PROFILES)
    volumes = read_objects(spec, "volumes") if "volumes" in spec else ()
    if any("projected" in each and _needs_mldsa(each) for each in volumes):
        found.add(_MLDSA_CERTIFICATES)
    for each in (*read_objects(spec, "containers"), *read_objects(spec, "initContainers")):
        if "restartPolicyRules" in each and any(
            rule.get("action") == "RestartAllContainers" for rule in read_objects(each, "restartPolicyRules")
        ):
            found.add(_RESTARTS_ALL)
        mounts = read_objects(each, "volumeMounts") if "volumeMounts" in each else ()
        if any(mount.get("bindMountOptions") for mount in mounts):
            found.add(_BINDS_WITH_OPTIONS)
        if _has_oci_profile(each):
            found.add(_OCI_PROFILES)
    if spec.get("hostUsers") is False and spec.get("hostNetwork") is True:
        found.add(_MAPS_USERS)
    return tuple(sorted(found))


def _has_oci_profile(of: Raw) -> bool:
    """Return whether the seccomp profile of a container or pod spec is pulled from a registry (type OCI)."""
    if "securityContext" not in of:
        return False
    return read_map(read_map(of, "securityContext"), "seccompProfile").get("type") == "OCI"


def _needs_mldsa(volume: Raw) -> bool:
    """Return whether a projected volume has a pod certificate with an ML-DSA key."""
    sources = read_objects(read_map(volume, "projected"), "sources")
    return any(read_map(each, "podCertificate").get("keyType") in _MLDSA_KEY_TYPES for each in sources)


COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation (and, since 1.28, label) of the pods of an Indexed Job: the completion index."""

_REJECTED = "Pod was rejected: "
"""The start of the kubelet's message about a pod that it rejected (1.37, kubelet.go: rejectPod)."""

_OUT_OF = "OutOf"
_REFUSALS = frozenset({"NodeAffinity", "NodePorts", "NodeName", "TaintToleration", "UnexpectedAdmissionError"})
"""Reasons with which the kubelet rejects a pod (1.37, lifecycle/predicate.go), besides those that begin with OutOf."""

_PHASES = {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}


def decode_pod(
    obj: object, apis: Collection[str] | None = None, rule: ResizeRule = ResizeRule.LARGEST
) -> Pod | Malformed:
    """Decode a Pod; namespace, name and uid are required.

    ``apis`` are the apiVersions at which Serried reads groups (`ApiLevel.readable_versions`), None for all of them. If
    the pod was bound as a member of a PodGroup with another apiVersion, which Serried cannot read any more,
    `Pod.stranded` is True. ``rule`` says how the requests are counted while the pod is resized in place
    (`ApiLevel.resize_rule`).
    """
    return decode_or_malformed("Pod", partial(_decode, apis=apis, rule=rule), obj)


def _decode(obj: Raw, apis: Collection[str] | None, rule: ResizeRule) -> Pod:
    metadata, spec, status = read_map(obj, "metadata"), read_map(obj, "spec"), read_map(obj, "status")
    namespace, name = read_key(obj)
    if not namespace:
        raise ValueError("namespace is missing")
    labels = read_map(metadata, "labels")
    annotations = read_map(metadata, "annotations")
    place, owner = read_place(labels), _read_owner(obj)
    group, link = _read_group(metadata, spec, namespace)
    if group is None and place is None and (owner is None or owner.kind != JOB):
        # Pods of the owners that Serried knows are their gangs.
        group = read_kueue_group(metadata, namespace)
        link = Link.COUNTED if group is not None else None
    gang = read_text(annotations, GANG)
    known = _read_spec_cached(spec)
    shape = decode_shape(obj, rule) if known.shape is None or is_resized(obj) else known.shape
    conditions = _read_conditions(status)
    return Pod(
        namespace=namespace,
        name=name,
        uid=read_uid(obj),
        shape=shape,
        group=group,
        link=link,
        owner=owner,
        place=place,
        claims=read_claims(name, spec),
        own_claims=read_own_claims(name, spec),
        labels=read_labels(metadata, "labels"),
        features=_read_features(spec),
        index=_read_index(labels, annotations, place),
        deleting=is_deleting(obj),
        created=read_time(metadata, "creationTimestamp"),
        domain=read_name(annotations, DOMAIN),
        told=bool(gang),
        asked=read_text(annotations, ASKED),
        consumes=read_text(annotations, CONSUMES),
        stranded=bool(gang) and apis is not None and gang.partition(" ")[0] not in apis,
        claim_refs=read_claim_refs(spec, status),
        unclaimed=find_uncreated_claim(spec, status),
        version=read_version(obj),
        **known.rest,
        **_read_status(obj, status),
        **_read_disruption(conditions),
        **_read_scheduling_result(conditions, shape),
        node=(node := read_name(spec, "nodeName")),
        ready=bool(node) and ("Ready", "True") in conditions,
    )


def _read_status(obj: Raw, status: Raw) -> dict[str, Any]:
    said = read_text(status, "phase")
    phase = _PHASES.get(said, Phase.ACTIVE)
    ends = phase is not Phase.ACTIVE or is_deleting(obj)
    return {
        "nominated": read_name(status, "nominatedNodeName"),
        "phase": phase,
        "started": read_time(status, "startTime"),
        "unstarted": said == "Pending",
        "ends": read_end(read_map(obj, "metadata"), status) if ends else None,
        "refusal": _read_refusal(status),
    }


def _read_group(metadata: Raw, spec: Raw, namespace: str) -> tuple[GroupKey | None, Link | None]:
    """Return the group that the pod names, and by which means; (None, None) if it names none.

    The field of the spec takes precedence, then Serried's label, then the label of scheduler-plugins.
    """
    if group := read_group_field(spec, namespace):
        return group, Link.FIELD
    if group := read_group_label(metadata, namespace):
        return group, Link.LABEL
    if group := read_compatible_label(metadata, namespace):
        return group, Link.COMPATIBLE
    return None, None


def _read_owner(obj: Raw) -> ControllerRef | None:
    reference = read_controller(obj)
    return _shared_owner(reference.kind, reference.name, reference.uid) if reference else None


@lru_cache(maxsize=8192)
def _shared_owner(kind: str, name: str, uid: str) -> ControllerRef:
    return ControllerRef(kind, name, uid)


_Conditions = Mapping[tuple[str, str], Raw]
"""The conditions of a pod, as JSON objects, by (type, status)."""

_READ_CONDITIONS = frozenset({"PodScheduled", "Ready", DISRUPTION_TARGET})


def _read_conditions(status: Raw) -> _Conditions:
    found: dict[tuple[str, str], Raw] = {}
    for condition in read_objects(status, "conditions"):
        kind = read_text(condition, "type")
        if kind in _READ_CONDITIONS:
            found.setdefault((kind, read_text(condition, "status")), condition)
    return found


def _read_disruption(conditions: _Conditions) -> dict[str, Any]:
    """Return the fields of Pod from the condition DisruptionTarget; empty if it is not True."""
    condition = conditions.get((DISRUPTION_TARGET, "True"))
    if condition is None:
        return {}
    return {
        "disruption": read_name(condition, "reason") or "Disrupted",
        "disrupted": read_time(condition, "lastTransitionTime"),
        "disruption_message": read_text(condition, "message"),
    }


def _read_refusal(status: Raw) -> str:
    """Return the reason with which the kubelet rejected the bound pod (`Pod.refusal`); "" if it did not."""
    if read_text(status, "phase") != "Failed":
        return ""
    reason = read_name(status, "reason")
    refused = reason in _REFUSALS or reason.startswith(_OUT_OF) or read_text(status, "message").startswith(_REJECTED)
    return (reason or "Rejected") if refused else ""


def _read_index(labels: Raw, annotations: Raw, place: Place | None) -> int | None:
    if place is not None and (label := PARENTS[place.kind].labels.index):
        return read_index(labels, label)
    return read_index(annotations if annotations.get(COMPLETION_INDEX) else labels, COMPLETION_INDEX)


def may_be_repelled(pod: Pod) -> bool:
    """Return whether rules about other pods may restrict the nodes of a pod.

    That is so if it has such rules itself. It is also so for each waiting pod that may be a member, because the
    anti-affinity of another pod may exclude it.
    """
    return pod.shape.neighbours is not None or (pod.pending and pod.may_be_member)
