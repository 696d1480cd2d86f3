"""Events after which kube-scheduler retries a pod (EventsToRegister, 1.37.1), and a test case for each.

A story has a gang that waits by what the plugin is about, and a change after which it fits. The events that concern no
gang, or that Serried does not follow, are in `NO_CASE` with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from serried.api.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from serried.api.names import Key
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.rule import KindState
from tests.support.builders import RACK, Builder, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.composites import CompositeBuilder, composite
from tests.support.devices import claim, claiming, device_class, devices, taint_rule
from tests.support.extender_harness import SCHEDULER, Harness
from tests.support.volumes import csi_driver, csi_node, storage_capacity, storage_class, volume, volume_claim

ZONE = "topology.kubernetes.io/zone"
GPU = "example.com/gpu"
DISK = "disk.example.com"
HERE = {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["r0"]}]}
RESTARTS = "RestartAllContainersOnContainerExits"

Step = Callable[[Harness], object]


class Event(NamedTuple):
    """An event that a plugin registers: the plugin's folder, the resource and one action type."""

    plugin: str
    resource: str
    action: str


@dataclass(frozen=True)
class EventCase:
    """A test case: a gang is pending in the cluster that ``build`` creates, and fits after ``change``.

    ``events`` are the events of kube-scheduler that the change causes.
    """

    sentence: str
    build: Step
    change: Step
    events: tuple[Event, ...] = ()


_KINDS = (
    *(VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode),
    *(DeviceClass, ResourceSlice, ResourceClaim, DeviceTaintRule),
)
_ADDED = (NodeBuilder, PodBuilder, PodGroupBuilder, CompositeBuilder)


def report(*builders: Builder) -> Step:
    """Let the watches report these objects as created or changed."""

    def step(world: Harness) -> None:
        for builder in builders:
            if isinstance(builder, _ADDED):
                world.add(builder)
            else:
                world.store.put_object(builder.value())  # type: ignore[attr-defined]

    return step


def add_waiting_gang(*builders: Builder, member: PodBuilder | None = None) -> Step:
    """Add these objects and a gang of one member, with all kinds synced."""

    def build(world: Harness) -> None:
        for kind in _KINDS:
            world.store.note_state(kind, KindState.KNOWN)
        report(*builders)(world)
        world.add(pod_group("g").gang(1), member or make_member())

    return build


def make_member() -> PodBuilder:
    """Build the gang's first member, m0."""
    return pod("m0").cpu(1).scheduler(SCHEDULER).in_group("g").label("app", "w")


def second_member(name: str = "m1") -> PodBuilder:
    """Build a second member of the gang."""
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group("g")


def delete(name: str) -> Step:
    """Delete a pod."""
    return lambda world: world.delete(name)


def delete_object(kind: type, key: Key | str) -> Step:
    """Delete an object of this kind and key from the Store."""
    return lambda world: world.store.drop_object(kind, key)


def edit(name: str, change: Callable[[PodBuilder], PodBuilder]) -> Step:
    """Change a pod."""

    def step(world: Harness) -> None:
        key = world.pod_key(name)
        world.api.pods[key] = change(PodBuilder(world.api.pods[key])).raw()
        world.sync_pods()

    return step


def relabel(name: str, value: str) -> Step:
    """Change the label ``app`` of a pod."""
    return edit(name, lambda each: each.label("app", value))


def resize(name: str, cpus: int) -> Step:
    """Change the CPU request of a pod."""
    return edit(name, lambda each: each.cpu(cpus))


# --- what is there at the beginning -----------------------------------------------------------------------------------


def spread(**fields: Any) -> Step:
    """Add a member with a spread rule, two zones with a counted pod each, and a third zone that is full."""
    nodes = [node(name).cpu(cpus).label(ZONE, name) for name, cpus in (("a", 4), ("b", 4), ("c", 1))]
    counted = [pod(f"x-{name}").label("app", "w").cpu(1).on(name) for name in "ab"]
    full = pod("full").cpu(1).on("c")
    return add_waiting_gang(*nodes, *counted, full, member=make_member().spread({"app": "w"}, ZONE, **fields))


ANTI_AFFINITY = add_waiting_gang(
    *(node(name).cpu(1).rack("r0") for name in ("r0a", "r0b")),
    pod("noise").label("app", "noise").cpu(1).on("r0a"),
    member=make_member().anti_affinity({"app": "noise"}, RACK),
)
"""The member has anti-affinity to a pod on the full node of the only rack, so the rack's free node is not feasible."""

FOREIGN_ANTI_AFFINITY = add_waiting_gang(
    *(node(name).cpu(1).rack("r0") for name in ("r0a", "r0b")),
    pod("lonely").anti_affinity({"app": "w"}, RACK).cpu(1).on("r0a"),
)
"""A running pod has anti-affinity, by rack, to the gang's member. So the rack's free node is not feasible."""

AFFINITY = add_waiting_gang(
    *(node("r0a").cpu(1).rack("r0"), node("r1a").cpu(1).rack("r1")),
    *(pod("cache").label("app", "cache").cpu(1).on("r0a"), pod("cousin").label("app", "other").on("r1a")),
    member=make_member().affinity({"app": "cache"}, RACK),
)
"""The member has affinity, by rack, to the pod ``cache``, whose rack is full."""


def move_to(rack: str) -> Step:
    """Move the node of the pod ``cache`` (see AFFINITY) to another rack."""
    return report(node("r0a").cpu(1).rack(rack).version("2"))


FULL = add_waiting_gang(node("a").cpu(1), pod("full").cpu(1).on("a"))
TAINTED = add_waiting_gang(node("a").cpu(1).taint("x"))
CORDONED = add_waiting_gang(node("a").cpu(1).cordoned())


def add_gang_that_lacks_one_cpu(world: Harness) -> None:
    """Add a gang of two: each member fits on the only node alone, but together they lack one CPU."""
    add_waiting_gang(node("a").cpu(4), pod("full").cpu(1).on("a"), member=make_member().cpu(1).host_port(8080))(world)
    world.add(pod_group("g").gang(2), second_member().cpu(3))


AFFINE = add_waiting_gang(node("a").cpu(1).rack("r9"), member=make_member().node_affinity(HERE))
PORT_TAKEN = add_waiting_gang(
    node("a").cpu(4), pod("web").host_port(8080).priority(1000).on("a"), member=make_member().host_port(8080)
)
MOUNTING = make_member().mounting("c")
PLACES = (node("a").cpu(1).label(ZONE, "a"), node("b").cpu(1).label(ZONE, "b"))
LOCAL = (volume("v").local_to("z").available("static"), storage_class("static"))


def add_unbound_claim(*builders: Builder, of: str) -> Step:
    """Add two nodes, ``builders``, and a member that mounts an unbound claim of the StorageClass ``of``."""
    return add_waiting_gang(*PLACES, *builders, volume_claim("c").requesting(of), member=MOUNTING)


NO_CLASS = add_unbound_claim(of="plain")
NOT_ALLOWED = add_unbound_claim(storage_class("plain", DISK).allowed_topology(ZONE, "z"), of="plain")
NO_CAPACITY = add_unbound_claim(storage_class("plain", DISK), csi_driver(DISK), of="plain")
NO_VOLUME = add_unbound_claim(storage_class("static"), of="static")
NOT_INSTALLED = add_waiting_gang(
    *PLACES,
    *(storage_class("plain", DISK), csi_driver(DISK).with_field(False, "spec", "storageCapacity")),  # noqa: FBT003
    *(volume_claim("c").requesting("plain"), csi_node("a", other=1)),
    member=MOUNTING,
)
BOUND = volume_claim("c").bound_to("v")


def add_gang_that_lacks_one_volume(world: Harness) -> None:
    """Add a gang of two: each member mounts a claim, but only one volume exists."""
    add_waiting_gang(
        node("a").cpu(4).label("kubernetes.io/hostname", "a"),
        *(storage_class("static"), volume("v").local_to("a").available("static")),
        *(volume_claim(name).requesting("static") for name in "cd"),
        member=MOUNTING,
    )(world)
    world.add(pod_group("g").gang(2), second_member().mounting("d"))


ZONED = add_waiting_gang(
    node("a").cpu(1).label(ZONE, "a"), volume("v").label(ZONE, "z"), volume_claim("c").bound_to("v"), member=MOUNTING
)
"""The volume of the member's claim is in a zone without nodes."""

ATTACHED = (
    *(volume(name).with_field({"driver": DISK, "volumeHandle": name}, "spec", "csi") for name in ("v", "w")),
    *(volume_claim("c").bound_to("v"), volume_claim("d").bound_to("w")),
)
AT_LIMIT = add_waiting_gang(
    node("a").cpu(4), csi_node("a", disk=1), *ATTACHED, pod("user").mounting("d").on("a"), member=MOUNTING
)
ONCE = add_waiting_gang(
    node("a").cpu(4),
    *(
        volume("v"),
        volume_claim("c").bound_to("v").read_write_once_pod(),
        pod("user").mounting("c").priority(1000).on("a"),
    ),
    member=MOUNTING,
)

CLAIMING = make_member().with_field(claiming("c"), "spec", "resourceClaims")
CLASS = device_class("gpu")


def add_claiming_gang(*builders: Builder, member: PodBuilder = CLAIMING) -> Step:
    """Add a node, ``builders``, and a gang of one member that uses a ResourceClaim."""
    return add_waiting_gang(node("a").cpu(4), *builders, member=member)


HELD = add_claiming_gang(CLASS, devices("a", 1), claim("c", 1), claim("other", 1).allocated("a", "gpu-0"))
NO_DEVICE = add_claiming_gang(CLASS, claim("c", 1))
PROVIDED = make_member().request(GPU, 1)
NOT_PROVIDED = add_claiming_gang(CLASS, devices("a", 1), member=PROVIDED)
GENERATED = make_member().with_field([{"name": "r", "resourceClaimTemplateName": "t"}], "spec", "resourceClaims")

RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}


def with_restart_rules(made: PodBuilder, *rules: dict[str, Any]) -> PodBuilder:
    """Return the pod with these container restart rules."""
    (container,) = made.raw()["spec"]["containers"]
    return made.with_field([{**container, "restartPolicyRules": list(rules)}], "spec", "containers")


def node_with_features(name: str, *features: str) -> NodeBuilder:
    """Build a node that declares these features in its status."""
    return node(name).cpu(1).with_field(list(features), "status", "declaredFeatures")


UNDECLARED = add_waiting_gang(node_with_features("a", "Other"), member=with_restart_rules(make_member(), RULE))


def add_members(*first: Builder) -> Step:
    """Add a node and ``first``: members of a gang that needs two."""

    def build(world: Harness) -> None:
        world.add(node("a").cpu(4), *first)

    return build


def _list_events(plugin: str, resource: str, *actions: str) -> tuple[Event, ...]:
    return tuple(Event(plugin, resource, action) for action in actions)


def _case(plugin: str, resource: str, action: str, sentence: str, build: Step, change: Step) -> EventCase:
    return EventCase(f"{plugin}: {sentence}", build, change, _list_events(plugin, resource, action))


_ROOM = [
    _case("noderesources", "AssignedPod", "Delete", "a pod goes", FULL, delete("full")),
    _case("noderesources", "Node", "Add", "a node comes", FULL, report(node("b").cpu(1))),
    _case("noderesources", "Node", "UpdateNodeAllocatable", "a node grows", FULL,
          report(node("a").cpu(2).version("2"))),
    _case("noderesources", "AssignedPod", "UpdatePodScaleDown", "a pod asks for less", FULL, resize("full", 0)),
    _case("noderesources", "TargetPod", "UpdatePodScaleDown", "the member asks for less",
           add_waiting_gang(node("a").cpu(1), member=make_member().cpu(2)), resize("m0", 1)),
    _case("noderesources", "DeviceClass", "Add", "a class comes that provides the resource",
           NOT_PROVIDED, report(device_class("other").extended_resource(GPU))),
    _case("noderesources", "DeviceClass", "Update", "a class provides the resource by now",
           NOT_PROVIDED, report(CLASS.extended_resource(GPU))),
    _case("nodeunschedulable", "Node", "Add", "another node comes", CORDONED, report(node("b").cpu(1))),
    _case("nodeunschedulable", "Node", "UpdateNodeTaint", "the node is opened",
           CORDONED, report(node("a").cpu(1).version("2"))),
    _case("nodeunschedulable", "TargetPod", "UpdatePodToleration", "the member tolerates it",
           CORDONED, edit("m0", lambda each: each.tolerating("node.kubernetes.io/unschedulable"))),
    _case("tainttoleration", "Node", "Add", "another node comes", TAINTED, report(node("b").cpu(1))),
    _case("tainttoleration", "Node", "UpdateNodeTaint", "the taint goes",
           TAINTED, report(node("a").cpu(1).version("2"))),
    _case("tainttoleration", "TargetPod", "UpdatePodToleration", "the member tolerates it",
           TAINTED, edit("m0", lambda each: each.tolerating("x"))),
    _case("nodeaffinity", "Node", "Add", "a node of the rack comes", AFFINE, report(node("b").cpu(1).rack("r0"))),
    _case("nodeaffinity", "Node", "UpdateNodeLabel", "the node gets into the rack",
           AFFINE, report(node("a").cpu(1).rack("r0").version("2"))),
    _case("nodeports", "AssignedPod", "Delete", "the pod with the port goes", PORT_TAKEN, delete("web")),
    _case("nodeports", "Node", "Add", "a node comes where the port is free", PORT_TAKEN, report(node("b").cpu(1))),
    EventCase("members of two kinds fit on one node, where neither has a slot more than before",
              add_gang_that_lacks_one_cpu,
          delete("full")),
]  # fmt: skip

_NEIGHBOURS = [
    _case("podtopologyspread", "Node", "Delete", "the node of the empty zone goes",
           spread(), lambda world: world.store.drop_node("c")),
    _case("podtopologyspread", "Node", "UpdateNodeTaint", "it is tainted, and that counts",
           spread(nodeTaintsPolicy="Honor"), report(node("c").cpu(1).label(ZONE, "c").taint("x").version("2"))),
    _case("podtopologyspread", "Node", "UpdateNodeLabel", "it gets another zone",
           spread(), report(node("c").cpu(1).label(ZONE, "a").version("2"))),
    _case("podtopologyspread", "Node", "Add", "another node of the empty zone comes",
           spread(), report(node("d").cpu(1).label(ZONE, "c"))),
    _case("podtopologyspread", "AssignedPod", "Delete", "a pod that counts goes", spread(), delete("x-a")),
    _case("podtopologyspread", "AssignedPod", "Add", "a pod that counts comes to the empty zone",
           spread(), report(pod("x-c").label("app", "w").on("c"))),
    EventCase("a pod that counts begins to end", spread(), edit("x-a", lambda each: each.deleting())),
    _case("podtopologyspread", "AssignedPod", "UpdatePodLabel", "a pod that counts gets another label",
           spread(), relabel("x-a", "z")),
    _case("podtopologyspread", "TargetPod", "UpdatePodLabel", "the member does not count itself any more",
           spread(maxSkew=1), relabel("m0", "z")),
    _case("podtopologyspread", "TargetPod", "UpdatePodToleration", "the member goes where the taint was",
           add_waiting_gang(node("a").cpu(4).label(ZONE, "a"), node("c").cpu(4).label(ZONE, "c").taint("x"),
                   pod("x-a").label("app", "w").on("a"), member=make_member().spread({"app": "w"}, ZONE)),
           edit("m0", lambda each: each.tolerating("x"))),
    _case("interpodaffinity", "Node", "UpdateNodeLabel", "the node of the pod in the way gets another rack",
           ANTI_AFFINITY, move_to("r9")),
    _case("interpodaffinity", "AssignedPod", "UpdatePodLabel", "the pod in the way gets another label",
           ANTI_AFFINITY, relabel("noise", "quiet")),
    _case("interpodaffinity", "AssignedPod", "Delete", "the pod in the way goes", ANTI_AFFINITY, delete("noise")),
    _case("interpodaffinity", "Node", "Add", "a node of another rack comes", ANTI_AFFINITY,
          report(node("b").cpu(1).rack("r1"))),
    _case("interpodaffinity", "TargetPod", "UpdatePodLabel", "the member has another label than is kept off",
           FOREIGN_ANTI_AFFINITY, relabel("m0", "z")),
    EventCase("the pod in the way, which has the same rule, goes",
          add_waiting_gang(*(node(name).cpu(1).rack("r0") for name in ("r0a", "r0b")), pod("full").cpu(1).on("r0a"),
                  pod("twin").label("app", "noise").anti_affinity({"app": "noise"}, RACK).on("r0a"),
                  member=make_member().anti_affinity({"app": "noise"}, RACK)),
          delete("twin")),
    EventCase("the pod goes that shares its node with no pod of the label that the member has",
          add_waiting_gang(node("a").cpu(4).label("kubernetes.io/hostname", "a"),
                  pod("alone").label("app", "w").anti_affinity({"app": "w"}).priority(1000).on("a")),
          delete("alone")),
    EventCase("another cache comes, which has to be beside caches, too",
          AFFINITY, report(pod("cache2").label("app", "cache").affinity({"app": "cache"}, RACK).on("r1a"))),
    EventCase("a pod that is spread by the same rule comes to the empty zone",
          spread(), report(pod("x-c").label("app", "w").spread({"app": "w"}, ZONE).on("c"))),
    EventCase("the node of a pod that keeps others off gets another rack", FOREIGN_ANTI_AFFINITY, move_to("r9")),
    EventCase("the node of the cache gets the rack of a free one", AFFINITY, move_to("r1")),
    EventCase("a pod in the free rack gets the label of the cache", AFFINITY, relabel("cousin", "cache")),
    _case("interpodaffinity", "AssignedPod", "Add", "another cache comes",
           AFFINITY, report(pod("cache2").label("app", "cache").on("r1a"))),
]  # fmt: skip

_VOLUMES = [
    _case("volumebinding", "StorageClass", "Add", "the class comes", NO_CLASS, report(storage_class("plain", DISK))),
    _case("volumebinding", "StorageClass", "Update", "the class allows a zone that there is",
           NOT_ALLOWED, report(storage_class("plain", DISK).allowed_topology(ZONE, "b"))),
    _case("volumebinding", "PersistentVolumeClaim", "Add", "the claim comes",
           add_waiting_gang(*PLACES, volume("v"), member=MOUNTING), report(BOUND)),
    _case("volumebinding", "PersistentVolumeClaim", "Update", "the claim is bound",
           add_waiting_gang(*PLACES, volume("v"), storage_class("plain", DISK).immediate(),
                   volume_claim("c").requesting("plain"),
                   member=MOUNTING),
           report(volume_claim("c").requesting("plain").bound_to("v"))),
    _case("volumebinding", "PersistentVolume", "Add", "a volume comes",
           NO_VOLUME, report(volume("v").available("static"))),
    EventCase("as many volumes are there as members, all in one place", add_gang_that_lacks_one_volume,
          report(volume("w").local_to("a").available("static"))),
    _case("volumebinding", "PersistentVolume", "Update", "a volume becomes free",
           add_unbound_claim(storage_class("static"),
                             volume("v").available("static").with_field("Released", "status", "phase"),
                   of="static"),
           report(volume("v").available("static"))),
    _case("volumebinding", "Node", "Add", "the node of the volume comes",
           add_unbound_claim(*LOCAL, of="static"), report(node("z").cpu(1).label("kubernetes.io/hostname", "z"))),
    _case("volumebinding", "Node", "UpdateNodeLabel", "a node gets what the volume wants",
           add_unbound_claim(*LOCAL, of="static"),
           report(node("a").cpu(1).label("kubernetes.io/hostname", "z").version("2"))),
    _case("volumebinding", "CSINode", "Add", "the driver that has to be there is installed on a node",
           add_waiting_gang(*PLACES, storage_class("plain", DISK),
                   csi_driver(DISK).with_field({"preventPodSchedulingIfMissing": True}, "spec"),
                   volume_claim("c").requesting("plain"), member=MOUNTING),
           report(csi_node("a", disk=9))),
    _case("volumebinding", "CSINode", "Update", "it is added to those of a node",
           add_waiting_gang(*PLACES, storage_class("plain", DISK),
                   csi_driver(DISK).with_field({"preventPodSchedulingIfMissing": True}, "spec"),
                   *(csi_node(name, other=1) for name in "ab"),
                   volume_claim("c").requesting("plain"), member=MOUNTING),
           report(csi_node("a", disk=9))),
    _case("volumebinding", "CSIDriver", "Update", "the driver does not tell its capacity any more",
           NO_CAPACITY, report(csi_driver(DISK).with_field({"storageCapacity": False}, "spec"))),
    _case("volumebinding", "CSIStorageCapacity", "Add", "capacity comes",
           NO_CAPACITY, report(storage_capacity("s", "plain", "4Gi"))),
    _case("volumebinding", "CSIStorageCapacity", "Update", "there is more capacity",
           add_unbound_claim(storage_class("plain", DISK), csi_driver(DISK), storage_capacity("s", "plain", "1Mi"),
                             of="plain"),
           report(storage_capacity("s", "plain", "4Gi"))),
    _case("volumezone", "StorageClass", "Add", "the class comes that waits for its consumer",
           NO_CLASS, report(storage_class("plain", DISK).allowed_topology(ZONE, "a"))),
    _case("volumezone", "Node", "Add", "a node of the zone comes", ZONED, report(node("z").cpu(1).label(ZONE, "z"))),
    _case("volumezone", "Node", "UpdateNodeLabel", "a node gets into the zone",
           ZONED, report(node("a").cpu(1).label(ZONE, "z").version("2"))),
    _case("volumezone", "PersistentVolumeClaim", "Add", "the claim of the zone comes",
           add_waiting_gang(*PLACES, volume("v").label(ZONE, "a"), member=MOUNTING), report(BOUND)),
    _case("volumezone", "PersistentVolumeClaim", "Update", "the claim is bound to a volume of another zone",
           add_waiting_gang(*PLACES, volume("v").label(ZONE, "z"), volume("w").label(ZONE, "a"), BOUND,
                            member=MOUNTING),
           report(volume_claim("c").bound_to("w"))),
    _case("volumezone", "PersistentVolume", "Add", "the volume of the claim comes",
           add_waiting_gang(*PLACES, BOUND, member=MOUNTING), report(volume("v").label(ZONE, "a"))),
    _case("volumezone", "PersistentVolume", "Update", "the volume gets another zone",
           ZONED, report(volume("v").label(ZONE, "a"))),
    _case("volumerestrictions", "AssignedPod", "Delete", "the pod goes that has the claim for itself",
           ONCE, delete("user")),
    _case("volumerestrictions", "Node", "Add", "a node comes",
           add_waiting_gang(node("a").cpu(1), pod("full").cpu(1).on("a"), volume("v"), BOUND.read_write_once_pod(),
                   member=MOUNTING),
           report(node("b").cpu(1))),
    _case("volumerestrictions", "PersistentVolumeClaim", "Add", "the claim comes that is one pod's",
           add_waiting_gang(*PLACES, volume("v"), member=MOUNTING), report(BOUND.read_write_once_pod())),
    _case("nodevolumelimits", "CSINode", "Add", "a node with the driver comes to be known",
           add_waiting_gang(node("a").cpu(4), node("b").cpu(4), csi_node("a", disk=0), *ATTACHED,
                   csi_driver(DISK).with_field({"preventPodSchedulingIfMissing": True}, "spec"), member=MOUNTING),
           report(csi_node("b", disk=1))),
    _case("nodevolumelimits", "CSINode", "Update", "the node takes one more", AT_LIMIT, report(csi_node("a", disk=2))),
    _case("nodevolumelimits", "AssignedPod", "Delete", "the pod with the last one goes", AT_LIMIT, delete("user")),
    _case("nodevolumelimits", "PersistentVolumeClaim", "Add", "the claim comes",
           add_waiting_gang(node("a").cpu(4), csi_node("a", disk=1), ATTACHED[0], member=MOUNTING), report(BOUND)),
]  # fmt: skip

_DEVICES = [
    _case("dynamicresources", "Node", "Add", "the node of the devices comes",
           add_claiming_gang(CLASS, claim("c", 1), devices("b", 1)), report(node("b").cpu(1))),
    _case("dynamicresources", "Node", "UpdateNodeLabel", "a node gets the label by which devices are reached",
           add_claiming_gang(CLASS, claim("c", 1),
                             devices("z", 1).nodes_field(nodeSelector={"nodeSelectorTerms": [HERE]})),
           report(node("a").cpu(4).rack("r0").version("2"))),
    _case("dynamicresources", "Node", "UpdateNodeAllocatable", "a node shows the resource itself by now",
           add_claiming_gang(CLASS.extended_resource(GPU), member=PROVIDED),
           report(node("a").cpu(4).allocatable(GPU, 1).version("2"))),
    _case("dynamicresources", "ResourceClaim", "Add", "the claim comes",
           add_claiming_gang(CLASS, devices("a", 1)), report(claim("c", 1))),
    _case("dynamicresources", "ResourceClaim", "Update", "another claim gives its device back",
           HELD, report(claim("other", 1))),
    _case("dynamicresources", "ResourceClaim", "Delete", "the claim that holds the device goes",
           HELD, delete_object(ResourceClaim, Key("default", "other"))),
    _case("dynamicresources", "TargetPod", "UpdatePodGeneratedResourceClaim", "the claim of the member is made",
           add_claiming_gang(CLASS, devices("a", 1), claim("m0-r", 1), member=GENERATED),
           edit("m0", lambda each: each.with_field(
               [{"name": "r", "resourceClaimName": "m0-r"}], "status", "resourceClaimStatuses"))),
    _case("dynamicresources", "DeviceClass", "Add", "the class comes",
           add_claiming_gang(devices("a", 1), claim("c", 1)), report(CLASS)),
    _case("dynamicresources", "DeviceClass", "Update", "the class means the devices by now",
           add_claiming_gang(CLASS.cel_selectors("false"), devices("a", 1), claim("c", 1)), report(CLASS)),
    _case("dynamicresources", "ResourceSlice", "Add", "devices come", NO_DEVICE, report(devices("a", 1))),
    _case("dynamicresources", "ResourceSlice", "Update", "there is one device more",
           add_claiming_gang(CLASS, claim("c", 2), devices("a", 1)), report(devices("a", 2))),
    EventCase("the rule goes that keeps claims off the devices",
          add_claiming_gang(CLASS, claim("c", 1), devices("a", 1), taint_rule("t", driver="gpu.example.com")),
          delete_object(DeviceTaintRule, "t")),
    _case("nodedeclaredfeatures", "Node", "Add", "a node comes that declares it",
           UNDECLARED, report(node_with_features("b", RESTARTS))),
    _case("nodedeclaredfeatures", "Node", "UpdateNodeDeclaredFeature", "a node declares it by now",
           UNDECLARED, report(node_with_features("a", RESTARTS).version("2"))),
    EventCase("the last node goes that declares anything, so nobody asks any more",
          add_waiting_gang(node_with_features("a", "Other"), node("b").cpu(1),
                           member=with_restart_rules(make_member(), RULE)),
          lambda world: world.store.drop_node("a")),
    _case("nodedeclaredfeatures", "TargetPod", "Update", "the member does not need it any more",
           UNDECLARED, edit("m0", with_restart_rules)),
]  # fmt: skip

_GANGS = [
    _case("gangscheduling", "UnscheduledPod", "Add", "the second member comes",
           add_members(pod_group("g").gang(2), make_member()), report(second_member())),
    _case("gangscheduling", "AssignedPod", "Add", "a second member comes that has its node",
           add_members(pod_group("g").gang(2), make_member()), report(second_member().on("a"))),
    _case("gangscheduling", "PodGroup", "Add", "the PodGroup comes",
           add_members(make_member()), report(pod_group("g").gang(1))),
    _case("gangscheduling", "PodGroup", "Update", "one member is enough by now",
           add_members(pod_group("g").gang(2), make_member()), report(pod_group("g").gang(1))),
    _case("schedulinggates", "TargetPod", "UpdatePodSchedulingGatesEliminated", "the gate of the member goes",
           add_members(pod_group("g").gang(1), make_member().gate("example.com/quota")),
           edit("m0", lambda each: each.with_field([], "spec", "schedulingGates"))),
]  # fmt: skip

EVENT_CASES = [*_ROOM, *_NEIGHBOURS, *_VOLUMES, *_DEVICES, *_GANGS]

TREE = EventCase(
    "gangscheduling: the CompositePodGroup comes",
    add_members(pod_group("g").gang(1).child_of("root"), make_member()),
    report(composite("root").gang(1)),
    _list_events("gangscheduling", "CompositePodGroup", "Add"),
)
"""Test cases like EVENT_CASES, in which the planned gang is the tree of the group ``root``."""

NO_CASE = {
    Event("nodename", "Node", "Add"): "a pod that names its node does not wait for one",
    Event("nodevolumelimits", "VolumeAttachment", "Delete"): "VolumeAttachments are not watched (decision 40)",
    Event("defaultpreemption", "AssignedPod", "Delete"): "members have no candidates of kube-scheduler's preemption",
    **dict.fromkeys(
        (
            *_list_events("deferredpodscheduling", "Node", "UpdateNodePreemptionPolicy", "Add"),
            *_list_events("noderesources", "AssignedPod", "UpdatePodScaleUp"),
            *_list_events("noderesources", "TargetPod", "UpdatePodScaleUp"),
        ),
        "the gate InPlacePodVerticalScalingSchedulerPreemption is off by default, and these pods have their nodes",
    ),
}
"""The events without a test case, and the reason for each."""
