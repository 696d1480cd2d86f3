"""Pods (`decode_pod`), and their shapes (`Shape`): the part of a pod that decides on which nodes it fits.

Equal shapes are one shared object, and the raw pod is not kept. The spec of pods from one template is decoded once and
cached (`_read_spec_cached`).

Host ports become amounts of pseudo resources of which every node has the same (``resources.SHARES``), by the rules of
NodePorts (HostPortInfo.CheckConflict). So do rules about other pods where possible (``serried.api.interpod``). So
code that counts resources also keeps conflicting pods apart.

The reasons why kube-scheduler found no node are parsed from the pod's condition PodScheduled, the text of a FitError
(1.37, scheduler/framework/types.go): ``0/5 nodes are available: 2 Insufficient cpu, 3 cannot allocate all claims.
preemption: ...``.
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
    """Return the amounts that represent the pod's host ports and anti-affinity terms; empty for most pods.

    ``interpod`` are the pod's rules about other pods, None if it has none.
    """
    asked = _read_ports(read_map(pod, "spec"))
    if interpod is not None:
        asked.update(each.amount for each in interpod.apart)
    return asked


def read_affinity(spec: Raw) -> tuple[tuple[Requirement, ...], ...]:
    """Return the label selectors of the pod's required affinity to pods; empty for most pods."""
    affinity = read_map(spec, "affinity")
    terms = read_objects(read_map(affinity, "podAffinity"), _TERMS) if affinity else ()
    found = (read_label_selector(term, "labelSelector") for term in terms)
    return tuple([each for each in found if each is not None])


def _read_ports(spec: Raw) -> dict[str, int]:
    """Return the amounts for host ports: for a port on every address, all of its SHARES.

    For a port on one address: all SHARES of the port on that address, and one share of the port. So the port on every
    address and the port on one address exclude each other.
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
"""Serried's scheduling gate, added by its MutatingAdmissionPolicy and removed by the extender."""

HELD = "Serried holds this pod for its gang"
"""The start of filter's answer for a pod that is held; kube-scheduler writes it into the pod's condition and event.

The rest names the gang and why it waits. It must seldom change: each change updates the pod, and kube-scheduler
retries a pod that was updated (upstream's pkg/scheduler/backend/queue/scheduling_queue.go).
"""

KEPT = "Serried keeps these nodes for the first gang in its queue: see /debug/queue"
"""Filter's answer for a plain pod all of whose offered nodes are kept for a gang. Constant, for the same reason."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a pod that decides on which nodes it fits. Members with equal shapes are one class to the planner."""

    requests: tuple[tuple[str, int], ...]
    """The requested amounts, sorted by name. ``pods`` is always one of them.

    Some are of pseudo resources: host ports and anti-affinity by host name (``resources.SHARES``), and device claims
    (``resources.PROVIDED``).
    """

    node_selector: tuple[tuple[str, str], ...] = ()

    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    """The terms of the required node affinity, of which one must match; None without node affinity."""

    tolerations: tuple[Toleration, ...] = ()

    neighbours: InterPodRules | None = None
    """The pod's rules about other pods; None for most pods. Snapshots have the field under this name."""

    volumes: tuple[VolumeChoice, ...] = ()
    """The volume claims that are bound when the pod is scheduled (WaitForFirstConsumer), and so limit its nodes."""

    @property
    def extended(self) -> tuple[str, ...]:
        """The names of the extended resources that the pod requests."""
        # Read for every changed pod: the test for "/" saves most calls of is_extended.
        return tuple([name for name, _ in self.requests if "/" in name and is_extended(name)])


DISRUPTION_PREFIX = "serried: "
"""The start of the message of a DisruptionTarget condition that Serried has written."""

PREEMPTION_PREFIX = f"{DISRUPTION_PREFIX}preempted by "
"""The start of that message on a victim of a preemption. On other pods, which are evicted with a victim, it differs."""


class Link(StrEnum):
    """The means by which a pod names its group: its field, a label of one of three projects, or its Job."""

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
    """The pod's phase, reduced: ACTIVE (needs or uses a node), SUCCEEDED or FAILED."""

    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as the cache holds it. Decoding sets most fields; rules of the cache set the others."""

    namespace: str
    name: str
    uid: str
    """The identity of the pod: a Job or StatefulSet may recreate a pod under the same name."""

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
    """The group that the pod itself names, by its field or else its labels; None if it names none."""

    link: Link | None = None
    owner: ControllerRef | None = None

    place: Place | None = None
    """The pod's position in its parent (a JobSet or LeaderWorkerSet); None without a parent."""

    claims: tuple[str, ...] = ()
    """The names of the PersistentVolumeClaims that the pod mounts."""

    own_claims: frozenset[str] = NO_CLAIMS
    """The names among ``claims`` that are created for the pod's ephemeral volumes."""

    labels: Labels = field(default_factory=dict, hash=False)

    features: tuple[str, ...] = ()
    """The kubelet features that its node has to declare (`Node.features`)."""

    gates: tuple[str, ...] = ()
    """The names of all its scheduling gates, including Serried's."""

    index: int | None = None
    """The completion index in an Indexed Job, or the pod's number in its replica (the leader has 0)."""

    deleting: bool = False

    unschedulable: bool = False
    """True if kube-scheduler has tried the pod without success. It retries after an event."""

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
    """The time at which it ended, or has to end if it is being deleted, in seconds since 1970; else None."""

    disruption: str = ""
    """The reason of its condition DisruptionTarget if that is True; else ""."""

    disrupted: int | None = None
    """The lastTransitionTime of that condition, in seconds since 1970."""

    disruption_message: str = ""
    """The message of that condition."""

    refusal: str = ""
    """The reason with which the kubelet rejected the bound pod, such as ``OutOfcpu``; "" if it did not."""

    domain: str = ""
    """The annotation DOMAIN from its Binding: the gang's domain; "" without it."""

    told: bool = False
    """True if the pod has the annotation GANG from its Binding, which proves that the gang had its quorum."""

    asked: str = ""
    """The annotation ASKED: when and where an autoscaler was asked for a node for it; "" if none was."""

    consumes: str = ""
    """The name of the ProvisioningRequest of Cluster Autoscaler that has got its node; "" for none."""

    stranded: bool = False
    """True if the pod was bound as a member of a gang whose API is no longer served. Its group cannot be read."""

    marked: bool = False
    """True if the pod requests all MARKERS, so that an isolated kube-scheduler calls the extender for it."""

    device_claims: tuple[str, ...] = ()
    """The origins of its device claims (`names.read_device_claims`). Only kube-scheduler can count them in general."""

    claim_refs: tuple[ClaimRef, ...] = ()
    """The device claims by template and name."""

    counted: bool = False
    """True if Serried counts all ``device_claims`` and ``uncounted`` itself. Set by `rules.devices.cluster`."""

    uncountable: str = ""
    """A phrase why ``counted`` is False; "" if nothing prevents it."""

    uncounted: tuple[str, ...] = ()
    """The requested extended resources that nodes need not list as allocatable. Set by `rules.extended.cluster`."""

    missing: tuple[str, ...] = ()
    """The names in ``uncounted`` that neither a node nor a DeviceClass provides."""

    provided: tuple[str, ...] = ()
    """The names in ``uncounted`` that a DeviceClass provides."""

    offered: bool = False
    """True if filter held the pod in its last attempt: kube-scheduler itself had found nodes for it."""

    said: str = ""
    """kube-scheduler's reasons for rejecting nodes in its last attempt. Nodes that they do not count were not rejected.

    "" if there are no such reasons, if it offered a node to Serried, or if every plan checks these reasons itself.
    """

    objection: str = ""
    """The value of ``said`` if the reasons reject all nodes; else ""."""

    wants_room: bool = False
    """True if, by ``objection``, some nodes may lack only free resources or other members. Both may come later."""

    lacks_only_room: bool = False
    """True if all reasons of kube-scheduler's last attempt are ones that every plan checks itself."""

    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """The label selectors of its required affinity to pods."""

    obstacle: str = ""
    """A phrase why no node can take the pod, however much is free; "" if no such reason is known. Set by rules."""

    awaits: str = ""
    """A phrase naming what a rule still has to count before the pod's nodes are known; "" if all is counted."""

    outranked: bool = False
    """True if the obstacle is another member that has to be scheduled first. kube-scheduler offers nodes until then."""

    unclaimed: str = ""
    """The template of a device claim that does not exist yet, "" for none. kube-scheduler waits for the claim."""

    version: str = ""

    @property
    def claims_devices(self) -> bool:
        """Return whether the pod requests devices, by a claim or by an extended resource of a DeviceClass."""
        return bool(self.claim_refs) or len(self.uncounted) > len(self.missing)

    @property
    def only_scheduler_counts(self) -> bool:
        """Return whether the pod requests something that only kube-scheduler can count."""
        return bool(self.uncounted or self.device_claims) and not self.counted

    @property
    def refused(self) -> bool:
        """Return whether no node can take the pod as far as is known, so that planning it would be useless.

        That is the case, for example, while one of its claims does not exist or a rule is still counting. A pod that
        requests a resource which nothing provides is refused without asking kube-scheduler, unless kube-scheduler
        offers a node: it may ignore the resource, or know more.
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
        """Return whether Serried has marked the pod as a victim of a preemption. It may not be evicted yet, or ever."""
        return self.disruption == PREEMPTED and self.disruption_message.startswith(PREEMPTION_PREFIX)

    @property
    def is_marked_follower(self) -> bool:
        """Return whether Serried has marked the pod to be evicted together with a preempted member of its gang."""
        return (
            self.disruption == PREEMPTED
            and self.disruption_message.startswith(DISRUPTION_PREFIX)
            and not self.is_marked_victim
        )

    @property
    def pending(self) -> bool:
        """Return whether the pod has no node yet and may still get one."""
        return not self.node and self.phase is Phase.ACTIVE and not self.deleting

    @property
    def may_be_member(self) -> bool:
        """Return whether the pod may be a member of a group: it names a group, or belongs to a parent or a Job.

        Other pods never are members. The policy that marks pods (``manifests/kustomize/marker``) has the same rule.
        """
        return self.group is not None or self.place is not None or (self.owner is not None and self.owner.kind == JOB)

    @property
    def held_by_gate(self) -> bool:
        """Return whether the pod has Serried's scheduling gate."""
        return HELD_GATE in self.gates

    @property
    def gated_by_others(self) -> bool:
        """Return whether the pod has a scheduling gate other than Serried's (reason MemberGated)."""
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
"""Matches kube-scheduler's reasons that every plan checks itself, with newer data."""

_FIXED_BY_RESOURCES = re.compile(
    rf"{_CHECKED_BY_PLANS.pattern}|\d+ (?:Insufficient .*|node\(s\) didn't have free ports for the requested pod ports)"
)
"""Matches the reasons that free resources would remove, if Serried counts all that the pod requests."""

_LACKS_AFFINITY = re.compile(r"\d+ node\(s\) didn't match pod affinity rules")
"""Matches a reason that may disappear when other members have their nodes."""

_ANTI_AFFINITY = re.compile(
    r"\d+ node\(s\) didn't (?:match pod anti-affinity|satisfy existing pods anti-affinity) rules"
)
"""Matches a reason that Serried counts itself if the anti-affinity is an amount (`Shape.requests`)."""

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
"""The reasons that Serried counts itself for a pod with such an amount, by the prefix of the amount's name."""


def _read_scheduling_result(conditions: "_Conditions", shape: Shape) -> dict[str, Any]:
    """Return the fields of Pod that kube-scheduler's last attempt decides, from the condition PodScheduled False.

    Empty without the condition. A gated pod has the condition, too, but was never tried.
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
    """Return whether free resources, or other members in place, could make some node suitable for a pod.

    ``objection`` are kube-scheduler's reasons, ``shape`` is the pod's shape. Reasons about amounts in the shape count
    as removable by free resources, even if only kube-scheduler can count them.
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
    """Return whether some nodes were rejected because the pod's required affinity finds no pod there."""
    return any(_LACKS_AFFINITY.fullmatch(reason) for reason in objection.split(", "))


def is_by_node(objection: str) -> bool:
    """Return whether the reasons count nodes. If not, they are about the pod on any node (a PreFilter plugin)."""
    return _COUNT.match(objection) is not None


def is_about_one_node(objection: str) -> bool:
    """Return whether the reasons are about a single node.

    In a cluster with more nodes it is the node that filter answered: a Reserve, Permit or PreBind plugin rejected it
    afterwards (a FitError with NumAllNodes 1 in upstream's pkg/scheduler/schedule_one.go).
    """
    return objection.startswith("1 ") and ", " not in objection


def is_partly_checked(objection: str) -> bool:
    """Return whether some nodes were rejected for a reason that every plan checks itself, such as too little CPU."""
    return any(_CHECKED_BY_PLANS.fullmatch(reason) for reason in objection.split(", "))


@lru_cache(maxsize=1024)
def _find_objection(message: str) -> tuple[str, str, bool]:
    """Parse the message of a FitError. Return the fields ``said``, ``objection`` and ``lacks_only_room`` of a Pod."""
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
    """Return the shape of a raw pod. Pods with equal shapes usually share one object (an LRU cache)."""
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
    """The shape of a pod that is not being resized; None if it also depends on the pod's labels."""

    rest: Mapping[str, Any]
    """Keyword arguments for Pod."""


_SPEC_FIELDS = frozenset(
    {"activeDeadlineSeconds", "affinity", "containers", "initContainers", "nodeSelector", "overhead", "priority"}
    | {"preemptionPolicy", "resourceClaims", "resources", "schedulerName", "schedulingGates", "tolerations"}
    | {"terminationGracePeriodSeconds", "topologySpreadConstraints"}
)
"""The fields that `_read_spec` reads. It does not read node, group and volumes, which differ between pods."""

_CONTAINER_FIELDS = frozenset({"name", "ports", "resources", "restartPolicy"})

_MAX_CACHED_BYTES = 4096
"""The size of the largest serialized spec that is cached."""


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
"""The limit on amounts, and on terms with their values, of a shape that is cached."""


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

    ``apis`` are the apiVersions at which Serried reads groups (`ApiLevel.readable_versions`), None for all of them. A
    bound pod of a gang with another apiVersion is `Pod.stranded`. ``rule`` says how the requests are counted while the
    pod is resized in place (`ApiLevel.resize_rule`).
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
    """Return the group that the pod names, and the means: its field, else Serried's label, else scheduler-plugins'."""
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
"""The conditions of a pod by (type, status)."""

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
    """Return `Pod.refusal`: the reason with which the kubelet rejected the pod; "" if it did not."""
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
    """Return whether rules about other pods may decide about a pod: its own, or the anti-affinity of other pods."""
    return pod.shape.neighbours is not None or (pod.pending and pod.may_be_member)
