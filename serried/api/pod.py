"""A pod, as far as gangs and placement need it, and its shape: the part that decides where it fits.

Equal shapes are one object, and nothing of the raw pod is kept. What pods of one template have in common is read once:
a spec that says the same again, as in most changes of a pod, is recognised (`_recall_spec`). Host ports become requests
for amounts of which every node has the same (``serried.api.resources.SHARES``), by the rules of NodePorts
(HostPortInfo.CheckConflict); so do the rules about other pods, as far as they are amounts
(``serried.api.neighbours``). Whatever counts resources keeps such pods apart.

Why kube-scheduler found no node is read from the pod's condition, the text of a FitError (1.37, scheduler/framework/
types.go): ``0/5 nodes are available: 2 Insufficient cpu, 3 cannot allocate all claims. preemption: ...``.
"""

import marshal
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from serried.api.device import ClaimRef, read_claim_refs, read_unclaimed
from serried.api.kinds import PARENTS
from serried.api.level import ResizeRule
from serried.api.names import (
    DISRUPTION_TARGET,
    DOMAIN,
    GANG,
    JOB,
    PREEMPTED,
    GroupKey,
    Malformed,
    Raw,
    attempt,
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
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_text,
    read_time,
    read_uid,
    read_version,
)
from serried.api.neighbours import APART, SHARING, Neighbours, read_neighbours
from serried.api.parent import Place, read_place
from serried.api.priority import PreemptionPolicy, read_preemption
from serried.api.resources import (
    ATTACHED,
    CHOSEN,
    DEVICES,
    ONCE,
    PROVIDED,
    SHARES,
    is_extended,
    is_marked,
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
from serried.api.volume import NO_CLAIMS, Choice, read_claims, read_own_claims

_ANY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104  # read, not bound
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def read_conflicts(pod: Raw, neighbours: Neighbours | None = None) -> dict[str, int]:
    """The amounts that stand for the pod's host ports and anti-affinity terms; empty for most pods.

    ``neighbours`` are its rules, as read from it.
    """
    asked = _read_ports(read_map(pod, "spec"))
    if neighbours is not None:
        asked.update(each.amount for each in neighbours.apart)
    return asked


def read_affinity(spec: Raw) -> tuple[tuple[Requirement, ...], ...]:
    """The selectors of the pod's required affinity to pods; empty for most pods."""
    affinity = read_map(spec, "affinity")
    terms = read_objects(read_map(affinity, "podAffinity"), _TERMS) if affinity else ()
    found = (read_label_selector(term, "labelSelector") for term in terms)
    return tuple([each for each in found if each is not None])


def _read_ports(spec: Raw) -> dict[str, int]:
    """All shares of a port that is taken on every address; else one of its shares, and all shares on that address."""
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
"""Our scheduling gate: set by the MutatingAdmissionPolicy, lifted by the extender."""

HELD = "Serried holds this pod for its gang"
"""How the text begins that filter says of a held pod; kube-scheduler puts it into the pod's condition and event.

What follows names the gang and why it waits, and seldom changes: a text that changes is an update of the pod, after
which the scheduler tries it again (upstream's pkg/scheduler/backend/queue/scheduling_queue.go).
"""

KEPT = "Serried keeps these nodes for the first gang in its queue: see /debug/queue"
"""The same of a pod that may not use the offered nodes. It is constant."""


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

    neighbours: Neighbours | None = None
    """Its rules about other pods; None for most pods. Who counts for them is an amount (`Neighbours.matchings`)."""

    volumes: tuple[Choice, ...] = ()
    """The claims for which kube-scheduler will choose volumes where the pod is, and which limit where that can be."""

    @property
    def extended(self) -> tuple[str, ...]:
        """The extended resources that the pod asks for, as nodes name them."""
        # Asked of every pod that changes: most names are done with before a call.
        return tuple([name for name, _ in self.requests if "/" in name and is_extended(name)])


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
    """Where the pod stands in its parent."""

    claims: tuple[str, ...] = ()
    """The names of the PersistentVolumeClaims that the pod mounts."""

    own_claims: frozenset[str] = NO_CLAIMS
    """Those of them that are made for the pod, from its ephemeral volumes."""

    labels: Labels = field(default_factory=dict, hash=False)

    features: tuple[str, ...] = ()
    """The names of the features that its node has to declare (`Node.features`)."""

    gates: tuple[str, ...] = ()
    """All scheduling gates, ours included."""

    index: int | None = None
    """The completion index in an Indexed Job, or the pod's number in its replica (the leader has 0)."""

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

    claim_refs: tuple[ClaimRef, ...] = ()
    """Those claims by name."""

    counted: bool = False
    """Whether all of ``device_claims`` and ``uncounted`` is counted all the same (`rules.devices.cluster`)."""

    uncountable: str = ""
    """Why it is not, a phrase."""

    uncounted: tuple[str, ...] = ()
    """The extended resources that nodes need not show (`rules.extended.cluster`): as ``device_claims``."""

    missing: tuple[str, ...] = ()
    """Those of ``uncounted`` that nothing brings, as far as can be seen: no node has them, no DeviceClass either."""

    provided: tuple[str, ...] = ()
    """Those of ``uncounted`` that a DeviceClass provides."""

    offered: bool = False
    """Whether kube-scheduler had a node for the pod when it tried it last, and it was held: so it misses nothing."""

    said: str = ""
    """Why kube-scheduler took no node for the pod when it tried it last; of nodes that are not told of it took one.

    "" if it did not say so, if a node was offered to us, and for reasons that every plan checks itself.
    """

    objection: str = ""
    """The same, if that was said of all nodes; else ""."""

    wants_room: bool = False
    """Whether, as far as that says, some nodes may lack nothing but room, which others may leave, or mates."""

    lacks_only_room: bool = False
    """Whether kube-scheduler had no node for the pod when it tried it last, only for reasons that every plan checks."""

    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """The labels of those beside whom the pod must be: the selectors of its required affinity to pods."""

    obstacle: str = ""
    """Why no node can take the pod, whatever room there is, a phrase; "" for nothing that is known of here."""

    awaits: str = ""
    """What a rule has to count before it is known which nodes can take the pod, a phrase; "" if all is counted."""

    outranked: bool = False
    """Whether the obstacle is a mate that comes first: until that one has its node, kube-scheduler offers nodes."""

    unclaimed: str = ""
    """The template of a claim that is still to be made; kube-scheduler does not try the pod before that."""

    version: str = ""

    @property
    def claims_devices(self) -> bool:
        """Whether it asks for devices: by claims, or by a resource that a DeviceClass provides."""
        return bool(self.claim_refs) or len(self.uncounted) > len(self.missing)

    @property
    def counted_elsewhere(self) -> bool:
        """Asks for what kube-scheduler alone can count."""
        return bool(self.uncounted or self.device_claims) and not self.counted

    @property
    def refused(self) -> bool:
        """As far as anybody knows there is no node for it, and no room that a plan could find would help.

        That is the case while a claim of it does not exist, say, or what its rules mean is still being counted. What
        nothing brings is refused before kube-scheduler says so. One that ignores such a resource, or knows more, offers
        a node all the same.
        """
        if self.awaits or (self.obstacle and (self.outranked or not self.offered)):
            return True
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

    @property
    def foreign_gates(self) -> tuple[str, ...]:
        """The scheduling gates that are not ours."""
        return tuple(gate for gate in self.gates if gate != HELD_GATE)


_NO_NODE = re.compile(r"0/(?P<nodes>\d+) nodes are available: (?P<reasons>.*?)(?:\. |\.?$)")
_COUNT = re.compile(r"\d+(?= )")

_CHECKED_BY_PLANS = re.compile(
    r"\d+ (?:Insufficient (?:cpu|memory|ephemeral-storage)|Too many pods|node\(s\) had untolerated taint.*"
    r"|node\(s\) were unschedulable|node\(s\) didn't match Pod's node affinity/selector)"
)
"""The reasons that every plan checks itself, with newer data."""

_FOR_ROOM = re.compile(
    rf"{_CHECKED_BY_PLANS.pattern}|\d+ (?:Insufficient .*|node\(s\) didn't have free ports for the requested pod ports)"
)
"""Those, and what is counted of a pod that asks for nothing that the scheduler alone can count."""

_BESIDE = re.compile(r"\d+ node\(s\) didn't match pod affinity rules")
"""What may be otherwise once mates of the pod have their nodes."""

_APART = re.compile(r"\d+ node\(s\) didn't (?:match pod anti-affinity|satisfy existing pods anti-affinity) rules")
"""What is counted of a pod whose anti-affinity by host name is an amount (`Shape.requests`)."""

_IN_USE = re.compile(r"\d+ node\(s\) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode .*")

_MANY_VOLUMES = re.compile(r"\d+ node\(s\) exceed max volume count")
_IN_FLIGHT = re.compile(r"resource claim \S+ is in the process of being allocated")

_NO_DEVICES = re.compile(r"\d+ cannot allocate all claims")

_NO_VOLUME = re.compile(r"\d+ node\(s\) didn't find available persistent volumes to bind")

_KEPT_OFF = {
    APART: _APART,
    ONCE: _IN_USE,
    ATTACHED: _MANY_VOLUMES,
    CHOSEN: _NO_VOLUME,
    DEVICES: _NO_DEVICES,
    SHARING: _NO_DEVICES,
}
"""By how the name of an amount begins, the reason that is counted of a pod that asks for some."""


def _read_trial(conditions: "_Conditions", shape: Shape) -> dict[str, Any]:
    """What kube-scheduler says of a pod that has no node yet: the condition PodScheduled is False.

    The objection is the scheduler's reasons, with numbers of nodes, why no node would take the pod when it was last
    tried. There is none if it did not say so, if a node was offered to us, and for reasons that every plan checks
    itself. A gated pod has the condition, too, and was never tried.
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
        "wants_room": bool(objection) and is_for_room(objection, shape),
        "lacks_only_room": only_room,
    }


def is_for_room(objection: str, shape: Shape) -> bool:
    """Whether room on some nodes, or mates beside it, could be all that a pod lacks, by the scheduler's reasons.

    ``shape`` is the pod's. What it asks for that the scheduler alone can count is taken for counted.
    """
    reasons = objection.split(", ") if objection else ()
    kept_off = [
        reason for prefix, reason in _KEPT_OFF.items() if any(name.startswith(prefix) for name, _ in shape.requests)
    ]
    mended = (_FOR_ROOM, _BESIDE, *kept_off)
    return any(pattern.fullmatch(reason) for reason in reasons for pattern in mended)


def lacks_neighbours(objection: str) -> bool:
    """Whether some nodes were refused because nobody is there beside whom the pod must be."""
    return any(_BESIDE.fullmatch(reason) for reason in objection.split(", "))


def is_by_node(objection: str) -> bool:
    """Whether the reasons are about nodes; else they are about the pod, wherever it would be."""
    return _COUNT.match(objection) is not None


def is_about_one_node(objection: str) -> bool:
    """Whether the reason is that of one node.

    Where there are more, it is the one that filter had answered: a Reserve, Permit or PreBind plugin has refused it
    (FitError with NumAllNodes 1 in upstream's pkg/scheduler/schedule_one.go).
    """
    return objection.startswith("1 ") and ", " not in objection


def is_partly_checked(objection: str) -> bool:
    """Whether some nodes were refused for a reason that every plan checks itself, such as too little CPU."""
    return any(_CHECKED_BY_PLANS.fullmatch(reason) for reason in objection.split(", "))


@lru_cache(maxsize=1024)
def _find_objection(message: str) -> tuple[str, str, bool]:
    """Return the scheduler's reasons, what of them is an objection, and whether plans check all of them."""
    found = _NO_NODE.match(message)
    if found is None or HELD in message:
        return "", "", False
    said = found["reasons"]
    reasons = said.split(", ")
    if any(_IN_FLIGHT.fullmatch(reason) for reason in reasons):
        return "", "", False  # it is tried again as soon as the mate with which it shares the claim is further
    if all(_CHECKED_BY_PLANS.fullmatch(reason) for reason in reasons):
        return "", "", True
    # Each node has at least one reason; what a PreFilter plugin says of the pod has no numbers.
    counts = [int(count[0]) for reason in reasons if (count := _COUNT.match(reason))]
    return said, "" if counts and sum(counts) < int(found["nodes"]) else said, False


def decode_shape(pod: Raw, rule: ResizeRule = ResizeRule.LARGEST) -> Shape:
    """The shape of a raw pod; one object for all pods with an equal one, as long as the cache remembers it."""
    spec = read_map(pod, "spec")
    requests = pod_requests(pod, rule)
    neighbours = read_neighbours(pod)
    others = read_conflicts(pod, neighbours)
    if claims := read_device_claims(spec):
        others = {**others, **{PROVIDED + claim: count for claim, count in Counter(claims).items()}}
    terms = _read_affinity(spec)
    # What is large is kept for as long as a pod has it, and not in the cache: few pods are alike in that.
    share = _shared_shape if _is_usual(terms) and len(others) <= _MAX_SHARED else Shape
    return share(
        tuple(sorted((*requests, *others.items()))) if others else requests,
        tuple(sorted(read_labels(spec, "nodeSelector").items())),
        terms,
        tuple([_read_toleration(raw) for raw in read_objects(spec, "tolerations")]),
        neighbours,
    )


@dataclass(frozen=True, slots=True)
class _Spec:
    """What pods of one template have in common."""

    shape: Shape | None
    """The shape while the kubelet reports no resize; None where it depends on the pod's labels, too."""

    rest: Mapping[str, Any]
    """Fields of a Pod."""


_READ = frozenset(
    {"activeDeadlineSeconds", "affinity", "containers", "initContainers", "nodeSelector", "overhead", "priority"}
    | {"preemptionPolicy", "resourceClaims", "resources", "schedulerName", "schedulingGates", "tolerations"}
    | {"terminationGracePeriodSeconds", "topologySpreadConstraints"}
)
"""The fields that `_read_spec` reads. Node, group and volumes are not among them: they are the pod's own."""

_READ_OF_CONTAINERS = frozenset({"name", "ports", "resources", "restartPolicy"})

_MAX_WRITTEN = 4096
"""Up to how many bytes a spec may have to be recognised."""


def _recall_spec(spec: Raw) -> _Spec:
    """As `_read_spec`, from memory where a spec has said the same before. A field of another type is read anew."""
    said = {name: value for name, value in spec.items() if name in _READ}
    for name in ("containers", "initContainers"):
        if containers := read_objects(said, name):
            said[name] = [{key: each[key] for key in each if key in _READ_OF_CONTAINERS} for each in containers]
    try:
        written = marshal.dumps(said, 2)  # in later versions the bytes depend on more than the values
    except ValueError:
        return _read_spec(spec)  # a test's, or a file's: the API server sends nothing that cannot be written
    return _read_written(written) if len(written) <= _MAX_WRITTEN else _read_spec(spec)


@lru_cache(maxsize=4096)
def _read_written(written: bytes) -> _Spec:
    return _read_spec(marshal.loads(written))  # noqa: S302 - our own, of a moment ago


def _read_spec(spec: Raw) -> _Spec:
    alone: Raw = {"spec": spec}
    rest = {
        "scheduler": read_name(spec, "schedulerName", "default-scheduler"),
        "priority": read_int(spec, "priority"),
        "preemption": read_preemption(spec),
        "gates": tuple([read_name(gate, "name") for gate in read_objects(spec, "schedulingGates")]),
        "lifetime": read_int(spec, "activeDeadlineSeconds") or None,
        "grace": max(0, read_int(spec, "terminationGracePeriodSeconds", 30)),
        "marked": is_marked(spec),
        "device_claims": read_device_claims(spec),
        "affinity": read_affinity(spec),
    }
    return _Spec(None if read_neighbours(alone) else decode_shape(alone), rest)


_MAX_SHARED = 64
"""Up to how many of anything a shape may have for the cache to keep it."""


def _is_usual(terms: Terms | None) -> bool:
    wanted = sum(1 + len(each.values) for term in terms or () for each in (*term.labels, *term.fields))
    return wanted + len(terms or ()) <= _MAX_SHARED


@lru_cache(maxsize=8192)
def _shared_shape(
    requests: tuple[tuple[str, int], ...],
    node_selector: tuple[tuple[str, str], ...],
    node_terms: Terms | None,
    tolerations: tuple[Toleration, ...],
    neighbours: Neighbours | None,
) -> Shape:
    return Shape(requests, node_selector, node_terms, tolerations, neighbours)


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
_PULLS_PROFILES = "SecurityProfileOCI"
_SIGNS_BY_LATTICES = "PodCertificateMLDSA"
_LATTICE_KEYS = frozenset({"MLDSA44", "MLDSA65", "MLDSA87"})


def _read_features(spec: Raw) -> tuple[str, ...]:
    """Return the names of the kubelet's features that a pod with this spec needs, sorted.

    Source: component-helpers nodedeclaredfeatures, InferForScheduling (1.38). API servers before 1.38 refuse what needs
    one of the last two.
    """
    found: set[str] = set()
    if _pulls_profile(spec):
        found.add(_PULLS_PROFILES)
    volumes = read_objects(spec, "volumes") if "volumes" in spec else ()
    if any("projected" in each and _signs_by_lattice(each) for each in volumes):
        found.add(_SIGNS_BY_LATTICES)
    for each in (*read_objects(spec, "containers"), *read_objects(spec, "initContainers")):
        if "restartPolicyRules" in each and any(
            rule.get("action") == "RestartAllContainers" for rule in read_objects(each, "restartPolicyRules")
        ):
            found.add(_RESTARTS_ALL)
        mounts = read_objects(each, "volumeMounts") if "volumeMounts" in each else ()
        if any(mount.get("bindMountOptions") for mount in mounts):
            found.add(_BINDS_WITH_OPTIONS)
        if _pulls_profile(each):
            found.add(_PULLS_PROFILES)
    if spec.get("hostUsers") is False and spec.get("hostNetwork") is True:
        found.add(_MAPS_USERS)
    return tuple(sorted(found))


def _pulls_profile(of: Raw) -> bool:
    """Return whether the seccomp profile of this container, or of this spec of a pod, comes from a registry."""
    if "securityContext" not in of:
        return False
    return read_map(read_map(of, "securityContext"), "seccompProfile").get("type") == "OCI"


def _signs_by_lattice(volume: Raw) -> bool:
    """Return whether this projected volume has a certificate for a key of ML-DSA."""
    sources = read_objects(read_map(volume, "projected"), "sources")
    return any(read_map(each, "podCertificate").get("keyType") in _LATTICE_KEYS for each in sources)


COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation, and since 1.28 label too, of the pods of an Indexed Job."""

_REJECTED = "Pod was rejected: "
"""The begin of the kubelet's message about a pod that it never ran (1.37, kubelet.go: rejectPod)."""

_OUT_OF = "OutOf"
_REFUSALS = frozenset({"NodeAffinity", "NodePorts", "NodeName", "TaintToleration", "UnexpectedAdmissionError"})
"""Reasons with which the kubelet refuses a pod (1.37, lifecycle/predicate.go), besides those that begin with OutOf."""

_PHASES = {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}


def decode_pod(
    obj: object, apis: Collection[str] | None = None, rule: ResizeRule = ResizeRule.LARGEST
) -> Pod | Malformed:
    """A Pod from its JSON object; namespace, name and uid are required.

    ``apis`` are the apiVersions at which groups are read (`ApiLevel.read`); without, that is all of them. By ``rule``
    a resize is counted (`ApiLevel.resize_rule`).
    """
    return attempt("Pod", partial(_decode, apis=apis, rule=rule), obj)


def _decode(obj: Raw, apis: Collection[str] | None, rule: ResizeRule) -> Pod:
    metadata, spec, status = read_map(obj, "metadata"), read_map(obj, "spec"), read_map(obj, "status")
    namespace, name = read_key(obj)
    if not namespace:
        raise ValueError("namespace is missing")
    labels = read_map(metadata, "labels")
    annotations = read_map(metadata, "annotations")
    group, link = _read_group(metadata, spec, namespace)
    place = read_place(labels)
    gang = read_text(annotations, GANG)
    known = _recall_spec(spec)
    shape = decode_shape(obj, rule) if known.shape is None or is_resized(obj) else known.shape
    conditions = _read_conditions(status)
    return Pod(
        namespace=namespace,
        name=name,
        uid=read_uid(obj),
        shape=shape,
        group=group,
        link=link,
        owner=_read_owner(obj),
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
        stranded=bool(gang) and apis is not None and gang.partition(" ")[0] not in apis,
        claim_refs=read_claim_refs(spec, status),
        unclaimed=read_unclaimed(spec, status),
        version=read_version(obj),
        **known.rest,
        **_read_status(obj, status),
        **_read_disruption(conditions),
        **_read_trial(conditions, shape),
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
    """The group that the pod names, and by what: its field counts first, then our label, then the compatible label."""
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
"""By type and status, the first condition that has them."""

_READ_CONDITIONS = frozenset({"PodScheduled", "Ready", DISRUPTION_TARGET})


def _read_conditions(status: Raw) -> _Conditions:
    found: dict[tuple[str, str], Raw] = {}
    for condition in read_objects(status, "conditions"):
        kind = read_text(condition, "type")
        if kind in _READ_CONDITIONS:
            found.setdefault((kind, read_text(condition, "status")), condition)
    return found


def _read_disruption(conditions: _Conditions) -> dict[str, Any]:
    """What the condition DisruptionTarget says, if it is True."""
    condition = conditions.get((DISRUPTION_TARGET, "True"))
    if condition is None:
        return {}
    return {
        "disruption": read_name(condition, "reason") or "Disrupted",
        "disrupted": read_time(condition, "lastTransitionTime"),
        "disruption_message": read_text(condition, "message"),
    }


def _read_refusal(status: Raw) -> str:
    """Why the kubelet refused to run the pod; "" if it did not refuse."""
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
    """Return whether the anti-affinity of others could decide about a gang with a pod, or it has such rules itself."""
    return pod.shape.neighbours is not None or (pod.pending and pod.linked)
