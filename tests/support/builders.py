"""Fluent builders of cluster objects: ``node("n1").rack("r1").cpu(8)``, ``pod("p1").cpu(1).in_group("g")``.

Every method returns a new builder, so several objects can be built from one. ``raw()`` returns the object as the API
server sends it, ``value()`` the same object decoded by ``serried.api``.
"""

from copy import deepcopy
from typing import Any, Self, TypeVar

from serried.api.group import PodGroup, Workload, decode_compatible_group, decode_pod_group, decode_workload
from serried.api.job import Job, decode_job
from serried.api.kinds import PARENTS
from serried.api.level import FIRST_QUORUM, READY
from serried.api.names import (
    COMPATIBLE_LABEL,
    DISRUPTION_TARGET,
    GANG_POLICY,
    KUEUE_COUNT,
    KUEUE_GROUP,
    POD_GROUP_LABEL,
    PREEMPTED,
    REPLICA,
    REQUIRED_TOPOLOGY,
    Disruption,
    Malformed,
)
from serried.api.node import Node, decode_node
from serried.api.pod import COMPLETION_INDEX, HELD_GATE, Pod, decode_pod
from serried.api.preference import Level, write_levels

RACK = "example.com/rack"
"""The topology key that ``rack`` sets."""

Raw = dict[str, Any]
Value = TypeVar("Value")


class Builder:
    """The methods of all builders: for metadata, and for any field."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw

    def raw(self) -> Raw:
        """Return a copy of the JSON object."""
        return deepcopy(self._raw)

    def with_field(self, value: Any, *path: str) -> Self:
        """Set the field at ``path``. Missing parents are created."""
        return type(self)(_put(self._raw, path, value))

    def with_item(self, item: Any, *path: str) -> Self:
        """Append ``item`` to the list at ``path``, which may be missing."""
        found: Any = self._raw
        for name in path:
            found = found.get(name) or {}
        return self.with_field([*found, item], *path)

    def label(self, key: str, value: str) -> Self:
        """With a label."""
        return self.with_field(value, "metadata", "labels", key)

    def annotation(self, key: str, value: str) -> Self:
        """With an annotation."""
        return self.with_field(value, "metadata", "annotations", key)

    def uid(self, uid: str) -> Self:
        """With this UID instead of the default one, which is made from kind and name."""
        return self.with_field(uid, "metadata", "uid")

    def namespace(self, namespace: str) -> Self:
        """In a namespace other than "default"."""
        return self.with_field(namespace, "metadata", "namespace")

    def version(self, version: str) -> Self:
        """With a resourceVersion."""
        return self.with_field(version, "metadata", "resourceVersion")

    def deleting(self) -> Self:
        """With a deletion timestamp."""
        return self.with_field("2026-01-01T00:00:00Z", "metadata", "deletionTimestamp")

    def controlled_by(self, kind: str, name: str, uid: str = "") -> Self:
        """With a controlling owner reference. The default UID is that of a builder of this kind and name."""
        reference = {"kind": kind, "name": name, "uid": uid or _uid(kind, name), "controller": True}
        return self.with_item(reference, "metadata", "ownerReferences")

    def owned_by(self, kind: str, name: str, uid: str = "") -> Self:
        """With an owner reference that does not control."""
        reference = {"kind": kind, "name": name, "uid": uid or _uid(kind, name)}
        return self.with_item(reference, "metadata", "ownerReferences")


class NodeBuilder(Builder):
    """Builds a node."""

    def value(self) -> Node:
        """Return the decoded node. Fail if it is malformed."""
        return require_valid(decode_node(self._raw))

    def allocatable(self, resource: str, quantity: str | int) -> Self:
        """With an amount of any resource."""
        return self.with_field(str(quantity), "status", "allocatable", resource)

    def cpu(self, quantity: str | int) -> Self:
        """With this many CPUs."""
        return self.allocatable("cpu", quantity)

    def memory(self, quantity: str | int) -> Self:
        """With this much memory."""
        return self.allocatable("memory", quantity)

    def pods(self, count: int) -> Self:
        """With room for this many pods."""
        return self.allocatable("pods", count)

    def rack(self, name: str) -> Self:
        """In a rack (label ``RACK``)."""
        return self.label(RACK, name)

    def taint(self, key: str, effect: str = "NoSchedule", value: str = "") -> Self:
        """With a taint."""
        return self.with_item({"key": key, "value": value, "effect": effect}, "spec", "taints")

    def cordoned(self) -> Self:
        """Unschedulable."""
        return self.with_field(True, "spec", "unschedulable")  # noqa: FBT003  # a JSON value


class PodBuilder(Builder):
    """Builds a pod with one container."""

    def value(self) -> Pod:
        """Return the decoded pod. Fail if it is malformed."""
        return require_valid(decode_pod(self._raw))

    def request(self, resource: str, quantity: str | int) -> Self:
        """With a request of any resource."""
        container = deepcopy(self._raw["spec"]["containers"][0])
        container.setdefault("resources", {}).setdefault("requests", {})[resource] = str(quantity)
        return self.with_field([container, *self._raw["spec"]["containers"][1:]], "spec", "containers")

    def cpu(self, quantity: str | int) -> Self:
        """With a CPU request."""
        return self.request("cpu", quantity)

    def memory(self, quantity: str | int) -> Self:
        """With a memory request."""
        return self.request("memory", quantity)

    def node_selector(self, key: str, value: str) -> Self:
        """With a node selector."""
        return self.with_field(value, "spec", "nodeSelector", key)

    def node_affinity(self, *terms: Raw) -> Self:
        """With required node affinity by raw node selector terms, of which one must match."""
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        return self.with_field(list(terms), "spec", "affinity", "nodeAffinity", required, "nodeSelectorTerms")

    def tolerating(self, key: str = "", operator: str = "Exists", value: str = "", effect: str = "") -> Self:
        """With a toleration; without arguments, of all taints."""
        toleration = {"key": key, "operator": operator, "value": value, "effect": effect}
        return self.with_item(toleration, "spec", "tolerations")

    def host_port(self, port: int, address: str = "", protocol: str = "TCP") -> Self:
        """With a host port, on all addresses by default."""
        container = deepcopy(self._raw["spec"]["containers"][0])
        ports = container.setdefault("ports", [])
        ports.append({"containerPort": port, "hostPort": port, "protocol": protocol, "hostIP": address})
        return self.with_field([container, *self._raw["spec"]["containers"][1:]], "spec", "containers")

    def mounting(self, *claims: str) -> Self:
        """With volumes of these PersistentVolumeClaims."""
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        return self.with_field(volumes, "spec", "volumes")

    def anti_affinity(self, labels: Raw, key: str = "kubernetes.io/hostname", **fields: Any) -> Self:
        """With required anti-affinity to pods with these labels, by default in the same namespace.

        ``fields`` are more fields of the term.
        """
        term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **fields}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        return self.with_item(term, "spec", "affinity", "podAntiAffinity", required)

    def affinity(self, labels: Raw, key: str = "kubernetes.io/hostname", **fields: Any) -> Self:
        """With required affinity to pods with these labels, by default in the same namespace.

        ``fields`` are more fields of the term.
        """
        term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **fields}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        return self.with_item(term, "spec", "affinity", "podAffinity", required)

    def spread(self, labels: Raw, key: str, **fields: Any) -> Self:
        """With a required topology spread constraint of pods with these labels, by default with maxSkew 1.

        ``fields`` are more fields of the constraint.
        """
        rule = {"topologyKey": key, "labelSelector": {"matchLabels": labels}, "whenUnsatisfiable": "DoNotSchedule"}
        return self.with_item({"maxSkew": 1, **rule, **fields}, "spec", "topologySpreadConstraints")

    def priority(self, priority: int) -> Self:
        """With a priority."""
        return self.with_field(priority, "spec", "priority")

    def scheduler(self, name: str) -> Self:
        """With a schedulerName."""
        return self.with_field(name, "spec", "schedulerName")

    def gate(self, name: str = HELD_GATE) -> Self:
        """With a scheduling gate, by default Serried's."""
        return self.with_item({"name": name}, "spec", "schedulingGates")

    def on(self, node_name: str) -> Self:
        """Bound to a node."""
        return self.with_field(node_name, "spec", "nodeName")

    def nominated(self, node_name: str) -> Self:
        """With a nominated node."""
        return self.with_field(node_name, "status", "nominatedNodeName")

    def unschedulable(self, reason: str = "Unschedulable", message: str = "") -> Self:
        """With the condition PodScheduled False, which kube-scheduler writes after a failed attempt."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        return self.with_field([condition], "status", "conditions")

    def phase(self, phase: str) -> Self:
        """With a phase, which the kubelet writes."""
        return self.with_field(phase, "status", "phase")

    def ready(self, status: str = "True") -> Self:
        """With the condition Ready, which the kubelet writes."""
        return self.with_field([{"type": "Ready", "status": status}], "status", "conditions")

    def created(self, at: str) -> Self:
        """With a creation time (RFC 3339)."""
        return self.with_field(at, "metadata", "creationTimestamp")

    def started(self, at: str) -> Self:
        """With a startTime (RFC 3339), which the kubelet writes."""
        return self.with_field(at, "status", "startTime")

    def grace_period(self, seconds: int) -> Self:
        """With a grace period."""
        return self.with_field(seconds, "spec", "terminationGracePeriodSeconds")

    def active_deadline(self, seconds: int) -> Self:
        """With activeDeadlineSeconds."""
        return self.with_field(seconds, "spec", "activeDeadlineSeconds")

    def succeeded(self, at: str) -> Self:
        """Succeeded, with the end of its container at a time (RFC 3339)."""
        state = {"terminated": {"exitCode": 0, "finishedAt": at}}
        return self.phase("Succeeded").with_field([{"name": "main", "state": state}], "status", "containerStatuses")

    def kubelet_rejected(self, reason: str) -> Self:
        """Failed, because the kubelet rejected it with this reason."""
        return self.phase("Failed").with_field(reason, "status", "reason")

    def disrupted(self, reason: str = PREEMPTED, status: str = "True", at: str = "", message: str = "") -> Self:
        """With the condition DisruptionTarget, written before an eviction, at a time (RFC 3339)."""
        condition = {"type": "DisruptionTarget", "status": status, "reason": reason, "lastTransitionTime": at}
        condition["message"] = message
        return self.with_item(condition, "status", "conditions")

    def in_group(self, group: str) -> Self:
        """Member of a PodGroup by ``spec.schedulingGroup``."""
        return self.with_field(group, "spec", "schedulingGroup", "podGroupName")

    def labelled_group(self, group: str) -> Self:
        """Member of a PodGroup by Serried's label."""
        return self.label(POD_GROUP_LABEL, group)

    def in_compatible_group(self, group: str) -> Self:
        """Member of a PodGroup of scheduler-plugins."""
        return self.label(COMPATIBLE_LABEL, group)

    def in_counted_group(self, group: str, count: str) -> Self:
        """Member of a pod group of Kueue that has so many pods."""
        return self.label(KUEUE_GROUP, group).annotation(KUEUE_COUNT, count)

    def index(self, index: int) -> Self:
        """With a completion index."""
        return self.annotation(COMPLETION_INDEX, str(index))

    def in_workload(self, name: str, group: str, replica: str = "") -> Self:
        """Member of a PodGroup inside a Workload (v1alpha1), of one replica if given."""
        reference = {"name": name, "podGroup": group} | ({"podGroupReplicaKey": replica} if replica else {})
        return self.with_field(reference, "spec", "workloadRef")

    def of_job_set(self, name: str, replicated_job: str, index: int = 0, job: int = 0) -> Self:
        """Pod of a JobSet's Job, with the labels of the JobSet's controller."""
        names = PARENTS["JobSet"].labels
        labels = {names.name: name, names.uid: _uid("JobSet", name), names.stage: replicated_job, names.job: str(job)}
        made = self.of_job(f"{name}-{replicated_job}-{job}", index)
        return made.with_field({**made.raw()["metadata"]["labels"], **labels}, "metadata", "labels")

    def of_replica(self, name: str, replica: int, worker: int = 0) -> Self:
        """Pod of one replica of a LeaderWorkerSet. Worker 0 is the leader."""
        names = PARENTS["LeaderWorkerSet"].labels
        owner = self.controlled_by("StatefulSet", f"{name}-{replica}" if worker else name)
        return owner.with_field(
            {names.name: name, names.replica: str(replica), names.index: str(worker)}, "metadata", "labels"
        )

    def of_job(self, name: str, index: int, uid: str = "") -> Self:
        """Pod of an Indexed Job, with the label that the API server adds to the Job's template."""
        return self.controlled_by("Job", name, uid).label("batch.kubernetes.io/job-name", name).index(index)


class PodGroupBuilder(Builder):
    """Builds a PodGroup, with policy basic unless `gang` is called."""

    def value(self) -> PodGroup:
        """Return the decoded PodGroup. Fail if it is malformed."""
        return require_valid(decode_pod_group(self._raw))

    def gang(self, min_count: int) -> Self:
        """With policy gang."""
        return self.with_field({"gang": {"minCount": min_count}}, "spec", "schedulingPolicy")

    def topology(self, key: str = RACK) -> Self:
        """With a required topology key."""
        return self.with_field([{"key": key}], "spec", "schedulingConstraints", "topology")

    def preferring(self, *levels: Level) -> Self:
        """With preferred topology levels, the narrowest first (fallback API level only)."""
        return self.with_field(write_levels(levels), "spec", "schedulingConstraints", "preferredTopology")

    def priority(self, priority: int) -> Self:
        """With a priority."""
        return self.with_field(priority, "spec", "priority")

    def from_template(self, workload_name: str, template: str) -> Self:
        """Made from a template of a Workload."""
        reference = {"workloadName": workload_name, "templateName": template}
        return self.with_field(reference, "spec", "workloadRef")

    def child_of(self, parent: str) -> Self:
        """Below a CompositePodGroup."""
        return self.from_template("tree", "leaf").with_field(parent, "spec", "parentCompositePodGroupName")

    def replica(self, replica: int) -> Self:
        """With the label of one replica of a LeaderWorkerSet."""
        return self.label(REPLICA, str(replica))

    def disruption(self, mode: Disruption) -> Self:
        """With a disruption mode."""
        return self.with_field({mode.value: {}}, "spec", "disruptionMode")

    def finalizer(self, name: str) -> Self:
        """With a finalizer."""
        return self.with_item(name, "metadata", "finalizers")

    def preempted(self, at: str) -> Self:
        """With the condition DisruptionTarget: the whole group is preempted since a time (RFC 3339)."""
        said = {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTED, "lastTransitionTime": at}
        return self.with_item(said, "status", "conditions")

    def condition(self, status: str, reason: str, message: str = "") -> Self:
        """With the condition PodGroupInitiallyScheduled."""
        condition = {"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason, "message": message}
        return self.with_item(condition, "status", "conditions")

    def ready(self, reason: str, count: str) -> Self:
        """With the condition Ready False."""
        said = {"type": READY, "status": "False", "reason": reason, "message": count}
        return self.with_item(said, "status", "conditions")

    def first_quorum(self, since: str, lost: str = "") -> Self:
        """With the condition FirstQuorum: its place in the queue, and since when its quorum is gone, both RFC 3339."""
        said = {
            "type": FIRST_QUORUM,
            "status": "False" if lost else "True",
            "reason": "QuorumLost" if lost else "Waits",
            "message": since,
            "lastTransitionTime": lost or since,
        }
        return self.with_item(said, "status", "conditions")


class CompatibleGroupBuilder(Builder):
    """Builds a PodGroup of scheduler-plugins, without minMember unless `gang` is called."""

    def value(self) -> PodGroup:
        """Return the decoded PodGroup. Fail if it is malformed."""
        return require_valid(decode_compatible_group(self._raw))

    def gang(self, min_member: int) -> Self:
        """With minMember."""
        return self.with_field(min_member, "spec", "minMember")

    def topology(self, key: str = RACK) -> Self:
        """With Serried's annotation for a required topology key."""
        return self.annotation(REQUIRED_TOPOLOGY, key)

    def timeout(self, seconds: int) -> Self:
        """With scheduleTimeoutSeconds."""
        return self.with_field(seconds, "spec", "scheduleTimeoutSeconds")

    def phase(self, phase: str) -> Self:
        """With a phase, which the controller of scheduler-plugins writes."""
        return self.with_field(phase, "status", "phase")


class WorkloadBuilder(Builder):
    """Builds a Workload, at first without templates."""

    def value(self) -> Workload:
        """Return the decoded Workload. Fail if it is malformed."""
        return require_valid(decode_workload(self._raw))

    def for_job(self, name: str) -> Self:
        """With a controllerRef to a Job."""
        return self.with_field({"apiGroup": "batch", "kind": "Job", "name": name}, "spec", "controllerRef")

    def for_parent(self, kind: str, name: str) -> Self:
        """With a controllerRef to a JobSet or a LeaderWorkerSet."""
        reference = {"apiGroup": PARENTS[kind].group, "kind": kind, "name": name}
        return self.with_field(reference, "spec", "controllerRef")

    def gang_template(self, name: str, min_count: int, topology_key: str = "") -> Self:
        """With one more PodGroupTemplate of policy gang."""
        template: Raw = {"name": name, "schedulingPolicy": {"gang": {"minCount": min_count}}}
        if topology_key:
            template["schedulingConstraints"] = {"topology": [{"key": topology_key}]}
        return self.with_item(template, "spec", "podGroupTemplates")

    def preferring(self, *levels: Level) -> Self:
        """With preferred topology levels in the last template."""
        templates = self.raw()["spec"]["podGroupTemplates"]
        templates[-1].setdefault("schedulingConstraints", {})["preferredTopology"] = write_levels(levels)
        return self.with_field(templates, "spec", "podGroupTemplates")

    def inline_gang(self, name: str, min_count: int) -> Self:
        """With one more PodGroup of policy gang inside the Workload (v1alpha1)."""
        return self.with_item({"name": name, "policy": {"gang": {"minCount": min_count}}}, "spec", "podGroups")

    def basic_template(self, name: str) -> Self:
        """With one more PodGroupTemplate of policy basic."""
        return self.with_item({"name": name, "schedulingPolicy": {"basic": {}}}, "spec", "podGroupTemplates")


class JobBuilder(Builder):
    """Builds an Indexed Job, by default of one pod."""

    def value(self) -> Job:
        """Return the decoded Job. Fail if it is malformed."""
        return require_valid(decode_job(self._raw))

    def size(self, parallelism: int, completions: int | None = None) -> Self:
        """With a parallelism, and by default as many completions."""
        count = parallelism if completions is None else completions
        return self.with_field(parallelism, "spec", "parallelism").with_field(count, "spec", "completions")

    def not_indexed(self) -> Self:
        """With completionMode NonIndexed."""
        return self.with_field("NonIndexed", "spec", "completionMode")

    def scheduler(self, name: str) -> Self:
        """With a schedulerName in the pod template."""
        return self.with_field(name, "spec", "template", "spec", "schedulerName")

    def topology(self, key: str = RACK) -> Self:
        """With the annotation for a required topology key."""
        return self.annotation(REQUIRED_TOPOLOGY, key)

    def gang_policy(self, policy: str) -> Self:
        """With the annotation about the gang policy."""
        return self.annotation(GANG_POLICY, policy)

    def managed_by(self, controller: str) -> Self:
        """With managedBy: this controller creates the pods."""
        return self.with_field(controller, "spec", "managedBy")

    def delegated(self, template: str = "", kind: str = "TrainJob", name: str = "t") -> Self:
        """Controlled by a TrainJob or JobSet, and with the annotation that names a template of its Workload."""
        group = PARENTS["JobSet"].group if kind == "JobSet" else "trainer.kubeflow.org"
        controller = {"apiVersion": f"{group}/v1", "kind": kind, "name": name, "uid": _uid(kind, name)}
        named = self.annotation("scheduling.k8s.io/group-template-name", template)
        return named.with_item(controller | {"controller": True}, "metadata", "ownerReferences")

    def manual_selector(self) -> Self:
        """With manualSelector."""
        return self.with_field(True, "spec", "manualSelector")  # noqa: FBT003  # a JSON value

    def template_group(self, group: str) -> Self:
        """With a PodGroup in the pod template's schedulingGroup."""
        return self.with_field(group, "spec", "template", "spec", "schedulingGroup", "podGroupName")

    def suspended(self) -> Self:
        """Suspended."""
        return self.with_field(True, "spec", "suspend")  # noqa: FBT003  # a JSON value

    def started(self, at: str) -> Self:
        """With a startTime (RFC 3339): the Job was started or resumed then."""
        return self.with_field(at, "status", "startTime")

    def active_deadline(self, seconds: int) -> Self:
        """With activeDeadlineSeconds."""
        return self.with_field(seconds, "spec", "activeDeadlineSeconds")

    def running(self, image: str) -> Self:
        """With an image in the pod template."""
        return self.with_field([{"name": "main", "image": image}], "spec", "template", "spec", "containers")

    def completed_indexes(self, indexes: str) -> Self:
        """With completed indexes, like ``0,2-4``."""
        return self.with_field(indexes, "status", "completedIndexes")

    def failed_indexes(self, indexes: str) -> Self:
        """With failed indexes (backoffLimitPerIndex), like ``0,2-4``."""
        return self.with_field(indexes, "status", "failedIndexes")

    def scheduling(self, **said: Any) -> Self:
        """With ``spec.scheduling``."""
        return self.with_field(said, "spec", "scheduling")

    def condition(self, kind: str) -> Self:
        """With a condition that is True."""
        return self.with_item({"type": kind, "status": "True"}, "status", "conditions")


def node(name: str) -> NodeBuilder:
    """Build a node of 32 CPUs, 256Gi and 110 pods."""
    allocatable = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return NodeBuilder({"metadata": {"name": name, "uid": _uid("Node", name)}, "status": {"allocatable": allocatable}})


def pod(name: str) -> PodBuilder:
    """Build a pending pod of one container without requests."""
    return PodBuilder({**describe("Pod", name), "spec": {"containers": [{"name": "main"}]}})


def pod_group(name: str) -> PodGroupBuilder:
    """Build a PodGroup of policy basic."""
    return PodGroupBuilder({**describe("PodGroup", name), "spec": {"schedulingPolicy": {"basic": {}}}})


def compatible_group(name: str) -> CompatibleGroupBuilder:
    """Build a PodGroup of scheduler-plugins."""
    return CompatibleGroupBuilder({**describe("PodGroup", name), "spec": {}}).uid(f"compatible-{name}")


def workload(name: str) -> WorkloadBuilder:
    """Build a Workload without templates."""
    return WorkloadBuilder(describe("Workload", name))


def job(name: str) -> JobBuilder:
    """Build an Indexed Job of one pod."""
    spec = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "template": {"spec": {}}}
    return JobBuilder({**describe("Job", name), "spec": spec})


def describe(kind: str, name: str) -> Raw:
    """Return an object with metadata only: in the namespace "default", with a UID made from kind and name."""
    return {"metadata": {"namespace": "default", "name": name, "uid": _uid(kind, name)}}


def _uid(kind: str, name: str) -> str:
    return f"{kind.lower()}-{name}"


def _put(raw: Raw, path: tuple[str, ...], value: Any) -> Raw:
    if len(path) == 1:
        return {**raw, path[0]: value}
    return {**raw, path[0]: _put(raw.get(path[0]) or {}, path[1:], value)}


def require_valid(value: Value | Malformed) -> Value:
    """Return a decoded object. Fail if it is malformed."""
    assert not isinstance(value, Malformed), value
    return value
